"""Starting a run in a new folder, and resuming one from its last checkpoint."""

import gc
import hashlib
import json
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from seq2seq_cli import __version__
from seq2seq_cli.config.loader import config_yaml, flatten, load_config, resume_policies, yaml_text
from seq2seq_cli.config.metrics import RENAMED_METRICS, TEXT_METRICS
from seq2seq_cli.config.presets import with_preset
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import DataConfig, ParallelText
from seq2seq_cli.config.validation import ValidationConfig
from seq2seq_cli.data.cache import changed_meanwhile
from seq2seq_cli.data.record import read_record
from seq2seq_cli.data.statistics import TextStatistics
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import write_atomic, write_json
from seq2seq_cli.native.model_code import model_code_hash
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tokenizers.tokenizer import save_tokenizers
from seq2seq_cli.training.checkpoints.checkpoint import (
    load_checkpoint,
    load_last_checkpoint,
    save_checkpoint,
    set_aside_later,
)
from seq2seq_cli.training.checkpoints.manifest import (
    read_manifest,
    record_continuation,
    text_hashes,
    write_manifest,
)
from seq2seq_cli.training.optimizers.optimizer import check_same_state
from seq2seq_cli.training.parallel.strategy import SingleProcess
from seq2seq_cli.training.plan import plan_run
from seq2seq_cli.training.run import Hooks, Run, TrainingState
from seq2seq_cli.training.setup import set_up_run
from seq2seq_cli.training.warm_start import (
    asks_for_another,
    start_from,
    with_model_of,
    with_options_of,
)

logger = logging.getLogger(__name__)


def start_or_resume(
    folder: RunFolder,
    config: Config,
    parallel: SingleProcess,
    hooks: Hooks,
    source: Path | None = None,
    allow_changed: Sequence[str] = (),
) -> Run:
    """Start a run, from the weights of the run `source` if given, or resume the folder's one.

    A resumed one may differ from its config in the options `allow_changed`. The main process reads
    the text and writes all that the run depends on into the folder, where the others read it.
    Raises UserError for what the user can correct.
    """

    def in_main() -> Run:
        if folder.exists:
            return resume_run(folder, config, parallel, hooks, source, allow_changed)
        return start_run(folder, config, parallel, hooks, source)

    run = parallel.in_main(in_main)
    main = parallel.broadcast(_MainProcess.of(folder, run) if run is not None else None)
    assert main is not None, "the main process has a run"
    state = main.state
    if run is None:
        main.check_program_and_folder(folder)
        run = set_up_run(load_config(folder.config), parallel, hooks, folder)
        main.check_text_and_precision(run)
        load_checkpoint(folder.checkpoint(state.step), run)
        run.state = state  # may differ from the one in the checkpoint
    parallel.start(run, folder.checkpoint(state.step))
    parallel.barrier()  # a machine with a cache of its own first splits the text into tokens
    gc.freeze()  # the garbage collector need not search what stays until the end of the run
    return run


class _MainProcess(NamedTuple):
    """What the main process trains, and all others must."""

    state: TrainingState
    config: bytes  # the file in the run folder
    program: tuple[str, str | None]
    use_bf16: bool

    @classmethod
    def of(cls, folder: RunFolder, run: Run) -> Self:
        program = __version__, model_code_hash()
        return cls(run.state, folder.config.read_bytes(), program, run.use_bf16)

    def check_program_and_folder(self, folder: RunFolder) -> None:
        """Raise UserError if this process has another version, or finds another run."""
        if self.program != (__version__, model_code_hash()):
            raise UserError(
                "this process has another version of the program than the main one: install the "
                "same one on all machines"
            )
        if not folder.exists or folder.config.read_bytes() != self.config:
            raise UserError(
                f"the main process trains another run than {folder.path}: all machines must find "
                "the same folder at this path"
            )

    def check_text_and_precision(self, run: Run) -> None:
        """Raise UserError if this process has other text, or computes in another precision."""
        if run.data.batches.key != self.state.text:
            raise UserError(
                "the training text of this process is not the main one's: all machines must find "
                "the same text at the same paths"
            )
        if run.use_bf16 != self.use_bf16:
            raise UserError(
                "training.precision: auto is bf16 on some of these machines and fp32 on others: "
                "choose one of them"
            )


