"""The model that a run ends with: the best of its best model, its last one and their averages."""

import functools
import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from seq2seq_cli.config.metrics import Metric
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import DamagedFileError, UserError
from seq2seq_cli.evaluation import Scores
from seq2seq_cli.files import MEBIBYTE, read_bounded, write_atomic
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import facts_of, save_tensors
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.averaging import averaged_steps, mean_of_files, with_weights
from seq2seq_cli.training.logging.metrics_log import Monitor
from seq2seq_cli.training.run import Run, TrainingState, nothing, quality
from seq2seq_cli.training.signals import StopRequest
from seq2seq_cli.training.validation import score_candidate

logger = logging.getLogger(__name__)


class Candidate(NamedTuple):
    """Weights that may become the run's model: the mean of one or more files."""

    name: str
    files: tuple[Path, ...]


class Scored(NamedTuple):
    """A candidate with its validation scores; none without validation text."""

    candidate: Candidate
    metrics: dict[Metric, float]

    def quality(self, metric: Metric) -> tuple[float, float]:
        """What candidates are compared by: the less the better."""
        return quality(metric, self.metrics[metric], self.metrics["loss"])


def find_candidates(folder: RunFolder, config: Config, state: TrainingState) -> list[Candidate]:
    """Return what a finished run may end with, nothing if the best model is known already.

    Without validation text only averages are candidates, the one to prefer first.
    """
    last, training = folder.checkpoint(state.step), config.training
    is_best = state.best_step == state.step  # the model that was validated last
    averages = []
    if state.has_ema and not is_best:
        averages.append(Candidate(f"EMA, step {state.step:,}", (last / "ema.safetensors",)))
    if training.average_checkpoints is not None:
        kept = {n: path for n, path in folder.all_weights().items() if n <= state.step}
        steps = sorted({*averaged_steps(kept, training), state.step})
        steps = steps[-training.average_checkpoints :]
        if len(steps) > 1:
            averages.append(average_of({step: kept[step] for step in steps}))
    if config.data.valid is None:
        return averages
    best = best_files(folder, state)
    if len(best) > 1:
        averages.append(Candidate(f"average of the best {len(best)}", tuple(best.values())))
    if not (averages or state.has_ema):
        return []
    singles = []
    if state.best_step is not None:
        also = (" and EMA" if state.has_ema else " and last") if is_best else ""
        name = f"best{also}, step {state.best_step:,}"
        singles.append(Candidate(name, (best[state.best_step],)))
    elif folder.model.is_file():  # validation changed since it was chosen
        singles.append(Candidate("model so far", (folder.model,)))
    if state.has_ema or not is_best:
        singles.append(Candidate(f"last, step {state.step:,}", (last / "weights.safetensors",)))
    return [*singles, *averages]


def average_of(files: dict[int, Path]) -> Candidate:
    name = f"average of {len(files)} checkpoints, steps {min(files):,} to {max(files):,}"
    return Candidate(name, tuple(files.values()))


def best_files(folder: RunFolder, state: TrainingState) -> dict[int, Path]:
    """Return the weights of the best models by step, the best first.

    The best of all may be the run's model alone. Others may be missing if `validation.keep_best`
    was raised in the run.
    """
    kept = folder.all_best_models()
    files = {state.best_step: folder.model} if state.best_step is not None else {}
    return files | {m.step: kept[m.step] for m in state.best_models if m.step in kept}


def warn_of_missing(folder: RunFolder, config: Config, state: TrainingState) -> None:
    """Warn if there are no weights of steps that averages should include."""
    count, every = config.training.average_checkpoints, config.training.save_every
    missing = {model.step for model in state.best_models} - {*best_files(folder, state)}
    if count is not None and every is not None:
        steps = sorted({*range(every, state.step, every), state.step})
        missing |= {*steps[-count:]} - {*folder.all_weights()}
    if missing:
        steps_text = ", ".join(f"{step:,}" for step in sorted(missing))
        logger.warning("averages leave out steps whose weights are missing: %s", steps_text)


