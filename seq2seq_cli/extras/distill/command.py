"""The commands distill and diversify: models that learn from the translations of others."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seq2seq_cli.cli import options, translate
from seq2seq_cli.cli.app import app
from seq2seq_cli.errors import UserError

if TYPE_CHECKING:
    from seq2seq_cli.config.text import ParallelText
    from seq2seq_cli.extras.distill.distillation import Task

Teachers = Annotated[
    list[Path],
    options.path_argument(
        "TEACHER", "Run folder of the teacher; several with one vocabulary form an ensemble."
    ),
]
Source = Annotated[
    Path,
    options.text_option("--src", help_text="File of sentences to translate, one per line."),
]
Output = Annotated[
    Path, options.path_option("--output", "-o", help_text="Run folder of the student to write.")
]
RealPairs = Annotated[
    list[Path] | None,
    options.path_option(
        "--pairs",
        help_text="Real pairs to mix in: a file of pairs, or two files (give the option twice).",
    ),
]
Weight = Annotated[
    float, typer.Option(min=0.0001, max=10_000, help="Passes over the real pairs per epoch.")
]
Valid = Annotated[
    list[Path] | None,
    options.path_option(
        help_text="Validation text: a file of pairs, or two files (give the option twice).",
        show_default="the teacher's",
    ),
]
ShapeName = Annotated[
    str | None,
    typer.Option(
        "--shape",
        help="Size of the student: tiny, small, base, or encoder layers, decoder layers and "
        "d_model, such as 6+2x256.",
        show_default="by number of pairs",
    ),
]
StudentConfig = Annotated[
    Path | None,
    options.path_option(
        "--config",
        help_text="Config of the student, instead of --shape, --pairs and --valid; its data.train "
        "is mixed in.",
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a config option: decoding.* of the teacher, others of the student; may be "
        "repeated.",
    ),
]
MaxLengthRatio = Annotated[
    float,
    typer.Option(
        min=1.0,
        help="Drop translations whose length ratio to the source is this many times above or below "
        "the median.",
    ),
]
DropWorst = Annotated[
    float,
    typer.Option(min=0, max=99, help="Percentage of translations with the worst scores to drop."),
]
NumShards = Annotated[
    int | None,
    typer.Option(
        "--shards",
        min=1,
        max=999_999,
        help="Number of shards in which the text is translated; finished ones are kept.",
        show_default="1 per MB, at most 200",
    ),
]


def make_task(
    teachers: Teachers,
    src: Source,
    output: Output,
    shape: ShapeName = None,
    pairs: RealPairs = None,
    pairs_weight: Weight = 1.0,
    valid: Valid = None,
    fields: options.Fields = None,
    config: StudentConfig = None,
    beam_size: translate.BeamSize = None,
    sampling: translate.Sampling = False,
    precision: translate.Precision = None,
    tag: options.Tag = None,
    input_format: translate.InputFormat = "text",
    max_length_ratio: MaxLengthRatio = 3.0,
    drop_worst: DropWorst = 5.0,
    shards: NumShards = None,
    processes: translate.NumProcesses = None,
    overrides: Overrides = None,
    device: options.Device = None,
    model: options.WhichModel = "best",
) -> "Task":
    """Make the task that these options describe. Raises UserError if they exclude each other."""
    if config is not None and (shape or pairs or valid):
        raise UserError("--config excludes --shape, --pairs and --valid")
    if pairs_weight != 1.0 and not pairs:
        raise UserError("--pairs-weight needs --pairs; each corpus of a config has its own weight")
    options.check_fields(fields, [*(pairs or ()), *(valid or ())])
    from seq2seq_cli.decoding.lines.stream import Job
    from seq2seq_cli.extras.distill.distillation import Task
    from seq2seq_cli.extras.distill.filters import Filters
    from seq2seq_cli.extras.distill.student import Shape

    # In the order of `translate`, whose shards are taken for ours.
    search = options.decoding_overrides(beam_size=beam_size, n_best=1, precision=precision)
    more = options.decoding_overrides(tag=tag, sampling=sampling)
    of_teacher = [option for option in overrides or () if option.startswith("decoding.")]
    of_student = [option for option in overrides or () if not option.startswith("decoding.")]
    of_student += [f"training.device={device}"] if device else []
    teacher = Job(
        run_dirs=tuple(teachers),
        device=device or "auto",
        overrides=(*search, *more, *of_teacher),
        which=model,
        input_format=input_format,
    )
    return Task(
        teacher=teacher,
        source=src,
        output=output,
        filters=Filters(max_length_ratio, drop_worst),
        real=_text(pairs, fields, pairs_weight),
        valid=_text(valid, fields),
        shape=Shape.parse(shape) if shape else None,
        config=options.load_config_file(config, of_student) if config else None,
        overrides=of_student,
        num_shards=shards,
        processes=processes,
    )


def _text(
    files: list[Path] | None, fields: tuple[str, str] | None, weight: float = 1.0
) -> "ParallelText | None":
    if not files:
        return None
    from seq2seq_cli.commands.init.init import text_of

    (corpus,) = (text := text_of(files, fields if len(files) == 1 else None)).corpora
    return text._replace(corpora=(corpus.model_copy(update={"weight": weight}),))


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq distill runs/quickstart --src mono.de --output runs/student\n\n"
    "seq2seq distill runs/a runs/b --src mono.de --output runs/student --shape 6+2x256 "
    "--beam-size 5 --pairs train.de --pairs train.en\n\n"
    "seq2seq distill runs/quickstart --src mono.de --output runs/student --config student.yaml"
)
@options.options_of(make_task, "task")
def distill(task: "Task", as_json: options.AsJson = False) -> None:
    """Train a small, fast student on a teacher's translations; rerun the command to resume.

    Cleans the text, translates it, drops bad translations, trains the student, and compares it with
    the teacher on the validation text. The folder distilled in the run keeps intermediate files.
    """
    from seq2seq_cli.extras.distill import distillation
    from seq2seq_cli.extras.distill.stages import resumable

    options.check_model_of_runs(task.teacher.which, task.teacher.run_dirs)
    translate.warn_of_json(task.source, task.teacher.input_format)
    with resumable():
        made = distillation.distill(task)
    typer.echo(json.dumps(made["report"], indent=2) if as_json else made["table"])


@app.command(
    epilog="**Examples**\n\n"
    "seq2seq diversify configs/multi30k_en_de.yaml --output runs/diversified\n\n"
    "seq2seq diversify mine.yaml --output runs/mine --set training.max_steps=4000"
)
def diversify(
    config: options.ConfigFile,
    output: Annotated[
        Path,
        options.path_option("--output", "-o", help_text="Run folder of the final model to write."),
    ],
    beam_size: Annotated[
        int | None,
        typer.Option(
            "--beam-size",
            "-b",
            min=1,
            help="Beam size of the translations.",
            show_default="the config's, or 5",
        ),
    ] = None,
    processes: translate.NumProcesses = None,
    as_json: options.AsJson = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
) -> None:
    """Train a better model on the same text (data diversification); rerun the command to resume.

    Trains a model for each direction, adds their translations to the training text, trains on all
    of it, continues with less dropout, and compares the models on the validation text. The folder
    diversified in the run keeps all intermediate files.
    """
    loaded = options.load_config_file(config, overrides, device)
    from seq2seq_cli.extras.distill import diversification
    from seq2seq_cli.extras.distill.stages import resumable

    if beam_size is None:
        beam_size = 5 if loaded.decoding.beam_size == "auto" else loaded.decoding.beam_size
    search = [*options.decoding_overrides(beam_size=beam_size, n_best=1)]
    # Report options that exclude this search before hours of training.
    options.load_config_file(config, [*(overrides or ()), *search], device)
    with resumable():
        made = diversification.diversify(loaded, output, search, processes)
    typer.echo(json.dumps(made["report"], indent=2) if as_json else made["table"])
