"""Numbers of the server for Prometheus; none of them holds text, addresses or tokens."""

from collections.abc import Callable

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

from seq2seq_cli.extras.serve.messages import BatchResult

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Monitoring:
    """The counters of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "seq2seq_requests", "Answered requests.", ["path", "status"], registry=registry
        )
        self._latency = Histogram(
            "seq2seq_request_seconds",
            "Time from a request's arrival to the end of its answer.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._in_progress = Gauge(
            "seq2seq_requests_in_progress", "Requests being answered.", registry=registry
        )
        self._queue = Gauge("seq2seq_queue_sentences", "Sentences that wait.", registry=registry)
        self._batch_sentences = Histogram(
            "seq2seq_batch_sentences",
            "Sentences translated together.",
            buckets=_SENTENCES,
            registry=registry,
        )
        self._batch_seconds = Histogram(
            "seq2seq_batch_seconds", "Time of a batch.", buckets=_SECONDS, registry=registry
        )
        self._sentences = Counter(
            "seq2seq_sentences",
            "Sentences, by whether the cache had them.",
            ["source"],
            registry=registry,
        )
        self._tokens = Counter(
            "seq2seq_output_tokens", "Tokens of translations made.", registry=registry
        )
        self._at_limit = Counter(
            "seq2seq_at_length_limit",
            "Translations as long as they may be, which may be incomplete.",
            registry=registry,
        )
        self._deaths = Counter(
            "seq2seq_worker_deaths", "Translating processes that died.", registry=registry
        )
        self._loads = Counter("seq2seq_model_loads", "Loads of the models.", registry=registry)

    def watch_queue(self, length: Callable[[], int]) -> None:
        self._queue.set_function(length)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        self._requests.labels(path, str(status)).inc()
        self._latency.labels(path).observe(seconds)

    def count_in_progress(self, change: int) -> None:
        self._in_progress.inc(change)

    def count_sentences(self, cached: int, new: int) -> None:
        self._sentences.labels("cache").inc(cached)
        self._sentences.labels("model").inc(new)

    def count_batch(self, sentences: int, result: BatchResult) -> None:
        self._batch_sentences.observe(sentences)
        self._batch_seconds.observe(result.seconds)
        self._tokens.inc(result.num_tokens)
        self._at_limit.inc(result.at_length_limit)

    def count_death(self) -> None:
        self._deaths.inc()

    def count_load(self) -> None:
        self._loads.inc()

    def exposition(self) -> bytes:
        """Return all numbers in Prometheus' text format."""
        return generate_latest(self._registry)