def candidates_to_score(folder: RunFolder, run: Run) -> list[Candidate]:
    """Return the candidates of the finished run, nothing if `candidates.jsonl` lists them all."""
    candidates = find_candidates(folder, run.config, run.state)
    try:
        lines = read_bounded(folder.candidates, MEBIBYTE).splitlines()
        entries = [entry for line in lines if isinstance(entry := json.loads(line), dict)]
    except (FileNotFoundError, ValueError, RecursionError, UserError):
        return candidates
    names = [entry.get("model") for entry in entries if entry.get("step") == run.state.step]
    return [] if names == [candidate.name for candidate in candidates] else candidates


def choose_model(folder: RunFolder, run: Run, stop: StopRequest, monitor: Monitor | None) -> None:
    """Score the candidates and write the best one as the run's model, if that is still to be done.

    The record that it is done is written last. A candidate that is damaged or has a score that is
    not finite is not chosen. Raises OSError if one cannot be read, and Interrupted after a signal.
    """
    if not (candidates := candidates_to_score(folder, run)):
        return
    config, step, model = run.config, run.state.step, run.gathered.model
    warn_of_missing(folder, config, run.state)
    readable: list[Candidate] = []
    for candidate in candidates:
        try:
            mean_of_files(candidate.files, model)
            readable.append(candidate)
        except DamagedFileError as error:
            logger.warning("%s is left out: %s", candidate.name, error)
    if config.data.valid is None:
        scored = [Scored(candidate, {}) for candidate in readable]
        chosen = next(iter(scored), None)
    else:
        logger.info("comparing %d models on the validation text", len(readable))
        scored = score_candidates(model, readable, functools.partial(score_candidate, run, stop))
        metric = config.validation.metric
        finite = [one for one in scored if all(map(math.isfinite, one.metrics.values()))]
        chosen = min(finite, key=lambda one: one.quality(metric), default=None)
    if chosen is not None:
        best = chosen.candidate
        if best.files != (folder.model,):
            folder.search.unlink(missing_ok=True)  # the choice of another model
        install(folder, model, best, chosen.metrics, run.state, run.hooks.before_write)
        if monitor is not None and chosen.metrics:
            monitor.best(step, chosen.metrics)
    if scored:
        table = candidate_table(scored, chosen)
        if monitor is not None:
            monitor.candidates(step, table)
        logger.info("%s", table)
    metrics = {one.candidate.name: one.metrics for one in scored}
    text = ""
    # as they are now: an average has moved the best model, or is the model so far
    for name, files in find_candidates(folder, config, run.state):
        line = {
            "step": step,
            "model": name,
            "files": [str(path.relative_to(folder.path)) for path in files],
            "chosen": chosen is not None and name == chosen.candidate.name,
        }
        text += f"{json.dumps(line | metrics.get(name, {}))}\n"
    run.hooks.before_write(folder.candidates)
    write_atomic(folder.candidates, text.encode("utf-8"))


def score_candidates(
    model: Transformer, candidates: Sequence[Candidate], score: Callable[[], Scores]
) -> list[Scored]:
    """Score the model with the weights of each candidate."""
    scored = []
    for candidate in candidates:
        with with_weights(model, mean_of_files(candidate.files, model)):
            scored.append(Scored(candidate, score().metrics()))
    return scored


def install(
    folder: RunFolder,
    model: Transformer,
    candidate: Candidate,
    metrics: Mapping[Metric, float],
    state: TrainingState | None,
    before_write: Callable[[Path], None] = nothing,
) -> None:
    """Write a candidate with its scores as the run's model.

    The best single model, if it was that, goes to best/: a run that is trained for longer compares
    with it. `state` belongs to the last checkpoint.
    """
    if candidate.files == (folder.model,):
        return
    step = None if state is None else state.best_step
    if step is not None and step not in folder.all_best_models() and folder.model.is_file():
        folder.best.mkdir(exist_ok=True)
        before_write(folder.best_model(step))
        write_atomic(folder.best_model(step), folder.model.read_bytes())
    before_write(folder.model)
    facts = facts_of(candidate.name, metrics)
    save_tensors(mean_of_files(candidate.files, model), folder.model, facts)


def candidate_table(scored: Sequence[Scored], chosen: Scored | None) -> str:
    width = max(len(one.candidate.name) for one in scored)
    rows = []
    for one in scored:
        scores = (f"{name} {value:.3f}" for name, value in one.metrics.items())
        note = ["(chosen)"] if one is chosen else []
        rows.append("  ".join([f"{one.candidate.name:<{width}}", *scores, *note]))
    return "\n".join(rows)
