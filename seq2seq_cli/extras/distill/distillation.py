"""`seq2seq distill`: from teachers and text in the source language to a student and a report."""

import functools
import logging
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Corpus, DataConfig, ParallelText
from seq2seq_cli.data.cache import changed_meanwhile
from seq2seq_cli.decoding.lines.issues import Issues
from seq2seq_cli.decoding.lines.shards import Shard, ShardTask, described
from seq2seq_cli.decoding.lines.stream import Job, translate_stream
from seq2seq_cli.errors import UserError
from seq2seq_cli.evaluation import located
from seq2seq_cli.extras.distill import filters
from seq2seq_cli.extras.distill.filters import Filters, Seen
from seq2seq_cli.extras.distill.stages import Facts, Stage, text_inputs
from seq2seq_cli.extras.distill.student import Shape, write_config
from seq2seq_cli.extras.distill.student_report import as_counts, make_report
from seq2seq_cli.files import locked
from seq2seq_cli.metrics.metrics import Scoring
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import Pair, hash_of_files, readable_pairs
from seq2seq_cli.text.io import line_writer, raw_lines
from seq2seq_cli.text.leakage import source_hash
from seq2seq_cli.tokenizers.tokenizer import load_tokenizers
from seq2seq_cli.training.loop import train

logger = logging.getLogger(__name__)

_BYTES_OF_A_SHARD = 1 << 20  # what is lost of an interrupted translation, at most
_MOST_SHARDS = 200  # as each reads the text from its beginning
PAIRS, STUDENT = "pairs.json", "student.yaml"  # a record, and a config


@dataclass(frozen=True)
class Task:
    """What is asked for."""

    teacher: Job  # how the source is translated
    source: Path
    output: Path
    filters: Filters
    known: ParallelText | None = None  # pairs that are not made again
    is_backward: bool = False  # the student reads what the teacher writes
    real: ParallelText | None = None  # pairs to mix in
    valid: ParallelText | None = None
    shape: Shape | None = None
    config: Config | None = None  # of the student, not a generated one; its text is mixed in
    overrides: Sequence[str] = ()  # of the student's config
    num_shards: int | None = None
    processes: int | None = None

    @property
    def folder(self) -> Path:
        """Where text, translations and records are kept, for the same command to go on with."""
        return RunFolder(self.output).distilled


def distill(task: Task) -> dict[str, Any]:
    """Train a student on the translations of a teacher; return the report as text and as JSON.

    Every finished stage stays finished: the same call goes on where another one was interrupted.
    Raises UserError if the folder has a run that these inputs did not make.
    """
    run, folder = RunFolder(task.output), task.folder
    if not run.exists:
        run.ensure_new_or_empty()
    elif not folder.is_dir():
        raise UserError(f"{run.path} is a run already: choose another --output")
    first = task.teacher.members[0]
    first.ensure_is_run()
    teacher = load_config(first.config, task.teacher.overrides)
    valid = held_out_text(task, teacher)
    refuse_pairs_without_features(task, teacher)
    if teacher.decoding.n_best > 1:
        raise UserError(
            "distill learns from the best translation of each line: leave out decoding.n_best"
        )
    if task.source.is_dir():
        raise UserError(f"{task.source} is a folder, not a text file")
    if not task.source.is_file():
        raise UserError(f"--src {task.source}: there is no such file (a stream can be read once)")
    with locked(folder):
        if not run.exists:  # report mistakes before the translation
            check_student(task, valid, teacher)
        facts = finished_pairs(task, valid, teacher, run)
        source, translations = facts["source"], facts["translations"]
        if not translations["pairs"]:
            raise UserError(f"all translations were dropped; {folder} lists them with their rules")
        config = student_config(task, corpora_of(folder, translations), valid, teacher)
        pairs = hash_of_files([folder / PAIRS])
        text = text_inputs(config.train_text)  # also the real pairs
        inputs = {"config": config.model_dump(mode="json"), "pairs": pairs, "text": text}
        Stage(folder / "student.json", inputs).finish(lambda: train_student(config, task.output))
        # Both search for the best translation, even if the source was sampled.
        search = (*task.teacher.overrides, "decoding.sampling=false")
        jobs = {
            "teacher": replace(task.teacher, overrides=search),
            "student": Job((task.output,), task.teacher.device),
        }
        scored = {  # what the scores of the report depend on
            "teacher": described(jobs["teacher"]),
            "student": hash_of_files([run.model]),
            "held_out": text_inputs(valid),
        }
        tagged, scoring = valid.with_tag(teacher.decoding.tag), Scoring.of_run(teacher)
        return Stage(folder / "report.json", scored).finish(
            lambda: ([], make_report(source, translations, jobs, tagged, scoring))
        )


