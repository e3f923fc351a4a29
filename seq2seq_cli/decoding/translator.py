"""Translator: lines of text to their translations, one for each line, in order, always."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.loader import load_config, strings
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.types import DeviceName
from seq2seq_cli.data.record import read_record
from seq2seq_cli.data.seen_words import UnseenWords
from seq2seq_cli.data.statistics import LengthLimit, TextStatistics
from seq2seq_cli.decoding import backends
from seq2seq_cli.decoding.default_search import read_default_search
from seq2seq_cli.decoding.given_score import NOT_SCORED, GivenScore
from seq2seq_cli.decoding.lines.issues import Issues, distinct
from seq2seq_cli.decoding.lines.merging import Outputs, SegmentResult, merge_segments
from seq2seq_cli.decoding.lines.segmentation import Bounds, Segment, segment_lines
from seq2seq_cli.decoding.request_builder import RequestBuilder
from seq2seq_cli.decoding.requests import Hypothesis, Ids
from seq2seq_cli.decoding.translation import Translation, TranslationInput, naming_line
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.machine import use_one_torch_thread_after_fork
from seq2seq_cli.native.library import Precision
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.text.features import TAB, feature_names, feature_symbols
from seq2seq_cli.tokenizers.tokenizer import Tokenizers, load_tokenizers

if TYPE_CHECKING:
    from seq2seq_cli.model.transformer import Transformer

LONGEST_PAIR = 8  # that is scored, times data.max_length: memory grows with the square of lengths
SCORING_OPTIONS = tuple(
    f"validation.{name}=" for name in ("bleu_tokenize", "lowercase", "merge_references")
)
_OVERRIDABLE = ("decoding.", *SCORING_OPTIONS)


class Translator:
    """A trained model with its tokenizers.

    Several threads may use one translator at the same time; each call computes on all cores
    (`OMP_NUM_THREADS` sets their number), so one call at a time is as fast. A copy, also one sent
    to another process, has its own weights. PyTorch is imported only for what the native library
    does not do. The first translator makes child processes that are forked later use one of
    PyTorch's threads, as OpenMP's threads do not survive a fork.

    >>> translator = Translator.load("runs/quickstart")
    >>> translator.translate(["ich möchte ein Bier."])
    ['i want a beer .']
    """

    def __init__(
        self,
        model: "Transformer | Sequence[Transformer] | backends.Backend",
        tokenizers: Tokenizers,
        config: Config,
        statistics: TextStatistics | None = None,
        precision: Precision = "fp32",
    ) -> None:
        """Several models form an ensemble. `precision`: of an engine for models in PyTorch.

        `statistics` of the training text, if known, decide which lines are cut and, unless the
        config does, how long translations may become.
        """
        use_one_torch_thread_after_fork()
        limit = statistics.length_limit if statistics is not None else LengthLimit()
        options, tgt = limit.resolve(config.decoding), tokenizers.tgt
        self.tokenizers = tokenizers
        self.config = config.model_copy(update={"decoding": options})
        self.statistics = statistics
        if isinstance(model, backends.Backend):
            self.backend = model
        else:
            models = model if isinstance(model, Sequence) else (model,)
            self.backend = backends.TorchBackend.of(models, precision, config)
        if options.banned_words:  # raises UserError for an empty one
            backends.banned_words(tuple(options.banned_words), tgt)
        self._banned = frozenset(map(tgt.normalize, options.banned_words))
        self._tags = frozenset(config.train_text.tags)
        self._is_tagged = config.train_text.is_tagged
        search = functools.partial(self.backend.search, config=options, tokenizer=tgt)
        self._request_builder = RequestBuilder(tgt, options, search)  # without a cycle

    @property
    def models(self) -> "tuple[Transformer, ...]":
        """The models in PyTorch, which this may import."""
        return self.backend.models

    @property
    def model(self) -> "Transformer":
        """The only model. Raises UserError for an ensemble."""
        if len(self.models) > 1:
            raise UserError(
                "one model is needed, but an ensemble has several: give one of its members"
            )
        return self.models[0]

    @classmethod
    def load(
        cls,
        run_dir: str | Path,
        device: DeviceName = "auto",
        overrides: Iterable[str] = (),
        *,
        which: str | int = "best",
        exact: bool = False,
        with_pytorch: bool = False,
    ) -> Self:
        """Load a run's best model, its last, or a kept step, with `key=value` overrides.

        The run may be an ensemble. With `exact`, `decoding.precision: auto` is fp32. With
        `with_pytorch`, `models` are read now too: training may remove the file. Raises UserError if
        a file is missing or damaged or does not fit the others.
        """
        overrides, which = strings("overrides", overrides), str(which)
        if device not in get_args(DeviceName):
            raise UserError(
                f"device {device}: valid are auto, cpu, cuda (CUDA_VISIBLE_DEVICES chooses a GPU)"
            )
        folder = RunFolder(Path(run_dir))
        run, *others = folder.members(which)
        if others:
            load = functools.partial(cls.load, which=which, exact=exact, with_pytorch=with_pytorch)
            ensemble = cls.ensemble([load(one.path, device, overrides) for one in (run, *others)])
            if (found := read_default_search(folder)) is None:
                return ensemble
            return ensemble.with_options(found.resolve(load_config(run.config, overrides).decoding))
        run.weights(which)  # reports that there are none before other errors
        for override in overrides:
            if not override.startswith(_OVERRIDABLE):
                raise UserError(
                    f"--set {short(override)}: a trained run takes only decoding.* options and "
                    "validation.bleu_tokenize, lowercase and merge_references"
                )
        config = load_config(run.config, overrides)
        if (found := read_default_search(run)) is not None:
            config = config.model_copy(update={"decoding": found.resolve(config.decoding)})
        tokenizers = load_tokenizers(run, config.tokenizer)
        precision = config.decoding.precision
        if exact and precision == "auto":
            precision = "fp32"

        def read(path: Path) -> backends.Backend:
            backend = backends.load_backend(path, config, tokenizers, device, precision)
            if with_pytorch:
                _ = backend.models  # which reads them
            return backend

        backend = run.with_weights(which, read)
        return cls(backend, tokenizers, config, read_record(run.statistics, TextStatistics))

    @classmethod
    def ensemble(cls, translators: Iterable[Self]) -> Self:
        """Join the models, otherwise as the first; UserError unless they have one vocabulary."""
        if not (translators := list(translators)):
            raise ValueError("an ensemble needs a translator")
        first = translators[0]
        if len({tuple(side.model for side in t.tokenizers) for t in translators}) > 1:
            raise UserError("the runs of an ensemble must have the same vocabulary")
        backend = backends.join([translator.backend for translator in translators])
        return cls(backend, first.tokenizers, first.config, first.statistics)

    def with_options(self, options: DecodingConfig) -> Self:
        """Return one that decodes with other options; weights, precision and engine stay."""
        config = self.config.model_copy(update={"decoding": options})
        return type(self)(self.backend, self.tokenizers, config, self.statistics)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Copy without the decoder: the copy builds its own, perhaps in another process."""
        parts = (self.tokenizers, self.config, self.statistics)
        if isinstance(self.backend, backends.NativeBackend):
            return type(self), (self.backend, *parts)
        return type(self), (self.models, *parts, self.backend.precision)

    def translate(self, lines: Iterable[str]) -> list[str]:
        """Return the translation of every line; an empty line gives an empty one.

        If few training lines have several sentences, such lines are translated by sentences, and
        sentences longer than `data.max_length` in parts. A warning says how many.
        """
        if isinstance(lines, str):
            raise TypeError("translate takes a list of lines; a single line is translate([line])")
        results = self.search([TranslationInput(line) for line in lines])
        return [best.text for best, *_ in results]

    def translate_pairs(
        self, pairs: Sequence[Pair], report: Callable[[Issues], None] = Issues.report
    ) -> list[str]:
        """Return the translation of the source of every pair, with its tag and features."""
        results = self.search([input_of(pair) for pair in pairs], report=report)
        return [best.text for best, *_ in results]

    def search(
        self,
        inputs: Iterable[TranslationInput],
        outputs: Outputs = Outputs(),  # noqa: B008 (it is immutable)
        *,
        first_number: int = 0,
        split_sentences: bool = False,
        report: Callable[[Issues], None] = Issues.report,
    ) -> list[list[Translation]]:
        """Return up to `decoding.n_best` translations of every line, the best first, at least one.

        `first_number` is the number of the first line in the whole input, on which sampling
        depends. `report` receives the number of lines that were cut (not by `split_sentences`)
        and of translations that reached the length limit.
        """
        inputs = list(inputs)
        for given in inputs:
            if not isinstance(given, TranslationInput):
                raise TypeError(f"search takes TranslationInput, not {type(given).__name__}")
        lines, issues = self.cut(inputs, first_number, split_sentences=split_sentences)
        requests = self._request_builder.build(inputs, lines, first_number)
        found = self.backend.search(requests, self.config.decoding, self.tokenizers.tgt)
        at_limit = {  # a few may have ended there by themselves
            request.number
            for request, (best, *_) in zip(requests, found, strict=True)
            if request.min_length < request.max_length <= len(best.ids)
        }
        report(issues + self._unfamiliar(inputs, lines, len(at_limit)))
        results = self._results(list(itertools.chain(*lines)), found, outputs)
        return [
            merge_segments(
                self.source_of(line)[0],
                list(itertools.islice(results, len(segments))),
                self.tokenizers,
                outputs,
                is_ranked=self.config.decoding.width > 1,
                banned=self._banned,
            )
            for line, segments in zip(inputs, lines, strict=True)
        ]

    def _results(
        self,
        segments: Sequence[Segment],
        found: Sequence[Sequence[Hypothesis]],
        outputs: Outputs,
    ) -> Iterator[list[SegmentResult]]:
        """Yield the translations of each segment, scored if an output needs that."""
        of_segments = list(zip(segments, found, strict=True))
        pairs = [(segment, ids) for segment, hypotheses in of_segments for ids, _ in hypotheses]
        given = iter(self._given_scores(pairs, outputs))
        for segment, hypotheses in of_segments:
            yield [SegmentResult(segment, ids, score, next(given)) for ids, score in hypotheses]

    def cut(
        self,
        inputs: Sequence[TranslationInput],
        first_number: int = 0,
        *,
        split_sentences: bool = False,
    ) -> tuple[list[list[Segment]], Issues]:
        """Return the segments in which each line is translated, and how many lines were cut."""
        bounds = Bounds.of(self.config, self.statistics)
        sources = []
        for number, line in enumerate(inputs, first_number):
            with naming_line(number if line.tag or line.features else None):
                sources.append(self.source_of(line))
        texts = [text for text, _ in sources]
        segments, issues = segment_lines(texts, self.tokenizers.src, bounds, each=split_sentences)
        controlled = [
            [segment._replace(control_ids=control_ids) for segment in of_line]
            for (_, control_ids), of_line in zip(sources, segments, strict=True)
        ]
        return controlled, issues

    def source_of(self, line: TranslationInput) -> tuple[str, tuple[int, ...]]:
        """Return the text of a line, and the ids of its tag and features, which come before it.

        Raises UserError for an unknown tag, and for features if the model knows none.
        """
        text, features = self.text_and_features(line)
        in_text, text = self._split_tag(text)  # a line may be several segments
        tag = self.tokenizers.src.tag_ids(in_text or line.tag or self.config.decoding.tag)
        return text, (*tag, *self.tokenizers.src.feature_ids(features))

    def _split_tag(self, text: str) -> tuple[str | None, str]:
        """Return the tag that a text begins with, or None, and the text after it."""
        first, _, rest = text.lstrip().partition(" ")
        if self.begins_with_tag(text):
            return first, rest
        tag, rest = self.tokenizers.src.split_tag(text.lstrip())
        return tag, rest if tag else text

    def begins_with_tag(self, text: str) -> bool:
        """Return True for a tag of an own run, whose tokenizer takes it for a word."""
        return text.lstrip().partition(" ")[0] in self._tags

    def text_and_features(self, line: TranslationInput) -> tuple[str, str]:
        """Return the text of a line, which may begin with a tag, and the features, if any."""
        if self.tokenizers.src.features and not line.features:
            text, _, features = line.text.partition(TAB)
            return text, features
        return line.text, line.features

    def feature_issues(self, lines: Iterable[TranslationInput]) -> Issues:
        """Count the lines without features, or with unknown ones, if the model has features."""
        known = self.tokenizers.src.features
        given = [self.text_and_features(line)[1] for line in lines] if known else []
        unknown: list[list[str]] = []  # features of each line
        for features in given:
            entries = zip(feature_names(features), feature_symbols(features), strict=True)
            unknown.append([name for name, symbol in entries if symbol not in known])
        return Issues(
            lines_without_features=sum(not features.strip() for features in given),
            lines_with_unknown_features=sum(map(bool, unknown)),
            unknown_features=distinct(itertools.chain(*unknown)),
        )

    def _unfamiliar(
        self,
        inputs: Sequence[TranslationInput],
        segments: Sequence[Sequence[Segment]],
        at_length_limit: int,
    ) -> Issues:
        """Count the lines that are unlike the training text in words, length or features."""
        lines = [pair for pair in zip(inputs, segments, strict=True) if pair[1]]
        lengths = [sum(len(segment.src_ids) for segment in of_line) for _, of_line in lines]
        fewest = (self.statistics and self.statistics.fewest_src_tokens) or 0
        unseen: list[list[str]] = []  # words of each line
        if (words := self._unseen_words) is not None:
            for _, of_line in lines:
                unseen.append([word for segment in of_line for word in words.of(segment.ids)])
        return self.feature_issues(line for line, _ in lines) + Issues(
            at_length_limit=at_length_limit,
            all_lines=len(lines),
            unfamiliar=sum(map(bool, unseen)),
            unseen_words=distinct(itertools.chain(*unseen)),
            short=sum(length < fewest for length in lengths),
            lines_without_tag=sum(self._lacks_tag(line) for line, _ in lines),
        )

    def _lacks_tag(self, line: TranslationInput) -> bool:
        """Return True if a line has no tag, but all training sources have one."""
        if not self._is_tagged or line.tag or self.config.decoding.tag:
            return False
        return not self.tokenizers.src.begins_with_tag(line.text)

    @functools.cached_property
    def _unseen_words(self) -> UnseenWords | None:
        """None for a run of an earlier version."""
        words = self.statistics.src_words if self.statistics is not None else None
        return UnseenWords(words, self.tokenizers.src) if words is not None else None

    def _given_scores(
        self, pairs: Sequence[tuple[Segment, Ids]], outputs: Outputs
    ) -> list[GivenScore]:
        """Return log-probabilities and attention of the translations of segments, if needed."""
        options = self.config.decoding
        with_attention = outputs.alignment or options.replace_unk
        if not (outputs.log_probs or with_attention):
            return [NOT_SCORED] * len(pairs)
        scores = self.backend.score(
            [(segment.src_ids, ids) for segment, ids in pairs],
            options.tokens_per_batch,
            with_attention=with_attention,
        )
        return [
            given.without_control_tokens(len(segment.control_ids))
            for given, (segment, _) in zip(scores, pairs, strict=True)
        ]

    def score(self, pairs: Iterable[tuple[str, str]]) -> list[Translation]:
        """Score the tokens of given translations; UserError for a pair that is too long."""
        (src, tgt), pairs = self.tokenizers, list(pairs)
        if any(isinstance(pair, str) for pair in pairs):
            raise TypeError("score takes a list of pairs; a single one is [(source, translation)]")
        sources = [self.source_of(TranslationInput(line)) for line, _ in pairs]
        texts = src.to_ids_batch([text for text, _ in sources])
        src_ids = ([*before, *text] for (_, before), text in zip(sources, texts, strict=True))
        # TranslationInput raises TypeError for what is not a string.
        tgt_ids = tgt.to_ids_batch([TranslationInput(translation).text for _, translation in pairs])
        ids = list(zip(src_ids, tgt_ids, strict=True))
        limit = LONGEST_PAIR * self.config.data.max_length
        for pair, sides in zip(pairs, ids, strict=True):
            if (length := max(map(len, sides))) > limit:
                raise UserError(
                    f"a pair has {length:,} tokens; pairs are scored up to {limit:,}, "
                    f"{LONGEST_PAIR} times data.max_length: split it into sentences. It begins "
                    f"with: {short(pair[0])}"
                )
        scores = self.backend.score(ids, self.config.decoding.tokens_per_batch)
        return [
            Translation(text, tuple(tgt.pieces_of(tokens)), log_probs=tuple(given.log_probs))
            for (_, text), tokens, given in zip(pairs, tgt_ids, scores, strict=True)
        ]


def check_features(pairs: Sequence[Pair], tokenizers: Tokenizers, name: str) -> None:
    """Raise UserError for features if the model has none, or if text after a tab may be some."""
    for pair in () if tokenizers.src.features else pairs:
        tokenizers.src.feature_ids(pair.features)
    if tokenizers.src.features and any(TAB in pair.src for pair in pairs):
        raise UserError(
            f"the model has features, and sources of {name} have a tab: name the column of the "
            "features, as with --features 2"
        )


def input_of(pair: Pair) -> TranslationInput:
    """Return the source of a pair as an input; a tab in its text is a space, as in training."""
    return TranslationInput(pair.src.replace(TAB, " "), tag=pair.tag, features=pair.features)