def start_run(
    folder: RunFolder, config: Config, parallel: SingleProcess, hooks: Hooks, source: Path | None
) -> Run:
    """Set up a new run, and write what it depends on.

    The config is written last, so that its presence marks a complete start.
    """
    if config.data.valid is None:
        _warn_of_validation_options(config.validation)
    if source is not None:
        config = with_options_of(source, config)
    elif config.data.general is not None:
        raise UserError(
            "data.general needs a run to start from: train --from RUN, or --set data.general=null"
        )
    elif config.preset == "fine_tuning":
        raise UserError(
            "preset: fine_tuning needs a run to start from: train --from RUN, or --set preset=auto"
        )
    elif frozen := config.training.freeze:
        logger.warning(f"training.freeze without --from keeps random weights: {', '.join(frozen)}")
    hashes = text_hashes(config)
    run = set_up_run(config, parallel, hooks)
    _check_unchanged(run, hashes)
    plan_run(run)
    if source is not None:
        start_from(source, run)
        if run.ema is not None:
            run.ema.start(run.model)
    run.state.scored_by = _scored_by(run, hashes)
    run.state.general_scored_by = _general_scored_by(run, hashes)
    run.state.awaits_validation = run.config.data.general is not None  # before the first update
    folder.path.mkdir(parents=True, exist_ok=True)
    save_tokenizers(folder, run.data.tokenizers)
    write_manifest(folder, run.config, run.device, source, hashes)
    write_json(folder.statistics, run.data.statistics.model_dump())
    save_checkpoint(folder, run)
    write_atomic(folder.config, config_yaml(run.config).encode("utf-8"))
    return run


def _warn_of_validation_options(given: ValidationConfig) -> None:
    """Warn of options that need validation text and differ from their defaults."""
    defaults, names = ValidationConfig(), ("attention", "keep_best", "patience")
    if useless := [n for n in names if getattr(given, n) != getattr(defaults, n)]:
        logger.warning(
            "no effect without data.valid: %s", ", ".join(f"validation.{name}" for name in useless)
        )


def resume_run(
    folder: RunFolder,
    config: Config,
    parallel: SingleProcess,
    hooks: Hooks,
    source: Path | None,
    allow_changed: Sequence[str],
) -> Run:
    """Set up a run from its last checkpoint.

    Raises UserError, and then nothing is written, if a file is damaged, if the text or an option
    changed that may not, or if the run did not start from `source`.
    """
    begun, manifest = load_config(folder.config), read_manifest(folder)
    if not begun.data.train:
        raise UserError(
            f"the model in {folder.path} was imported or trimmed and has no training to resume; "
            f"fine-tune it in a run of its own: --from {folder.path} --run-dir NEW"
        )
    if manifest.get("from") is not None:
        config = with_model_of(begun, config)
    hashes = text_hashes(config)
    names = dict.fromkeys([*hashes, *manifest["data"]])
    changed = [f"data.{name}" for name in names if manifest["data"].get(name) != hashes.get(name)]
    config = config_to_resume(folder, begun, config, allow_changed, changed)
    allowed = {n for n in changed for k in allow_changed if _is_within(n, k) or _is_within(k, n)}
    if refused := [name for name in changed if name not in allowed]:
        raise UserError(
            f"the text of {' and '.join(refused)} changed since this run started; put it back, "
            f"allow it with train --allow-changed {refused[0]}, or start a run in another folder"
        )
    check_same_state(begun.training.optimizer, config.training.optimizer)
    origin = manifest.get("from")
    if source is not None and (origin is None or Path(str(origin)).resolve() != source.resolve()):
        raise UserError(
            f"the run in {folder.path} did not start from {source}; leave out --from to "
            "continue it, or start another run with --run-dir"
        )
    run = set_up_run(config, parallel, hooks, folder)
    _check_unchanged(run, hashes)
    load_last_checkpoint(folder, run)
    _apply_changes(folder, run, hashes)
    plan_run(run)
    record_continuation(folder, begun, run.config, run.device, run.state.step, hashes)
    write_json(folder.statistics, run.data.statistics.model_dump())
    write_atomic(folder.config, config_yaml(run.config).encode("utf-8"))
    set_aside_later(folder, run.state.step)
    return run


def _check_unchanged(run: Run, hashes: dict[str, str]) -> None:
    """Raise UserError if the text has changed since it had these hashes: while it was loaded."""
    for name, found in text_hashes(run.config).items():
        if found != hashes[name]:
            raise UserError(changed_meanwhile(f"the text of data.{name}"))


