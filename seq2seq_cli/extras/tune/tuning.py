"""`seq2seq tune`: from a config and a time limit to the best values of its options."""

import functools
import logging
import math
import time
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna import distributions
from optuna.trial import TrialState, create_trial

from seq2seq_cli.config.loader import config_yaml, load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.tune.results import best_config, write_best
from seq2seq_cli.extras.tune.space import Option, own_values, search_space
from seq2seq_cli.extras.tune.study import StopTrial, Study, Trial, record_of
from seq2seq_cli.files import locked, write_atomic
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.manifest import text_hashes
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.parallel.launcher import launch_each
from seq2seq_cli.training.run import Hooks
from seq2seq_cli.training.setup import resolved

logger = logging.getLogger(__name__)

_ATTEMPTS = 100  # to find values that can be combined and were not tried
_STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED}
_HOUR = 3_600
_PATIENCE = 60.0  # seconds in which the processes of a killed command end

optuna.logging.set_verbosity(optuna.logging.WARNING)


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
            if study.trials[-1].state != "running":  # it was not interrupted
                if (new := propose(study)) is None:
                    logger.info("all combinations were tried, or none of the others can be trained")
                    break
                study.trials.append(new)
            trial = study.trials[-1]
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


def distribution(option: Option) -> distributions.BaseDistribution:
    if option.choices:
        return distributions.CategoricalDistribution(option.choices)
    if option.is_whole:
        return distributions.IntDistribution(int(option.low), int(option.high), log=option.is_log)
    return distributions.FloatDistribution(option.low, option.high, log=option.is_log)


def as_optuna(study: Study) -> optuna.Study:
    """Return the trials that have ended as a study of Optuna, which minimizes their cost.

    It is made when it is needed, so that interruptions of a search do not change its choices.
    """
    made = optuna.create_study()
    for trial in study.trials:
        if trial.state not in _STATES:
            continue
        values = {o: o.value_of(trial.values.get(o.name, "")) for o in study.options}
        known = {o: value for o, value in values.items() if value is not None}
        costs = [cost for cost in study.costs_of(trial).values() if math.isfinite(cost)]
        made.add_trial(
            create_trial(
                state=_STATES[trial.state],
                value=study.cost_of(trial)[0] if trial.state == "finished" else None,
                params={option.name: value for option, value in known.items()},
                distributions={option.name: distribution(option) for option in known},
                intermediate_values={0: min(costs)} if costs else {},  # by which pruned ones rank
            )
        )
    return made


def propose(study: Study) -> Trial | None:
    """Return the next trial, by Optuna's TPE (Bergstra et al. 2011); None if it finds no new one.

    The values are random until ten trials have ended.
    """
    made, number = as_optuna(study), len(study.trials) + 1
    space = {option.name: distribution(option) for option in study.options}
    tried = [trial.values for trial in study.trials]
    for attempt in range(_ATTEMPTS):
        made.sampler = optuna.samplers.TPESampler(seed=_ATTEMPTS * number + attempt)
        chosen = made.ask(space).params
        trial = Trial(number, {o.name: o.text_of(chosen[o.name]) for o in study.options})
        if trial.values in tried:
            continue
        try:
            study.config_of(trial)
        except UserError:
            continue
        return trial
    return None


def open_study(folder: Path, config: Config, searched: Sequence[str]) -> Study:
    """Begin a study of the config, or go on with the one in the folder."""
    study, content = Study(folder, ()), config_yaml(config).encode()
    study.text = text_hashes(config)
    begun = Study.read(folder) if record_of(folder).exists() else None
    is_same = begun is None or study.config.read_bytes() == content
    is_new = not study.config.exists()
    if begun is None:
        for path in (study.config, best_config(study)):
            if path.exists() and path.read_bytes() != content:
                raise UserError(f"{path} exists, but trials.json does not: choose another --output")
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
    if begun.text:  # none: of a record from before it was kept
        ensure_same_text(begun, config)
    begun.text = study.text
    return begun


def ensure_same_text(study: Study, base: Config) -> None:
    """Raise UserError if the text of the first trial has changed since."""
    if text_hashes(base) != study.text:
        raise UserError(
            f"the text has changed since the trials in {study.folder}, which cannot be compared "
            "with others: put it back, or choose another --output"
        )


def train_trial(study: Study, trial: Trial, seconds: float) -> None:
    """Train a trial in a process of its own, until it ends or for so many seconds at most.

    Raises UserError if the text changes meanwhile.
    """
    run, base = study.run_of(trial), load_config(study.config)
    ensure_same_text(study, base)
    with run.locked(_PATIENCE):  # no process of a killed command trains there any more
        study.save()
    logger.info("trial %s: %s", f"{trial.number:,}", "  ".join(trial.overrides))
    stop = StopTrial(study.folder, trial.number, time.monotonic() + seconds)
    work = functools.partial(train, study.config_of(trial), run.path, hooks=Hooks(on_step=stop))
    started = time.monotonic()
    try:
        launch_each({"": work}, 1)  # the caller knows which one fails
        if text_hashes(base) == study.text:
            study.end(trial)
    except UserError as error:
        if trial.number == 1:
            raise
        trial.state, trial.reason = "failed", str(error)
        logger.warning(f"trial {trial.number:,} failed: {error}")
    finally:
        trial.seconds += time.monotonic() - started
        study.save()
    ensure_same_text(study, base)
    if trial.score is not None and study.best is not None:
        logger.info(
            f"trial {trial.number:,}: {trial.state} with {study.metric} {trial.score:.3f}; "
            f"the best is trial {study.best.number:,} with {study.best.score:.3f}"
        )
