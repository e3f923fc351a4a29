"""The report of `seq2seq inspect`: a run's model, its parameters and costs, its vocabulary."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from seq2seq_cli.config.metrics import Metric
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.console import printable
from seq2seq_cli.data.statistics import TextStatistics
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.extras.inspect.costs import (
    TRAINING_FACTOR,
    Flops,
    Memory,
    count_flops,
    measure_memory,
)
from seq2seq_cli.extras.inspect.parameters import Parameters, count_parts
from seq2seq_cli.extras.inspect.vocabulary_report import Vocabularies, read_vocabularies
from seq2seq_cli.model.model_scores import ModelScores, read_model_scores
from seq2seq_cli.model.transformer import build_model
from seq2seq_cli.model.weights import freeze
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import Tokenizers

_LABEL = 22  # columns
_LENGTH = 25  # tokens of a sentence, if the run does not know its training text


def read_progress(run: RunFolder) -> int | None:
    """Return the last logged or saved step; None if none is known.

    Raises UserError if metrics.jsonl is damaged.
    """
    steps = [p["step"] for p in run.metrics_points() if isinstance(p.get("step"), int)]
    return max([*steps, *run.all_checkpoints()], default=None)


@dataclass(frozen=True)
class ModelReport:
    """What is known of a model without its weights."""

    config: ModelConfig
    parameters: Parameters
    flops: Flops
    memory: Memory
    lengths: tuple[int, int]  # source and target tokens of a sentence, EOS included
    is_median: bool  # whether the lengths are the medians of the training text
    vocabularies: Vocabularies

    def report(self) -> dict[str, Any]:
        """Return the report for JSON."""
        source, target = self.lengths
        return {
            "model": self.config.model_dump(),
            "parameters": self.parameters.report(),
            "flops": {
                **asdict(self.flops),
                "source_length": source,
                "target_length": target,
                "forward": self.flops.forward(source, target),
                "training": self.flops.training(source, target),
            },
            "memory": {**asdict(self.memory), "cache": self.memory.cache(source, target)},
            "vocabulary": self.vocabularies.report(),
        }

    def paragraphs(self) -> list[list[tuple[str, str]]]:
        """Return the labels and texts of the rows, by paragraph."""
        costs = [*self._flops_rows(), *self._memory_rows()]
        return [self.parameters.rows(), costs, self.vocabularies.rows()]

    def _flops_rows(self) -> list[tuple[str, str]]:
        flops, (source, target) = self.flops, self.lengths
        lengths = f"{source} source and {target} target tokens with EOS"
        lengths += ", the medians of the training text" * self.is_median
        return [
            ("FLOPs", "of the matrix products; a multiply-add counts as two"),
            (
                "  per source token",
                f"{flops.source_token:,} + {flops.source_token_by_source_length:,} × source length",
            ),
            (
                "  per target token",
                f"{flops.target_token:,} + {flops.target_token_by_target_length:,} × target length "
                f"+ {flops.target_token_by_source_length:,} × source length",
            ),
            (
                "  per sentence pair",
                f"{flops.forward(source, target):,} forward, {flops.training(source, target):,} "
                f"in training ({TRAINING_FACTOR} ×)",
            ),
            ("", f"({lengths})"),
        ]

    def _memory_rows(self) -> list[tuple[str, str]]:
        memory, (source, target) = self.memory, self.lengths
        return [
            ("memory", "of the tensors alone"),
            (
                "  weights",
                f"{_size(memory.weights_fp32)} in fp32, {_size(memory.weights_bf16)} in bf16, "
                f"{_size(memory.weights_int8)} in int8",
            ),
            ("  training", f"{_size(memory.training)}: weights, gradients, optimizer state"),
            (
                "  KV cache",
                f"{memory.cache_per_source_token:,} bytes per source token, "
                f"{memory.cache_per_target_token:,} per target token; "
                f"{_size(memory.cache(source, target))} for {source} and {target} tokens",
            ),
        ]


def _size(num_bytes: int) -> str:
    if num_bytes < 1_000_000:
        return f"{num_bytes / 1_000:,.1f} kB"
    return f"{num_bytes / 1_000_000:,.1f} MB"


def report_model(
    tokenizers: Tokenizers, config: Config, statistics: TextStatistics | None
) -> ModelReport:
    """Report on a model from its sizes, without its weights."""
    with torch.device("meta"):
        model = build_model(config.model, tokenizers)
    freeze(model, config.training.freeze)
    lengths = (_LENGTH, _LENGTH)
    if statistics is not None:
        lengths = (statistics.src_tokens.p50 + 1, statistics.tgt_tokens.p50 + 1)
    return ModelReport(
        config=config.model,
        parameters=count_parts(model),
        flops=count_flops(config.model, len(tokenizers.tgt)),
        memory=measure_memory(model, config.model, config.training),
        lengths=lengths,
        is_median=statistics is not None,
        vocabularies=read_vocabularies(
            tokenizers,
            config.tokenizer.with_symbols(config.train_text.tags).user_defined_symbols,
        ),
    )


@dataclass(frozen=True)
class RunReport:
    """A run: its model, how far it was trained, and the validation scores of these weights."""

    folder: str
    which: str  # best, last, or a step
    num_steps: int | None  # of the run
    metric: Metric  # of the run
    validation: ModelScores | None
    model: ModelReport

    def report(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "folder": self.folder,
            "weights": self.which,
            "trained": None if self.num_steps is None else {"steps": self.num_steps},
            "validation": None if self.validation is None else self.validation._asdict(),
            **self.model.report(),
        }

    def as_text(self) -> str:
        """Return the output of `inspect`."""
        shape = self.model.config
        rows = [
            ("run", f"{self.folder} ({_which(self.which)})"),
            (
                "model",
                f"{shape.layers.encoder}+{shape.layers.decoder} layers, d_model {shape.d_model}, "
                f"d_ff {shape.d_ff}, {shape.heads} heads of {shape.d_model // shape.heads}, "
                f"attention scale {shape.attention_scale}, {shape.norm}-norm, {shape.activation}, "
                f"dropout {shape.dropout:g}",
            ),
            ("trained", self._trained()),
        ]
        return "\n\n".join(
            "\n".join(f"{label:<{_LABEL}}{printable(text)}" for label, text in paragraph)
            for paragraph in (rows, *self.model.paragraphs())
        )

    def _trained(self) -> str:
        steps = "not known: the run has no metrics.jsonl"
        if self.num_steps is not None:
            steps = f"{self.num_steps:,} update{'s' * (self.num_steps != 1)}"
        if self.validation is None or self.metric not in self.validation.scores:
            return steps
        score = f"{self.metric} {self.validation.scores[self.metric]:.3f}"
        return f"{steps}; this model: {score} ({self.validation.model})"


def _which(which: str) -> str:
    if which.isdigit():
        return f"model of step {int(which):,}"
    return f"{which} model" if which in ("best", "last") else which


def report_run(run: RunFolder, translator: Translator, which: str) -> RunReport:
    """Report on a loaded run; raises UserError if its log of metrics is damaged."""
    config = translator.config
    model = report_model(translator.tokenizers, config, translator.statistics)
    metric, scores = config.validation.metric, read_model_scores(run.weights(which))
    return RunReport(str(run.path), which, read_progress(run), metric, scores, model)
