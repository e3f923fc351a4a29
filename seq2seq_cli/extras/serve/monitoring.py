"""Metrics of the server for Prometheus; none of them contains text, addresses or tokens."""

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SENTENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Monitoring:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        counter = partial(Counter, namespace="seq2seq", registry=registry)
        gauge = partial(Gauge, namespace="seq2seq", registry=registry)
        histogram = partial(Histogram, namespace="seq2seq", registry=registry)
        self.requests = counter("requests", "Answered requests.", ["path", "status"])
        self.latency = histogram(
            "request_seconds",
            "Time from the arrival of a request to the end of its answer.",
            ["path"],
            buckets=_SECONDS,
        )
        self.in_progress = gauge("requests_in_progress", "Requests in progress.")
        self.queue = gauge("queue_sentences", "Queued sentences.")
        self.batch_sentences = histogram(
            "batch_sentences", "Sentences per batch.", buckets=_SENTENCES
        )
        self.batch_seconds = histogram("batch_seconds", "Time of a batch.", buckets=_SECONDS)
        self.sentences = counter("sentences", "Sentences, by where they came from.", ["source"])
        self.tokens = counter("output_tokens", "Tokens of translations, without end of sentence.")
        self.at_limit = counter(
            "at_length_limit", "Translations truncated at the length limit; may be incomplete."
        )
        self.deaths = counter("worker_deaths", "Workers that died.")
        self.loads = counter("model_loads", "Loads of the models.")