def held_out_text(task: Task, teacher: Config) -> ParallelText:
    """Return the held-out text: the given one, or the teacher's with the tag of the translations.

    Raises UserError if there is none.
    """
    if task.valid is not None:
        return task.valid
    if task.config is not None and task.config.valid_text is not None:
        return task.config.valid_text
    text, first = teacher.valid_text, task.teacher.members[0].path
    option = "--valid" if task.config is None else "data.valid of --config"
    if text is not None and text.direction != "forward":
        raise UserError(
            f"{first} has data.direction {text.direction}, which a student cannot have: give its "
            f"validation text as {option}"
        )
    if text is None or (found := located(text, first)) is None:
        raise UserError(
            f"{first} has no validation text here, to choose the best student: give {option}"
        )
    tag, is_tagged_by_line = teacher.decoding.tag, task.teacher.input_format == "jsonl"
    if is_tagged_by_line or (tag is None and task.config is not None):
        return found
    if (of_tag := found.of_tag(tag)).corpora:
        return of_tag
    if tag is not None:
        raise UserError(f"{first} has no validation text with the tag {tag}: give {option}")
    tags = ", ".join(found.tags)
    raise UserError(f"{first} has validation text with tags only ({tags}): give --tag")


def refuse_pairs_without_features(task: Task, teacher: Config) -> None:
    """Raise UserError for pairs without features if all sources of the teacher's text have some."""
    names = [name for name, text in (("--pairs", task.real), ("--valid", task.valid)) if text]
    if names and teacher.data.train and all(corpus.features for corpus in teacher.data.train):
        raise UserError(
            f"{' and '.join(names)}: the teacher was trained with features, which only the text of "
            "a --config can have: give these pairs in data.train and data.valid there"
        )


def finished_pairs(task: Task, valid: ParallelText, teacher: Config, student: RunFolder) -> Facts:
    """Return the facts of the translated pairs, which are made unless they are there.

    Raises UserError if they are not what the run `student` has begun to learn from.
    """
    cleaning: Facts = {
        "source": hash_of_files([task.source]),
        "longest": filters.LONGEST,
        "held_out": text_inputs(valid),
    }
    inputs = cleaning | {"teacher": described(task.teacher), "filters": asdict(task.filters)}
    if task.known is not None:
        inputs["known"] = text_inputs(task.known)
    if task.is_backward:
        inputs["is_backward"] = True
    pairs, models = Stage(task.folder / PAIRS, inputs), inputs["teacher"]["runs"]
    pairs.ensure_kept(student)
    task.folder.mkdir(exist_ok=True)
    return pairs.finish(lambda: make_pairs(task, cleaning, valid, teacher, models))


def make_pairs(
    task: Task, cleaning: Facts, valid: ParallelText, teacher: Config, models: Sequence[str]
) -> tuple[Sequence[Path], Facts]:
    """Clean the source, translate it by these models, and write the pairs.

    `cleaning`: what the cleaned source depends on.
    """
    tokenizers = load_tokenizers(task.teacher.members[0], teacher.tokenizer)
    has_features, folder = bool(tokenizers.src.features), task.folder
    source = folder / "source.jsonl"
    inputs = cleaning | {"format": task.teacher.input_format, "features": has_features}

    def clean() -> tuple[Sequence[Path], Facts]:
        task.teacher.load()  # what it raises comes before the work on a large text
        held_out = {source_hash(pair) for _, pair in readable_pairs(valid, "skip")}
        facts = filters.clean_source(
            task.teacher, task.source, source, has_features=has_features, held_out=held_out
        )
        if hash_of_files([task.source]) != inputs["source"]:
            raise UserError(changed_meanwhile(str(task.source)))
        return [source], facts

    cleaned = Stage(folder / "source.json", inputs).finish(clean)
    if not cleaned["kept"]:
        dropped = as_counts(cleaned["dropped"])
        raise UserError(f"{task.source} has no lines to translate (dropped: {dropped})")
    others = () if task.config is None else task.config.data.train
    if cleaned.get("with_features") == 0 and not any(corpus.features for corpus in others):
        raise UserError(f"{task.source} has no features, with which the teacher was trained")
    logger.info(f"translating {cleaned['kept']:,} of {cleaned['lines']:,} lines")
    parts = translate_source(task, source, cleaned["kept"], models)
    known = [] if task.known is None else readable_pairs(task.known, "skip")
    held_out = readable_pairs(valid, "skip") if task.is_backward else []
    normalize = tokenizers.tgt.normalize  # as translations are
    seen = Seen(
        {filters.hash_of_pair(pair.src, normalize(pair.tgt)) for _, pair in known},
        {source_hash(Pair(normalize(pair.tgt), "")) for _, pair in held_out},
    )
    read = functools.partial(filters.read_translations, source, parts)
    rows = zip(read(), filters.judge(read(), tokenizers.tgt, task.filters, seen), strict=True)
    files, kept = filters.write_pairs(rows, folder, teacher.decoding.tag, has_features=has_features)
    return files, {"source": cleaned, "translations": kept}


