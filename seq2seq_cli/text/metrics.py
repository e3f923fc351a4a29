"""Scores of text against references, by sacrebleu, with its signatures."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from seq2seq_cli.config.types import BleuTokenize, Metric
from seq2seq_cli.config.validation import ValidationConfig

Texts = Sequence[str]


class TextScore(NamedTuple):
    value: float
    signature: str | None = None  # what exactly sacrebleu has measured


def score_text(
    hypotheses: Texts, references: Texts, options: ValidationConfig
) -> dict[Metric, TextScore]:
    """Corpus scores by their names; none of no text."""
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

    return _scored(BLEU(tokenize=tokenize, lowercase=lowercase), hypotheses, references)


def _chrf(hypotheses: Texts, references: Texts, _: BleuTokenize, lowercase: bool) -> TextScore:
    """chrF2 (Popović 2015)."""
    from sacrebleu.metrics.chrf import CHRF

    return _scored(CHRF(lowercase=lowercase), hypotheses, references)


def _ter(
    hypotheses: Texts, references: Texts, tokenize: BleuTokenize, lowercase: bool
) -> TextScore:
    """Edits for each word of the reference (Snover et al. 2006), of each character of CJK text."""
    from sacrebleu.metrics.ter import TER

    is_spaceless = tokenize in ("zh", "char")
    ter = TER(normalized=is_spaceless, asian_support=is_spaceless, case_sensitive=not lowercase)
    return _scored(ter, hypotheses, references)


def _exact_match(
    hypotheses: Texts, references: Texts, _: BleuTokenize, lowercase: bool
) -> TextScore:
    """Lines that are the same but for white space."""
    equal = sum(
        hypothesis.split() == reference.split()
        if not lowercase
        else hypothesis.lower().split() == reference.lower().split()
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    )
    return TextScore(100 * equal / len(references))


def _scored(metric: Any, hypotheses: Texts, references: Texts) -> TextScore:
    value = metric.corpus_score(hypotheses, [references]).score
    return TextScore(value, metric.get_signature().format(short=False))


TEXT_METRICS: dict[Metric, Callable[[Texts, Texts, BleuTokenize, bool], TextScore]] = {
    "bleu": _bleu,
    "chrf": _chrf,
    "ter": _ter,
    "exact_match": _exact_match,
}


def share_with_4_grams(references: Sequence[str], bleu_tokenize: BleuTokenize) -> float:
    """The share of lines with at least four words: BLEU sees sequences of four in no others."""
    from sacrebleu.metrics.bleu import BLEU

    split = BLEU(tokenize=bleu_tokenize).tokenizer
    return sum(len(split(line).split()) >= 4 for line in references) / len(references)
