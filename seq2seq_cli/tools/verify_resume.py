"""Whether a run that was interrupted ends as one that was not: trained twice and compared."""

import functools
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import UserError
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.tools.run_diff import Difference, differing_results
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.run import Hooks, TrainingState


@dataclass(frozen=True)
class Verdict:
    """What differs between a run in one go and one with stops: nothing, if continuing is exact."""

    steps: int
    stops: Sequence[int]
    differences: list[Difference]

    @property
    def is_exact(self) -> bool:
        return not self.differences

    def table(self) -> str:
        """What `verify-resume` prints."""
        stops = ", ".join(map(str, self.stops))
        compared = "weights, optimizer, place, best model and logged points are"
        return "\n".join(
            [
                f"{self.steps} updates in one go, and with a stop after {stops}",
                *(difference.line() for difference in self.differences),
                f"{compared} the same, bit for bit: continuing is exact here"
                if self.is_exact
                else f"{compared} NOT the same: continuing is not exact here",
            ]
        )


def verify_resume(config: Config, steps: int, interruptions: int) -> Verdict:
    """Train `steps` updates in one go and with interruptions, and compare all that is left.

    Raises UserError when the run has fewer updates, or fewer than interruptions are asked for.
    """
    if interruptions >= steps:
        raise UserError(f"--steps {steps} must be more than --interruptions {interruptions}")
    stops = [round(steps * part / (interruptions + 1)) for part in range(1, interruptions + 1)]
    with tempfile.TemporaryDirectory(prefix="seq2seq-verify-") as folder:
        whole, broken = Path(folder) / "whole", Path(folder) / "broken"
        _train_in_new_process(config, whole, steps)
        last = max(RunFolder(whole).all_checkpoints())
        if last < steps:
            raise UserError(f"--steps {steps}: the run of this config ends after {last} updates")
        config = load_config(RunFolder(whole).config)  # with the numbers that `auto` became
        for stop in [*stops, steps]:
            _train_in_new_process(config, broken, stop)
        return Verdict(steps, stops, differing_results(whole, broken))


def _train_in_new_process(config: Config, folder: Path, stop_at: int) -> None:
    hooks = Hooks(on_step=functools.partial(_is_at, stop_at))
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        pool.submit(train, config, folder, hooks=hooks).result()


def _is_at(step: int, state: TrainingState) -> bool:
    return state.step == step
