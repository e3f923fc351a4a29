"""Ensembles: models of one config that differ in their seeds, trained side by side."""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path

import torch

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.console import table
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.evaluation import evaluate_corpus
from seq2seq_cli.files import write_json
from seq2seq_cli.machine import available_memory, num_cores
from seq2seq_cli.metrics.metrics import Scoring
from seq2seq_cli.model.device import choose_device
from seq2seq_cli.model.weights import read_model_scores
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.choose_search import choose_search_of_ensemble
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.parallel.launcher import launch_each
from seq2seq_cli.training.run import Hooks

logger = logging.getLogger(__name__)


def train_ensemble(
    config: Config,
    run_dir: Path,
    num_members: int,
    *,
    source: Path | None = None,
    allow_changed: Sequence[str] = (),
) -> None:
    """Train the members of an ensemble, each as `train` does, with seeds from the config's on.

    On a CPU one trains on each core, on a GPU one after the other. An interrupted ensemble is
    resumed, and a trained one gets further members. Raises UserError for what the user can correct,
    and Interrupted when all members have saved after a signal.
    """
    folder = RunFolder(run_dir)
    if folder.exists:
        raise UserError(f"{run_dir} is a run already: choose another --run-dir for the ensemble")
    if not folder.member(1).path.parent.is_dir():
        folder.ensure_new_or_empty()
    if folder.ensemble.is_file() and (trained := len(folder.members())) > num_members:
        raise UserError(f"{run_dir} has {trained} members already: give --ensemble {trained}")
    at_once = min(num_members, members_at_once(config))
    start = functools.partial(train, source=source, allow_changed=allow_changed)
    works, hooks = {}, hooks_of_one(at_once)
    for number in range(1, num_members + 1):
        path = folder.member(number).path
        own = config.updated(training={"seed": (config.training.seed + number - 1) % 2**63})
        works[str(path)] = functools.partial(start, own, path, hooks=hooks)
    logger.info(f"training {num_members:,} members in {run_dir}, {at_once:,} at once")
    launch_each(works, at_once)
    if not folder.ensemble.is_file() or len(folder.members()) != num_members:
        folder.search.unlink(missing_ok=True)  # the choice of fewer members
        write_json(folder.ensemble, {"members": num_members})
    if config.valid_text is not None:
        logger.info("%s", scores_of(folder, config))
    choose_search_of_ensemble(folder)


def members_at_once(config: Config) -> int:
    """Return how many members train side by side: one on each core, or for each process asked."""
    if choose_device(config.training.device).type != "cpu":
        return 1
    asked, cores = config.training.processes, min(num_cores(), torch.get_num_threads())
    return max(1, cores // (1 if asked == "auto" else asked))


def hooks_of_one(at_once: int) -> Hooks:
    """Return the hooks of one of `at_once` trainings, which has its share of the memory."""
    return Hooks(available_memory=functools.partial(_share_of_memory, at_once))


def _share_of_memory(at_once: int) -> int:
    return available_memory() // at_once


def scores_of(folder: RunFolder, config: Config) -> str:
    """Return a table of validation scores of the members and, by their search, of the ensemble."""
    logger.info("validating the ensemble")
    first, *_ = folder.members()
    ensemble = Translator.load(folder.path, config.training.device, exact=True)
    ensemble = ensemble.with_options(load_config(first.config).decoding)
    validation, text = ensemble.config.validation, config.valid_text
    assert text is not None, "the caller has checked it"
    scoring = Scoring.of_run(ensemble.config)
    scores = evaluate_corpus(ensemble, text, decode=validation.decode, scoring=scoring)
    names = dict.fromkeys((validation.metric, "loss"))
    found = [read_model_scores(member.weights()) for member in folder.members()]
    rows = {f"member {n}": each.scores for n, each in enumerate(found, 1) if each is not None}
    shown = [["validation", *names]]
    for row, of_row in (rows | {"ensemble": scores.metrics()}).items():
        shown.append([row, *(f"{of_row[name]:.3f}" if name in of_row else "" for name in names)])
    return table(shown)
