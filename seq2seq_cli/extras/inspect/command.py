"""The commands attend and inspect: show the attention and the inside of a trained model."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from seq2seq_cli.cli import options
from seq2seq_cli.cli.app import app
from seq2seq_cli.cli.translate import BeamSize, NBest
from seq2seq_cli.config.types import DeviceName
from seq2seq_cli.console import printable
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import check_empty, write_atomic

if TYPE_CHECKING:
    from seq2seq_cli.decoding.translator import Translator
    from seq2seq_cli.extras.inspect.attention_study import AttentionStudy

ATTEND_EXAMPLES = (
    "**Examples**\n\n"
    'seq2seq attend runs/quickstart "ich möchte ein Bier."\n\n'
    'seq2seq attend runs/quickstart "ich möchte ein Bier." --target "I want a tea."\n\n'
    'seq2seq attend runs/quickstart "ich möchte ein Bier." --compare runs/other\n\n'
    'seq2seq attend runs/quickstart "ich möchte ein Bier." -o bier.html -o bier.npz\n\n'
    'seq2seq attend runs/quickstart "ich möchte ein Bier." -o bier.svg --layer 2 --head 1'
)

FIGURE: Any = {"rich_help_panel": "Figures (PNG and SVG)"}

Sentences = Annotated[
    list[str], typer.Argument(metavar="SENTENCE", help="Sentences to analyze, side by side.")
]
Target = Annotated[
    str | None, typer.Option(help="Target to analyze instead of the model's own translation.")
]
Compare = Annotated[
    Path | None, options.path_option(help_text="Another run to compare with.", metavar="RUN")
]
Outputs = Annotated[
    list[Path] | None,
    options.path_option(
        "--output",
        "-o",
        help_text="File to write: .html, .png, .svg, .json or .npz; may be repeated.",
        show_default="attention.html",
    ),
]
Sample = Annotated[
    int,
    typer.Option(
        min=0, help="Number of validation pairs for the head statistics; 0 disables them."
    ),
]
Kind = Annotated[
    Literal["encoder", "decoder", "cross"],
    typer.Option(help="Kind of attention to draw.", **FIGURE),
]
Layer = Annotated[
    int | None,
    typer.Option(
        min=1, help="Layer to draw, from 1.", show_default="all layers and heads", **FIGURE
    ),
]
Head = Annotated[
    int | None,
    typer.Option(min=1, help="Head to draw, from 1.", show_default="mean over the heads", **FIGURE),
]
View = Annotated[
    Literal["weights", "renormalized", "norms"],
    typer.Option(
        help="Weights, weights without EOS and punctuation, or norms of the weighted values.",
        **FIGURE,
    ),
]


Tensors = Annotated[
    bool, typer.Option("--tensors", help="List every parameter with its shape and statistics.")
]
SplitText = Annotated[
    str | None, typer.Option("--split", metavar="TEXT", help="Show how a text is tokenized.")
]
Token = Annotated[
    str | None,
    typer.Option(
        metavar="TOKEN",
        help="List the nearest neighbors of a token's embedding, by cosine similarity.",
    ),
]
WhichSide = Annotated[
    Literal["source", "target"] | None,
    typer.Option(help="Vocabulary for --split and --neighbors.", show_default="source"),
]
TracedSentence = Annotated[
    str | None,
    typer.Option(
        "--trace",
        metavar="SENTENCE",
        help="Run a sentence through the model and list every tensor with its statistics.",
    ),
]
TracedTarget = Annotated[
    str | None,
    typer.Option(
        metavar="TRANSLATION", help="Target for --trace.", show_default="the model's translation"
    ),
]


@app.command(epilog=ATTEND_EXAMPLES)
def attend(
    run_dir: options.RunDir,
    sentences: Sentences,
    target: Target = None,
    compare: Compare = None,
    output: Outputs = None,
    force: options.Force = False,
    sample: Sample = 20,
    beam_size: BeamSize = None,
    n_best: NBest = None,
    kind: Kind = "cross",
    layer: Layer = None,
    head: Head = None,
    view: View = "weights",
    by_words: Annotated[
        bool, typer.Option("--words", help="Draw words instead of tokens.", **FIGURE)
    ] = False,
    overrides: options.Overrides = None,
    device: options.Device = None,
    model: options.WhichModel = "best",
) -> None:
    """Show what a model attends to: encoder, decoder and cross-attention in all layers and heads.

    Translates the sentences, and recomputes each translation with teacher forcing in fp32. Writes a
    web page, figures, or the numbers, and prints the probability of each token.
    """
    has_tag_alone = all(one.startswith("decoding.tag=") for one in overrides or ())
    if target is not None and (len(sentences) > 1 or beam_size or n_best or not has_tag_alone):
        raise UserError(
            "--target takes one sentence, and excludes --beam-size, --n-best and --set but for "
            "decoding.tag"
        )
    from seq2seq_cli.extras.inspect.attention_figure import FigureOptions
    from seq2seq_cli.extras.inspect.attention_files import attention_text, check_outputs, files_of

    paths = output or [Path("attention.html")]
    figure = FigureOptions(kind, layer, head, view, by_words)
    check_outputs(paths, figure)
    for path in () if force else output or ():
        check_empty(path)
    search = [*options.decoding_overrides(beam_size=beam_size, n_best=n_best), *(overrides or ())]
    runs = [run_dir, *([compare] if compare else [])]
    options.check_model_of_runs(model, runs)
    translators = _load(runs, device or "auto", search, model)
    for translator in translators:
        figure.check(translator.config.model)
    typer.echo(f"writing {', '.join(printable(str(path)) for path in paths)} …", err=True)
    studies = _study(runs, translators, sentences, target, sample)
    for study in studies:
        typer.echo(f"{attention_text(study)}\n")
    files: dict[Path, bytes] = {}
    for path in paths:
        files |= files_of(path, studies, figure)
    for path in () if force else files.keys() - {*paths}:  # the numbered ones
        check_empty(path)
    for path, content in files.items():
        write_atomic(path, content)
        typer.echo(f"wrote {printable(str(path))}")


def _load(
    runs: Sequence[Path], device: DeviceName, search: Sequence[str], model: str
) -> "list[Translator]":
    from seq2seq_cli.decoding.translator import Translator
    from seq2seq_cli.run_folder import RunFolder

    for run in runs:
        RunFolder(run).ensure_is_run()
    return [
        Translator.load(run, device, search, which=model, exact=True, with_pytorch=True)
        for run in runs
    ]


def _study(
    runs: Sequence[Path],
    translators: "Sequence[Translator]",
    sentences: Sequence[str],
    target: str | None,
    sample: int,
) -> "list[AttentionStudy]":
    """Study the sentences; the translations of the runs alternate."""
    from seq2seq_cli.extras.inspect.attention_study import study_attention
    from seq2seq_cli.extras.inspect.head_statistics import head_statistics, validation_sample

    statistics = [
        head_statistics(translator, validation_sample(translator, sample, run)) if sample else None
        for run, translator in zip(runs, translators, strict=True)
    ]
    studies = []
    for sentence in sentences:
        by_run = [
            study_attention(translator, sentence, target, run=str(run), head_statistics=of_heads)
            for run, translator, of_heads in zip(runs, translators, statistics, strict=True)
        ]
        studies += [s for of_rank in itertools.zip_longest(*by_run) for s in of_rank if s]
    return studies


@app.command(
    "inspect",
    epilog="**Examples**\n\n"
    "seq2seq inspect runs/quickstart\n\n"
    'seq2seq inspect runs/quickstart --split "Ich möchte ein Bier."\n\n'
    "seq2seq inspect runs/quickstart --neighbors Bier --side target\n\n"
    'seq2seq inspect runs/quickstart --trace "Ich möchte ein Bier." --json',
)
def inspect_run(
    run_dir: options.RunDir,
    tensors: Tensors = False,
    split: SplitText = None,
    neighbors: Token = None,
    side: WhichSide = None,
    trace: TracedSentence = None,
    target: TracedTarget = None,
    tag: options.Tag = None,
    as_json: options.AsJson = False,
    model: options.WhichModel = "best",
) -> None:
    """Show a model's parameters, FLOPs, memory and vocabulary, or what the options select.

    The options may be combined; the output then has one part for each.
    """
    if trace is None and (target is not None or tag is not None):
        raise UserError("--target and --tag require --trace")
    if side is not None and split is None and neighbors is None:
        raise UserError("--side requires --split or --neighbors")
    if neighbors is not None and not neighbors.strip():
        raise UserError("--neighbors needs a token")
    from seq2seq_cli.extras.inspect.parameters import tabulate_parameters
    from seq2seq_cli.extras.inspect.run_report import report_run
    from seq2seq_cli.extras.inspect.trace import trace_sentence
    from seq2seq_cli.extras.inspect.vocabulary import nearest_neighbors, split_text
    from seq2seq_cli.run_folder import RunFolder

    # Nothing is decoded but the sentence of a trace.
    in_fp32 = ["decoding.engine=plain", "decoding.precision=fp32"]
    (translator,) = _load([run_dir], "cpu", in_fp32, model)
    network, tokenizer = translator.model, translator.tokenizers.src
    embedding = network.src_embedding
    if side == "target":
        embedding, tokenizer = network.tgt_embedding, translator.tokenizers.tgt
    parts: dict[str, Any] = {}  # with as_text(), and report() for JSON
    if tensors:
        parts["tensors"] = tabulate_parameters(network)
    if split is not None:
        parts["split"] = split_text(tokenizer, split)
    if neighbors is not None:
        vectors_VD = embedding.weight.detach()
        parts["neighbors"] = nearest_neighbors(vectors_VD, tokenizer, side or "source", neighbors)
    if trace is not None:
        parts["trace"] = trace_sentence(translator, trace, target, tag)
    if not parts:
        parts["run"] = report_run(RunFolder(run_dir), translator, model)
    if as_json:
        reports = {name: part.report() for name, part in parts.items()}
        typer.echo(json.dumps(reports, indent=2, ensure_ascii=False))
    else:
        typer.echo("\n\n".join(part.as_text() for part in parts.values()))
