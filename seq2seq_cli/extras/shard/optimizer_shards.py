"""The optimizer's state in checkpoints of sharded runs: a file of each process, and their hashes.

`torch.distributed.checkpoint` writes the shards as safetensors into a folder `optimizer`, with the
hashes of all in `hashes.json`; any number of processes can read them. Unlike its default format,
nothing in them is executed when they are read.
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
from seq2seq_cli.files import is_listed, read_json, reading, write_json
from seq2seq_cli.model.weights import read_tensors
from seq2seq_cli.training.checkpoints.optimizer_state import check_fit, restore, trained_parameters
from seq2seq_cli.training.parallel.strategy import SingleProcess
from seq2seq_cli.training.run import Run

HASHES = "hashes.json"  # written last


def check_optimizer(checkpoint: Path, run: Run) -> None:
    """Raise the errors of `optimizer_state.py: load_optimizer`, but load nothing."""
    if is_listed(checkpoint / "optimizer"):
        check_shards(checkpoint / "optimizer")
    else:
        read_tensors(checkpoint / "optimizer.safetensors")
    check_fit(checkpoint, {name: size for name, (size, _) in _types(checkpoint).items()}, run)


def load_shards(checkpoint: Path, run: Run) -> None:
    """Load the state, whole or sharded, whose hashes are right, into a run that may be sharded."""
    parameters, tensors = trained_parameters(run.model), dict[str, Tensor]()
    for name, (size, dtype) in _types(checkpoint).items():
        like = parameters.get(name.rpartition("/")[0])
        if like is not None and like.shape == size:
            tensors[name] = torch.empty_like(like, requires_grad=False)
        else:
            tensors[name] = torch.empty(size, dtype=dtype)
    _read_shards(_files(checkpoint), tensors)
    restore(checkpoint, tensors, run)


def _files(checkpoint: Path) -> Path:
    """Return the folder of the files that hold the optimizer's state."""
    return shards if is_listed(shards := checkpoint / "optimizer") else checkpoint


def _types(checkpoint: Path) -> dict[str, tuple[Size, torch.dtype]]:
    types = _tensor_types(_files(checkpoint))
    return {name: kind for name, kind in types.items() if "/" in name}  # the rest are weights


def write_shards(
    tensors: Mapping[str, Tensor],
    folder: Path,
    parallel: SingleProcess,
    before_write: Callable[[Path], None],
) -> OSError | None:
    """Write tensors in all processes, each its shards, into a new folder; the hashes last.

    Returns the error in all processes if that fails, as on a full disk.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    hashes: dict[str, str] = {}

    def make_folder() -> None:
        if parallel.is_main:
            before_write(folder)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    def save_shards() -> None:
        try:
            writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
            save(dict(tensors), storage_writer=writer)
        except CheckpointException as failed:  # in all processes
            reasons = [reason for reason, _ in failed.failures.values()]
            errors = [reason for reason in reasons if isinstance(reason, OSError)]
            if len(errors) < len(reasons):
                raise
            raise errors[0] from None
        own = folder.glob(f"shard-{parallel.rank + 1:05d}-*.safetensors")
        hashes.update({path.name: _hash(path) for path in own})

    def write_hashes() -> None:
        everyone = parallel.all_gather(hashes)
        if parallel.is_main:
            write_json(folder / HASHES, {name: h for part in everyone for name, h in part.items()})

    for action in (make_folder, save_shards, write_hashes):
        error: OSError | None = None
        try:
            action()
        except OSError as raised:
            error = raised
        if error := next(filter(None, parallel.all_gather(error)), None):
            return error
    return None


def check_shards(folder: Path) -> None:
    """Compare all files with their hashes. DamagedFileError if one is missing or damaged."""
    hashes = read_json(folder / HASHES)
    names = {path.name for path in folder.iterdir() if path.suffix == ".safetensors"}
    if not isinstance(hashes, dict) or names - hashes.keys():
        raise DamagedFileError(f"{folder / HASHES} is damaged: it does not have all files")
    for name, expected in hashes.items():
        path = folder / name
        with reading(path):
            found = _hash(path)
        if found != expected:
            raise DamagedFileError(f"{path} is damaged: its content does not match its hash")


def read_whole(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder of shards. Raises UserError if a file is damaged."""
    check_shards(folder)
    types = _tensor_types(folder)
    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in types.items()}
    _read_shards(folder, tensors)
    return tensors


def _tensor_types(folder: Path) -> dict[str, tuple[Size, torch.dtype]]:
    """Return size and type of every tensor in the files of a folder, whole or sharded.

    Their hashes are right: what fails here is reading, whose reason safetensors hides.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        facts = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except (SafetensorError, OSError, ValueError, LookupError) as error:
        raise UserError(f"{folder} cannot be read ({error}); try again") from None
    return {name: (fact.size, fact.properties.dtype) for name, fact in facts.items()}  # type: ignore[union-attr]


def _read_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Fill tensors from files of a folder; of sharded tensors, the part of this process."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # no process group, as intended
            load(tensors, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        reason, _ = next(iter(error.failures.values()))
        raise UserError(f"{folder} cannot be read ({reason}); try again") from None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
