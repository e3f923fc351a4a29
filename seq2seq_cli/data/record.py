"""JSON files of a run that hold a single record."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from seq2seq_cli.errors import UserError
from seq2seq_cli.files import is_listed, read_json


class Record(BaseModel):
    """Validated, as run folders may come from anybody; unknown fields of later versions pass."""

    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


R = TypeVar("R", bound=Record)


def read_record(path: Path, kind: type[R]) -> R | None:
    """Read a record; None if the file is missing, UserError if its content is not valid."""
    if not is_listed(path):
        return None
    try:
        return kind.model_validate(read_json(path))
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{path} is damaged: {place or 'it'} is not valid") from None
