"""Setting up a run: reads the text, learns the vocabulary, resolves `auto`, builds the model."""

import functools
import logging
import math

import torch

from seq2seq_cli import plugins
from seq2seq_cli.config.presets import warn_of_defaults, with_preset
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.validation import FEWEST_WITH_4_GRAMS
from seq2seq_cli.data.batch_plan import pairs_per_epoch
from seq2seq_cli.data.batch_sampler import BatchSampler
from seq2seq_cli.data.batches import make_batch
from seq2seq_cli.data.cache import cached_counts
from seq2seq_cli.data.token_store import open_store, write_segments
from seq2seq_cli.errors import UserError
from seq2seq_cli.evaluation import HeldOut, read_held_out
from seq2seq_cli.metrics.metrics import share_with_4_grams
from seq2seq_cli.model.device import check_compiler, choose_device
from seq2seq_cli.model.parameters import check_tensors, freeze
from seq2seq_cli.model.transformer import Transformer, build_model
from seq2seq_cli.native.model_code import is_edited
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import Tokenizers, fit_tokenizers, load_tokenizers
from seq2seq_cli.tokenizers.vocabulary import with_vocab_size
from seq2seq_cli.training.auto_batch_size import find_tokens_per_batch
from seq2seq_cli.training.checkpoints.averaging import Ema
from seq2seq_cli.training.losses.consistency import build_loss
from seq2seq_cli.training.losses.cross_entropy import check_loss
from seq2seq_cli.training.optimizers.optimizer import build_optimizer
from seq2seq_cli.training.parallel.strategy import SingleProcess
from seq2seq_cli.training.run import Hooks, Run, TrainingData, TrainingState

logger = logging.getLogger(__name__)

# Cost of a pair in a validation, relative to training on it; of decoding, per hypothesis.
_COST_OF_LOSS, _COST_OF_DECODING = 0.3, 2.5
_SHARE_OF_VALIDATION = 0.1  # of the time of training, with `validation.every: auto`


def set_up_run(
    config: Config, parallel: SingleProcess, hooks: Hooks, folder: RunFolder | None = None
) -> Run:
    """Build a run at step 0, with a freshly initialized model; options that are `auto` get values.

    With the `folder` of a run, its tokenizers are used, and only the main process reads the text.
    Seeds PyTorch's generator. Raises UserError for text that cannot be trained on, a metric that
    does not suit the validation text, and a missing device, compiler or matplotlib.
    """
    device = choose_device(config.training.device)
    if config.training.compile:
        check_compiler()
    if config.validation.attention:
        plugins.require("matplotlib", "plot", "validation.attention")
    config, data = load_data(config, parallel, hooks, folder)
    training, decay = config.training, config.training.ema_decay
    torch.manual_seed(training.seed)
    model = parallel.build_model(lambda: make_model(config, data.tokenizers), device)
    if is_edited() and training.shard == "none":
        check_loss(model, make_batch(data.train, range(min(2, len(data.train)))))
    return Run(
        config=config,
        data=data,
        model=model,
        loss=build_loss(model, training, device),
        optimizer=build_optimizer(model, training),
        ema=Ema(model, decay) if decay is not None and parallel.is_main else None,
        parallel=parallel,
        hooks=hooks,
        state=TrainingState(
            text=data.batches.key, tokens_per_batch=training.batch_budget, has_ema=decay is not None
        ),
    )


def make_model(config: Config, tokenizers: Tokenizers) -> Transformer:
    model = build_model(config.model, tokenizers)
    check_tensors(model)
    freeze(model, config.training.freeze)
    if config.model.output_bias:  # as imported models have
        if config.training.shard == "full":
            raise UserError(
                "training.shard: full cannot keep the rows of tokens that an imported model lacks "
                "(model.output_bias): leave it at none"
            )
        plugins.load("convert", "missing_rows").keep_missing_rows(model)
    model.checkpoints_activations = config.training.activation_checkpointing
    return model


