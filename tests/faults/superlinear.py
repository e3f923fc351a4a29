"""Looks for text that a parser takes more time for than in proportion to its length.

    PYTHONPATH=tests python -m faults.superlinear --minutes 10 --seed 1
    PYTHONPATH=tests python -m faults.superlinear --only html

Short fragments, put together at random, are repeated so that a text has some thousand characters,
and four times as many. A parser fails if the longer text takes more than eight times the processor
time: linear time means four times, quadratic time sixteen.
"""

import argparse
import asyncio
import gc
import itertools
import json
import logging
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from random import Random
from typing import NamedTuple

import yaml
from number_task import number_pairs
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from seq2seq_cli.config.safe_yaml import parse_yaml
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.decoding.lines.segmentation import Bounds, segment_lines
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.serve.documents.document import Sentence
from seq2seq_cli.extras.serve.documents.document_writer import DocumentWriter
from seq2seq_cli.extras.serve.documents.formats import READERS, FormatName
from seq2seq_cli.extras.serve.documents.paragraphs import SentenceSplitter
from seq2seq_cli.extras.serve.glossary import Glossary
from seq2seq_cli.extras.serve.messages import SentenceOutput
from seq2seq_cli.extras.serve.request_fields import Fields, Limits
from seq2seq_cli.extras.serve.responses import RequestError
from seq2seq_cli.text import quoting
from seq2seq_cli.text.sentences import find_inner_marks, separator, split_sentences
from seq2seq_cli.text.tmx import read_units
from seq2seq_cli.text.words import word_spans
from seq2seq_cli.tokenizers.tokenizer import Tokenizer

LENGTH = 4_000  # characters of the shorter text
LONGER = 4
MOST = 2.0 * LONGER  # times the processor time of the shorter text
LEAST_SECONDS = 0.03  # of the longer text; what takes less is not measured well
PATIENCE = 20.0  # seconds of a processor's time for one case

Part = tuple[str, bool]  # a fragment, and whether it is repeated


class Parser(NamedTuple):
    """What reads a text, and what its fragments are made of."""

    read: Callable[[str], object]
    atoms: list[str]


def backwards(sentence: Sentence) -> SentenceOutput:
    """Translate a sentence to its words in the opposite order; every third is aligned."""
    words = [sentence.text[start:end] for start, end in word_spans(sentence.text)]
    alignment = [(i, len(words) - 1 - i) for i in range(0, len(words), 3)]
    return SentenceOutput(" ".join(reversed(words)), alignment)


def document(name: FormatName, start: str = "") -> Callable[[str], object]:
    """Return what takes a document apart and puts it together."""

    def read(text: str) -> str:
        parts = READERS[name](start + text, SentenceSplitter(longest=500))
        writer = DocumentWriter(parts)
        return "".join([*(writer.add(backwards(s)) for s in parts.sentences), writer.rest()])

    return read


def sentences(text: str) -> object:
    return list(map(separator, split_sentences(text))), find_inner_marks([text]), word_spans(text)


def quoted(text: str) -> object:
    prepared, _ = quoting.quote_with_offsets(quoting.prepare(text))
    return list(quoting.unquote_parts(prepared[i : i + 7] for i in range(0, len(prepared), 7)))


def translation_memory(text: str) -> object:
    data = f'<tmx><body><tu><tuv xml:lang="en"><seg>{text}</seg></tuv></tu></body></tmx>'.encode()
    with suppress(UserError):
        return list(read_units((data[i : i + 4096] for i in range(0, len(data), 4096)), "x"))


def config(text: str) -> object:
    with suppress(yaml.YAMLError, ValueError, RecursionError):
        return parse_yaml(text)


def json_line(text: str) -> object:
    with suppress(UserError):
        TranslationInput.from_json(text)
    return TranslationInput.from_json(json.dumps({"src": text}))


