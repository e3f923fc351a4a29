"""BLEU, chrF and TER of sacreBLEU; exact match and error rates as metrics of its kind.

SIGMORPHON's tables have the same numbers under other names: their word error rate (WER) is
`exact_match_error`, as each line is a word, and their phone error rate (PER) is `symbol_error_rate`
(Gorman et al. 2020, "The SIGMORPHON 2020 Shared Task on Multilingual Grapheme-to-Phoneme
Conversion").
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rapidfuzz.distance import Levenshtein
from sacrebleu.metrics.base import Metric, Score, Signature
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from seq2seq_cli.config.types import BleuTokenize
from seq2seq_cli.metrics.metrics import spaced


def bleu(tokenize: BleuTokenize, lowercase: bool) -> BLEU:
    """Papineni et al. 2002."""
    # `check` warns of tokenized text: sacreBLEU need not, which names an option of its own.
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=True)


def chrf(_: BleuTokenize, lowercase: bool) -> CHRF:
    """chrF2 (Popović 2015)."""
    return CHRF(lowercase=lowercase)


def chrf_plus_plus(_: BleuTokenize, lowercase: bool) -> CHRF:
    """chrF2++, with words and pairs of words (Popović 2017)."""
    return CHRF(lowercase=lowercase, word_order=2)


def ter(tokenize: BleuTokenize, lowercase: bool) -> TER:
    """Edits per reference word (Snover et al. 2006), or per character of CJK text."""
    is_spaceless = tokenize in ("zh", "char")
    return TER(normalized=is_spaceless, asian_support=is_spaceless, case_sensitive=not lowercase)


class _LineMetric(Metric):
    """A metric whose statistics are summed over the lines of a text."""

    _SIGNATURE_TYPE = Signature

    def __init__(self, _: BleuTokenize, lowercase: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._lowercase = lowercase

    def _preprocess_segment(self, sent: str) -> str:
        return spaced(sent, lowercase=self._lowercase)

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"references": refs}

    def _aggregate_and_compute(self, stats: Sequence[Sequence[int]]) -> Score:
        return self._compute_score_from_stats([*map(sum, zip(*stats, strict=True))])


class ExactMatch(_LineMetric):
    """Percentage of lines that equal a reference apart from white space."""

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        """Return the number of matches and of lines, of one line."""
        return [int(hypothesis in ref_kwargs["references"]), 1]

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        matches, lines = stats
        return Score("exact_match", 100 * matches / lines)


class ExactMatchError(ExactMatch):
    """Percentage of lines that differ from every reference: 100 - exact match."""

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        exact_match = super()._compute_score_from_stats(stats).score
        return Score("exact_match_error", 100 - exact_match)


class SymbolErrorRate(_LineMetric):
    """Edits per 100 symbols of the references; of several, the one with the fewest edits counts."""

    split: ClassVar[Callable[[str], Sequence[str]]] = str.split

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict[str, Any]) -> list[int]:
        """Return the edits of one line, and the length of its reference."""
        split = type(self).split
        units, references = split(hypothesis), map(split, ref_kwargs["references"])
        return min([Levenshtein.distance(units, ref), len(ref)] for ref in references)

    def _compute_score_from_stats(self, stats: Sequence[float]) -> Score:
        edits, length = stats
        return Score("error_rate", 100 * edits / max(length, 1))


class CharacterErrorRate(SymbolErrorRate):
    """Edits per 100 characters; spaces between words count."""

    split = str
