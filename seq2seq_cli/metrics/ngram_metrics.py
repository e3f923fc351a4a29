"""BLEU, chrF and TER, as sacreBLEU computes them."""

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from seq2seq_cli.config.types import BleuTokenize


def bleu(tokenize: BleuTokenize, lowercase: bool) -> BLEU:
    """Papineni et al. 2002."""
    # With "none" the text is meant to be tokenized already: sacreBLEU need not warn of that.
    return BLEU(tokenize=tokenize, lowercase=lowercase, force=tokenize == "none")


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
