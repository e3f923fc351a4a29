"""The OpenAPI document: `openapi.json`, completed with the limits and languages of the server."""

import json
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from seq2seq_cli import __version__
from seq2seq_cli.config.languages import LanguagePair
from seq2seq_cli.extras.serve.documents.formats import READERS
from seq2seq_cli.extras.serve.request_fields import Limits


def openapi_document(limits: Limits, pairs: Sequence[LanguagePair]) -> dict[str, Any]:
    """Return the document (OpenAPI 3.1)."""
    sources = [*dict.fromkeys(pair.src for pair in pairs)]
    targets = [*dict.fromkeys(pair.tgt for pair in pairs)]
    text = {"type": "string", "maxLength": limits.characters}
    schemas = {
        "Text": text,
        "Texts": {"type": "array", "items": text, "maxItems": limits.batch},
        "Source": {"enum": ["auto", *sources]},
        "Target": {"enum": targets},
        "SourceInCapitals": {"enum": [code.upper() for code in sources]},
        "TargetInCapitals": {"enum": [code.upper() for code in targets]},
        "Format": {"enum": [*READERS], "default": "text"},
        "Alternatives": {"type": "integer", "minimum": 0, "maximum": limits.alternatives},
    }
    template = files("seq2seq_cli.extras.serve").joinpath("openapi.json")
    document: dict[str, Any] = json.loads(template.read_bytes())
    document["info"]["version"] = __version__
    components = document["components"]
    components["schemas"] |= schemas
    errors = {
        status: {"$ref": f"#/components/responses/{status}"} for status in components["responses"]
    }
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"] |= errors
    return document
