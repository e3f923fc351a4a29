"""How fast each of several processes trains, and the time that they lose to one another."""

from collections.abc import Sequence

from seq2seq_cli.data.batches import Batch
from seq2seq_cli.training.parallel.elastic import is_started_by_torchrun
from seq2seq_cli.training.run import Run


class ProcessSpeed:
    """Counts tokens and seconds of this process since the last logged point."""

    def __init__(self, run: Run, starts: int) -> None:
        """`starts`: of the run until now."""
        self._parallel = run.parallel
        self._starts = starts
        self._tokens, self._seconds = 0, 0.0

    def count_update(self, batches: Sequence[Batch], seconds: float) -> None:
        """Count an update that took so many seconds."""
        if self._parallel.world_size > 1:
            self._tokens += sum(self._parallel.shard(batch).num_tokens for batch in batches)
            self._seconds += seconds

    def scalars(self) -> dict[str, float]:
        """Return the scalars of the updates counted; all processes call this together.

        `communication` is the fraction of time in which gradients are summed after the last process
        has computed its own, and `waiting` that in which the others, on average, wait for it. Each
        process has a speed of its own, in target tokens per second of computing. Of a sharded run,
        whose layers communicate while they compute, neither is known.
        """
        parallel = self._parallel
        counts: dict[str, float] = {"processes": parallel.world_size, "starts": self._starts}
        if parallel.world_size == 1:
            return counts if is_started_by_torchrun() else {}
        own = (self._tokens, self._seconds, parallel.seconds_in_all_reduce())
        lost = parallel.waiting_and_communication()
        if lost is None:
            return counts
        self._tokens, self._seconds = 0, 0.0
        everyone = parallel.all_gather(own)
        waiting, communication = lost
        total = max(seconds for _, seconds, _ in everyone)
        speeds = {
            f"processes/{rank}/tokens_per_second": tokens / (seconds - exchanged)
            for rank, (tokens, seconds, exchanged) in enumerate(everyone)
        }
        shares = {"waiting": waiting / total, "communication": communication / total}
        return {**counts, **shares, **speeds}
