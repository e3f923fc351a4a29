"""A run as the server sees it: its languages and its sentences; its model is in other processes."""

import math
import sys
from dataclasses import dataclass
from pathlib import Path

from seq2seq_cli.config.languages import LanguagePair, languages_of
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.types import DeviceName
from seq2seq_cli.data.record import read_record
from seq2seq_cli.data.statistics import TextStatistics
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.serve.documents.paragraphs import SentenceSplitter
from seq2seq_cli.run_folder import RunFolder

_CHARACTERS_PER_TOKEN = 4  # roughly; a sentence longer than data.max_length tokens is cut


@dataclass(frozen=True)
class RunToServe:
    """A run, and with which weights and search options; can be sent to another process."""

    run_dir: Path
    languages: LanguagePair | None = None  # None: the languages that the run names
    which: str = "best"
    overrides: tuple[str, ...] = ()
    device: DeviceName = "auto"

    def file_stamps(self) -> list[tuple[Path, int, int, int]]:
        """Return what changes when a file of the model is replaced."""
        folder = RunFolder(self.run_dir)
        runs = folder.members(self.which)
        files = [path for run in runs for path in (run.weights(self.which), run.config)]
        others = {folder.search}  # written after training
        for run in runs:
            others |= {run.search, run.statistics}
            others |= {*run.tokenizer_paths(shared=True), *run.tokenizer_paths(shared=False)}
        files += sorted(path for path in others if path.exists())
        stats = [(path, path.stat()) for path in files]
        return [(path, s.st_ino, s.st_size, s.st_mtime_ns) for path, s in stats]


@dataclass(frozen=True)
class ServedRun:
    """The current contents of a run's files."""

    languages: LanguagePair
    splitter: SentenceSplitter

    @classmethod
    def read(cls, run: RunToServe) -> "ServedRun":
        """Read a run's config and statistics.

        Raises UserError if they or the model are missing or damaged, or if the languages are
        unknown or the same.
        """
        folder, *others = RunFolder(run.run_dir).members(run.which)
        for each in (folder, *others):
            each.weights(run.which)  # raises UserError if they are missing
        config = load_config(folder.config)
        languages = run.languages or languages_of(config.data)
        if languages is None:
            raise UserError(
                f"{run.run_dir} does not say which languages it translates: give --langs de-en, or "
                "data.languages in its config"
            )
        if languages.src == languages.tgt:
            raise UserError(
                f"{run.run_dir} cannot be served from {languages.src} to {languages.tgt}: text in "
                "the target language is returned unchanged; give --langs with two languages"
            )
        if config.train_text.has_features:  # which a line has once, for all of its sentences
            return cls(languages, SentenceSplitter(most=math.inf, longest=sys.maxsize))
        splitter = SentenceSplitter(longest=_CHARACTERS_PER_TOKEN * config.data.max_length)
        if (found := read_record(folder.statistics, TextStatistics)) is not None:
            marks, most = found.src_inner_marks, found.src_sentences.p90
            splitter = splitter._replace(inner_marks=marks, most=most)
        return cls(languages, splitter)