def request(content_type: str) -> Callable[[str], object]:
    """Return what reads the fields of a request."""

    def read(text: str) -> object:
        async def receive() -> dict[str, object]:
            return {"type": "http.request", "body": text.encode()}

        headers = [(b"content-type", content_type.encode())]
        scope = {"type": "http", "headers": headers, "query_string": b""}
        with suppress(RequestError, MultiPartException):
            return asyncio.run(Fields.read(Request(scope, receive), Limits()))

    return read


def glossary(text: str) -> object:
    """Look for hundreds of terms that begin as the text does."""
    terms = [text[start : start + length] for start in range(10) for length in range(1, 200, 10)]
    known = {f"{term}{number}": "x" for number, term in enumerate(terms)}
    return Glossary(known | dict.fromkeys(terms, "y")).required_in(text)


@cache
def tokenizer(kind: str) -> Tokenizer:
    lines = itertools.chain.from_iterable(number_pairs(200, seed=1))
    return Tokenizer.fit(lines, TokenizerConfig(kind=kind, vocab_size=400))


def segments(kind: str) -> Callable[[str], object]:
    """Return what divides a line into tokens, and puts it together."""

    def read(text: str) -> object:
        of_lines, _ = segment_lines([text], tokenizer(kind), Bounds(40, 30))
        return [tokenizer(kind).to_text(s.ids) for s in of_lines[0]], tokenizer(kind).spans(text)

    return read


WORDS = [*"aB1 .!?,-'\"", "one ", "Two. ", "。", "z.B. ", "3. ", "ä", "字", " ", "\n", "\u2028"]
HTML = [
    *("<", ">", "</", "/>", "<!--", "-->", "<!", "<?", "&", "&#", "&amp;", ";", "=", '"', "'", "/"),
    *("<b>", "</b>", "<i>", "</i>", "<a href='", "<a>", "</a>", "<p>", "</p>", "<br>", "<sup>"),
    *("</sup>", "<code>", "</code>", "<pre>", "<script>", "</script", "<title>", "<svg/>", "<x y="),
    *("<b translate=no>", "<li>", "<td translate=no>", "</td>", "<tr>", "</ul>"),
]
MARKDOWN = [
    *("*", "**", "_", "`", "``", "~~", "[", "]", "](", "![", "(", ")", "\\", "<", ">", "<b>"),
    *("</b>", "|", "-", "#", "    ", "\t", "  \n", "\\\n", "\n\n", "> ", "- ", "1. ", "[a]: b\n"),
    *("[^", "[a]", "http://", "|-|-|\n", "```\n", "---\n", "===\n", "<!--", "a@b", "&", '"'),
    *("-->", "](<", '](a "', "](a (", "'", "https://", "&amp;", " "),
]
SUBTITLES = [
    *("<i>", "</i>", "<", ">", "</", "{\\", "}", "- ", "-", "\n\n", "\r", "1\n", "&amp;", "<v P>"),
    *("00:01.000 --> 00:02.000\n", "0:", "-->", "<0", "<v ", "<a b", "=", "<font"),
]
XML = [
    *("<", ">", "&", "&lt;", "<hi>", "</hi>", "<ph>", "</ph>", "<!--", "-->", "<![CDATA[", "]]>"),
    *("</seg>", "<seg>", "</tuv>", '<tuv xml:lang="de">', "</tu>", "<tu>", "<?x ", "?>", "<a b='"),
]
CODE = [
    *("{", "}", "[", "]", ":", ": ", ",", '"', "'", "\\", "- ", "? ", "#", "&a", "*a", "|", ">"),
    *(
        "!!x ",
        "a: ",
        "\n ",
        "%",
        "<<",
        '"src"',
        '"a":',
        "true",
        "1_",
        "1e",
        "0x",
        "---\n",
        "=",
        "+",
    ),
    *("--x", "\r\n", "Content-Disposition: form-data; name=", "a=b&"),
]
PARSERS = {
    "text": Parser(document("text"), []),
    "html": Parser(document("html"), HTML),
    "markdown": Parser(document("markdown"), MARKDOWN),
    "xml": Parser(document("xml"), [*HTML, *XML]),
    "SubRip": Parser(document("subtitles", "1\n00:01.000 --> 00:02.000\n"), SUBTITLES),
    "WebVTT": Parser(document("subtitles", "WEBVTT\n\n00:01.000 --> 00:02.000\n"), SUBTITLES),
    "sentences": Parser(sentences, []),
    "quoting": Parser(quoted, ["▁", "\ufdd0", "\ufdd1"]),
    "glossary": Parser(glossary, []),
    "TMX": Parser(translation_memory, XML),
    "YAML": Parser(config, CODE),
    "JSON line": Parser(json_line, CODE),
    "JSON request": Parser(request("application/json"), CODE),
    "form": Parser(request("application/x-www-form-urlencoded"), CODE),
    "multipart": Parser(request("multipart/form-data; boundary=x"), CODE),
    **{f"{kind} tokens": Parser(segments(kind), ["▁"]) for kind in ("bpe", "unigram", "word")},
}