def config_to_resume(
    folder: RunFolder,
    begun: Config,
    config: Config,
    allow_changed: Sequence[str],
    changed_text: Collection[str],
) -> Config:
    """Return the config with which a run that started with `begun` is resumed.

    An option that is `auto` keeps the run's value, and so does a vocabulary taken from another run
    unless the config asks for another one. Text not in `changed_text` may have moved. Raises
    UserError naming options that must not change.
    """
    config = _with_values_of(begun, config)
    before, now = flatten(begun), flatten(config)
    policies = resume_policies(begun) | resume_policies(config)
    names = list(dict.fromkeys([*now, *before]))
    for key in allow_changed:
        if not any(_is_within(name, key) for name in names):
            raise UserError(f"--allow-changed {key}: there is no such option")
    differing = []
    for name in names:
        old, new, policy = before.get(name), now.get(name), policies[name]
        if old == new or policy == "free":
            continue
        if _is_path_of_same_text(name, begun, config, changed_text):
            continue
        if name == "tokenizer.reuse" and old is not None and _has_same_vocabulary(folder, config):
            continue
        if policy == "ask" and any(_is_within(name, key) for key in allow_changed):
            continue
        note = "; this cannot change in a run" if policy == "fixed" else ""
        differing.append(f"  {name}: {yaml_text(old)} in the run, {yaml_text(new)} now{note}")
    if differing:
        message = (
            f"{folder.path} holds a run of another config; undo the change, allow it with train "
            "--allow-changed OPTION, or start a run in another folder"
        )
        raise UserError("\n".join([message, *differing]))
    return config


def _with_values_of(begun: Config, config: Config) -> Config:
    """Return the config with the run's values of the options that each new run determines."""
    if config.preset == "auto":
        config = config.model_copy(update={"preset": begun.preset})
    config = with_preset(config, 0, begun)
    options = {"warmup_steps", "tokens_per_batch"}
    training = config.training.resolved(**begun.training.model_dump(include=options))
    options = {"beam_size", "length_penalty", "max_len_factor", "max_len_extra"}
    decoding = config.decoding.resolved(**begun.decoding.model_dump(include=options))
    validation, before = config.validation, begun.validation
    if validation.unit == before.unit:
        validation = validation.resolved(every=before.every)
    if validation.decode or before.metric not in TEXT_METRICS:
        validation = validation.resolved(metric=before.metric)
    tokenizer = begun.tokenizer
    if not tokenizer.reuse or asks_for_another(config.tokenizer, tokenizer):
        sizes = config.tokenizer.vocab_size.resolve(tokenizer.vocab_size)
        tokenizer = config.tokenizer.model_copy(update={"vocab_size": sizes})
    sections = {"training": training, "validation": validation, "decoding": decoding}
    return config.model_copy(update={"tokenizer": tokenizer, **sections})


def _is_path_of_same_text(
    name: str, begun: Config, config: Config, changed_text: Collection[str]
) -> bool:
    """Return True if the option is a path to text of unchanged content and form."""
    parts = name.split(".")
    is_path = parts[0] == "data" and parts[-1] in ("src", "tgt", "pairs")
    if not is_path or f"data.{parts[1]}" in changed_text:
        return False
    before, now = (one.texts.get(parts[1]) for one in (begun, config))
    return before is not None and now is not None and _is_read_alike(before, now)


def _is_read_alike(before: ParallelText, now: ParallelText) -> bool:
    """Return True if text of the same bytes is read in the same way from both paths.

    How many files a pattern or a folder had is no longer known if it is gone, nor the formats in a
    folder.
    """
    if before.forms == now.forms or before.options != now.options:
        return before.forms == now.forms
    if any(path.is_file() for path in before.files):
        return False
    known = {form for c in before.corpora if c.pairs is None or c.format for form in c.forms}
    has_folder = any(corpus.pairs and not corpus.format for corpus in before.corpora)
    forms = {form for corpus in now.corpora for form in corpus.forms}
    return known <= forms if has_folder else known == forms


def _has_same_vocabulary(folder: RunFolder, config: Config) -> bool:
    """Return True if the config takes the run's own vocabulary from a run, which may have moved."""
    reuse, is_shared = config.tokenizer.reuse, config.tokenizer.shared
    if reuse is None:
        return False
    theirs, ours = (run.tokenizer_paths(is_shared) for run in (RunFolder(reuse), folder))
    return all(path.is_file() for path in theirs) and all(
        a.read_bytes() == b.read_bytes() for a, b in zip(theirs, ours, strict=True)
    )


