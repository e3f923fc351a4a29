"""The command score: the model's probability of given translations and n-best lists."""

import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.decoding.lines.issues import Issues
from seq2seq_cli.decoding.translation import Translation, TranslationInput
from seq2seq_cli.decoding.translator import Translator, check_features, input_of
from seq2seq_cli.errors import UserError
from seq2seq_cli.text.corpus import readable_pairs
from seq2seq_cli.text.features import TAB
from seq2seq_cli.text.io import lines_to_translate

_PAIRS_AT_ONCE = 2_000


def score_pairs(translator: Translator, text: ParallelText, *, as_json: bool) -> Iterator[str]:
    """Yield a line for each pair: log-probability, its mean per token with EOS, translation.

    A warning says how many sources lack features, or have unknown ones. Raises UserError for
    features if the model has none, and if it has some, and sources have text after a tab instead.
    """
    pairs = (pair for _, pair in readable_pairs(text, translator.config.data.on_bad_line))
    issues = Issues()
    while chunk := list(itertools.islice(pairs, _PAIRS_AT_ONCE)):
        check_features(chunk, translator.tokenizers, text.name)
        issues += translator.feature_issues([input_of(pair) for pair in chunk if pair.src.strip()])
        texts = [(pair.source_line, pair.tgt) for pair in chunk]
        for (src, _), scored in zip(texts, translator.score(texts), strict=True):
            if as_json:
                yield json.dumps({"src": src, **scored.report()}, ensure_ascii=False)
            else:
                yield f"{scored.log_prob:.4f}\t{_mean(scored):.4f}\t{scored.text}"
    issues.report()


def rescore_nbest(translator: Translator, text: ParallelText) -> Iterator[str]:
    """Yield the n-best list with this model's scores, re-ranked by their mean per token.

    Entries of a sentence may be apart, as in the lists of two systems one after the other. Warns
    and raises UserError for features as `score_pairs` does.
    """
    src, nbest = text.files
    sources = list(lines_to_translate(src))
    for source in sources if text.has_features else ():
        translator.tokenizers.src.feature_ids(source.partition(TAB)[2])
    translator.feature_issues([TranslationInput(x) for x in sources if x.strip()]).report()
    entries = enumerate(lines_to_translate(nbest), start=1)
    parsed = (_parsed(line, f"{nbest}, line {number}", len(sources)) for number, line in entries)
    by_number = sorted(parsed, key=itemgetter(0))
    scored = _scored(translator, sources, by_number)
    for number, group in itertools.groupby(scored, key=itemgetter(0)):
        for entry in sorted((entry for _, entry in group), key=_mean, reverse=True):
            log_prob, mean = f"{entry.log_prob:.4f}", f"{_mean(entry):.4f}"
            yield f"{number} ||| {entry.text} ||| log_prob= {log_prob} ||| {mean}"


def _scored(
    translator: Translator, sources: Sequence[str], entries: Iterable[tuple[int, str]]
) -> Iterator[tuple[int, Translation]]:
    """Score many entries at once, as most lists are short."""
    entries = iter(entries)
    while chunk := list(itertools.islice(entries, _PAIRS_AT_ONCE)):
        scored = translator.score([(sources[number], text) for number, text in chunk])
        yield from zip((number for number, _ in chunk), scored, strict=True)


def _mean(translation: Translation) -> float:
    assert translation.log_probs is not None, "it was scored"
    return sum(translation.log_probs) / len(translation.log_probs)


def _parsed(line: str, place: str, num_sources: int) -> tuple[int, str]:
    number, *rest = line.split(" ||| ")
    if len(rest) > 2 and rest[-2].startswith("log_prob="):  # as `translate` writes them
        rest = [" ||| ".join(rest[:-2])]
    if not rest or not (number.strip().isascii() and number.strip().isdigit()):
        raise UserError(f"{place}: not of the form number ||| translation ||| ...")
    if int(number) >= num_sources:
        raise UserError(f"{place}: number {int(number)}, but the source has {num_sources} lines")
    return int(number), rest[0].strip()
