"""The report of `seq2seq inspect`: a run's model, its parameters and costs, its vocabulary."""

from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from seq2seq_cli.config.metrics import Metric
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.console import counted, printable
from seq2seq_cli.data.statistics import TextStatistics
from seq2seq_cli.decoding.default_search import DefaultSearch, read_default_search
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.extras.inspect import costs
from seq2seq_cli.extras.inspect.parameters import Parameters, count_parts
from seq2seq_cli.extras.inspect.vocabulary import Vocabulary, read_vocabularies
from seq2seq_cli.model.parameters import freeze
from seq2seq_cli.model.transformer import build_model
from seq2seq_cli.model.weights import ModelScores, read_model_scores
from seq2seq_cli.native.model_code import is_edited
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import Tokenizers

_LABEL = 22  # columns
_LENGTH = 25  # tokens of a sentence, if the run does not know its training text


@dataclass(frozen=True)
class ModelReport:
    """What is known of a model without its weights."""

    config: ModelConfig
    parameters: Parameters
    flops: costs.Flops | None  # None: not known for these layers
    training_factor: int  # forward passes that an update costs, if nothing is frozen
    freezes: bool
    memory: costs.Memory
    lengths: tuple[int, int]  # source and target tokens of a sentence, EOS included
    is_median: bool  # whether the lengths are the medians of the training text
    vocabularies: dict[str, Vocabulary]  # source and target, or both

    def report(self) -> dict[str, Any]:
        source, target = self.lengths
        flops = self.flops and {
            **asdict(self.flops),
            "source_length": source,
            "target_length": target,
            "forward": self.flops.forward(source, target),
            "training": self.training_factor * self.flops.forward(source, target),
        }
        vocabularies = {side: asdict(vocabulary) for side, vocabulary in self.vocabularies.items()}
        return {
            "model": self.config.model_dump(),
            "parameters": self.parameters.report(),
            "flops": flops,
            "memory": {**asdict(self.memory), "cache": self.memory.cache(source, target)},
            "vocabulary": {"shared": len(vocabularies) == 1, **vocabularies},
        }

    def paragraphs(self) -> list[list[tuple[str, str]]]:
        """Return the labels and texts of the rows, by paragraph."""
        flops, memory, (source, target) = self.flops, self.memory, self.lengths
        rows = [("FLOPs", "not known for layers of this kind")]
        if flops is not None:
            forward = flops.forward(source, target)
            lengths = f"{source} source and {target} target tokens with EOS"
            lengths += ", the medians of the training text" * self.is_median
            per_source = f"{flops.source_token:,} + {flops.source_token_by_source_length:,}"
            per_target = f"{flops.target_token:,} + {flops.target_token_by_target_length:,}"
            per_target += f" × target length + {flops.target_token_by_source_length:,}"
            rows = [
                ("FLOPs", "of the matrix products; a multiply-add counts as two"),
                ("  per source token", f"{per_source} × source length"),
                ("  per target token", f"{per_target} × source length"),
                (
                    "  per sentence pair",
                    f"{forward:,} forward, {self.training_factor * forward:,} in training "
                    f"({self.training_factor} ×{', without training.freeze' * self.freezes})",
                ),
                ("", f"({lengths})"),
            ]
        weights = f"{_size(memory.weights_fp32)} in fp32, {_size(memory.weights_bf16)} in bf16"
        rows += [
            ("memory", "of the tensors alone"),
            ("  weights", f"{weights}, {_size(memory.weights_int8)} in int8"),
            (
                "  training",
                f"{_size(memory.training)}: weights (and any EMA), gradients, optimizer state",
            ),
            (
                "  KV cache",
                f"{memory.cache_per_source_token:,} bytes per source token, "
                f"{memory.cache_per_target_token:,} per target token; "
                f"{_size(memory.cache(source, target))} for {source} and {target} tokens",
            ),
        ]
        vocabularies = [row for side, one in self.vocabularies.items() for row in one.rows(side)]
        return [self.parameters.rows(), rows, vocabularies]


