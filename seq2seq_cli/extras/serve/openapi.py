"""The OpenAPI document of the server, written by hand: a dialect has requests of several forms."""

from collections.abc import Mapping, Sequence
from typing import Any

from seq2seq_cli.config.languages import LanguagePair
from seq2seq_cli.extras.serve.documents.formats import READERS
from seq2seq_cli.extras.serve.request_fields import Limits

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": "boolean", "default": False}
_NUMBER: Schema = {"type": "number"}
_COUNT: Schema = {"type": "integer", "minimum": 0}

_STATUSES = {
    400: "The request cannot be answered; the message says why.",
    403: "The token is wrong.",
    405: "The path has other methods.",
    413: "The request is too large.",
    415: "The body is neither JSON nor a form.",
    500: "The server has made a mistake.",
    503: "Too much is waiting, or it took too long; try again after Retry-After seconds.",
}


def openapi_document(limits: Limits, pairs: Sequence[LanguagePair], version: str) -> Schema:
    """Return the document (OpenAPI 3.1), with the limits and languages of this server."""
    sources = [*dict.fromkeys(pair.src for pair in pairs)]
    targets = [*dict.fromkeys(pair.tgt for pair in pairs)]
    languages = {"source": {"enum": ["auto", *sources]}, "target": {"enum": targets}}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "seq2seq serve",
            "version": version,
            "description": "Translates with trained models. The interface of LibreTranslate, with "
            "more fields; and as much of DeepL's as clients need to translate.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{}, {"token": []}],
        "paths": _libretranslate(limits, languages)
        | _deepl(limits, sources, targets)
        | _imme(limits, languages)
        | _own(),
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": _schemas(),
        },
    }


def _libretranslate(limits: Limits, languages: Mapping[str, Schema]) -> Schema:
    text: Schema = {"type": "string", "maxLength": limits.characters}
    fields: dict[str, Schema] = {
        "q": {"anyOf": [text, {"type": "array", "items": text, "maxItems": limits.batch}]},
        **languages,
        "format": {"enum": [*READERS], "default": "text"},
        "alternatives": _COUNT | {"maximum": limits.alternatives, "default": 0},
        "glossary": {"type": "object", "additionalProperties": _TEXT},
        "alignments": _FLAG,
        "attention": _FLAG,
        "log_probs": _FLAG,
        "stream": _FLAG,
        "api_key": _TEXT,
    }
    translate = _post(
        "Translate a text, or a list of texts in JSON",
        _object(fields, "q", "source", "target"),
        _of("Translated"),
        forms=_object({**fields, "q": text, "glossary": _TEXT}, "q", "source", "target"),
    )
    stream: Schema = {"text/event-stream": {}}  # OpenAPI 3.1 cannot describe events
    translate["post"]["responses"]["200"]["content"] |= stream
    detect = _object({"q": text, "api_key": _TEXT}, "q")
    return {
        "/translate": translate,
        "/detect": _post("Find the language of a text", detect, _list(_of("Detected")), detect),
        "/languages": _get("List the languages", _list(_of("Language"))),
        "/frontend/settings": _get("Tell what may be asked for", {"type": "object"}),
    }


def _deepl(limits: Limits, sources: Sequence[str], targets: Sequence[str]) -> Schema:
    texts = {"type": "array", "items": _TEXT, "maxItems": limits.batch}
    body = _object(
        {
            "text": texts,
            "source_lang": {"enum": [code.upper() for code in sources]},
            "target_lang": {"enum": [code.upper() for code in targets]},
            "tag_handling": {"enum": ["html", "xml"]},
        },
        "text",
        "target_lang",
    )
    kind = {"name": "type", "in": "query", "schema": {"enum": ["source", "target"]}}
    language = _object({"language": _TEXT, "name": _TEXT, "supports_formality": _FLAG}, "language")
    usage = _object({"character_count": _COUNT, "character_limit": _COUNT})
    return {
        "/v2/translate": _post("Translate as DeepL does", body, _of("DeepLTranslated"), None),
        "/v2/languages": _get("List languages as DeepL does", _list(language), kind),
        "/v2/usage": _get("Tell that there is no limit", usage),
    }


