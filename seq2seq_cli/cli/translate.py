"""The command translate: translates its arguments, a file, a pipe, or what is typed."""

import errno
import functools
import itertools
import logging
import os
import sys
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.console import is_stderr_watched
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import check_empty

if TYPE_CHECKING:
    from seq2seq_cli.decoding.lines.stream import Job

logger = logging.getLogger(__name__)

_OF_SAMPLING = tuple(f"decoding.{name}=" for name in ("temperature", "top_k", "top_p", "seed"))
SEARCH, CONTROL, OUTPUT = "Search", "Control", "Input and output"

EXAMPLES = (
    "**Examples**\n\n"
    'seq2seq translate runs/quickstart "ich möchte ein Bier."\n\n'
    "seq2seq translate runs/quickstart --input test.de --output test.en\n\n"
    "seq2seq translate runs/quickstart --input big.de --shard 3/20 --output part-3\n\n"
    "cat test.de | seq2seq translate runs/quickstart --beam-size 5 > test.en\n\n"
    'seq2seq translate runs/quickstart --beam-size 5 --n-best 3 --format jsonl "ein Bier"\n\n'
    "seq2seq translate runs/quickstart      (interactive; Ctrl-D ends)\n\n"
    'seq2seq translate runs/quickstart -- "-5 Grad"      (a sentence that starts with a dash)\n\n'
    "seq2seq translate runs/inflection $'gehen\\tV;PST'      (features of the source, after a tab)"
)

_output, _search, _control = (
    functools.partial(typer.Option, rich_help_panel=panel) for panel in (OUTPUT, SEARCH, CONTROL)
)

Sentences = Annotated[
    list[str] | None, typer.Argument(metavar="SENTENCE", help="Sentences to translate.")
]
InputFile = Annotated[
    Path | None,
    options.text_option(
        "--input",
        "-i",
        help_text="File to translate, or a URL such as s3://bucket/file; - is stdin.",
        rich_help_panel=OUTPUT,
    ),
]
OutputFile = Annotated[
    Path | None,
    options.path_option(
        "--output", "-o", help_text="File to write; - is stdout.", rich_help_panel=OUTPUT
    ),
]
Force = Annotated[bool, _output("--force", help="Overwrite an output file that is not empty.")]
InputFormat = Annotated[
    Literal["text", "jsonl"],
    _output(
        help='Format of input lines; jsonl: {"src": ..., "prefix": ..., "required": [...], '
        '"tag": ..., "features": ...}.'
    ),
]
OutputFormat = Annotated[
    Literal["text", "tsv", "jsonl", "nbest"],
    _output(
        "--format",
        help="Output format; tsv: source, translation, scores; jsonl: everything; nbest: Moses "
        "n-best list (|||).",
    ),
]
LogProbs = Annotated[bool, _output("--log-probs", help="Also output log-probabilities.")]
Align = Annotated[bool, _output("--align", help="Also output word alignments (tsv, jsonl).")]
SplitSentences = Annotated[
    bool,
    _output(
        "--split-sentences",
        help="Split every line into sentences, even if training lines had several sentences.",
    ),
]
BeamSize = Annotated[
    int | None, _search("--beam-size", "-b", help="Beam size; 1 is greedy search.")
]
NBest = Annotated[int | None, _search(help="Number of translations per line.")]
Sampling = Annotated[bool, _search("--sampling", help="Sample tokens instead of searching.")]
Ensemble = Annotated[
    list[Path] | None,
    options.path_option(
        help_text="Another run with the same vocabulary, for an ensemble; may be repeated.",
        metavar="RUN",
        rich_help_panel=SEARCH,
    ),
]
Precision = Annotated[
    Literal["auto", "fp32", "bf16", "int8"] | None,
    _search(help="Numeric precision of matrix products; int8 (quantization): CPU only."),
]
Prefix = Annotated[
    str,
    _control(help="Text that translations must start with; a trailing space ends its last word."),
]
Require = Annotated[
    list[str] | None,
    _control(metavar="TEXT", help="Words that translations must contain; may be repeated."),
]
Ban = Annotated[
    list[str] | None,
    _control(metavar="WORD", help="Word that translations may not contain; may be repeated."),
]
ReplaceUnk = Annotated[
    bool,
    _control(
        "--replace-unk", help="Replace each unknown token with the source token it attends to most."
    ),
]
NumProcesses = Annotated[
    int | None,
    _output(
        min=1,
        help="Number of processes; auto: for large files one per core, if memory allows.",
        show_default="auto",
    ),
]
ShardNumber = Annotated[
    str | None,
    _output(
        "--shard",
        metavar="K/N",
        help="Translate shard K of N of the file; seq2seq join joins their outputs.",
    ),
]


