"""The fields of a request (JSON, form or query), and their limits."""

import asyncio
import functools
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from seq2seq_cli.extras.serve.responses import RequestError, invalid

_MAX_GLOSSARY_ENTRIES = 200
_MAX_ENTRY_LENGTH = 200  # characters, on either side
_LARGE_BODY = 1 << 15  # bytes; it is parsed in a thread, so that other requests go on
_MAX_FIELDS = 100  # in addition to texts, each of which is a field of a form
_MAX_PART_BYTES = 1 << 26  # the limit of the whole body is lower


@dataclass(frozen=True)
class Limits:
    """Limits of one request."""

    characters: int = 5_000  # of each text
    batch: int = 64  # texts
    alternatives: int = 5
    seconds: float = 60.0

    @property
    def fields(self) -> int:
        """Return the number of fields of a form, enough for every request."""
        return self.batch + _MAX_FIELDS

    @property
    def body_bytes(self) -> int:
        """Return the size of a body, enough for every request within the other limits."""
        texts = 12 * self.characters * self.batch  # \ud83d\ude00, or %F0%9F%98%80 in a form
        glossary = 16 * 2 * _MAX_ENTRY_LENGTH * _MAX_GLOSSARY_ENTRIES  # %5Cud83d%5Cude00
        return (1 << 16) + texts + glossary


@dataclass(frozen=True)
class Fields:
    """Named values of a request; errors name the field."""

    values: Mapping[str, Any]  # strings if not from JSON, or lists where a name is repeated
    in_json: Collection[str] = ()  # the names of those from JSON

    @classmethod
    async def read(cls, request: Request, limits: Limits) -> "Fields":
        """Read the body by its content type; the query has defaults for missing fields."""
        form_values = functools.partial(_form_values, most=limits.fields)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
            raise RequestError(415, f"Unsupported content coding: {coding}")
        query = form_values(request.scope["query_string"])
        if kind == "multipart/form-data":
            _, options = parse_options_header(request.headers["content-type"])
            if options.get(b"charset", b"utf-8").lower() not in (b"utf-8", b"utf8"):
                # Others may take quadratic time.
                raise invalid("forms and queries must be in UTF-8")
            most = {"max_files": 0, "max_fields": limits.fields, "max_part_size": _MAX_PART_BYTES}
            async with request.form(**most) as form:
                pairs = [(name, v) for name, v in form.multi_items() if isinstance(v, str)]
            return cls({**query, **_by_name(pairs)})
        body = await request.body()
        is_json = kind == "application/json" or kind.endswith("+json")
        if not is_json and kind != "application/x-www-form-urlencoded" and body:
            raise RequestError(415, f"Unsupported content type: {kind or 'none'}")
        parse = _json_object if is_json and body else form_values
        values = await asyncio.to_thread(parse, body) if len(body) > _LARGE_BODY else parse(body)
        return cls({**query, **values}, values.keys() if is_json else ())

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string. Raises RequestError if it is missing and has no default."""
        value = self.values.get(name)
        if value is None:
            if default is None:
                raise invalid(f"missing {name} parameter")
            return default
        if not isinstance(value, str):
            raise invalid(f"{name} must be a string")
        return _well_formed(value)

    def texts(self, name: str) -> list[str]:
        """Return a list of strings; a string is the only one."""
        value = self.values.get(name)
        if not isinstance(value, list):
            return [self.text(name)]
        if not all(isinstance(text, str) for text in value):
            raise invalid(f"{name} must be a string or a list of strings")
        return [_well_formed(text) for text in value]

    def whole_number(self, name: str, most: int) -> int:
        """Return a number from 0 to `most`; 0 if it is missing."""
        value = self.values.get(name)
        if value is None or value == "":
            return 0
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise invalid(f"{name} must be a whole number of at least 0")
        if value > most:
            raise invalid(f"{name} parameter must be <= {most}")
        return value

    def flag(self, name: str) -> bool:
        """Return true or false; false if it is missing."""
        if (value := self.values.get(name)) is None:
            return False
        if isinstance(value, str) and name not in self.in_json:
            known = {"true": True, "1": True, "false": False, "0": False, "": False}
            value = known.get(value.lower(), value)
        if not isinstance(value, bool):
            raise invalid(f"{name} must be true or false")
        return value

    def glossary(self) -> dict[str, str]:
        """Return translations of terms; empty if there are none."""
        value = self.values.get("glossary") or {}
        if isinstance(value, str) and "glossary" not in self.in_json:
            value = _json_object(value.encode("utf-8", "surrogatepass"), "glossary")
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise invalid('glossary must be an object such as {"term": "translation"}')
        if len(value) > _MAX_GLOSSARY_ENTRIES:
            raise invalid(f"glossary has more than {_MAX_GLOSSARY_ENTRIES} entries")
        texts = [text for entry in value.items() for text in entry]
        if any(len(text) > _MAX_ENTRY_LENGTH for text in texts):
            raise invalid(f"glossary has an entry of more than {_MAX_ENTRY_LENGTH} characters")
        if not all(text.strip() for text in texts):
            raise invalid("glossary has an empty entry")
        return {_well_formed(term): _well_formed(meaning) for term, meaning in value.items()}


def _form_values(data: bytes, most: int) -> dict[str, Any]:
    try:
        text = data.decode()
        pairs = parse_qsl(text, True, errors="strict", max_num_fields=most)
    except UnicodeDecodeError:
        raise invalid("forms and queries must be in UTF-8") from None
    except ValueError:
        raise invalid(f"it has more than {most} fields") from None
    return _by_name(pairs)


def _by_name(pairs: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return values by name; a list where a name is repeated."""
    values: dict[str, list[str]] = {}
    for name, text in pairs:
        values.setdefault(name, []).append(text.replace("\r\n", "\n"))
    return {name: texts if len(texts) > 1 else texts[0] for name, texts in values.items()}


def _well_formed(text: str) -> str:
    """Replace unpaired surrogates, which JSON can express."""
    return text.encode("utf-8", "replace").decode()


def _json_object(data: bytes, name: str = "the body") -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise invalid(f"{name} is not JSON") from None
    if not isinstance(value, dict):
        raise invalid(f"{name} must be a JSON object")
    return value


def check_length(texts: Sequence[str], limits: Limits) -> None:
    """Raise RequestError if there are too many texts, or if one is too long."""
    if len(texts) > limits.batch:
        raise invalid(f"request ({len(texts)}) exceeds text limit ({limits.batch})")
    longest = max(map(len, texts), default=0)
    if longest > limits.characters:
        raise invalid(f"request ({longest}) exceeds text limit ({limits.characters})")
