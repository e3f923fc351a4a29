"""Write `reference.yaml` and `schema.json` beside this file from the code's own fields.

The code is the one place where an option, its default and its description stand; run
`python configs/make_reference.py` after changing it (a test says when that was forgotten).
"""

import json
from pathlib import Path
from textwrap import wrap
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from seq2seq_cli.config import Config
from seq2seq_cli.config_file import yaml_text

HEAD = """\
# yaml-language-server: $schema=schema.json
# Every option with its default: generated from seq2seq_cli/config.py by configs/make_reference.py.
# A config of your own needs only what differs, and the text to train on. The paths below are
# those of the quickstart; data.train is the one option that has no default.
"""

EXAMPLE = {"src": "data/quickstart/train.de", "tgt": "data/quickstart/train.en"}


def reference_yaml() -> str:
    """The reference config: every option, its default, its description and valid choices."""
    example = Config.model_validate({"data": {"train": EXAMPLE}})
    return HEAD + "\n" + _section(example, 0).removesuffix("\n")


def schema_json() -> str:
    """The JSON schema that editors complete and check a config with."""
    return json.dumps(Config.model_json_schema(), indent=2) + "\n"


def _section(section: BaseModel, depth: int) -> str:
    text = ""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        text += _comment(field, depth) + "  " * depth
        if isinstance(value, BaseModel):
            text += f"{name}:\n{_section(value, depth + 1)}"
        else:
            text += f"{name}: {yaml_text(value)}\n"
        text += "\n" if depth == 0 else ""
    return text


def _comment(field: FieldInfo, depth: int) -> str:
    choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    text = str(field.description) + (f" ({' | '.join(choices)})" if choices else "")
    indent = "  " * depth
    return "".join(f"{indent}# {line}\n" for line in wrap(text, 96 - len(indent)))


if __name__ == "__main__":
    folder = Path(__file__).parent
    (folder / "reference.yaml").write_text(reference_yaml(), encoding="utf-8")
    (folder / "schema.json").write_text(schema_json(), encoding="utf-8")
