"""The default search of a finished run or ensemble: greedy or a beam, and the length penalty."""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.metrics import METRICS
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.types import DeviceName
from seq2seq_cli.decoding.default_search import DefaultSearch, MeasuredSearch, read_default_search
from seq2seq_cli.decoding.requests import NotFiniteError
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.decoding.translator import Translator, input_of
from seq2seq_cli.evaluation import HeldOut, read_held_out
from seq2seq_cli.files import write_json
from seq2seq_cli.metrics.metrics import Scoring, score_text
from seq2seq_cli.metrics.references import References, group_by_source, references_of
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import hash_of_files
from seq2seq_cli.tokenizers.tokenizer import load_tokenizers
from seq2seq_cli.training.run import Hooks, Run, nothing
from seq2seq_cli.training.signals import StopRequest

logger = logging.getLogger(__name__)

_BEAM = 5
_LEAST_GAIN = 0.3  # of the metric, by a beam, and by each step of its length penalty
_STEP, _HIGHEST = 0.2, 2.0  # of the length penalty
_FEWEST_SOURCES = 100  # fewer say nothing about so small a gain
_MOST_TOKENS = 20_000  # target tokens of the lines to translate, which bound the time


class Trial(NamedTuple):
    """A model, lines of the validation text, and how their translations are scored."""

    translator: Translator
    inputs: Sequence[TranslationInput]
    references: Sequence[References]
    scoring: Scoring
    stop: StopRequest

    def measure(self, beam: int, penalty: float) -> MeasuredSearch:
        """Search with this beam size and length penalty. Raises Interrupted after a signal."""
        what = "stopped while choosing the default search"
        self.stop.check(f"{what}; the same command starts that again")
        search = {"beam_size": beam, "length_penalty": penalty, "n_best": 1}
        options = self.translator.config.decoding.model_copy(update=search)
        searching = self.translator.with_options(options)
        started = time.perf_counter()
        found = searching.search(self.inputs, report=nothing)
        seconds = time.perf_counter() - started
        texts = [best.text for best, *_ in found]
        (score,) = score_text(texts, self.references, self.scoring).values()
        return MeasuredSearch(
            beam_size=beam,
            length_penalty=penalty,
            score=score.value,
            sentences_per_second=len(found) / seconds,
        )

    def gain(self, score: float, other: float) -> float:
        """Return by how much a score is better than another one."""
        (metric,) = self.scoring.names
        return score - other if METRICS[metric].higher_is_better else other - score


def choose_search(folder: RunFolder, run: Run, stop: StopRequest) -> None:
    """Measure searches with the run's model, and write the one that `auto` stands for.

    Only for a finished run whose config has `auto`, with enough validation sources, and once,
    unless validation changes. An earlier choice is removed if there is none to make. The model
    decodes as `translate` does. Raises Interrupted after a signal.
    """
    valid, step, scored_by = run.data.valid, run.state.step, run.state.scored_by
    if not folder.model.exists():
        return
    if valid is None or not _has_choice(run.config, valid):
        folder.search.unlink(missing_ok=True)
    elif not _is_chosen(folder, step, scored_by):
        with run.parallel.all_threads():
            _choose(folder, run.config, valid, step, scored_by, stop, run.hooks)


def choose_search_of_ensemble(ensemble: RunFolder) -> None:
    """As `choose_search`, for a trained ensemble whose members have all chosen one."""
    members = ensemble.members()
    chosen = [found for member in members if (found := read_default_search(member))]
    if len(chosen) < len(members):
        ensemble.search.unlink(missing_ok=True)
        return
    step, scored_by = sum(one.step for one in chosen), hash_of_files(one.search for one in members)
    if _is_chosen(ensemble, step, scored_by):
        return
    text = load_config(members[0].config).valid_text
    assert text is not None, "the members have chosen by it"
    _choose_by(text, ensemble, load_config(members[0].config), step, scored_by)


def choose_search_again(
    folder: RunFolder, before: DefaultSearch, text: ParallelText, device: DeviceName
) -> None:
    """Measure searches with a model that has replaced the one of an earlier choice."""
    config = load_config(folder.config).updated(training={"device": device})
    _choose_by(text, folder, config, before.step, before.scored_by)