def translate_source(task: Task, source: Path, num_lines: int, models: Sequence[str]) -> list[Path]:
    """Translate the cleaned source in shards, each of which is finished once; return their files.

    Other machines may translate some of them (`translate --shard`). Raises UserError if the
    teacher has been replaced by other `models`, by their hashes in `described`.
    """
    job = replace(task.teacher, input_format="jsonl", output_format="nbest", log_probs=True)
    size = source.stat().st_size
    count = task.num_shards or min(_MOST_SHARDS, -(-size // _BYTES_OF_A_SHARD))
    parts = [task.folder / f"part-{number}" for number in range(1, count + 1)]
    issues: list[Issues] = []
    with tqdm(unit=" lines", total=num_lines, file=sys.stderr, disable=None) as bar:
        for number, path in enumerate(parts, 1):
            shard = ShardTask(job, Shard(number, count), source, path)
            if shard.models["runs"] != models:
                raise UserError(
                    "the teacher was replaced while it translated: run the command again"
                )
            shard.wait_for_others()
            if shard.is_done():
                bar.update(sum(1 for _ in raw_lines(path)))
                continue
            with shard.opened() as (place, lines, part), line_writer(part, is_locked=True) as write:
                for outputs in translate_stream(
                    job, lines, source, task.processes, place, issues.append, shard.models
                ):
                    for line in outputs:
                        write(line)
                    bar.update()
    sum(issues, Issues()).report()
    return parts


def corpora_of(folder: Path, translations: Facts) -> list[Corpus]:
    """Return the text of the pairs, a corpus for each tag."""
    features = "features" if translations["features"] else None
    return [
        Corpus(pairs=folder / each["file"], tag=each["tag"], features=features)
        for each in translations["corpora"]
    ]


def student_config(
    task: Task, translated: Sequence[Corpus], valid: ParallelText, teacher: Config
) -> Config:
    """Return the config of the student: the given one, or a new one for these pairs.

    Raises UserError for a given one that does not fit the pairs, or would reverse them.
    """
    if task.config is not None:
        data, decoding = task.config.data, task.config.decoding
        if data.direction == "reverse":
            raise UserError(
                "--config has data.direction reverse, but the teacher's translations are targets: "
                "exchange src and tgt of its text instead"
            )
        update = {"train": (*translated, *data.train), "valid": data.valid or valid.corpora}
        tag = {"tag": decoding.tag or teacher.decoding.tag}  # which the translated pairs have
        config = task.config.updated(data=update, decoding=tag)
        if mistake := DataConfig.mistake("direction", data.direction, vars(config.data)):
            raise UserError(f"--config, with the teacher's translations: data.direction: {mistake}")
        return config
    real = task.real.corpora if task.real is not None else ()
    path = task.folder / STUDENT
    return write_config(path, translated, real, valid, teacher, task.shape, task.overrides)


def check_student(task: Task, valid: ParallelText, teacher: Config) -> None:
    """Raise UserError for mistakes in the config of the student, as if the text were `valid`."""
    path = task.folder / STUDENT
    try:
        student_config(task, valid.with_tag(teacher.decoding.tag).corpora, valid, teacher)
    except UserError as error:  # the user cannot look at the lines of a file that is removed
        of_file = rf"^{re.escape(str(path))}(, line \d+)?"
        message = re.sub(of_file, "the student's config", str(error))
        error.args = (re.sub(r"(?<=\n  )line \d+: ", "", message),)
        raise
    finally:
        if task.config is None:
            path.unlink(missing_ok=True)


def train_student(
    config: Config, run_dir: Path, source: Path | None = None
) -> tuple[Sequence[Path], Facts]:
    """Train a model, from the run `source` if it is given, or go on with it.

    Raises UserError, among others if the model of a finished run is gone.
    """
    train(config, run_dir, source=None if RunFolder(run_dir).exists else source)
    model = RunFolder(run_dir).model
    if not model.is_file():
        raise UserError(f"{model} is gone: put it back, or choose another --output")
    return [model], {}
