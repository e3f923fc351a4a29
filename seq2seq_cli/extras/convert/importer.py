"""import_model(): from another program's model to a run folder, compared with that program."""

import importlib.util
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import numpy as np

from seq2seq_cli import plugins
from seq2seq_cli.config.languages import languages_from_option
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.extras.convert import argos, ctranslate2, huggingface, marian
from seq2seq_cli.extras.convert.foreign import ForeignModel
from seq2seq_cli.extras.convert.writer import write
from seq2seq_cli.files import new_folder, require_new_folder

# The module that reads a format, its title and its dialect, in the order of detection: a package is
# a file, and a folder may hold several of the others.
FORMATS: dict[str, tuple[ModuleType, str, str]] = {
    "argos": (argos, "a package of Argos Translate", "CTranslate2"),
    "ctranslate2": (ctranslate2, "a CTranslate2 model", "CTranslate2"),
    "huggingface": (huggingface, "a MarianMT model of transformers", "Hugging Face"),
    "marian": (marian, "a model of Marian", "Marian"),
}
_DIALECTS = {
    "Hugging Face": "LayerNorm's epsilon is 1e-5, and positions have base 10000",
    "Marian": "LayerNorm's epsilon is 1e-9, and positions divide by d/2 - 1",
    "CTranslate2": "positions are as the model stores them",
}
# Files of a hub that are read; others, such as weights for TensorFlow, are not downloaded.
_HUB_FILES = (
    *("*.json", "*.txt", "*.yml", "*.spm", "*.model"),
    *("model.safetensors", "model-*.safetensors", "model.bin", "*.npz"),
)


def import_model(
    source: str, run_dir: Path, langs: str | None, verify: bool | None, text: Path | None
) -> str:
    """Write a run folder and return a report, a line for each fact.

    `langs`, such as de-en, are the languages; `verify`: compare with the other program, by default
    if it is installed, with the sentences of `text` or else some from the vocabulary. Raises
    UserError if the folder exists, if the source is damaged or cannot be represented, and if the
    comparison fails; then there is no folder.
    """
    require_new_folder(run_dir)
    path = _local(source)
    name = _format_of(path)
    module, title, dialect = FORMATS[name]
    unpacked = argos.unpacked(path) if name == "argos" else nullcontext(path)
    with unpacked as folder, new_folder(run_dir) as part:
        with np.errstate(all="ignore"):  # `write` refuses NaN and infinity
            model: ForeignModel = module.read(folder)
        if langs is not None:
            model.languages = languages_from_option(langs)
        try:
            record = {"from": short(source), "format": name, "dialect": dialect}
            write(model, part, {**record, "notes": model.notes})
        except UserError as error:  # which names files of the folder that is then removed
            what = str(error).replace(f"{part}/", "")
            raise UserError(f"{source} cannot become a run: {what}") from None
        compared = _verify(name, folder, model, part, verify, text)
    return "\n".join(
        [
            f"imported {source}, {title}, to {run_dir}",
            f"dialect: {dialect} ({_DIALECTS[dialect]})",
            f"comparison: {compared}",
            *(f"note: {note}" for note in dict.fromkeys(model.notes)),
        ]
    )


def _local(source: str) -> Path:
    """Return the path of a source; a name of the hub, owner/name, is downloaded.

    It is a path if there is such a folder `owner` here.
    """
    path = Path(source)
    is_path = path.exists() or path.parent.is_dir()
    if is_path or source.count("/") != 1 or source.startswith((".", "~")):
        return path
    plugins.require("huggingface_hub", "hub", f"{source}, which is no folder here but on a hub,")
    from seq2seq_cli.extras.hub.hub import hub_api, hub_errors

    api = hub_api()
    with hub_errors(source):
        names = api.list_repo_files(source)
        safe = {"model.safetensors", "model.safetensors.index.json"} & {*names}
        patterns = [*_HUB_FILES, *([] if safe else ["pytorch_model*.bin"])]
        return Path(api.snapshot_download(source, allow_patterns=patterns))


def _format_of(path: Path) -> str:
    """Return the name in FORMATS of what a path holds; UserError if it is none of them."""
    for name, (module, *_) in FORMATS.items():
        if module.detect(path):
            return name
    if not path.exists():
        raise UserError(f"there is no file or folder {path} to import")
    raise UserError(
        f"{path} is not a model to import: give a folder of transformers (config.json "
        "and weights), of Marian (.npz) or of CTranslate2 (model.bin), or an .argosmodel"
    )


def _verify(
    name: str, folder: Path, model: ForeignModel, run: Path, verify: bool | None, text: Path | None
) -> str:
    """Return what was compared, or why nothing was."""
    if verify is False:
        return "not compared (--no-verify)"
    package = "transformers" if name == "huggingface" else "ctranslate2"
    if verify:
        plugins.require(package, "convert", "--verify")
    elif importlib.util.find_spec(package) is None:
        return f"not compared, as {package} is not installed"
    from seq2seq_cli.decoding.translator import Translator
    from seq2seq_cli.extras.convert import verify as verifying

    translator = Translator.load(run, "cpu", ["decoding.precision=fp32"])
    if name == "huggingface":
        return verifying.verify_huggingface(folder, model, translator, text)
    if name == "marian":
        return verifying.verify_marian(folder, model, translator, text)
    inner = folder / "model" if name == "argos" else folder
    return verifying.verify_ctranslate2(inner, model, translator, text)