def _is_within(name: str, key: str) -> bool:
    """Return True if the option is the one that `key` names, or in the section it names."""
    return name == key or name.startswith(f"{key}.")


def _apply_changes(folder: RunFolder, run: Run, hashes: dict[str, str]) -> None:
    """Adapt the state to options and text that differ from the checkpoint's; log what follows."""
    config, state = run.config, run.state
    text, budget = run.data.batches.key, config.training.batch_budget
    scored_by = _scored_by(run, hashes)
    is_scored_alike = state.scored_by == scored_by or _was_scored_alike(folder, run, hashes)
    _check_general_baseline(run, _general_scored_by(run, hashes), is_scored_alike=is_scored_alike)
    is_midway = bool(state.position or state.earlier_parts)
    state.awaits_validation = state.awaits_validation and config.data.valid is not None
    if state.text != text:
        if is_midway:
            last = config.training.max_epochs or state.epoch + 1
            epoch = max(state.epoch, min(state.epoch + 1, last))  # the last one starts again
            state.epoch, state.position, state.earlier_parts = epoch, 0, []
        logger.info("the training data changed; a new epoch starts")
    elif state.tokens_per_batch != budget and is_midway:
        state.earlier_parts.append([state.tokens_per_batch, state.position])
        state.position = 0
        logger.info(
            "training.tokens_per_batch changed; this epoch continues with the pairs not used yet"
        )
    if not is_scored_alike:
        state.best_models, state.validations_without_best = [], 0
        logger.info("validation changed; the best score so far is reset")
    state.text, state.tokens_per_batch, state.scored_by = text, budget, scored_by


def _check_general_baseline(run: Run, scored_by: str | None, *, is_scored_alike: bool) -> None:
    """Raise UserError if scores on `data.general` cannot be compared with the one before training.

    Before the first update it is scored again. States of earlier versions lack `general_scored_by`.
    """
    state = run.state
    before = state.general_scored_by or (scored_by if is_scored_alike else None)
    if scored_by is not None and (scored_by != before or state.general_before is None):
        if state.step:
            raise UserError(
                "data.general is scored before the first update, and every later score is compared "
                "with that one: it cannot be added, and its text, the metric and the search cannot "
                "be changed; undo the change, or start a run in another folder"
            )
        state.general_before, state.awaits_validation = None, True
    state.general_scored_by = scored_by or before


def _was_scored_alike(folder: RunFolder, run: Run, hashes: dict[str, str]) -> bool:
    """Return True for a state of an earlier version, whose hash included `statistics.json`.

    The metric may have had a former name.
    """
    statistics = read_record(folder.statistics, TextStatistics)
    metric = run.config.validation.metric
    names = [metric, *(old for old, new in RENAMED_METRICS.items() if new == metric)]
    return statistics is not None and run.state.scored_by in [
        _scored_by(run, hashes, statistics, name) for name in names
    ]


def _scored_by(
    run: Run,
    hashes: dict[str, str],
    statistics: TextStatistics | None = None,
    metric: str | None = None,
) -> str:
    """Return a hash of all but the model that a validation score depends on.

    Other training text changes a score too little to count. Options that runs of earlier versions
    do not have count only if they are used.
    """
    config, validation = run.config, run.config.validation
    default_length = DataConfig.model_fields["max_length"].default
    return _hash_of(
        hashes.get("valid"),
        *([hashes["general"], validation.general_tolerance] if "general" in hashes else []),
        config.data.on_bad_line,
        metric or validation.metric,
        *(validation.decode, validation.bleu_tokenize, validation.lowercase),
        *(["merge_references"] if validation.merge_references else []),
        config.decoding.model_dump(mode="json", exclude={"tokens_per_batch", "tag"}),
        *([statistics.model_dump()] if statistics is not None else []),
        *([config.data.max_length] if config.data.max_length != default_length else []),
        *(config.valid_text.options if config.valid_text is not None else []),
    )


def _general_scored_by(run: Run, hashes: dict[str, str]) -> str | None:
    """Return a hash of the text, metric and search of `data.general`; None without it."""
    text, validation = run.config.held_out.get("general"), run.config.validation
    if text is None:
        return None
    of_metric = {"metric", "decode", "bleu_tokenize", "lowercase", "merge_references"}
    return _hash_of(
        *(hashes["general"], *text.options, validation.model_dump(mode="json", include=of_metric)),
        run.config.decoding.model_dump(
            mode="json", exclude_defaults=True, exclude={"tokens_per_batch", "tag"}
        ),
    )


def _hash_of(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