def _imme(limits: Limits, languages: Mapping[str, Schema]) -> Schema:
    texts = {"type": "array", "items": _TEXT, "maxItems": limits.batch}
    fields = {f"{side}_lang": codes for side, codes in languages.items()} | {"text_list": texts}
    body = _object(fields, "target_lang", "text_list")
    answer = _object(
        {"translations": _list(_object({"detected_source_lang": _TEXT, "text": _TEXT}))}
    )
    return {"/imme": _post("Translate for Immersive Translate", body, answer, None)}


def _own() -> Schema:
    status = _object({"status": _TEXT}, "status")
    health = _get("Tell whether sentences are translated", status)
    health["get"]["security"] = []
    metrics = _get("Numbers for Prometheus", None)
    metrics["get"]["responses"]["200"]["content"] = {"text/plain": {"schema": _TEXT}}
    return {
        "/health": health,
        "/metrics": metrics,
        "/spec": _get("This document", {"type": "object"}),
    }


def _schemas() -> Schema:
    one_or_many = {"anyOf": [_TEXT, _list(_TEXT)]}
    detected = {"anyOf": [_of("Detected"), _list({"anyOf": [_of("Detected"), {"type": "null"}]})]}
    ranges = _list({"type": "array", "prefixItems": [_COUNT, _COUNT], "minItems": 2, "maxItems": 2})
    output = {
        "target": _TEXT,
        "targetWords": ranges,
        "alignment": ranges,
        "attention": _list(_list(_NUMBER)),
        "tokens": _list(_TEXT),
        "logProbs": _list(_NUMBER),
    }
    return {
        "Error": _object({"error": _TEXT}, "error"),
        "DeepLError": _object({"message": _TEXT}, "message"),
        "Detected": _object({"confidence": _NUMBER, "language": _TEXT}, "confidence", "language"),
        "Language": _object(
            {"code": _TEXT, "name": _TEXT, "targets": _list(_TEXT)}, "code", "name"
        ),
        "Sentence": _object(
            {
                "source": _TEXT,
                "sourceStart": _COUNT,
                "targetStart": _COUNT,
                "sourceWords": ranges,
                **output,
                "alternatives": _list(_object(output, "target")),
            },
            "source",
            "target",
        ),
        "Translated": _object(
            {
                "translatedText": one_or_many,
                "detectedLanguage": detected,
                "alternatives": _list({"anyOf": [_TEXT, _list(_TEXT)]}),
                "sentences": _list({"anyOf": [_of("Sentence"), _list(_of("Sentence"))]}),
            },
            "translatedText",
        ),
        "DeepLTranslated": _object(
            {"translations": _list(_object({"detected_source_language": _TEXT, "text": _TEXT}))}
        ),
    }


def _object(fields: Mapping[str, Schema], *required: str) -> Schema:
    return {"type": "object", "properties": dict(fields), "required": [*required]}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _of(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _post(summary: str, body: Schema, answer: Schema, forms: Schema | None) -> Schema:
    content = {"application/json": {"schema": body}}
    if forms is not None:
        content["application/x-www-form-urlencoded"] = {"schema": forms}
        content["multipart/form-data"] = {"schema": forms}
    operation = {
        "summary": summary,
        "requestBody": {"content": content},
        "responses": _responses(answer),
    }
    return {"post": operation}


def _get(summary: str, answer: Schema | None, *parameters: Schema) -> Schema:
    operation = {"summary": summary, "responses": _responses(answer or {})}
    return {"get": operation | ({"parameters": [*parameters]} if parameters else {})}


def _responses(answer: Schema) -> Schema:
    errors = {"anyOf": [_of("Error"), _of("DeepLError")]}
    refusals = {
        str(status): {
            "description": description,
            "content": {"application/json": {"schema": errors}},
        }
        for status, description in _STATUSES.items()
    }
    good = {"description": "The answer", "content": {"application/json": {"schema": answer}}}
    return {"200": good, **refusals}
