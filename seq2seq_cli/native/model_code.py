"""The code of the model that C repeats, by its hash: an edited model is computed by PyTorch."""

import functools
import hashlib
from pathlib import Path

# After an edit, see tests/numerics/test_native_model.py.
MODEL_CODE = "8ae999c0be221796"
_NOT_EQUATIONS = {"__init__.py", "parameters.py", "weights.py"}  # in `model`
PACKAGE = Path(__file__).parents[1]


def model_code_hash(package: Path = PACKAGE) -> str | None:
    """Return a hash of the files with the model's equations; None in what only translates."""
    if not (package / "model").exists():
        return None
    content = hashlib.sha256()
    files = [*sorted((package / "model").rglob("[!.]*.py")), package / "native/fused.py"]
    for path in (path for path in files if path.name not in _NOT_EQUATIONS):
        content.update(path.read_bytes())
    return content.hexdigest()[:16]


@functools.cache
def is_edited() -> bool:
    """Return True if the model's code may compute something else than C does."""
    return model_code_hash() not in (MODEL_CODE, None)
