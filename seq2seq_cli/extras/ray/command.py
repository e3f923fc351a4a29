"""The command translate-ray: translates files with actors on the machines of a Ray cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from seq2seq_cli import plugins
from seq2seq_cli.cli.app import app
from seq2seq_cli.cli.options import path_option, text_option
from seq2seq_cli.cli.translate import OUTPUT, with_job_options
from seq2seq_cli.console import is_stderr_watched

if TYPE_CHECKING:
    from seq2seq_cli.decoding.lines.stream import Job

ACTORS = "Actors"

InputFiles = Annotated[
    Path,
    text_option(
        "--input",
        "-i",
        help_text="File, folder, quoted pattern such as 'texts/*.txt', or URL of the texts.",
        rich_help_panel=OUTPUT,
    ),
]
OutputFolder = Annotated[
    Path,
    path_option(
        "--output",
        "-o",
        help_text="Folder for the translations, one file per text.",
        rich_help_panel=OUTPUT,
    ),
]
Concurrency = Annotated[
    str | None,
    typer.Option(
        metavar="MIN:MAX",
        help="Number of actors: N, or MIN:MAX.",
        show_default="1, and autoscales to the available resources",
        rich_help_panel=ACTORS,
    ),
]
NumCpus = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="CPUs that each actor reserves; may be a fraction.",
        show_default="1, unless --num-gpus is given",
        rich_help_panel=ACTORS,
    ),
]
NumGpus = Annotated[
    float,
    typer.Option(
        min=0, help="GPUs that each actor reserves; may be a fraction.", rich_help_panel=ACTORS
    ),
]


@app.command(
    "translate-ray",
    epilog="**Examples**\n\n"
    "seq2seq translate-ray runs/quickstart --input 'texts/*.txt' --output translated\n\n"
    "seq2seq translate-ray runs/quickstart --input texts --output translated --concurrency 1:8 "
    "--num-gpus 0.25 --beam-size 5",
)
@with_job_options
def translate_ray(
    job: "Job",
    input_files: InputFiles,
    output_folder: OutputFolder,
    concurrency: Concurrency = None,
    num_cpus: NumCpus = None,
    num_gpus: NumGpus = 0.0,
) -> None:
    """Translate text files on the machines of a Ray cluster; rerun the command to resume.

    Actors load the model once and translate pieces of the texts. Ray connects to the cluster at
    RAY_ADDRESS, or starts one on this machine.
    """
    plugins.require("ray", "ray", "translate-ray")
    from tqdm import tqdm

    from seq2seq_cli.extras.ray.translate import Actors, sources_of, translate_files

    actors = Actors.parse(concurrency, num_cpus, num_gpus)
    sources = sources_of(input_files)
    with tqdm(unit=" lines", disable=not is_stderr_watched()) as bar:
        count = translate_files(job, sources, output_folder, actors, bar.update)
    existing = f"; {len(sources) - count:,} existed" if count < len(sources) else ""
    typer.echo(f"translated {count:,} files into {output_folder}{existing}", err=True)
