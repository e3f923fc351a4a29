"""The verbs: parse, call one function, print, exit status. Torch is imported inside commands."""

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from seq2seq_cli import __version__
from seq2seq_cli.errors import Interrupted, UserError

if TYPE_CHECKING:
    from seq2seq_cli.config import Config, Corpus
    from seq2seq_cli.decoding.translator import Translator

# Read when torch is imported: threads that wait for work spin for some 10 µs (with milliseconds,
# another program on one core slows training sevenfold); large tensors lie on large pages.
ENVIRONMENT = {"GOMP_SPINCOUNT": "10000", "THP_MEM_ALLOC_ENABLE": "1"}

_LINES_AT_ONCE = 2_000  # translated together, so that they can be batched by length


class _Program(TyperGroup):
    """Turns failures into one message and an exit status: 2 the user's, 130 interrupted."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except UserError as error:
            _fail(f"error: {error}", 2)
        except Interrupted as stop:
            _fail(str(stop), stop.exit_status)
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except BrokenPipeError:  # whoever read our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(141) from None
        except OSError as error:
            if error.errno is None:  # not the system's: a bug
                raise
            _fail(f"error: {error.filename or 'system'}: {error.strerror or error}", 2)


def _fail(message: str, exit_status: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(exit_status) from None


app = typer.Typer(
    name="seq2seq",
    cls=_Program,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The `seq2seq` command."""
    app()


@app.callback(invoke_without_command=True)
def _global_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Train encoder-decoder Transformers on your own parallel text, and use them.

    A run begins with a YAML config (configs/quickstart.yaml is a whole one, configs/reference.yaml
    explains every option) and becomes a folder, which translate and eval take.
    """
    if version:
        typer.echo(f"seq2seq {__version__}")
        raise typer.Exit
    _log_to_stderr()
    os.environ.update(ENVIRONMENT | os.environ)


ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="YAML file; configs/reference.yaml explains it.")
]
RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a trained run.")]
Device = Annotated[Literal["auto", "cpu", "cuda"] | None, typer.Option(help="Where to compute.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace an option; may be repeated."),
]
Last = Annotated[bool, typer.Option("--last", help="Use the last model, not the best one.")]


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq train configs/quickstart.yaml\n\n"
    "seq2seq train configs/quickstart.yaml --run-dir runs/deep --set model.layers=4\n\n"
    "tensorboard --logdir runs"
)
def train(
    config: ConfigFile,
    run_dir: Annotated[
        Path | None,
        typer.Option(help="Where the run goes.", show_default="runs/<name of the config>"),
    ] = None,
    overrides: Overrides = None,
    device: Device = None,
) -> None:
    """Train a model from a config; the same command continues an interrupted run."""
    loaded = _load_config(config, overrides, device)
    from seq2seq_cli.training.loop import train as train_model

    train_model(loaded, run_dir or Path("runs") / config.stem)


@app.command(
    epilog="**Examples**\n\n"
    'seq2seq translate runs/quickstart "ich möchte ein Bier."\n\n'
    "seq2seq translate runs/quickstart --input test.de --output test.en\n\n"
    "cat test.de | seq2seq translate runs/quickstart > test.en\n\n"
    "seq2seq translate runs/quickstart      (asks for sentences; Ctrl-D ends)\n\n"
    'seq2seq translate runs/quickstart -- "-5 Grad"      (a sentence that begins with a dash)'
)
def translate(
    run_dir: RunDir,
    sentences: Annotated[list[str] | None, typer.Argument(help="Sentences to translate.")] = None,
    input_file: Annotated[
        Path | None, typer.Option("--input", "-i", help="File to translate; - is standard input.")
    ] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; - is standard output.")
    ] = None,
    overrides: Overrides = None,
    device: Device = None,
    last: Last = False,
) -> None:
    """Translate sentences, a file, or standard input: one line in, one line out.

    At a terminal, without sentences or a file, it asks for them one by one. From a file or pipe it
    takes 2,000 lines at a time, to translate those of like length together.
    """
    if sentences and input_file:
        raise UserError("give sentences or --input, not both")
    if input_file and output_file and output_file.exists() and output_file.samefile(input_file):
        raise UserError(f"--output {output_file} is the input file")
    from seq2seq_cli.decoding.translator import Translator
    from seq2seq_cli.text.lines import lines_to_translate, write_lines

    translator = Translator.load(run_dir, device or "auto", overrides or (), last=last)
    if not sentences and input_file is None and _is_terminal(sys.stdin):
        _converse(translator)
        return
    lines = sentences or lines_to_translate(input_file)
    write_lines(output_file, _translate_in_chunks(translator, lines))


@app.command(
    "eval",
    epilog="**Examples**\n\n"
    "seq2seq eval runs/quickstart --src test.de --ref test.en\n\n"
    "seq2seq eval runs/quickstart --json      (on the run's own validation text)",
)
def evaluate(
    run_dir: RunDir,
    src: Annotated[Path | None, typer.Option(help="Source sentences.")] = None,
    ref: Annotated[Path | None, typer.Option(help="Their reference translations.")] = None,
    pairs: Annotated[Path | None, typer.Option(help="Instead: a .tsv or .jsonl file.")] = None,
    loss_only: Annotated[
        bool, typer.Option("--loss-only", help="Do not translate: no BLEU, chrF, exact match.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    overrides: Overrides = None,
    device: Device = None,
    last: Last = False,
) -> None:
    """Score a trained model on parallel text: loss, accuracy, BLEU, chrF, exact match."""
    corpus = _corpus(src, ref, pairs)
    from seq2seq_cli.decoding.translator import Translator
    from seq2seq_cli.evaluation import evaluate_corpus

    translator = Translator.load(run_dir, device or "auto", overrides or (), last=last)
    scores = evaluate_corpus(translator, corpus, decode=not loss_only)
    typer.echo(json.dumps(scores.report(), indent=2) if as_json else scores.table())


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq vocab configs/quickstart.yaml\n\n"
    "seq2seq vocab configs/quickstart.yaml --set tokenizer.kind=char --output runs/vocabulary"
)
def vocab(
    config: ConfigFile,
    output: Annotated[
        Path | None,
        typer.Option(help="Folder to write to.", show_default="runs/<name of the config>/vocab"),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Build the tokenizer(s) alone, to look at them or to use them elsewhere."""
    loaded = _load_config(config, overrides)
    from seq2seq_cli.text.vocabulary import build_vocabulary

    report = build_vocabulary(loaded, output or Path("runs") / config.stem / "vocab")
    typer.echo("\n".join(report))


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq check configs/quickstart.yaml\n\n"
    "seq2seq check configs/quickstart.yaml --set data.max_length=20"
)
def check(config: ConfigFile, overrides: Overrides = None, device: Device = None) -> None:
    """Read and audit config and text, and summarise the run; nothing is trained."""
    loaded = _load_config(config, overrides, device)
    from seq2seq_cli.training.summary import preview

    typer.echo(preview(loaded))


