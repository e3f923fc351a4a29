"""Formats of translations: plain text, tab-separated, JSON lines, n-best lists."""

import json
from collections.abc import Callable, Sequence
from typing import Literal

from seq2seq_cli.decoding.translation import Translation, TranslationInput

OutputFormat = Literal["text", "tsv", "jsonl", "nbest"]
Write = Callable[[int, TranslationInput, Sequence[Translation]], list[str]]


def pharaoh(alignment: Sequence[tuple[int, int]]) -> str:
    """Write aligned words as "0-0 1-2": source and target, counted from 0."""
    return " ".join(f"{source}-{target}" for source, target in alignment)


def _tsv(number: int, line: TranslationInput, translations: Sequence[Translation]) -> list[str]:
    rows = []
    for translation in translations:
        scores = (translation.score, translation.log_prob)
        row = [" ".join(line.text.split()), translation.text]
        row += [f"{score:.4f}" for score in scores if score is not None]
        if translation.alignment is not None:
            row.append(pharaoh(translation.alignment))
        rows.append("\t".join(row))
    return rows


def _jsonl(number: int, line: TranslationInput, translations: Sequence[Translation]) -> list[str]:
    best = translations[0].report()
    best["translation"] = best.pop("text")
    alternatives = [translation.report() for translation in translations[1:]]
    report = {"src": line.text, **best} | ({"n_best": alternatives} if alternatives else {})
    return [json.dumps(report, ensure_ascii=False)]


def _nbest(number: int, line: TranslationInput, translations: Sequence[Translation]) -> list[str]:
    """Write Moses' n-best format: number ||| translation ||| features ||| score."""
    lines = []
    for one in translations:
        log_prob = one.log_prob or 0
        score = log_prob if one.score is None else one.score
        lines.append(f"{number} ||| {one.text} ||| log_prob= {log_prob:.4f} ||| {score:.4f}")
    return lines


WRITERS: dict[OutputFormat, Write] = {
    "text": lambda number, line, translations: [each.text for each in translations],
    "tsv": _tsv,
    "jsonl": _jsonl,
    "nbest": _nbest,
}
