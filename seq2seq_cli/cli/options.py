"""Arguments and options that several commands share, and what is made of them."""

import contextlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seq2seq_cli.config.metrics import TEXT_METRICS
from seq2seq_cli.errors import UserError
from seq2seq_cli.paths import local_path, text_path

if TYPE_CHECKING:
    from seq2seq_cli.config.schema import Config
    from seq2seq_cli.config.text import ParallelText
    from seq2seq_cli.metrics.references import PublicTestSet


def _expand(given: Path | list[Path] | None) -> Path | list[Path] | None:
    """Expand `~` and variables where no shell has done so, as in `--src=~/x` and `'$HOME/x'`."""
    if given is None:
        return None
    return [local_path(path) for path in given] if isinstance(given, list) else local_path(given)


def _expand_file_of_weights(which: str) -> str:
    return str(local_path(Path(which))) if which.endswith(".safetensors") else which


def check_uncompressed(output: Path | None) -> None:
    """Raise UserError for an output whose name says that it is compressed."""
    from seq2seq_cli.text.compression import BY_SUFFIX

    if output is not None and output.suffix in BY_SUFFIX:
        raise UserError(f"the output {output} would not be compressed: choose another suffix")


def path_argument(metavar: str, help_text: str) -> Any:
    return typer.Argument(metavar=metavar, help=help_text, callback=_expand)


def path_option(*names: str, help_text: str, **settings: Any) -> Any:
    return typer.Option(*names, help=help_text, callback=_expand, **settings)


def text_option(*names: str, help_text: str, **settings: Any) -> Any:
    """Return an option for a file of text, which may be a URL."""

    def as_text_path(given: Path | None) -> Path | None:
        return None if given is None else text_path(given)

    return typer.Option(*names, help=help_text, callback=as_text_path, **settings)


ConfigFile = Annotated[
    Path, path_argument("CONFIG", "YAML config; configs/reference.yaml documents all options.")
]
RunDir = Annotated[Path, path_argument("RUN", "Run folder written by train.")]
Sources = Annotated[
    Path | None, text_option("--src", help_text="File of source sentences, one per line.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite output files that are not empty.")]
References = Annotated[
    Path | None, text_option("--ref", help_text="File of reference translations, one per line.")
]
Pairs = Annotated[
    Path | None,
    text_option(
        "--pairs",
        help_text="File of pairs (.tsv, .jsonl, .tmx or .zip), instead of --src and --ref.",
    ),
]


def _two_fields(given: tuple[str, str] | None) -> tuple[str, str] | None:
    if option := next((value for value in given or () if value.startswith("--")), None):
        raise typer.BadParameter(f"it takes two values, and one of them is {option}")
    return given


Fields = Annotated[
    tuple[str, str] | None,
    typer.Option(
        "--fields",
        metavar="SRC TGT",
        callback=_two_fields,
        help="Source and target columns, keys or languages in the file of pairs.",
    ),
]
Features = Annotated[
    str | None,
    typer.Option(
        "--features",
        metavar="FIELD",
        help="Column or key of source features in the file of pairs; 2 if they follow a tab in "
        "source lines.",
    ),
]
Tag = Annotated[
    str | None,
    typer.Option("--tag", help="Tag to prepend to every source sentence (decoding.tag)."),
]
TagOfText = Annotated[
    str | None,
    typer.Option(
        "--tag",
        help="Tag to prepend to every source sentence (decoding.tag); of the run's own validation "
        "text, only the part with this tag is used.",
    ),
]
TestSetName = Annotated[
    str | None,
    typer.Option(
        "--test-set", metavar="NAME", help="Test set that sacreBLEU downloads, such as wmt14."
    ),
]
Languages = Annotated[
    str | None,
    typer.Option("--langs", metavar="SRC-TGT", help="Languages of --test-set, such as en-de."),
]
ModelLanguages = Annotated[
    str | None,
    typer.Option(
        "--langs",
        metavar="SRC-TGT",
        help="Source and target language, such as de-en.",
        show_default="as recorded with the model",
    ),
]
MetricNames = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help=f"Metrics of translations, separated by commas: {', '.join(TEXT_METRICS)}.",
        show_default="as in the config",
    ),
]
Resamples = Annotated[
    int,
    typer.Option(
        "--bootstrap",
        metavar="N",
        min=0,
        max=1_000_000,
        help="Number of bootstrap resamples for 95% confidence intervals; 0 disables them.",
    ),
]
From = Annotated[
    Path | None,
    path_option(
        "--from", help_text="Start from this run's best model (fine-tuning).", metavar="RUN"
    ),
]
Device = Annotated[Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Device to run on.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a config option; may be repeated."),
]
WhichModel = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="WHICH",
        help="Model to use: best, last, ema, a kept checkpoint's step, or a .safetensors file.",
        callback=_expand_file_of_weights,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


