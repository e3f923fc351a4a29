"""Append-only files of a run: lines of text, and TensorBoard events."""

import io
import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import summary

from seq2seq_cli.files import fsync, naming
from seq2seq_cli.training.run import Hooks

logger = logging.getLogger(__name__)


class AppendOnlyFile:
    """Appends data whole; buffers it while the disk is full."""

    def __init__(self, path: Path, hooks: Hooks) -> None:
        self.path = path
        self._before_write = hooks.before_write
        self._waiting = b""

    def append(self, data: bytes) -> None:
        is_known = bool(self._waiting)
        self._waiting += data
        try:
            self._write_waiting()
        except OSError as error:
            if not is_known:
                logger.warning(f"cannot write {self.path} now ({error}); it will be written later")

    def sync(self) -> None:
        """Write what waits, and flush to disk. Raises OSError if that fails."""
        self._write_waiting()
        if self.path.exists():
            fsync(self.path)

    def _write_waiting(self) -> None:
        """Append all that waits, or nothing if an OSError occurs."""
        if not self._waiting:
            return
        self._before_write(self.path)
        with naming(self.path), self.path.open("ab", buffering=0) as file:
            size, left = file.tell(), memoryview(self._waiting)
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(size)
                raise
        self._waiting = b""


class EventFile:
    """A TensorBoard event file; each start of a run has one.

    PyTorch's SummaryWriter writes in a thread, which ends when the disk is full, and may leave half
    a record, after which TensorBoard reads no more.
    """

    def __init__(self, folder: Path, step: int, hooks: Hooks) -> None:
        """TensorBoard then drops the points that earlier files have from `step` on."""
        self._now = hooks.wall_time
        # TensorBoard reads files by name: this one comes last, even if the clock was set back.
        names = [path.name for path in folder.glob("events.out.tfevents.*")]
        times = [int(match[1]) + 1 for n in names if (match := re.match(r"\D+\.(\d+)", n))]
        name = f"events.out.tfevents.{max([int(self._now()), *times]):010}.0"
        self._file = AppendOnlyFile(folder / name, hooks)
        self._options = AppendOnlyFile(folder / "events.out.tfevents.0000000000.hparams", hooks)
        start = Event(step=step, session_log=SessionLog(status=SessionLog.START))
        self._file.append(self._records(_VERSION, start))

    def sync(self) -> None:
        self._file.sync()
        self._options.sync()

    def scalars(self, step: int, values: dict[str, float]) -> None:
        self.write(step, [summary.scalar(*item) for item in values.items()])  # type: ignore[no-untyped-call]

    def text(self, step: int, name: str, text: str) -> None:
        self.write(step, [summary.text(name, text)])  # type: ignore[no-untyped-call]

    def write(self, step: int, summaries: Sequence[Summary]) -> None:
        events = (Event(step=step, summary=one) for one in summaries)
        self._file.append(self._records(*events))

    def options(self, values: dict[str, float | str]) -> None:
        """Write the hyperparameters for the HParams tab, replacing the ones of earlier starts.

        TensorBoard takes the first such event of a run: it is in a file that is first by name.
        """
        with suppress(OSError):
            self._options.path.unlink(missing_ok=True)
        _, session, _ = summary.hparams(values, {})  # type: ignore[no-untyped-call]
        self._options.append(self._records(_VERSION, Event(summary=session)))

    def _records(self, *events: Event) -> bytes:
        """Encode events as they are stored in a file."""
        records = io.BytesIO()
        writer = RecordWriter(records)
        for event in events:
            event.wall_time = self._now()
            writer.write(event.SerializeToString())
        return records.getvalue()


_VERSION = Event(file_version="brain.Event:2")  # how every file begins
