"""The code of the model that C repeats, by its hash: an edited model is computed by PyTorch."""

import functools
import hashlib
from pathlib import Path

# After an edit, see tests/numerics/test_native_model.py.
MODEL_CODE = "d47e89a8e08e8e9c"
_FILES = (
    "model/attention.py",
    "model/device.py",
    "model/dropout.py",
    "model/kv_cache.py",
    "model/layers.py",
    "model/ngrams.py",
    "model/packing.py",
    "model/positions.py",
    "model/transformer.py",
    "native/fused.py",
)
PACKAGE = Path(__file__).parents[1]


def model_code_hash(package: Path = PACKAGE) -> str | None:
    """Return a hash of the files with the model's equations; None in what only translates."""
    if not (package / "model").exists():
        return None
    content = hashlib.sha256()
    for path in (package / name for name in _FILES):
        content.update(path.read_bytes() if path.exists() else b"")
    return content.hexdigest()[:16]


@functools.cache
def is_edited() -> bool:
    """Return True if the model's code may compute something else than C does."""
    return model_code_hash() not in (MODEL_CODE, None)