def _choose_by(
    text: ParallelText, folder: RunFolder, config: Config, step: int, scored_by: str
) -> None:
    """Choose the search of a run or an ensemble by a validation text."""
    run = folder if folder.exists else folder.member(1)
    valid = read_held_out(text, load_tokenizers(run, config.tokenizer), config.data)
    _choose(folder, config, valid, step, scored_by, StopRequest(), Hooks())


def _choose(
    folder: RunFolder,
    config: Config,
    valid: HeldOut,
    step: int,
    scored_by: str,
    stop: StopRequest,
    hooks: Hooks,
) -> None:
    trial = _trial(config, valid, Translator.load(folder.path, config.training.device), stop)
    try:
        found = _find_search(trial, config.decoding, step, scored_by)
    except NotFiniteError as error:
        folder.search.unlink(missing_ok=True)
        logger.warning("no search is chosen: %s", error)
        return
    hooks.before_write(folder.search)
    write_json(folder.search, found.model_dump())
    logger.info("search: %s", found)


def _has_choice(config: Config, valid: HeldOut) -> bool:
    """Return True if the config leaves the search open and the run has what decides it."""
    options = config.decoding
    if "auto" not in (options.beam_size, options.length_penalty) or options.beam_size == 1:
        return False
    if options.sampling or options.diversity_groups > 1:
        return False
    sources = group_by_source(valid.pairs, merge=config.validation.merge_references)
    return config.validation.decode and len(sources) >= _FEWEST_SOURCES


def _is_chosen(folder: RunFolder, step: int, scored_by: str) -> bool:
    """Return True if a search was chosen for this step, and scores mean the same since."""
    before = read_default_search(folder)
    if before is None or before.step != step:
        return False
    return before.scored_by in ("", scored_by)  # earlier versions have not recorded it


def _trial(config: Config, valid: HeldOut, translator: Translator, stop: StopRequest) -> Trial:
    """Take evenly spaced sources of the validation text, with all their references."""
    scoring, metric = Scoring.of_run(config), config.validation.metric
    name = metric if METRICS[metric].is_of_text else scoring.line_metric
    scoring = replace(scoring, names=(name,))
    groups = group_by_source(valid.pairs, merge=scoring.merge_references)
    share = min(1.0, _MOST_TOKENS / valid.store.facts.tgt.tokens)
    count = max(min(_FEWEST_SOURCES, len(groups)), int(share * len(groups)))
    groups = [groups[number * len(groups) // count] for number in range(count)]
    targets = [translator.tokenizers.tgt.normalize(pair.tgt) for pair in valid.pairs]
    inputs = [input_of(valid.pairs[group[0]]) for group in groups]
    return Trial(translator, inputs, references_of(targets, groups), scoring, stop)


def _find_search(trial: Trial, options: DecodingConfig, step: int, scored_by: str) -> DefaultSearch:
    """Measure greedy search and a beam, with the best length penalty, as far as they are open."""
    beam = max(_BEAM if options.beam_size == "auto" else options.width, options.n_best)
    is_open = options.length_penalty == "auto"
    best = _best_beam(trial, beam) if is_open else trial.measure(beam, options.alpha)
    # If the width is not 1, beam_size or n_best asks for a beam.
    greedy = [trial.measure(1, best.length_penalty)] if options.width == 1 else []
    is_worth_it = not greedy or trial.gain(best.score, greedy[0].score) >= _LEAST_GAIN
    return DefaultSearch(
        step=step,
        scored_by=scored_by,
        metric=trial.scoring.names[0],
        lines=len(trial.inputs),
        length_penalty_formula=options.length_penalty_formula,
        measured=(*greedy, best),
        beam_size=beam if is_worth_it else 1,
        length_penalty=best.length_penalty,
    )


def _best_beam(trial: Trial, beam: int) -> MeasuredSearch:
    """Return the beam with the length penalty under which it scores best.

    From 1 on, the penalty goes up or down in steps as long as each gains enough
    (benchmarks/length_penalty.md). Each is a search of its own: ranking another n-best list again
    would not show which hypotheses a high penalty finds.
    """
    best = trial.measure(beam, 1.0)
    for step in (_STEP, -_STEP):
        while 0 <= (penalty := round(best.length_penalty + step, 1)) <= _HIGHEST:
            other = trial.measure(beam, penalty)
            if trial.gain(other.score, best.score) < _LEAST_GAIN:
                break
            best = other
        if best.length_penalty != 1.0:
            break
    return best
