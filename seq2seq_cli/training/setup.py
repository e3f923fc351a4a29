"""Everything before the first update: audit the text, make it ids, build the model."""

import functools
import logging
from dataclasses import dataclass

import torch

from seq2seq_cli.config.schema import DEFAULT_WARMUP, Config, TrainingConfig
from seq2seq_cli.config.validation import FEWEST_WITH_4_GRAMS
from seq2seq_cli.data.batches import BatchSampler
from seq2seq_cli.data.statistics import TextStatistics, text_statistics
from seq2seq_cli.data.token_store import TokenStore, open_store
from seq2seq_cli.decoding.translator import new_model
from seq2seq_cli.errors import UserError
from seq2seq_cli.evaluation import HeldOut, read_held_out
from seq2seq_cli.model.device import check_compiler, choose_bf16, choose_device
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import freeze
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import CorpusCounts, count_corpus
from seq2seq_cli.text.metrics import share_with_4_grams
from seq2seq_cli.text.tokenizer import Tokenizers, fit_tokenizers, load_tokenizers
from seq2seq_cli.training.auto_batch_size import find_tokens_per_batch
from seq2seq_cli.training.checkpoint import TrainingState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """What `train` trains on and with, and what `check` reports of it."""

    config: Config  # its budget of tokens is a number, its metric is one
    train_audit: CorpusCounts | None  # None where the text was not read
    valid_audit: CorpusCounts | None
    tokenizers: Tokenizers
    train: TokenStore
    valid: HeldOut | None
    epochs: BatchSampler
    updates_per_epoch: int
    model: Transformer  # fresh, on its device
    device: torch.device
    use_bf16: bool

    @functools.cached_property
    def statistics(self) -> TextStatistics:
        """Of the training pairs; read from their ids when it is asked for."""
        return text_statistics(self.train, self.tokenizers.src)


def prepare(
    config: Config,
    run: RunFolder | None = None,
    *,
    reads_text: bool = True,
    num_processes: int = 1,
) -> Prepared:
    """Read the text, learn the vocabulary, make the ids, initialise the model.

    A run that has begun lends its tokenizers; only then the text, beyond the ids that are stored
    of it, may be left unread. `training.tokens_per_batch: auto` becomes a number, and
    `validation.metric: auto` a metric. Seeds PyTorch's random generator. Raises UserError for text
    that cannot be trained on, for a metric that says nothing about the validation text, and for a
    device or a compiler that is not there.
    """
    data, training = config.data, config.training
    device = choose_device(training.device)
    if training.compile:
        check_compiler()
    train_audit = valid_audit = valid = None
    if reads_text:
        logger.info("reading %s", ", ".join(map(str, data.train.files)))
        train_audit, valid_audit = count_corpus(data.train, data.valid, data.on_bad_line)
    if run is not None:
        tokenizers = load_tokenizers(run, config.tokenizer)
    else:
        if config.tokenizer.reuse is None:
            logger.info("learning the vocabulary (%s)", config.tokenizer.kind)
        tokenizers = fit_tokenizers(data.train, config.tokenizer, data.on_bad_line)
    train = open_store(data.train, tokenizers, data.on_bad_line, data.max_length)
    if reads_text and data.valid is not None:
        valid = read_held_out(data.valid, tokenizers, data)
        config = settle_metric(config, valid)
    config = find_tokens_per_batch(config, tokenizers, train, device, num_processes)
    training = config.training
    epochs = BatchSampler(train, training.batch_budget, training.seed)
    torch.manual_seed(training.seed)
    model = new_model(config, tokenizers).to(device)
    freeze(model, training.freeze)
    return Prepared(
        config=config,
        train_audit=train_audit,
        valid_audit=valid_audit,
        tokenizers=tokenizers,
        train=train,
        valid=valid,
        epochs=epochs,
        updates_per_epoch=-(-len(epochs) // training.gradient_accumulation),
        model=model,
        device=device,
        use_bf16=choose_bf16(training.precision, device),
    )


def settle_metric(config: Config, valid: HeldOut) -> Config:
    """The config with the name of a metric in place of `validation.metric: auto`.

    Raises UserError for BLEU where references are too short for it, so that chance would choose the
    best model: of 200 references that are mostly shorter than four words, BLEU ranks two models
    wrongly twice as often as chrF.
    """
    validation, metric = config.validation, config.validation.metric
    if metric == "auto" and not validation.decode:
        metric = "loss"
    elif metric in ("auto", "bleu"):
        references = [pair.tgt for pair in valid.pairs]
        share = share_with_4_grams(references, validation.bleu_tokenize)
        reason = (
            f"{share:.1%} of the references have the four words (of bleu_tokenize "
            f"{validation.bleu_tokenize}) that BLEU counts in a row"
        )
        is_bleu = share >= FEWEST_WITH_4_GRAMS
        if metric == "bleu" and not is_bleu:
            raise UserError(
                f"validation.metric bleu cannot tell models apart on this text: only {reason}; "
                "choose chrf, exact_match or loss, or another validation.bleu_tokenize"
            )
        metric = "bleu" if is_bleu else "chrf"
        if not is_bleu:
            logger.info("validation.metric chrf: only %s", reason)
    return config.model_copy(
        update={"validation": validation.model_copy(update={"metric": metric})}
    )


def total_updates(config: TrainingConfig, epochs: BatchSampler, state: TrainingState) -> int:
    """Those done and those to come, until `max_steps` or the end of `max_epochs`."""
    if config.max_epochs is None:
        assert config.max_steps is not None, "one of the two is a number"
        return config.max_steps
    per_epoch = -(-len(epochs) // config.gradient_accumulation)
    batches_left = len(epochs.plan(state.epoch, state.earlier_parts)) - state.position
    left = (
        -(-batches_left // config.gradient_accumulation)
        + (config.max_epochs - state.epoch) * per_epoch
    )
    by_epochs = state.step + max(left, 0)
    return by_epochs if config.max_steps is None else min(config.max_steps, by_epochs)


def limit_of_updates(config: TrainingConfig, total_steps: int) -> str:
    """The option that makes them `total_steps` in all."""
    return "max_steps" if total_steps == config.max_steps else "max_epochs"


def settle_warmup(config: Config, total_steps: int) -> Config:
    """The config with a number in place of `training.warmup_steps: auto`.

    Raises UserError when the run ends before its warm-up does.
    """
    training = config.training
    if training.warmup_steps == "auto":
        found = {"warmup_steps": min(DEFAULT_WARMUP, total_steps // 10)}
        return config.model_copy(update={"training": training.model_copy(update=found)})
    if training.warmup_steps > total_steps:
        limit = limit_of_updates(training, total_steps)
        raise UserError(
            f"training.warmup_steps {training.warmup_steps:,}: training.{limit} "
            f"{getattr(training, limit):,} ends the run after {total_steps:,} updates, before the "
            f"peak rate is reached; raise {limit}, lower warmup_steps, or leave it out in a new "
            "run; a run that has begun keeps its own (--allow-changed training.warmup_steps)"
        )
    return config
