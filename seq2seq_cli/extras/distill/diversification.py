"""`seq2seq diversify`: models of both directions translate the training text for a final model.

Data diversification (Nguyen et al. 2020) with one model of each direction in one round, and further
training with less dropout.
"""

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seq2seq_cli.commands.compare import compare_systems
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Corpus, ParallelText
from seq2seq_cli.config.tokenizer import Normalizations
from seq2seq_cli.config.types import BySide
from seq2seq_cli.console import table
from seq2seq_cli.decoding.lines.stream import Job
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.distill import distillation, student_report
from seq2seq_cli.extras.distill.distillation import Task
from seq2seq_cli.extras.distill.filters import Filters
from seq2seq_cli.extras.distill.stages import Facts, Stage, text_inputs, written
from seq2seq_cli.files import locked
from seq2seq_cli.metrics.metrics import Scoring
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import hash_of_files, readable_pairs
from seq2seq_cli.training.checkpoints.checkpoint import read_state
from seq2seq_cli.training.ensemble import hooks_of_one, members_at_once
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.parallel.launcher import launch_each

_FILTERS = Filters(max_length_ratio=3.0, drop_worst=0.0)
# The recipe of benchmarks/translation_quality.md, as multiples of what the config has.
_UPDATES = 1.5
_TUNING = {"updates": 0.75, "warmup_steps": 1 / 3, "lr": 1 / 2, "dropout": 2 / 3}


def diversify(
    config: Config, output: Path, search: Sequence[str], processes: int | None
) -> dict[str, Any]:
    """Train a model on a text and its translations; return the report as text and as JSON.

    `search`: overrides for the translations, which so many processes make. Every finished stage
    stays finished: the same call goes on where another one was interrupted. Raises UserError for
    text that cannot be turned around, and if the folder has another run.
    """
    run, folder = RunFolder(output), RunFolder(output).diversified
    if not run.exists:
        run.ensure_new_or_empty()
    elif not folder.is_dir():
        raise UserError(f"{run.path} is a run already: choose another --output")
    teachers = {"forward": config, "backward": turned_around(config)}
    runs = {"forward": folder / "forward", "mixed": folder / "mixed", "final": output}
    with locked(folder):
        train_teachers(teachers, folder, RunFolder(runs["mixed"]))
        corpora, made = list(config.data.train), dict[str, Facts]()
        for name, teacher in teachers.items():
            job = Job((folder / name,), config.training.device, (*search,), input_format="jsonl")
            known = ParallelText((*corpora,), teacher.data.direction)
            task = Task(
                job,
                (folder / name).with_suffix(".jsonl"),
                folder / name,
                _FILTERS,
                known=known,
                is_backward=name == "backward",
                processes=processes,
            )
            new, made[name] = translate_text(task, teacher, runs["mixed"])
            corpora += new
        if len(corpora) == len(config.data.train):
            counters = (Counter(facts["translations"]["dropped"]) for facts in made.values())
            counts = student_report.as_counts(dict(sum(counters, Counter()).most_common()))
            raise UserError(
                f"no translation by {folder}/forward or backward is left to add (dropped: "
                f"{counts}); if most are known pairs, train for fewer updates, otherwise for more, "
                "as with --set training.max_steps=… and another --output"
            )
        forward = RunFolder(runs["forward"])
        if forward.last_checkpoint is None:
            raise UserError(
                f"{forward.path} has no checkpoint, which says how long to train the next model"
            )
        begun, updates = load_config(forward.config), read_state(forward.last_checkpoint).plan.most
        mixed = on_more_text(begun, corpora, updates)
        final = tuned(mixed, runs["mixed"])
        finish_training(folder / "mixed.json", mixed, runs["mixed"], None)
        finish_training(folder / "final.json", final, output, runs["mixed"])
        models = [hash_of_files([RunFolder(path).model]) for path in runs.values()]
        report = Stage(folder / "report.json", {"models": models})
        return report.finish(lambda: ([], make_report(begun, runs, folder / "backward", made)))


def turned_around(config: Config) -> Config:
    """Return the config for the other direction, with the options of the sides exchanged.

    Raises UserError for text that has no other direction, and without validation text.
    """
    text = config.train_text
    if text.direction == "both" or text.has_features or text.tags or config.decoding.tag:
        raise UserError(
            "diversify translates both sides of data.train: it takes no tags, no features, and no "
            "data.direction: both"
        )
    if config.valid_text is None:
        raise UserError("diversify needs data.valid, to choose and to compare models")
    if config.tokenizer.reuse is not None and not config.tokenizer.shared:
        raise UserError(
            "diversify with tokenizer.reuse needs a vocabulary that both sides share "
            "(tokenizer.shared: true), as its models have both directions"
        )
    direction = "reverse" if text.direction == "forward" else "forward"
    tokenizer = {
        name: value.model_copy(update={"src": value.tgt, "tgt": value.src})
        for name, value in config.tokenizer
        if isinstance(value, BySide | Normalizations)
    }
    sampling = config.training.subword_sampling
    sampling = sampling.model_copy(update={"src": sampling.tgt, "tgt": sampling.src})
    training = {"subword_sampling": sampling}
    return config.updated(data={"direction": direction}, tokenizer=tokenizer, training=training)


