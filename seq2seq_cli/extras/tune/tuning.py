"""`seq2seq tune`: from a config and a time limit to the best values of its options."""

import functools
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from seq2seq_cli.config.loader import config_yaml, load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.tune.proposals import propose
from seq2seq_cli.extras.tune.results import best_config, write_best
from seq2seq_cli.extras.tune.space import own_values, search_space
from seq2seq_cli.extras.tune.study import StopTrial, Study, Trial, record_of
from seq2seq_cli.files import locked, write_atomic
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.manifest import text_hashes
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.parallel.launcher import launch_each
from seq2seq_cli.training.run import Hooks
from seq2seq_cli.training.setup import resolved

logger = logging.getLogger(__name__)

_HOUR = 3_600
_PATIENCE = 60.0  # seconds in which the processes of a killed command end


def tune(config: Config, folder: Path, hours: float, searched: Sequence[str]) -> Study:
    """Search the options for so many hours in all; the same call goes on with an interrupted one.

    The first trial is the config as it is. Raises UserError if that cannot be trained, for mistakes
    in what is `searched`, and if no trial has finished in time; Interrupted as `train` does.
    """
    if config.valid_text is None:
        raise UserError("tune needs data.valid, to compare trials")
    if RunFolder(folder).exists and not record_of(folder).exists():
        raise UserError(f"{folder} is a run already: choose another --output")
    with locked(folder):
        study = open_study(folder, resolved(config), searched)  # trials keep the preset's values
        while (left := _HOUR * hours - study.seconds) > 0:
            if (trial := next_trial(study)) is None:
                logger.info("all combinations were tried, or none of the others can be trained")
                break
            train_trial(study, trial, left)
            if trial.state == "running":
                logger.info(f"time is up: more --hours continue with trial {trial.number:,}")
                break
        if study.best is None:
            raise UserError(
                f"no trial has finished in {hours:g} hours: the same command with more --hours "
                "continues; or shorten all trials with training.max_steps, in another --output"
            )
        write_best(study)
        return study


def open_study(folder: Path, config: Config, searched: Sequence[str]) -> Study:
    """Begin a study of the config, or go on with the one in the folder."""
    study, content = Study(folder, ()), config_yaml(config).encode()
    study.text = text_hashes(config)
    begun = Study.read(folder) if record_of(folder).exists() else None
    is_same = begun is None or study.config.read_bytes() == content
    is_new = not study.config.exists()
    if begun is None:
        ensure_no_other_config(study, content)
        write_atomic(study.config, content)
    try:
        study.options = search_space(
            searched, config, lambda option: load_config(study.config, [option])
        )
    except UserError:
        if is_new:
            study.config.unlink()
        raise
    if begun is None:
        study.trials = [Trial(1, own_values(study.options, config))]
        return study
    if not is_same or list(begun.options) != study.options:
        raise UserError(
            f"{folder} has trials of another config or of other options: choose another --output"
        )
    if begun.text not in (study.text, {}):  # {}: of a record from before it was kept
        raise UserError(
            f"the text has changed since the trials in {folder}, which cannot be compared with "
            "others: put it back, or choose another --output"
        )
    return begun


def ensure_no_other_config(study: Study, content: bytes) -> None:
    """Raise UserError if a new study would overwrite a config that no search has written."""
    for path in (study.config, best_config(study)):
        if path.exists() and path.read_bytes() != content:
            raise UserError(f"{path} exists, but trials.json does not: choose another --output")


def next_trial(study: Study) -> Trial | None:
    """Return the trial that was interrupted, or a new one; None if there is nothing new to try."""
    if study.trials[-1].state == "running":
        return study.trials[-1]
    trial = propose(study)
    if trial is not None:
        study.trials.append(trial)
    return trial


def train_trial(study: Study, trial: Trial, seconds: float) -> None:
    """Train a trial in a process of its own, until it ends or for so many seconds at most."""
    run = study.run_of(trial)
    with run.locked(_PATIENCE):  # no process of a killed command trains there any more
        study.save()
    logger.info("trial %s: %s", f"{trial.number:,}", "  ".join(trial.overrides))
    stop = StopTrial(study.folder, trial.number, time.monotonic() + seconds)
    work = functools.partial(train, study.config_of(trial), run.path, hooks=Hooks(on_step=stop))
    started = time.monotonic()
    try:
        launch_each({"": work}, 1)  # the caller knows which one fails
        study.end(trial)
    except UserError as error:
        if trial.number == 1:
            raise
        trial.state, trial.reason = "failed", str(error)
        logger.warning(f"trial {trial.number:,} failed: {error}")
    finally:
        trial.seconds += time.monotonic() - started
        study.save()
    if trial.score is not None and study.best is not None:
        logger.info(
            f"trial {trial.number:,}: {trial.state} with {study.metric} {trial.score:.3f}; "
            f"the best is trial {study.best.number:,} with {study.best.score:.3f}"
        )