def make_job(
    run_dir: options.RunDir,
    input_format: InputFormat = "text",
    output_format: OutputFormat = "text",
    log_probs: LogProbs = False,
    align: Align = False,
    split_sentences: SplitSentences = False,
    beam_size: BeamSize = None,
    n_best: NBest = None,
    sampling: Sampling = False,
    ensemble: Ensemble = None,
    precision: Precision = None,
    prefix: Prefix = "",
    tag: options.Tag = None,
    require: Require = None,
    ban: Ban = None,
    replace_unk: ReplaceUnk = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
    model: options.WhichModel = "best",
) -> "Job":
    """Make the job that these options describe: how every line is translated and written.

    Raises UserError for what the output format has no place for, and for unknown weights.
    """
    if align and output_format in ("text", "nbest"):
        raise UserError("--align needs --format tsv or jsonl")
    asked = (f"decoding.n_best={n_best or 1}", *(overrides or ()))
    *_, last = (one.split("=")[1] for one in asked if one.startswith("decoding.n_best="))
    is_list = last.strip() != "1"
    if output_format == "text" and (log_probs or is_list):
        raise UserError("--n-best and --log-probs need --format tsv, jsonl or nbest")
    run_dirs = (run_dir, *(ensemble or ()))
    options.check_model_of_runs(model, run_dirs)
    from seq2seq_cli.decoding.lines.stream import Job

    search = options.decoding_overrides(beam_size=beam_size, n_best=n_best, precision=precision)
    more = options.decoding_overrides(
        banned_words=ban, tag=tag, sampling=sampling, replace_unk=replace_unk
    )
    job = Job(
        run_dirs=run_dirs,
        device=device or "auto",
        overrides=(*search, *more, *(overrides or ())),
        which=model,
        input_format=input_format,
        output_format=output_format,
        log_probs=log_probs or output_format in ("jsonl", "nbest"),
        align=align,
        split_sentences=split_sentences,
        prefix=prefix,
        required=tuple(require or ()),
    )
    _warn_without_sampling(job, overrides or ())
    return job


def _warn_without_sampling(job: "Job", given: Iterable[str]) -> None:
    from seq2seq_cli.config.loader import load_config

    names = [one.partition("=")[0] for one in given if one.startswith(_OF_SAMPLING)]
    if not names:
        return
    run = job.members[0]
    run.weights(job.which)  # reports that this is no run
    if not load_config(run.config, job.overrides).decoding.sampling:
        logger.warning(f"no effect without --sampling: {', '.join(names)}")


with_job_options = options.options_of(make_job, "job")