def _size(num_bytes: int) -> str:
    kilobytes = num_bytes / 1_000
    return f"{kilobytes:,.1f} kB" if kilobytes < 1_000 else f"{num_bytes / 1_000_000:,.1f} MB"


def report_model(
    tokenizers: Tokenizers, config: Config, statistics: TextStatistics | None
) -> ModelReport:
    """Report on a model from its sizes, without its weights, unless an edit may use them."""
    with nullcontext() if is_edited() else torch.device("meta"):
        model = build_model(config.model, tokenizers)
    freeze(model, config.training.freeze)
    lengths = (_LENGTH, _LENGTH)
    if statistics is not None:
        lengths = (statistics.src_tokens.p50 + 1, statistics.tgt_tokens.p50 + 1)
    symbols = {*config.tokenizer.user_defined_symbols, *config.train_text.tags}
    if not config.tokenizer.graphemes:  # which are symbols of SentencePiece, too
        symbols.update(*(tokenizer.user_defined_symbols() for tokenizer in tokenizers))
    return ModelReport(
        config=config.model,
        parameters=count_parts(model),
        flops=costs.count_flops(model),
        training_factor=costs.training_factor(config.training),
        freezes=bool(config.training.freeze),
        memory=costs.measure_memory(model, config.training),
        lengths=lengths,
        is_median=statistics is not None,
        vocabularies=read_vocabularies(tokenizers, symbols),
    )


@dataclass(frozen=True)
class RunReport:
    """A run: its model, how far it was trained, and the validation scores of these weights."""

    folder: str
    which: str  # best, last, or a step
    num_steps: int | None  # of the run
    metric: Metric  # of the run
    validation: ModelScores | None
    search: DefaultSearch | None  # chosen when the run ended
    model: ModelReport

    def report(self) -> dict[str, Any]:
        return {
            "folder": self.folder,
            "weights": self.which,
            "trained": None if self.num_steps is None else {"steps": self.num_steps},
            "validation": None if self.validation is None else self.validation._asdict(),
            "search": None if self.search is None else self.search.model_dump(),
            **self.model.report(),
        }

    def as_text(self) -> str:
        """Return the output of `inspect`."""
        shape, which = self.model.config, self.which
        which = f"{which} model" if which in ("best", "last") else which
        which = f"model of step {int(which):,}" if which.isdigit() else which
        trained = "not known: the run has no metrics.jsonl"
        if self.num_steps is not None:
            trained = counted(self.num_steps, "update")
        if self.validation is not None and self.metric in self.validation.scores:
            score = f"{self.metric} {self.validation.scores[self.metric]:.3f}"
            trained += f"; this model: {score} ({self.validation.model})"
        rows = [
            ("run", f"{self.folder} ({which})"),
            (
                "model",
                f"{shape.layers.encoder}+{shape.layers.decoder} layers, d_model {shape.d_model}, "
                f"d_ff {shape.d_ff}, {shape.heads} heads of {shape.d_model // shape.heads}, "
                f"attention scale {shape.attention_scale}, {shape.norm}-norm, {shape.activation}, "
                f"dropout {shape.dropout:g}",
            ),
            ("trained", trained),
            *([] if self.search is None else [("search", str(self.search))]),
        ]
        return "\n\n".join(
            "\n".join(f"{label:<{_LABEL}}{printable(text)}" for label, text in paragraph)
            for paragraph in (rows, *self.model.paragraphs())
        )


def report_run(run: RunFolder, translator: Translator, which: str) -> RunReport:
    """Report on a loaded run; raises UserError if its log of metrics is damaged."""
    config = translator.config
    logged = [p["step"] for p in run.metrics_points() if isinstance(p.get("step"), int)]
    num_steps = max([*logged, *run.all_checkpoints()], default=None)
    model = report_model(translator.tokenizers, config, translator.statistics)
    scores = run.with_weights(which, read_model_scores)
    metric, search = config.validation.metric, read_default_search(run)
    return RunReport(str(run.path), which, num_steps, metric, scores, search, model)
