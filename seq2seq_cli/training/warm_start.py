"""Fine-tuning: a new run starts from the weights of another one."""

import logging
from contextlib import suppress
from pathlib import Path

import torch
from pydantic import ValidationError

from seq2seq_cli.config.loader import flatten, load_config, yaml_text
from seq2seq_cli.config.presets import chooses_preset, fine_tuning_defaults
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.run import Run

logger = logging.getLogger(__name__)

_MAY_DIFFER = (
    *("dropout", "attention_dropout", "activation_dropout", "ngram_dropout"),
    *("tie_embeddings", "feature_positions"),
)
# The weights with a row for each token, by their names.
_BY_TOKEN = {"source": ("src_embedding.",), "target": ("tgt_embedding.", "projection.")}


def with_options_of(source: Path, config: Config) -> Config:
    """Return the config with the vocabulary and the model's options of the run folder `source`.

    The config keeps its own vocabulary if its section `tokenizer` sets `reuse`, or another option
    to a value that the run does not have. It gets the defaults of fine-tuning unless it names a
    preset or gives the size of the model. Raises UserError if there is no run.
    """
    run = RunFolder(source)
    run.ensure_is_run()
    other = load_config(run.config)
    if chooses_preset(config):
        config = config.model_copy(update={"preset": "fine_tuning"})
        values = fine_tuning_defaults(config).items()
        shown = ", ".join(f"{name} {yaml_text(value)}" for name, value in values)
        what = "defaults of fine-tuning, where the config gives none"
        logger.info(f"--from {source}: {what}: {shown}")
    config = with_model_of(other, config)
    theirs = other.tokenizer.model_copy(update={"reuse": source})
    if option := asks_for_another(config.tokenizer, theirs):
        logger.info(f"--from {source}: learning a new vocabulary, because the config sets {option}")
        return config
    logger.info(f"--from {source}: reusing its vocabulary (tokenizer.reuse: null learns a new one)")
    return config.model_copy(update={"tokenizer": theirs})


def expected_config(config: Config, folder: RunFolder | None, source: Path | None) -> Config:
    """Return the config with the model of the run folder, if it exists, or else of `source`.

    A model that does not fit the config's options, which is an error later, is left out.
    """
    for run in (folder, RunFolder(source) if source is not None else None):
        if run is not None and run.config.is_file():
            other = load_config(run.config)
            with suppress(ValidationError):
                config = with_model_of(other, config)
            if not asks_for_another(config.tokenizer, other.tokenizer):
                config = config.model_copy(update={"tokenizer": other.tokenizer})
            break
    return config


def with_model_of(other: Config, config: Config) -> Config:
    """Return the config with another one's options of the model in place of those it leaves out."""
    theirs, ours = other.model.model_dump(), config.model.model_dump(exclude_unset=True)
    both = {
        name: {**theirs[name], **value} if isinstance(value, dict) else value
        for name, value in ours.items()
    }
    return config.model_copy(update={"model": ModelConfig.model_validate(theirs | both)})


def asks_for_another(asked: TokenizerConfig, known: TokenizerConfig) -> str | None:
    """Return the first option set to another value than `known` has, as `tokenizer.kind: char`.

    `vocab_size: auto` asks for no other size.
    """
    for name in type(asked).model_fields:
        value, theirs = getattr(asked, name), getattr(known, name)
        wanted = value.resolve(theirs) if name == "vocab_size" else value
        if name in asked.model_fields_set and wanted != theirs:
            return f"tokenizer.{name}: {yaml_text(value)}"
    return None


@torch.no_grad()
def start_from(source: Path, run: Run) -> None:
    """Copy the best weights of the run folder `source` into a new model, and log what fitted.

    Embeddings go to the tokens of the same text; new tokens keep random ones. Raises UserError
    if the models differ in more than their vocabularies.
    """
    other = Translator.load(source, "cpu", ["decoding.engine=plain"], exact=True)  # read once
    theirs, ours = flatten(other.config.model), flatten(run.config.model)
    if run.model.src_ngrams is None:
        del ours["ngram_buckets"]  # which stands for nothing
    for name, value in ours.items():
        if name not in _MAY_DIFFER and theirs[name] != value:
            raise UserError(
                f"--from {source}: its model.{name} is {yaml_text(theirs[name])}, "
                f"this config's {yaml_text(value)}; they must be the same"
            )
    old, new = other.model, run.model
    src_pieces = [side.src.pieces() for side in (other.tokenizers, run.data.tokenizers)]
    if new.src_ngrams is not None and src_pieces[0] != src_pieces[1]:
        raise UserError(
            f"--from {source}: with model.ngrams, n-grams are found by the ids of their tokens, so "
            "the source vocabulary must stay the same: leave out section tokenizer and new tags"
        )
    weights = dict(old.named_parameters(remove_duplicate=False))  # tied ones by both names
    matrix_of: dict[int, torch.Tensor] = {}
    for name, parameter in new.named_parameters(remove_duplicate=False):
        if matrix_of.setdefault(id(parameter), weights[name]) is not weights[name]:
            raise UserError(
                f"--from {source}: this config ties embeddings or the output layer that are "
                "different matrices there: model.tie_embeddings=false keeps them"
            )
    for name, parameter in new.named_parameters():
        if not name.startswith((*_BY_TOKEN["source"], *_BY_TOKEN["target"])):
            parameter.copy_(weights[name])
    sides = zip(_BY_TOKEN.items(), other.tokenizers, run.data.tokenizers, strict=True)
    for (side, names), old_tokenizer, new_tokenizer in sides:
        ids = {piece: i for i, piece in enumerate(old_tokenizer.pieces())}
        pairs = [(ids[p], i) for i, p in enumerate(new_tokenizer.pieces()) if p in ids]
        rows_from, rows_to = (torch.tensor(column) for column in zip(*pairs, strict=True))
        for name, new_VD in new.named_parameters(remove_duplicate=False):
            if name.startswith(names):
                rows = weights[name][rows_from].to(new_VD.device)
                new_VD[rows_to.to(new_VD.device)] = rows
        logger.info(
            f"{side} vocabulary: the embeddings of {len(pairs):,} of {len(new_tokenizer):,} tokens "
            f"are copied from {source}; {len(new_tokenizer) - len(pairs):,} new tokens are "
            "initialized randomly"
        )