@app.command("translate", epilog=EXAMPLES)
@with_job_options
def translate(
    sentences: Sentences = None,
    input_file: InputFile = None,
    output_file: OutputFile = None,
    force: Force = False,
    processes: NumProcesses = None,
    shard: ShardNumber = None,
    *,
    job: "Job",
) -> None:
    """Translate sentences, a file, or standard input: one line in, one line out.

    Without sentences or --input, it reads standard input: piped lines are translated as they
    arrive, and a terminal shows a prompt. Section decoding of configs/reference.yaml has further
    search options, for example --sampling --set decoding.temperature=0.7.
    """
    _check_files(sentences, input_file, output_file, shard)
    if input_file is not None:
        warn_of_json(input_file, job.input_format)
    if not sentences and input_file is None and sys.stdin.isatty():
        _interactive(job)
        return
    from tqdm import tqdm

    from seq2seq_cli.decoding.lines.shards import Record, Shard, ShardTask
    from seq2seq_cli.decoding.lines.stream import translate_stream
    from seq2seq_cli.text.io import WHOLE_FILE, line_writer, lines_to_translate

    # A shard that was written before is replaced if its text has changed.
    is_known = shard is not None and output_file and Record.path(output_file).exists()
    if output_file is not None and not force and not is_known:
        check_empty(output_file)
    with ExitStack() as stack:
        lines: Iterable[str] = sentences or lines_to_translate(input_file)
        place, path, models = WHOLE_FILE, output_file, None
        if shard is not None:
            assert input_file is not None and output_file is not None, "they were checked"
            task = ShardTask(job, Shard.parse(shard), input_file, output_file)
            if task.is_done():
                typer.echo(f"{path} has the translations of shard {task.shard} already", err=True)
                raise typer.Exit
            place, lines, path = stack.enter_context(task.opened())
            models = task.models
        is_watched = is_stderr_watched() and not sentences
        bar = stack.enter_context(tqdm(unit=" lines", disable=not is_watched))
        is_part = shard is not None
        write = stack.enter_context(line_writer(path, is_locked=is_part, may_replace=force))
        # No variable holds the generator: an exception closes it, and ends its processes.
        for outputs in translate_stream(job, lines, input_file, processes, place, expected=models):
            for line in outputs:
                write(line)
            bar.update()


def _check_files(
    sentences: list[str] | None, source: Path | None, output: Path | None, shard: str | None
) -> None:
    from seq2seq_cli.text.io import STANDARD_STREAM, is_one_file

    if shard and (sentences or {source, output} & {None, STANDARD_STREAM}):
        raise UserError("--shard needs --input and --output, which are files")
    if sentences and source:
        raise UserError("give sentences or --input, not both")
    options.check_uncompressed(output)
    if output and not shard:  # errors of the system, before any line is translated
        output.parent.stat()
        if output.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(output))
    for sentence in sentences or []:
        with suppress(OSError, ValueError):  # too long for a name
            if Path(sentence).is_file():
                logger.warning(
                    "%s is translated as a sentence; use --input to translate the file", sentence
                )
    if not sentences and source is None and output and sys.stdin.isatty():
        raise UserError("--output needs sentences or --input")
    if not sentences and is_one_file(source, output):
        raise UserError(f"the output, {output or 'standard output'}, is the input file")


def warn_of_json(source: Path, input_format: str) -> None:
    """Warn that a file of JSON lines, by its name, is read as plain text."""
    if input_format == "text" and ".jsonl" in source.suffixes:
        logger.warning(
            "%s is translated as plain text; if it has JSON lines, use --input-format jsonl", source
        )


def _interactive(job: "Job") -> None:
    """Prompt for lines and print their translations, until the input ends."""
    import readline  # noqa: F401 (gives input() line editing and history)

    from seq2seq_cli.decoding.lines.issues import Issues
    from seq2seq_cli.decoding.lines.stream import translate_chunks

    translator = job.load()
    typer.echo("Type a sentence and press Enter; Ctrl-D ends.", err=True)
    prompt = "> "
    for number in itertools.count():
        if not sys.stdout.isatty():  # a redirected output gets results only
            typer.echo(prompt, err=True, nl=False)
        try:
            line = input(prompt if sys.stdout.isatty() else "")
        except EOFError:
            typer.echo(err=True)
            return
        chunk = (number, [job.parse(number, line)])
        for output in itertools.chain(*translate_chunks(job, translator, [chunk], Issues.report)):
            typer.echo(output)
