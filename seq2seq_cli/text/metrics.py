"""Scores of translations against references, by sacreBLEU, with its signatures."""

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from seq2seq_cli.config.types import BleuTokenize, Metric
from seq2seq_cli.config.validation import ValidationConfig

Texts = Sequence[str]


class TextScore(NamedTuple):
    value: float
    signature: str | None = None  # sacreBLEU's description of the exact metric


def score_text(
    hypotheses: Texts, references: Texts, options: ValidationConfig
) -> dict[Metric, TextScore]:
    """Return corpus scores by name; none for empty text."""
    assert len(hypotheses) == len(references)
    metrics = [name for name in TEXT_METRICS if name != "ter" or options.ter]
    return {
        name: TEXT_METRICS[name](hypotheses, references, options.bleu_tokenize, options.lowercase)
        for name in (metrics if references else ())
    }


def _bleu(
    hypotheses: Texts, references: Texts, tokenize: BleuTokenize, lowercase: bool
) -> TextScore:
    """Papineni et al. 2002."""
    from sacrebleu.metrics.bleu import BLEU

    return _corpus_score(BLEU(tokenize=tokenize, lowercase=lowercase), hypotheses, references)


def _chrf(hypotheses: Texts, references: Texts, _: BleuTokenize, lowercase: bool) -> TextScore:
    """chrF2 (Popović 2015)."""
    from sacrebleu.metrics.chrf import CHRF

    return _corpus_score(CHRF(lowercase=lowercase), hypotheses, references)


def _ter(
    hypotheses: Texts, references: Texts, tokenize: BleuTokenize, lowercase: bool
) -> TextScore:
    """Edits per reference word (Snover et al. 2006), or per character of CJK text."""
    from sacrebleu.metrics.ter import TER

    is_spaceless = tokenize in ("zh", "char")
    ter = TER(normalized=is_spaceless, asian_support=is_spaceless, case_sensitive=not lowercase)
    return _corpus_score(ter, hypotheses, references)


def _exact_match(
    hypotheses: Texts, references: Texts, _: BleuTokenize, lowercase: bool
) -> TextScore:
    """Percentage of lines that are equal apart from white space."""
    words = [
        [(line.lower() if lowercase else line).split() for line in lines]
        for lines in (hypotheses, references)
    ]
    return TextScore(100 * sum(map(operator.eq, *words)) / len(references))


def _corpus_score(metric: Any, hypotheses: Texts, references: Texts) -> TextScore:
    value = metric.corpus_score(hypotheses, [references]).score
    return TextScore(value, metric.get_signature().format(short=False))


TEXT_METRICS: dict[Metric, Callable[[Texts, Texts, BleuTokenize, bool], TextScore]] = {
    "bleu": _bleu,
    "chrf": _chrf,
    "ter": _ter,
    "exact_match": _exact_match,
}


def share_with_4_grams(references: Sequence[str], bleu_tokenize: BleuTokenize) -> float:
    """Return the fraction of lines with at least four words; no others have 4-grams for BLEU."""
    from sacrebleu.metrics.bleu import BLEU

    split = BLEU(tokenize=bleu_tokenize).tokenizer
    return sum(len(split(line).split()) >= 4 for line in references) / len(references)
