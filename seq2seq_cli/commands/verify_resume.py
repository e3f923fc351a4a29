"""`seq2seq verify-resume`: trains with and without interruptions and compares the results."""

import functools
import tempfile
from pathlib import Path

from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import UserError
from seq2seq_cli.processes import call_in_new_process
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.parallel.launcher import TRAINING_IMPORTS
from seq2seq_cli.training.run import Hooks, TrainingState


def verify_resume(config: Config, steps: int, interruptions: int) -> tuple[bool, str]:
    """Train `steps` updates, or the whole run, with and without interruptions; compare all results.

    Returns whether they are equal, and the output of the command.
    `training.max_hours` is ignored, as it makes the schedule depend on the clock. Raises UserError
    if there are too few updates for the interruptions.
    """
    _spread(interruptions, steps)  # before the first update
    config = config.updated(training={"max_hours": None})
    with tempfile.TemporaryDirectory(prefix="seq2seq-verify-") as folder:
        whole, interrupted = Path(folder) / "whole", Path(folder) / "interrupted"
        _train_until(steps, config, whole)
        last = max(RunFolder(whole).all_checkpoints())
        stops = _spread(interruptions, last)  # perhaps fewer updates than `steps`
        config = load_config(RunFolder(whole).config)  # with `auto` resolved
        for stop in [*stops, steps]:
            _train_until(stop, config, interrupted)
        differences = differing_results(whole, interrupted)
    result = "identical bit for bit: resuming is exact"
    if differences:
        result = "NOT identical: resuming is not exact"
    lines = [
        f"{last} updates without interruption, and interrupted after {', '.join(map(str, stops))}",
        *map(str, differences),
        f"weights, optimizer, progress, best model and metrics are {result} here",
    ]
    return not differences, "\n".join(lines)


def _spread(interruptions: int, steps: int) -> list[int]:
    """Return after how many updates to interrupt a run of `steps`."""
    if interruptions >= steps:
        raise UserError(f"--interruptions {interruptions} needs more updates than {steps}")
    return [round(steps * part / (interruptions + 1)) for part in range(1, interruptions + 1)]


def _train_until(step: int, config: Config, folder: Path) -> None:
    """Train in a new process, which is interrupted after `step` updates."""
    hooks = Hooks(on_step=functools.partial(_is_at, step))
    work = functools.partial(train, config, folder, hooks=hooks)
    call_in_new_process(work, *TRAINING_IMPORTS)


def _is_at(step: int, state: TrainingState) -> bool:
    return state.step == step
