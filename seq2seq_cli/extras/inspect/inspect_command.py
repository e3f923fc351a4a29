"""The command inspect: looks into a trained model and its vocabulary."""

import json
from typing import Annotated, Any, Literal

import typer

from seq2seq_cli.cli.app import app
from seq2seq_cli.cli.options import AsJson, RunDir, Tag, WhichModel
from seq2seq_cli.errors import UserError

EXAMPLES = (
    "**Examples**\n\n"
    "seq2seq inspect runs/quickstart\n\n"
    'seq2seq inspect runs/quickstart --split "Ich möchte ein Bier."\n\n'
    "seq2seq inspect runs/quickstart --neighbors Bier --side target\n\n"
    'seq2seq inspect runs/quickstart --trace "Ich möchte ein Bier." --json'
)

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


@app.command("inspect", epilog=EXAMPLES)
def inspect_run(
    run_dir: RunDir,
    tensors: Tensors = False,
    split: SplitText = None,
    neighbors: Token = None,
    side: WhichSide = None,
    trace: TracedSentence = None,
    target: TracedTarget = None,
    tag: Tag = None,
    as_json: AsJson = False,
    model: WhichModel = "best",
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
    from seq2seq_cli.decoding.translator import Translator
    from seq2seq_cli.extras.inspect.parameters import tabulate_parameters
    from seq2seq_cli.extras.inspect.run_report import report_run
    from seq2seq_cli.extras.inspect.trace import trace_sentence
    from seq2seq_cli.extras.inspect.vocabulary import nearest_neighbors, split_text
    from seq2seq_cli.run_folder import RunFolder

    RunFolder(run_dir).ensure_is_run()
    # Nothing is decoded but the sentence of a trace.
    translator = Translator.load(run_dir, "cpu", ["decoding.engine=plain"], which=model, exact=True)
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
