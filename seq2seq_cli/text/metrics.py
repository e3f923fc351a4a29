"""Scores of text against references, by sacrebleu, with its signatures."""

from collections.abc import Sequence
from typing import NamedTuple

from seq2seq_cli.option_types import BleuTokenize


class TextScores(NamedTuple):
    """Corpus scores, 0 to 100, and what exactly was measured."""

    bleu: float
    chrf: float
    exact_match: float
    bleu_signature: str
    chrf_signature: str


def score_text(
    hypotheses: Sequence[str], references: Sequence[str], bleu_tokenize: BleuTokenize = "13a"
) -> TextScores:
    """BLEU (cased), chrF2 and the share of lines equal to their reference, in percent."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    assert len(hypotheses) == len(references) > 0
    bleu, chrf = BLEU(tokenize=bleu_tokenize), CHRF()
    bleu_score = bleu.corpus_score(hypotheses, [references]).score
    chrf_score = chrf.corpus_score(hypotheses, [references]).score
    return TextScores(
        bleu=bleu_score,
        chrf=chrf_score,
        exact_match=100 * exact_matches(hypotheses, references) / len(references),
        bleu_signature=bleu.get_signature().format(short=False),
        chrf_signature=chrf.get_signature().format(short=False),
    )


def exact_matches(hypotheses: Sequence[str], references: Sequence[str]) -> int:
    """Lines that are the same but for white space."""
    return sum(
        hypothesis.split() == reference.split()
        for hypothesis, reference in zip(hypotheses, references, strict=True)
    )


def share_with_4_grams(references: Sequence[str], bleu_tokenize: BleuTokenize) -> float:
    """The share of lines with at least four words: BLEU sees sequences of four in no others."""
    from sacrebleu.metrics.bleu import BLEU

    split = BLEU(tokenize=bleu_tokenize).tokenizer
    return sum(len(split(line).split()) >= 4 for line in references) / len(references)