def load_data(
    config: Config, parallel: SingleProcess, hooks: Hooks, folder: RunFolder | None
) -> tuple[Config, TrainingData]:
    """Load training and validation data; return the config with the values that depend on them."""
    data, text, texts = config.data, config.train_text, config.held_out
    reads_text = parallel.is_main or folder is None
    train_counts = None
    held_out: dict[str, HeldOut] = {}
    if reads_text:
        logger.info("reading %s", text.name)
        train_counts, *counts = cached_counts(text, [*texts.values()], data.on_bad_line)
        num_pairs = train_counts.pairs // text.num_directions
        warn_of_defaults(config, num_pairs)
        config = with_vocab_size(with_preset(config, num_pairs), num_pairs)
    tokenizers = load_or_fit_tokenizers(config, folder)
    samplers = None
    if config.training.subword_sampling.is_on:
        sampler = plugins.load("subwords", "sampler")
        samplers = sampler.make_samplers(tokenizers, config.training, data.max_length)
    train = open_store(text, tokenizers, data.on_bad_line, data.max_length)
    if reads_text:
        for (name, held), count in zip(texts.items(), counts, strict=True):
            held_out[name] = read_held_out(held, tokenizers, data, count)
    valid, general = held_out.get("valid"), held_out.get("general")
    if valid is not None:
        config = settle_metric(config, valid)
    weights = [corpus.weight for corpus in text.corpora]
    drawn = pairs_per_epoch(train.sizes, weights, data.sampling_temperature)
    build = functools.partial(make_model, config, tokenizers)
    config = find_tokens_per_batch(
        config, build, train, drawn, parallel.world_size, hooks.available_memory
    )
    training = config.training
    batches = BatchSampler(
        train, training.batch_budget, training.seed, samplers, drawn, training.pairs_per_batch
    )
    found = TrainingData(train, valid, train_counts, tokenizers, batches, general)
    if valid is not None:
        config = settle_interval(config, validation_cost(config, found), batches)
    return config, found


def validation_cost(config: Config, data: TrainingData) -> float:
    """Estimate what a validation costs, in epochs of training."""
    cost = _COST_OF_LOSS
    if config.validation.decode:
        cost += _COST_OF_DECODING * config.decoding.width
    facts = [store.facts for store in data.stores]
    tokens, *held_out_tokens = (fact.src.tokens + fact.tgt.tokens for fact in facts)
    epoch = config.training.passes * tokens * sum(data.batches.drawn) / len(data.train)
    return cost * sum(held_out_tokens) / epoch


def settle_interval(config: Config, cost: float, batches: BatchSampler) -> Config:
    """Resolve `validation.every: auto`; `cost` is the cost of a validation, in epochs."""
    if config.validation.every != "auto":
        return config
    epochs = cost / _SHARE_OF_VALIDATION
    updates = len(batches) / config.training.gradient_accumulation
    every = math.ceil(epochs if config.validation.unit == "epochs" else epochs * updates)
    return config.updated(validation={"every": every})


def preprocess(config: Config, number: int, num_shards: int) -> tuple[int, int]:
    """Tokenize shard `number`, from 1, of the training text into the cache for training.

    Returns how many segments the shard has, and how many of them were written.
    """
    data, text = config.data, config.train_text
    if config.tokenizer.reuse is None:
        config = resolved(config)
    tokenizers = load_or_fit_tokenizers(config, None)
    return write_segments(text, tokenizers, data.on_bad_line, data.max_length, number, num_shards)


def resolved(config: Config) -> Config:
    """Return the config with all values that depend on the number of pairs of the training text."""
    text, held_out = config.train_text, [*config.held_out.values()]
    counts, *_ = cached_counts(text, held_out, config.data.on_bad_line)
    num_pairs = counts.pairs // text.num_directions
    return with_vocab_size(with_preset(config, num_pairs), num_pairs)


def load_or_fit_tokenizers(config: Config, folder: RunFolder | None) -> Tokenizers:
    """Load the tokenizers of the run in `folder`; without one, fit what the config describes."""
    if folder is not None:
        return load_tokenizers(folder, config.tokenizer)
    if config.tokenizer.reuse is None:
        kinds = dict.fromkeys((config.tokenizer.kind.src, config.tokenizer.kind.tgt))
        logger.info("learning the vocabulary (%s)", ", ".join(kinds))
    return fit_tokenizers(config.train_text, config.tokenizer, config.data.on_bad_line)


def settle_metric(config: Config, valid: HeldOut) -> Config:
    """Resolve `validation.metric: auto`; UserError for BLEU if references are too short for it.

    On 200 references that are mostly shorter than four words, BLEU ranks two models wrongly twice
    as often as chrF.
    """
    validation, metric = config.validation, config.validation.metric
    if metric == "auto" and not validation.decode:
        metric = "loss"
    elif metric in ("auto", "bleu"):
        share = share_with_4_grams([pair.tgt for pair in valid.pairs], validation.bleu_tokenize)
        reason = (
            f"{share:.1%} of the references have the four words (of bleu_tokenize "
            f"{validation.bleu_tokenize}) that BLEU's 4-grams need"
        )
        if share >= FEWEST_WITH_4_GRAMS:
            metric = "bleu"
        elif metric == "bleu":
            raise UserError(
                f"validation.metric bleu cannot tell models apart on this text: only {reason}; "
                "choose chrf, exact_match or loss, or another validation.bleu_tokenize"
            )
        else:
            metric = "chrf"
            logger.info("validation.metric chrf: only %s", reason)
    return config.updated(validation={"metric": metric})
