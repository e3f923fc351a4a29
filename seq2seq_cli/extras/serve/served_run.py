"""A run as the server sees it: its languages and its sentences; its model is in other processes."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from seq2seq_cli.config.languages import LanguagePair, languages_of
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.types import DeviceName
from seq2seq_cli.data.statistics import read_statistics
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.serve.documents.paragraphs import SentenceSplitter
from seq2seq_cli.run_folder import RunFolder

_CHARACTERS_OF_A_TOKEN = 4  # of a subword, nearly; a sentence beyond data.max_length is cut


@dataclass(frozen=True)
class RunToServe:
    """Which run, and with which weights and search options; can be sent to another process."""

    run_dir: Path
    languages: LanguagePair | None = None  # None: those that the run names
    which: str = "best"
    overrides: tuple[str, ...] = ()
    device: DeviceName = "auto"


class FileStamp(NamedTuple):
    """What changes when a file is replaced."""

    path: Path
    inode: int
    size: int
    changed: int  # nanoseconds


@dataclass(frozen=True)
class ServedRun:
    """What the files of a run say at one time."""

    languages: LanguagePair
    splitter: SentenceSplitter
    name: str

    @classmethod
    def read(cls, run: RunToServe) -> "ServedRun":
        """Read a run's config and statistics.

        Raises UserError if they or the model are missing or damaged, or if nothing names its
        languages.
        """
        folder = RunFolder(run.run_dir)
        folder.weights(run.which)  # or it says what is missing
        config = load_config(folder.config)
        languages = run.languages or languages_of(config.data)
        if languages is None:
            raise UserError(
                f"{run.run_dir} does not say which languages it translates: give --langs de-en, or "
                "data.languages in its config"
            )
        statistics = read_statistics(folder)
        longest = _CHARACTERS_OF_A_TOKEN * config.data.max_length
        splitter = SentenceSplitter(longest=longest)
        if statistics is not None:
            marks, most = statistics.src_inner_marks, statistics.src_sentences.p90
            splitter = SentenceSplitter(marks, most, longest)
        return cls(languages, splitter, run.run_dir.resolve().name)


def file_stamps(run: RunToServe) -> tuple[FileStamp, ...]:
    """Return the stamps of the files that a run's model is made of."""
    folder = RunFolder(run.run_dir)
    paths = (folder.weights(run.which), folder.config)
    stats = [(path, path.stat()) for path in paths]
    return tuple(FileStamp(path, s.st_ino, s.st_size, s.st_mtime_ns) for path, s in stats)
