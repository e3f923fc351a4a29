"""`seq2seq average`: averages weights of a run, and scores the average."""

from collections.abc import Sequence
from pathlib import Path

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.metrics import Metric
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.types import DeviceName
from seq2seq_cli.decoding.default_search import read_default_search
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.evaluation import Scores, evaluate_corpus, located, valid_text
from seq2seq_cli.metrics.metrics import Scoring
from seq2seq_cli.model.weights import facts_of, save_tensors
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.checkpoints.averaging import mean_of_files
from seq2seq_cli.training.checkpoints.checkpoint import read_state
from seq2seq_cli.training.checkpoints.choose_model import (
    Candidate,
    average_of,
    best_files,
    candidate_table,
    install,
    score_candidates,
)
from seq2seq_cli.training.choose_search import choose_search_again

_LAST = 5  # checkpoints, or as many as there are


def average_weights(
    run_dir: Path,
    output: Path | None,
    device: DeviceName,
    *,
    last: int | None,
    best: int | None,
    steps: Sequence[int],
    force: bool,
) -> str:
    """Average weights of a run, and score the average and the run's model on its validation text.

    The average replaces the run's model if it is better, or with `force`. With `output` it is
    written to a file instead, without a score if the text no longer exists. Returns what to print.
    Raises UserError if the run has not kept enough weights, or lacks the text to decide.
    """
    folder = RunFolder(run_dir)
    folder.ensure_is_run()
    if output is not None:
        _check_output(output, folder)
    with folder.locked():
        average = _select(folder, last, best, steps)
        which = "best" if folder.model.is_file() else str(average.files[0])
        loaded = Translator.load(run_dir, device, which=which, exact=True)
        model, config = loaded.model, load_config(folder.config)  # scores as validations do
        text = config.valid_text
        if output is None and not force:
            _check_that_scores_decide(run_dir, config)
            text = valid_text(config, run_dir)
        elif text is not None:
            text = located(text, run_dir)
        lines, is_better, metrics = [], False, dict[Metric, float]()
        if text is not None:

            def score() -> Scores:
                translator = Translator(model, loaded.tokenizers, config, loaded.statistics)
                scoring, decode = Scoring.of_run(config), config.validation.decode
                return evaluate_corpus(translator, text, decode=decode, scoring=scoring)

            present = [Candidate(folder.model.name, (folder.model,))] if which == "best" else []
            scored = score_candidates(model, [average, *present], score)
            winner = min(reversed(scored), key=lambda s: s.quality(config.validation.metric))
            is_better, metrics = winner.candidate == average, scored[0].metrics
            lines.append(candidate_table(scored, None))
        if output is not None:
            facts = facts_of(average.name, metrics)
            save_tensors(mean_of_files(average.files, model), output, facts)
            lines.append(f"written to {output}")
        elif force or is_better:
            newest, search = folder.last_checkpoint, read_default_search(folder)
            install(folder, model, average, metrics, read_state(newest) if newest else None)
            lines.append(f"{folder.model} is now the {average.name}")
            if search is not None and text is not None:
                choose_search_again(folder, search, text, device)
            elif search is not None:
                folder.search.unlink()
                lines.append(f"{folder.search} is removed: there is no text to choose a search by")
        else:
            lines.append(f"{folder.model} stays: the average is not better (--force replaces it)")
        return "\n".join(lines)


def _check_output(output: Path, folder: RunFolder) -> None:
    """Raise UserError if the average cannot be written there."""
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}")
    own = [one.resolve() for one in (folder.model, folder.checkpoints, folder.best)]
    if any(output.resolve().is_relative_to(one) for one in own):
        raise UserError(f"{output} belongs to the run: choose another --output")


def _check_that_scores_decide(run_dir: Path, config: Config) -> None:
    """Raise UserError if the validation text alone cannot tell whether an average is better."""
    if config.data.valid is None:
        raise UserError(
            f"{run_dir} has no validation text to score the average on: write it to a file with "
            "--output, or replace the run's model with --force"
        )
    if config.data.general is not None:
        raise UserError(
            f"{run_dir} must not get worse on data.general, on which average does not score: write "
            "it to a file with --output, or replace the run's model with --force"
        )


def _select(
    folder: RunFolder, last: int | None, best: int | None, steps: Sequence[int]
) -> Candidate:
    """Return the average to make; raises UserError if the run has not kept its weights."""
    kept = {step: path for step, path in sorted(folder.all_weights().items()) if step > 0}
    if steps:
        wanted = len(steps)
        files = {step: kept[step] for step in steps if step in kept}
    elif best is not None:
        wanted, checkpoint = best, folder.last_checkpoint
        kept = {} if checkpoint is None else best_files(folder, read_state(checkpoint))
        files = dict(list(kept.items())[:wanted])
    else:
        wanted = min(_LAST, max(2, len(kept))) if last is None else last
        files = dict(list(kept.items())[-wanted:])
    if len(files) < wanted:
        present = ", ".join(map(str, sorted(kept))) or "none"
        raise UserError(
            f"{folder.path} has not kept the weights to average, only steps {present}; "
            "training.average_checkpoints, keep_last and keep_every, and for the best models "
            "validation.keep_best, determine what a run keeps"
        )
    if best is not None:
        return Candidate(f"average of the best {len(files)}", tuple(files.values()))
    return average_of(files)