bench_app = typer.Typer(no_args_is_help=True)
app.add_typer(bench_app, name="bench", help="Measure speed and memory on this machine.")


@bench_app.command(
    "train",
    epilog="**Examples**\n\n"
    "seq2seq bench train configs/quickstart.yaml\n\n"
    "seq2seq bench train configs/quickstart.yaml --set training.precision=fp32 --json",
)
def bench_train(
    config: ConfigFile,
    updates: Annotated[int, typer.Option(min=1, help="Updates to measure.")] = 30,
    warmup: Annotated[int, typer.Option(min=0, help="Updates before them.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    overrides: Overrides = None,
    device: Device = None,
) -> None:
    """Measure training: tokens per second, where the time goes, memory, share of the ceiling.

    The ceiling is the speed of large matrix products here and now.
    """
    loaded = _load_config(config, overrides, device)
    from seq2seq_cli.training.benchmark import measure_training

    if (speed := measure_training(loaded, warmup, updates)) is not None:
        typer.echo(json.dumps(speed.report(), indent=2) if as_json else speed.table())


def _load_config(path: Path, overrides: list[str] | None, device: str | None = None) -> "Config":
    from seq2seq_cli.config_file import load_config

    given = [*(overrides or []), *([f"training.device={device}"] if device else [])]
    return load_config(path, given, files_must_exist=True)


def _corpus(src: Path | None, ref: Path | None, pairs: Path | None) -> "Corpus | None":
    from pydantic import ValidationError

    from seq2seq_cli.config import Corpus

    if not (src or ref or pairs):
        return None
    if (src is None) != (ref is None) or (pairs and src):
        raise UserError("give --src and --ref, or --pairs alone")
    try:
        return Corpus(src=src, tgt=ref, pairs=pairs)
    except ValidationError as error:
        raise UserError(str(error.errors()[0]["ctx"]["error"])) from None


def _translate_in_chunks(translator: "Translator", lines: Iterable[str]) -> Iterator[str]:
    from tqdm import tqdm

    iterator = iter(lines)
    is_watched = _is_terminal(sys.stderr) and not isinstance(lines, list)
    with tqdm(unit=" lines", file=sys.stderr, disable=not is_watched) as bar:
        while chunk := list(islice(iterator, _LINES_AT_ONCE)):
            yield from translator.translate(chunk)
            bar.update(len(chunk))


def _converse(translator: "Translator") -> None:
    """Ask, translate, print, until the input ends."""
    import readline  # noqa: F401 (gives input() line editing and history)

    prompt = "> "
    while True:
        if not _is_terminal(sys.stdout):  # a redirected output gets results only
            typer.echo(prompt, err=True, nl=False)
        try:
            line = input(prompt if _is_terminal(sys.stdout) else "")
        except EOFError:
            typer.echo(err=True)
            return
        typer.echo(translator.translate([line])[0])


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


class _ConsoleHandler(logging.Handler):
    """Writes to the standard error of the moment, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm

        tqdm.write(self.format(record), file=sys.stderr)


def _log_to_stderr() -> None:
    package_logger = logging.getLogger("seq2seq_cli")
    package_logger.setLevel(logging.DEBUG)  # all of it for train.log
    if not package_logger.handlers:
        package_logger.addHandler(_ConsoleHandler(logging.INFO))