def train_teachers(teachers: Mapping[str, Config], folder: Path, mixed: RunFolder) -> None:
    """Train the models that translate, side by side if there are two cores.

    Raises UserError if the run `mixed` has learned from others.
    """
    config = teachers["forward"]
    at_once = min(len(teachers), members_at_once(config))
    work = functools.partial(train, hooks=hooks_of_one(at_once))
    works = {
        str(folder / name): functools.partial(work, each, folder / name)
        for name, each in teachers.items()
    }

    def make() -> tuple[Sequence[Path], Facts]:
        launch_each(works, at_once)
        return [RunFolder(folder / name).model for name in teachers], {}

    texts = [text_inputs(text) for text in (config.train_text, config.valid_text) if text]
    inputs = {"config": config.model_dump(mode="json"), "texts": texts}
    stage = Stage(folder / "teachers.json", inputs)
    stage.ensure_kept(mixed)
    stage.finish(make)


def translate_text(task: Task, teacher: Config, mixed: Path) -> tuple[list[Corpus], Facts]:
    """Translate the source side of a teacher's training text; return the new pairs, and facts.

    Raises UserError if the run `mixed` has learned from others.
    """
    text, on_bad_line = teacher.train_text, teacher.data.on_bad_line

    def make() -> tuple[Sequence[Path], Facts]:
        with written(task.source) as write:
            for _, pair in readable_pairs(text, on_bad_line):
                write({"src": pair.src})
        return [task.source], {}

    inputs = text_inputs(text) | {"on_bad_line": on_bad_line}
    Stage(task.source.with_suffix(".json"), inputs).finish(make)
    valid, run = teacher.valid_text, RunFolder(task.output)
    assert valid is not None, "it was checked"
    facts = distillation.finished_pairs(task, valid, load_config(run.config), RunFolder(mixed))
    corpora = distillation.corpora_of(task.folder, facts["translations"])
    fields = ("src", "tgt") if teacher.data.direction == "forward" else ("tgt", "src")
    return [corpus.model_copy(update={"fields": fields}) for corpus in corpora], facts


def on_more_text(begun: Config, corpora: Sequence[Corpus], updates: int) -> Config:
    """Return the config of the forward model, of so many updates, for more text: more updates."""
    hours = begun.training.max_hours
    limits = {
        "max_epochs": None,
        "max_steps": math.ceil(_UPDATES * updates),
        "max_hours": hours and _UPDATES * hours,
    }
    return begun.updated(data={"train": tuple(corpora)}, training=limits)


def tuned(mixed: Config, source: Path) -> Config:
    """Return the config to go on from the run `source`: less dropout, lower rate, fewer updates."""
    training, model = mixed.training, mixed.model
    share, hours = _TUNING["updates"] / _UPDATES, mixed.training.max_hours
    assert training.max_steps is not None, "it was set"
    update = {
        "max_steps": math.ceil(share * training.max_steps),
        "max_hours": hours and share * hours,
        "warmup_steps": math.ceil(_TUNING["warmup_steps"] * training.warmup_updates),
        "lr": training.lr * _TUNING["lr"],
    }
    dropout = {"dropout": model.dropout * _TUNING["dropout"]}
    return mixed.updated(training=update, model=dropout, tokenizer={"reuse": source})


def finish_training(record: Path, config: Config, run_dir: Path, source: Path | None) -> None:
    """Train a model on the text with its translations, or go on with it."""
    inputs = {"config": config.model_dump(mode="json"), "text": text_inputs(config.train_text)}
    Stage(record, inputs).finish(lambda: distillation.train_student(config, run_dir, source))


def make_report(
    config: Config, runs: Mapping[str, Path], backward: Path, made: Mapping[str, Facts]
) -> Facts:
    """Compare the models on the validation text; say what was added, and how long they trained."""
    valid = config.valid_text
    assert valid is not None, "it was checked"
    pairs = [pair for _, pair in readable_pairs(valid, "skip")]
    device = config.training.device
    systems = [
        student_report.translated(name, Job((run,), device), pairs)[0] for name, run in runs.items()
    ]
    comparison = compare_systems(systems, pairs, Scoring.of_run(config), "bootstrap")
    added = {name: facts["translations"]["pairs"] for name, facts in made.items()}
    dropped = {name: facts["translations"]["dropped"] for name, facts in made.items()}
    minutes = {}
    for name, run in {**runs, "backward": backward}.items():
        points = RunFolder(run).metrics_points()
        minutes[name] = max((p.get("train/seconds", 0.0) for p in points), default=0.0) / 60
    rows = [["", "pairs added", "minutes of training"]]
    for name, number in minutes.items():
        rows.append([name, f"{added[name]:,}" if name in added else "", f"{number:.1f}"])
    report = {"pairs": added, "dropped": dropped, "minutes": minutes, **comparison.report()}
    return {"table": f"{comparison.table()}\n\n{table(rows)}", "report": report}