def text_of(parts: list[Part], length: int) -> str:
    """Return a text of about this many characters, in which some fragments are repeated."""
    repeated = sum(is_repeated for _, is_repeated in parts)
    return "".join(
        fragment * max(1, length // repeated // len(fragment)) if is_repeated else fragment
        for fragment, is_repeated in parts
    )


def seconds(parser: Parser, text: str) -> float:
    """Return the processor time for one text."""
    gc.disable()  # it looks at all objects every now and then
    start = time.process_time()
    try:
        parser.read(text)
    finally:
        gc.enable()
    return time.process_time() - start


def growth(parser: Parser, parts: list[Part], length: int = LENGTH, longer: int = LONGER) -> float:
    """Return how many times the processor time of a text one that is longer takes.

    Of what varies for other reasons the least is taken, three times for the shorter text.
    """
    short = min(seconds(parser, text_of(parts, length)) for _ in range(3))
    return seconds(parser, text_of(parts, longer * length)) / max(short, 1e-4)


def is_superlinear(parser: Parser, parts: list[Part]) -> bool:
    """Return whether a parser takes too long in each of three trials."""
    if seconds(parser, text_of(parts, LONGER * LENGTH)) < LEAST_SECONDS:
        return False
    return all(growth(parser, parts) > MOST for _ in range(3))


def random_parts(random: Random, atoms: list[str]) -> list[Part]:
    parts = []
    for _ in range(random.choice((1, 1, 2, 3))):
        fragment = "".join(
            random.choice(random.choice((atoms or WORDS, atoms or WORDS, WORDS)))
            for _ in range(random.choice((1, 1, 2, 2, 3, 4, 6)))
        )
        parts.append((fragment, random.random() < 0.7))
    return parts if any(is_repeated for _, is_repeated in parts) else [(parts[0][0], True)]


def failures(names: list[str], seed: int, until: float) -> Iterator[str]:
    """Yield a line for each text that takes a parser too long, until some time of the clock."""
    numbers: Counter[str] = Counter()
    for number in itertools.count():
        for name in names:
            if time.monotonic() > until:
                print(", ".join(f"{name} {count:,}" for name, count in numbers.items()))
                return
            parts = random_parts(Random(f"{seed}/{name}/{number}"), PARSERS[name].atoms)
            numbers[name] += 1
            try:
                signal.setitimer(signal.ITIMER_PROF, PATIENCE)
                if is_superlinear(PARSERS[name], parts):
                    yield f"{name}: {parts} takes too long"
                signal.setitimer(signal.ITIMER_PROF, 0)
            except Exception as error:
                yield f"{name}: {parts}: {type(error).__name__}: {error}"


def give_up(*_: object) -> None:
    raise TimeoutError(f"more than {PATIENCE:g} s of a processor's time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=list(PARSERS))
    options = parser.parse_args()
    names = [options.only] if options.only else list(PARSERS)
    logging.disable()
    signal.signal(signal.SIGPROF, give_up)
    num_failures = 0
    for failure in failures(names, options.seed, time.monotonic() + 60 * options.minutes):
        num_failures += 1
        print(failure, flush=True)
    sys.exit(num_failures > 0)


if __name__ == "__main__":
    main()
