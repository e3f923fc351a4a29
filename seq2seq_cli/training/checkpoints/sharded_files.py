"""Files of tensors that are sharded over processes, read by any number of them.

`torch.distributed.checkpoint` writes one file of safetensors per process into a folder, beside
which stand the hashes of all: `hashes.json`. Unlike its default format, nothing in them is
executed when they are read.
"""

import hashlib
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Size, Tensor

from seq2seq_cli.errors import DamagedFileError, UserError
from seq2seq_cli.files import read_json, reading, write_json
from seq2seq_cli.training.parallel.distributed import Ranks

_HASHES = "hashes.json"


def write_shards(
    tensors: Mapping[str, Tensor],
    folder: Path,
    ranks: Ranks,
    before_write: Callable[[Path], None],
) -> OSError | None:
    """Write tensors in all processes, each its shards, into a new folder.

    Returns the error if that fails, as on a full disk. The hashes are written last.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    def make_folder() -> None:
        before_write(folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    if error := _error_in_main(make_folder, ranks):
        return error
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer)
    except CheckpointException as failed:
        reasons = [reason for reason, _ in failed.failures.values()]
        errors = [reason for reason in reasons if isinstance(reason, OSError)]
        if len(errors) < len(reasons):
            raise
        return errors[0]
    hashes: dict[str, str] = {}
    unread: OSError | None = None
    try:
        own = folder.glob(f"shard-{ranks.rank + 1:05d}-*.safetensors")
        hashes = {path.name: _hash(path) for path in own}
    except OSError as raised:
        unread = raised
    found = ranks.all_gather((hashes, unread))
    if error := next((raised for _, raised in found if raised is not None), None):
        return error
    joined = {name: value for part, _ in found for name, value in part.items()}
    return _error_in_main(lambda: write_json(folder / _HASHES, joined), ranks)


def _error_in_main(action: Callable[[], None], ranks: Ranks) -> OSError | None:
    """Call `action` in the main process; return its OSError in all."""
    error = None
    if ranks.is_main:
        try:
            action()
        except OSError as raised:
            error = raised
    return ranks.broadcast(error)


def has_shards(folder: Path) -> bool:
    """Return True if all files of a folder were written."""
    return (folder / _HASHES).exists()


def check_shards(folder: Path) -> None:
    """Compare all files with their hashes. DamagedFileError if one is missing or damaged."""
    hashes = read_json(folder / _HASHES)
    names = {path.name for path in folder.iterdir() if path.suffix == ".safetensors"}
    if not isinstance(hashes, dict) or names - hashes.keys():
        raise DamagedFileError(f"{folder / _HASHES} is damaged: it does not have all files")
    for name, expected in hashes.items():
        path = folder / name
        with reading(path):
            found = _hash(path)
        if found != expected:
            raise DamagedFileError(f"{path} is damaged: its content does not match its hash")


def tensor_types(folder: Path) -> dict[str, tuple[Size, torch.dtype]]:
    """Return size and type of every tensor in the files of a folder, whole or sharded.

    Their hashes are known to be right: what fails here is reading, whose reason safetensors hides.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        facts = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except (SafetensorError, OSError, ValueError, LookupError) as error:
        raise UserError(f"{folder} cannot be read ({error}); try again") from None
    return {name: (fact.size, fact.properties.dtype) for name, fact in facts.items()}  # type: ignore[union-attr]


def read_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fill tensors from files of a folder; of those that are sharded, the part of this process.

    Raises UserError if a file, whose hash is known to be right, cannot be read.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # without a process group, as intended
            load(tensors, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        reason, _ = next(iter(error.failures.values()))
        raise UserError(f"{folder} cannot be read ({reason}); try again") from None


def read_whole(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder. Raises UserError if a file is damaged."""
    check_shards(folder)
    types = tensor_types(folder)
    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in types.items()}
    read_shards(folder, tensors)
    return tensors


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
