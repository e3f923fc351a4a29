"""Reads translation memories (TMX 1.4), unit by unit: memory does not grow with the file."""

import itertools
import re
from collections.abc import Iterable, Iterator
from html.entities import html5
from typing import Any, NamedTuple
from xml.parsers import expat

from seq2seq_cli.errors import UserError
from seq2seq_cli.text.io import MOST_BYTES

# Elements in a segment that hold the codes of another format, such as <b>, not text. Of the others,
# <hi> and unknown ones, only the tags are dropped.
_CODES = {"bpt", "ept", "ph", "it", "ut"}


class Unit(NamedTuple):
    """A `<tu>`: the same text in several languages."""

    line: int  # of the file, in which it begins
    segments: list[tuple[str, str]]  # language code and text, in the order of the file
    is_whole: bool  # False if it has more than `MOST_BYTES` characters, and the rest is lost

    def text_in(self, language: str) -> str | None:
        """Return the first segment in a language; `en` is also `en-GB`, in any case."""
        wanted = _code(language)
        for code, text in self.segments:
            if code == wanted or code.startswith(f"{wanted}-"):
                return text
        return None


def read_units(chunks: Iterable[bytes], name: str) -> Iterator[Unit]:
    """Yield the units of a TMX file, given in parts, whose encoding the file itself says.

    Line ends in a segment become spaces. Raises UserError, which begins with `name` and the line,
    for XML that is not well-formed or defines entities, which can expand to gigabytes. No external
    file is read: entities that it may define are HTML's, as `&nbsp;`, or stay as written.
    """
    reader = _Reader(name)
    for chunk in itertools.chain(filter(None, chunks), [b""]):
        yield from reader.feed(chunk)


class _Reader:
    """The handlers of an XML parser, which collect units."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._add_text
        self._parser.EntityDeclHandler = self._refuse_entity
        self._parser.SkippedEntityHandler = self._add_entity
        self._num_fed = 0
        self._finished: list[Unit] = []
        self._segments: list[tuple[str, str]] = []
        self._line = 0
        self._room = 0  # characters that the unit may still have
        self._language = ""
        self._text: list[str] | None = None  # None outside of a segment
        self._depth = 0  # of elements that hold codes

    def feed(self, chunk: bytes) -> list[Unit]:
        """Parse the next bytes, none at the end; return the units that end in them."""
        try:
            self._parser.Parse(chunk, not chunk)
        except expat.ExpatError as error:
            problem = expat.ErrorString(error.code)
            raise UserError(f"{self._name}, line {error.lineno:,}: not XML: {problem}") from None
        except (ValueError, LookupError) as error:  # of Python's binding
            raise UserError(f"{self._name}: {error}; convert it to UTF-8") from None
        self._num_fed += len(chunk)
        if self._num_fed - self._parser.CurrentByteIndex > MOST_BYTES:  # kept, and parsed again
            raise UserError(f"{self._place()}: a tag has more than {MOST_BYTES:,} bytes")
        finished, self._finished = self._finished, []
        return finished

    def _start(self, element: str, attributes: dict[str, str]) -> None:
        if element == "tu":
            self._line, self._segments = self._parser.CurrentLineNumber, []
            self._room = MOST_BYTES
        elif element == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif element == "seg":
            self._text = []
        elif element in _CODES:
            self._depth += 1

    def _end(self, element: str) -> None:
        if element == "tu":
            self._finished.append(Unit(self._line, self._segments, self._room >= 0))
        elif element == "seg" and self._text is not None:
            text = re.sub(r"\r\n|\r|\n", " ", "".join(self._text)).strip()
            self._room -= len(self._language) + 1
            if self._room >= 0:
                self._segments.append((_code(self._language), text))
            self._text = None
        elif element in _CODES:
            self._depth -= 1

    def _add_text(self, text: str) -> None:
        if self._text is not None and not self._depth:
            self._room -= len(text)
            if self._room >= 0:
                self._text.append(text)

    def _add_entity(self, name: str, is_parameter: bool) -> None:
        """Add what HTML means by an entity that only the external file may define, or its name."""
        if not is_parameter:
            self._add_text(html5.get(f"{name};", f"&{name};"))

    def _refuse_entity(self, *_: Any) -> None:
        raise UserError(f"{self._place()}: defines an entity, which could grow to gigabytes")

    def _place(self) -> str:
        return f"{self._name}, line {self._parser.CurrentLineNumber:,}"


def _code(language: str) -> str:
    return language.strip().lower().replace("_", "-")
