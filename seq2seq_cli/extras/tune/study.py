"""A study: the trials of a search, each a run in a folder of its own, and their record."""

import functools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.metrics import METRICS, Metric
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import DamagedFileError
from seq2seq_cli.extras.tune.space import Option
from seq2seq_cli.files import read_json, write_json
from seq2seq_cli.model.weights import read_model_scores
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.checkpoint import read_state
from seq2seq_cli.training.run import TrainingState, quality

FEWEST_FINISHED = 5  # trials, before others are compared with them


@dataclass
class Trial:
    """A training of the config with other values of the searched options."""

    number: int  # from 1
    values: dict[str, str]  # by name of the option, as YAML
    state: Literal["running", "finished", "pruned", "failed"] = "running"
    score: float | None = None  # of the run's model; of the best one until it was pruned
    loss: float | None = None  # which decides between equal scores
    updates: int = 0
    seconds: float = 0.0  # of all its starts
    reason: str = ""  # why it failed

    @property
    def overrides(self) -> list[str]:
        return [f"{name}={value}" for name, value in self.values.items()]


@dataclass
class Study:
    """What is searched, and all trials so far; `trials.json` in the folder of the study."""

    folder: Path
    options: Sequence[Option]
    trials: list[Trial] = field(default_factory=list)
    text: dict[str, str] = field(default_factory=dict)  # hashes of what trials learn and validate

    @classmethod
    def read(cls, folder: Path) -> "Study":
        """Read the record. Raises UserError if it is missing or damaged."""
        path = record_of(folder)
        try:
            study = _RECORD.validate_python({"folder": folder, **read_json(path)})
        except (ValidationError, TypeError):
            study = None
        if study is None or not study.trials:
            raise DamagedFileError(f"{path} is damaged: it is not a record of trials")
        return study

    def save(self) -> None:
        record = {"text": self.text, "options": list(map(asdict, self.options))}
        write_json(record_of(self.folder), {**record, "trials": list(map(asdict, self.trials))})

    @property
    def seconds(self) -> float:
        """The time that all trials have taken."""
        return sum(trial.seconds for trial in self.trials)

    @property
    def config(self) -> Path:
        """The config of the first trial, with every option."""
        return self.folder / "base.yaml"

    def config_of(self, trial: Trial) -> Config:
        """Return the config of a trial. Raises UserError if its values cannot be combined."""
        return load_config(self.config, trial.overrides)

    def run_of(self, trial: Trial) -> RunFolder:
        return RunFolder(self.folder / "trials" / str(trial.number))

    @functools.cached_property
    def metric(self) -> Metric:
        """What trials are compared by: the config's metric, which the first run has settled."""
        return load_config(self.run_of(self.trials[0]).config).validation.metric

    @property
    def finished(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.state == "finished"]

    @property
    def best(self) -> Trial | None:
        """The best of the finished trials, the earliest of equal ones."""
        return min(self.finished, key=self.cost_of, default=None)

    def cost_of(self, trial: Trial) -> tuple[float, float]:
        """What finished trials are compared by: the less the better."""
        assert trial.score is not None and trial.loss is not None, "it has finished"
        return quality(self.metric, trial.score, trial.loss)

    def costs_of(self, trial: Trial) -> dict[int, float]:
        """Return the same of all validations of a trial by their steps, without losses."""
        scores = _validations(self.run_of(trial), self.metric)
        return {step: quality(self.metric, one, math.nan)[0] for step, one in scores.items()}

    def end(self, trial: Trial) -> None:
        """Record how a trial ended whose training has returned."""
        run, facts = self.run_of(trial), METRICS[self.metric]
        scores = _validations(run, self.metric)
        trial.updates = next(iter(run.all_checkpoints()), 0)
        # A run that was stopped has made an update since its last validation.
        if trial.updates != next(reversed(scores), None):
            checkpoint = run.last_checkpoint
            if checkpoint and self.should_prune(trial, read_state(checkpoint).plan.total):
                kept = [score for score in scores.values() if math.isfinite(score)]
                best = max if facts.higher_is_better else min
                trial.state, trial.score = "pruned", best(kept, default=None)
            return
        found = read_model_scores(run.model) if run.model.is_file() else None
        if found is None:
            trial.state, trial.reason = "failed", "no validation gave a finite score"
        else:
            trial.state = "finished"
            trial.score, trial.loss = found.scores[self.metric], found.scores["loss"]

    def should_prune(self, trial: Trial, planned: int) -> bool:
        """Return True if the best validation of a trial is worse than the median of finished ones.

        They are compared after the same share of their updates, of which this trial will make
        `planned`: numbers of updates and epochs depend on the size of batches. The first third is
        spared, where high rates and strong regularization look worse than they are.
        """
        costs, finished = self.costs_of(trial), list(map(self.costs_of, self.finished))
        step = max(costs, default=0)
        if len(finished) < FEWEST_FINISHED or 3 * step <= planned:
            return False
        shares = [[c for s, c in one.items() if s * planned <= step * max(one)] for one in finished]
        others = [costs[-1] for costs in shares if costs and math.isfinite(costs[-1])]
        best = min(filter(math.isfinite, costs.values()), default=math.inf)
        return bool(others) and best > statistics.median(others)


@dataclass
class StopTrial:
    """Stops a trial, in any process: when time is up, or to prune it by the record."""

    folder: Path
    number: int
    deadline: float  # by time.monotonic(), which all processes of a machine share
    validated_step: int = 0

    def __call__(self, state: TrainingState) -> bool:
        if time.monotonic() >= self.deadline:
            return True
        if state.validated_step == self.validated_step:
            return False
        self.validated_step = state.validated_step
        study = Study.read(self.folder)
        return study.should_prune(study.trials[self.number - 1], state.plan.total)


_RECORD = TypeAdapter(Study)


def record_of(folder: Path) -> Path:
    return folder / "trials.json"


def _validations(run: RunFolder, metric: Metric) -> dict[int, float]:
    """Return the score of each validation of a run by its step; NaN where it is not finite."""
    name = f"valid/{metric}"
    points = [point for point in run.metrics_points() if name in point]
    return {point["step"]: math.nan if point[name] is None else point[name] for point in points}
