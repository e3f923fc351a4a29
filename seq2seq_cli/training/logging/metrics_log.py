"""Logging during training: progress bar or lines, TensorBoard, metrics.jsonl, train.log."""

import json
import logging
import math
import re
import textwrap
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Self

from tensorboard.compat.proto.summary_pb2 import Summary
from tqdm import tqdm

from seq2seq_cli.config.loader import config_yaml, flatten, yaml_text
from seq2seq_cli.config.metrics import Metric
from seq2seq_cli.config.schema import Config
from seq2seq_cli.console import is_stderr_watched
from seq2seq_cli.evaluation import Scores
from seq2seq_cli.files import replacing
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.manifest import count_starts
from seq2seq_cli.training.logging.tensorboard import AppendOnlyFile, EventFile
from seq2seq_cli.training.parallel.process_group import is_started_by_torchrun
from seq2seq_cli.training.run import MetricSums, Run, TrainingState

logger = logging.getLogger(__name__)


class Monitor:
    """Logs points, samples and the config to the progress bar, the log files and TensorBoard.

    A run that resumes from a step first drops what was logged after it.
    """

    def __init__(self, folder: RunFolder, run: Run) -> None:
        state, hooks, step = run.state, run.hooks, run.state.step
        self.starts = count_starts(folder)
        at_step = _drop_points_after(folder, state)
        self._log = _LogHandler(AppendOnlyFile(folder.log, hooks))
        logging.getLogger("seq2seq_cli").addHandler(self._log)
        self._metrics = AppendOnlyFile(folder.metrics, hooks)
        first_step = step if state.awaits_validation else step + 1
        self._tensorboard = EventFile(folder.path, first_step, hooks)
        if state.awaits_validation and at_step:
            self._tensorboard.scalars(step, _with_losses_first(at_step))
        self._metric: Metric = run.config.validation.metric
        max_hours = run.config.training.max_hours
        self._total = run.total_steps
        self._time_limit = math.inf if max_hours is None else 3_600 * max_hours
        self._first_step, self._started = step, time.monotonic()
        self._bar = tqdm(
            total=run.total_steps,
            initial=step,
            unit="step",
            disable=not is_stderr_watched(),
            dynamic_ncols=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
        with suppress(OSError):  # a warning was logged when the disk became full
            self.sync()
            self._log.file.sync()
        logging.getLogger("seq2seq_cli").removeHandler(self._log)

    def sync(self) -> None:
        """Return when all points are on the disk. Raises OSError on failure."""
        self._metrics.sync()
        self._tensorboard.sync()

    def config(self, config: Config) -> None:
        """Show the resolved config in TensorBoard, and let it compare runs by their options."""
        self._tensorboard.text(0, "config", textwrap.indent(config_yaml(config), "    "))
        # The tab HParams sorts options by name: `text.train.src` and the like do not come first.
        is_path = re.compile(r"^data(?=\.(train|valid)\..*\b(src|tgt|pairs)$)")
        self._tensorboard.options(
            {
                is_path.sub("text", name): float(v) if type(v) in (int, float) else yaml_text(v)
                for name, v in flatten(config).items()
                if v is not None
            }
        )

    def advance(self, total: int) -> None:
        """Advance the progress bar by one update, of so many in all."""
        self._bar.total = self._total = total
        self._bar.update()

    def training_point(self, step: int, scalars: Mapping[str, float]) -> None:
        """`scalars` by their short names: loss, lr, grad_norm, tokens_per_second, ..."""
        self._record(step, {f"train/{name}": value for name, value in scalars.items()})
        shown = f"loss {scalars['loss']:.3f}  " if "loss" in scalars else ""
        shown += f"{scalars['tokens_per_second']:,.0f} tokens/s"
        shown += f"  lr {scalars['lr']:.2e}" if "lr" in scalars else ""
        shown += f"  {scalars['waiting']:.0%} waiting" if "waiting" in scalars else ""
        self._bar.set_postfix_str(shown)
        # At the pace since this start, validations included, or until the time limit.
        pace = (time.monotonic() - self._started) / max(1, step - self._first_step)
        seconds = min(pace * (self._total - step), max(0.0, self._time_limit - scalars["seconds"]))
        level = logging.INFO if self._bar.disable else logging.DEBUG  # the bar says it already
        left = tqdm.format_interval(seconds)
        logger.log(level, f"step {step:,}/{self._total:,}  {shown}  {left} left")

    def validation_point(self, step: int, scores: Scores, is_best: bool) -> None:
        limited = scores.issues.at_length_limit
        point = {"valid/at_length_limit": limited} if scores.hypotheses else {}
        note = f"  at_length_limit {limited:,}" if limited else ""
        note += "  (best)" if is_best else ""
        self._scores("valid", step, scores, further=point, note=note)
        if is_best:
            self.best(step, scores.metrics())

    def best(self, step: int, metrics: Mapping[Metric, float]) -> None:
        """Show the scores of the run's model: the tab HParams has the last value of each name."""
        best = {f"best/{name}": metrics[name] for name in (self._metric, "loss")}
        self._tensorboard.scalars(step, best)

    def general_point(self, step: int, scores: Scores, *, has_forgotten: bool) -> None:
        note = "  (not kept: worse than validation.general_tolerance allows)"
        self._scores("general", step, scores, further={}, note=note if has_forgotten else "")

    def _scores(
        self, text: str, step: int, scores: Scores, *, further: Mapping[str, float], note: str
    ) -> None:
        metrics = scores.metrics()
        point = {f"{text}/{name}": value for name, value in metrics.items()}
        self._record(step, {**point, **further})
        shown = "  ".join(f"{name} {value:.3f}" for name, value in metrics.items())
        logger.info(f"step {step:,}  {text}  {shown}{note}")

    def samples(self, step: int, scores: Scores, count: int) -> None:
        """Show the first translations next to their references."""
        rows = ["| source | reference | translation |", "|---|---|---|"]
        sources, hypotheses, (references, *_), _ = scores.translated
        for texts in list(zip(sources, references, hypotheses, strict=True))[:count]:
            rows.append(f"| {' | '.join(as_markdown(text or '') for text in texts)} |")
        self._tensorboard.text(step, "valid/samples", "\n".join(rows))

    def plots(self, step: int, plots: Sequence[Summary]) -> None:
        """Show plots in TensorBoard."""
        self._tensorboard.write(step, plots)

    def candidates(self, step: int, table: str) -> None:
        """Show the scores of the models that a run may end with."""
        self._tensorboard.text(step, "valid/candidates", textwrap.indent(table, "    "))

    def _record(self, step: int, scalars: dict[str, float]) -> None:
        self._tensorboard.scalars(step, _with_losses_first(scalars))
        # JSON has no NaN.
        numbers = {name: value if math.isfinite(value) else None for name, value in scalars.items()}
        self._metrics.append(f"{json.dumps({'step': step, **numbers})}\n".encode())


def log_window(run: Run, monitor: Monitor | None, scalars: dict[str, float]) -> None:
    """Log a point that sums up the updates since the one before; all processes begin new sums."""
    state = run.state
    window, state.window = state.window, MetricSums()
    speed = run.parallel.speed()
    if monitor is None:
        return
    point: dict[str, float] = {}
    if window.num_tokens:
        padding = 1 - (window.num_tokens + window.num_src_tokens) / window.num_positions
        point |= {"loss": window.loss / window.num_tokens, "padding": padding}
        point |= {name: value / window.num_tokens for name, value in window.metrics.items()}
    point |= {
        "tokens": window.num_tokens,
        "tokens_per_second": window.num_tokens / max(window.seconds, 1e-9),  # as clocks tick
        "seconds": state.seconds,
        "skipped": window.skipped,
        **scalars,
    }
    if run.parallel.world_size > 1 or is_started_by_torchrun():
        point |= {"processes": run.parallel.world_size, "starts": monitor.starts, **speed}
    monitor.training_point(state.step, point)


def as_markdown(text: str) -> str:
    """Escape a text, so that a cell of a table in Markdown shows it as it is."""
    escaped = re.sub(r"[\\|*_`\[\]]", r"\\\g<0>", text)
    return escaped.replace("&", "&amp;").replace("<", "&lt;")


def _drop_points_after(folder: RunFolder, state: TrainingState) -> dict[str, float]:
    """Drop points after the run's step, a validation that is still to come, and incomplete lines.

    Returns what stays of the step itself.
    """
    at_step: dict[str, float] = {}
    if not folder.metrics.exists():
        return at_step
    with (
        replacing(folder.metrics) as part,
        part.open("wb") as kept,
    ):
        for line in folder.metrics_lines():
            try:
                values = json.loads(line) if line.endswith(b"\n") else {}
                step = int(values.pop("step"))
            except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                continue
            is_repeated = state.awaits_validation and any(
                name.startswith(("valid/", "general/"))
                or (name.startswith("train/") and state.window.seconds)  # of the end of the run
                for name in values
            )
            if 0 <= step < state.step or (step == state.step and not is_repeated):
                kept.write(line)
                numbers = {name: value for name, value in values.items() if value is not None}
                at_step = numbers if step == state.step else at_step
    return at_step


def _with_losses_first(scalars: dict[str, float]) -> dict[str, float]:
    """Add the losses as the group that TensorBoard shows first: it sorts capital letters first."""
    kinds = [kind for kind in ("train", "valid") if f"{kind}/loss" in scalars]
    return {f"Loss/{kind}": scalars[f"{kind}/loss"] for kind in kinds} | scalars


class _LogHandler(logging.Handler):
    def __init__(self, file: AppendOnlyFile) -> None:
        super().__init__()
        self.file = file
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.file.append(f"{self.format(record)}\n".encode("utf-8", "replace"))