Function = Callable[..., Any]
# What `corpus_from_options` and `text_to_score` return.
GivenText = contextlib.AbstractContextManager["ParallelText | None"]
TextToScore = contextlib.AbstractContextManager["tuple[ParallelText | None, PublicTestSet | None]"]


def options_of(make: Function, name: str) -> Callable[[Function], Function]:
    """Give a command the options of `make`, and what that returns as its parameter `name`."""

    def decorate(command: Function) -> Function:
        shared = inspect.signature(make).parameters
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            parameters += shared.values() if parameter.name == name else [parameter]
        parameters.sort(key=lambda parameter: parameter.default is not parameter.empty)

        def run(**given: Any) -> Any:
            made = make(**{option: given.pop(option) for option in shared})
            return command(**given, **{name: made})

        run.__doc__, run.__module__ = command.__doc__, command.__module__
        run.__name__ = command.__name__
        # Typer reads the options from here.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def check_model_of_runs(model: str, runs: Sequence[Path]) -> None:
    """Raise UserError if a weights file is given for several runs."""
    if len(runs) > 1 and model.endswith(".safetensors"):
        raise UserError(f"--model {model} belongs to one run, but {len(runs)} are given")


def load_config_file(
    path: Path, overrides: list[str] | None, device: str | None = None
) -> "Config":
    from seq2seq_cli.config.loader import load_config

    overrides = [*(overrides or []), *([f"training.device={device}"] if device else [])]
    return load_config(path, overrides, is_given_now=True)


def decoding_overrides(**given: object) -> Iterator[str]:
    """Yield the given options of section decoding in the form of `--set`."""
    for name, value in given.items():
        if value is not None and value is not False:
            yield f"decoding.{name}={json.dumps(value, ensure_ascii=False)}"


def check_fields(fields: tuple[str, str] | None, files: Iterable[Path]) -> None:
    """Raise UserError for fields if none of the files has pairs, which are the ones with fields."""
    from seq2seq_cli.config.text import format_of_pairs

    if fields is not None and not any(map(format_of_pairs, files)):
        raise UserError("--fields is for a file of pairs, and none is given: leave it out")


@contextlib.contextmanager
def corpus_from_options(
    src: Sources = None,
    ref: References = None,
    pairs: Pairs = None,
    fields: Fields = None,
    features: Features = None,
) -> Iterator["ParallelText | None"]:
    """Yield the text given on the command line, or None; streams are copied to temporary files.

    Raises UserError if a file does not exist.
    """
    from seq2seq_cli.config.text import ParallelText
    from seq2seq_cli.text.streams import as_files

    if not (src or ref or pairs or fields or features):
        yield None
        return
    if (src is None) != (ref is None) or (pairs is None) == (src is None):
        raise UserError("give --src and --ref, or --pairs alone")
    with as_files([src, ref], pairs) as ([src, ref], pairs):
        given = {"src": src, "tgt": ref, "pairs": pairs}
        yield ParallelText.of(is_given_now=True, fields=fields, features=features, **given)


@contextlib.contextmanager
def text_to_score(
    src: Sources = None,
    ref: References = None,
    pairs: Pairs = None,
    fields: Fields = None,
    features: Features = None,
    test_set: TestSetName = None,
    langs: Languages = None,
) -> Iterator["tuple[ParallelText | None, PublicTestSet | None]"]:
    """Yield the text to score translations on, and the test set if it is a public one.

    Raises UserError if the text does not exist.
    """
    if (test_set is None) != (langs is None):
        raise UserError("give --test-set and --langs together")
    if test_set is None or langs is None:
        with corpus_from_options(src, ref, pairs, fields, features) as text:
            yield text, None
    else:
        from seq2seq_cli.metrics.references import find_test_set

        if src or ref or pairs or fields or features:
            raise UserError("--test-set excludes --src, --ref, --pairs, --fields and --features")
        public = find_test_set(test_set, langs)
        yield public.text, public
