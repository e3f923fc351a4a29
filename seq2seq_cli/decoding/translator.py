"""Lines of text to lines of text: one line in is one line out, in order, always."""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.types import DeviceName, EngineName
from seq2seq_cli.data.statistics import TextStatistics, read_statistics
from seq2seq_cli.decoding.engines.base import Decoder, Ensemble
from seq2seq_cli.decoding.engines.choice import choose_precision, make_decoder
from seq2seq_cli.decoding.engines.linear import Precision
from seq2seq_cli.decoding.merging import Outputs
from seq2seq_cli.decoding.scoring import score_given
from seq2seq_cli.decoding.segment_search import SegmentSearch
from seq2seq_cli.decoding.segmentation import Bounds, Cuts, Segment, segment_lines
from seq2seq_cli.decoding.translation import Sentence, Translation
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.model.device import choose_device, use_threads
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import load_weights
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.tokenizer import PAD_ID, Tokenizers, load_tokenizers

# The threads of OpenMP do not survive a fork: the child would wait for them for ever.
os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))

_FREE_OF_TRAINING = (
    "decoding.",
    *(f"validation.{name}=" for name in ("bleu_tokenize", "lowercase", "ter")),
)


class Translator:
    """A trained model with its tokenizers.

    >>> translator = Translator.load("runs/quickstart")
    >>> translator.translate(["ich möchte ein Bier."])
    ['i want a beer .']
    """

    def __init__(
        self,
        model: Transformer,
        tokenizers: Tokenizers,
        config: Config,
        decoder: Decoder | None = None,
        *,
        precision: Precision = "fp32",
        others: Sequence[Transformer] = (),
        statistics: TextStatistics | None = None,
    ) -> None:
        """`others` are those of an ensemble with `model`; `precision` is what searches multiply in.

        `decoder`: one that has been made of all these models; left out, it is made now.
        `statistics` of the training text, where they are known, say what lines are cut.
        """
        self.model = model
        self.models = (model, *others)
        self.tokenizers = tokenizers
        self.config = config
        self.precision = precision
        self.statistics = statistics
        self.decoder = decoder or _decoder_of(self.models, precision, config.decoding.engine)
        self._search = SegmentSearch(self.decoder, self.models, tokenizers, config.decoding)

    @classmethod
    def load(
        cls,
        run_dir: str | Path,
        device: DeviceName = "auto",
        overrides: Sequence[str] = (),
        *,
        which: str = "best",
        exact: bool = False,
    ) -> Self:
        """A run's best model, its last, or that of a kept step, with `key=value` overrides.

        `exact`: fp32 where `decoding.precision` is auto. Raises UserError saying which file is
        missing, damaged or does not fit.
        """
        if isinstance(overrides, str):
            raise TypeError("overrides is a list of key=value; a single one is [override]")
        run = RunFolder(Path(run_dir))
        weights = run.weights(which)
        for override in overrides:
            if not override.startswith(_FREE_OF_TRAINING):
                raise UserError(
                    f"--set {short(override)}: a trained run takes only decoding.* options and "
                    "validation.bleu_tokenize, lowercase and ter"
                )
        config = load_config(run.config, overrides)
        tokenizers = load_tokenizers(run, config.tokenizer)
        with torch.device("meta"):  # whether the weights fit is known before memory is spent
            model = new_model(config, tokenizers)
        with use_threads(1):  # it is all memory's work, and others may be busy
            load_weights(model, weights)
            model = model.to(choose_device(device)).eval()
            asked = config.decoding.precision
            asked = "fp32" if exact and asked == "auto" else asked
            precision = choose_precision(asked, model, config.decoding.engine)
            decoder = make_decoder(model, precision, config.decoding.engine)
        statistics = read_statistics(run)
        return cls(model, tokenizers, config, decoder, precision=precision, statistics=statistics)

    @classmethod
    def ensemble(cls, translators: Sequence[Self]) -> Self:
        """One that searches with the mean of all models' probabilities, otherwise as the first.

        Raises UserError unless all have the same vocabulary.
        """
        first, *others = translators
        for other in others:
            if other.tokenizers.tgt.model != first.tokenizers.tgt.model or (
                other.tokenizers.src.model != first.tokenizers.src.model
            ):
                raise UserError("the runs of an ensemble must have the same vocabulary")
        return cls(
            first.model,
            first.tokenizers,
            first.config,
            Ensemble([translator.decoder for translator in translators]),
            precision=first.precision,
            others=[other.model for other in others],
            statistics=first.statistics,
        )

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[Any, ...]]:
        """Copied or sent to another process without its decoder, which is made anew there."""
        make = functools.partial(
            type(self),
            precision=self.precision,
            others=self.models[1:],
            statistics=self.statistics,
        )
        return make, (self.model, self.tokenizers, self.config)

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The translation of every line; of an empty one, an empty one.

        A line of several sentences, where the training text has hardly any, is translated sentence
        by sentence, and a sentence longer than `data.max_length` in parts; a warning says so.
        """
        if isinstance(lines, str):
            raise TypeError("translate takes a list of lines; a single line is translate([line])")
        found = self.search([Sentence(line) for line in lines])
        return [translations[0].text for translations in found]

    def search(
        self,
        sentences: Sequence[Sentence],
        wanted: Outputs = Outputs(),  # noqa: B008 (it is immutable)
        *,
        first_number: int = 0,
        split_sentences: bool = False,
    ) -> list[list[Translation]]:
        """For every line up to `decoding.n_best` translations, the best first, at least one.

        `first_number` is the number of the first line in the whole input, on which chance depends.
        Lines that are cut without `split_sentences` are reported as a warning.
        """
        segments, cuts = self.cut(sentences, split_sentences=split_sentences)
        cuts.report()
        return self.search_segments(sentences, segments, wanted, first_number=first_number)

    def cut(
        self, sentences: Sequence[Sentence], *, split_sentences: bool = False
    ) -> tuple[list[list[Segment]], Cuts]:
        """The segments in which each line is translated, and what there is to report of them."""
        bounds = Bounds.of(self.config, self.statistics)
        lines = [sentence.text for sentence in sentences]
        return segment_lines(lines, self.tokenizers.src, bounds, each=split_sentences)

    def search_segments(
        self,
        sentences: Sequence[Sentence],
        segments: Sequence[Sequence[Segment]],
        wanted: Outputs = Outputs(),  # noqa: B008 (it is immutable)
        *,
        first_number: int = 0,
    ) -> list[list[Translation]]:
        """`search` of lines that have been cut."""
        return self._search.translations(sentences, segments, wanted, first_number)

    def longest(self, src_length: int) -> int:
        """Tokens that a translation of so many source tokens may have."""
        return self._search.longest(src_length)

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Translation]:
        """Given translations with the log-probability of every token."""
        src, tgt = self.tokenizers
        ids = list(
            zip(
                src.to_ids_batch([pair[0] for pair in pairs]),
                tgt.to_ids_batch([pair[1] for pair in pairs]),
                strict=True,
            )
        )
        forced = score_given(self.models, ids, self.config.decoding.tokens_per_batch)
        return [
            Translation(
                text=pair[1], tokens=tuple(tgt.pieces_of(one)), log_probs=tuple(found.log_probs)
            )
            for pair, (_, one), found in zip(pairs, ids, forced, strict=True)
        ]


def _decoder_of(models: Sequence[Transformer], precision: Precision, engine: EngineName) -> Decoder:
    decoders = [make_decoder(model, precision, engine) for model in models]
    return decoders[0] if len(decoders) == 1 else Ensemble(decoders)


def new_model(config: Config, tokenizers: Tokenizers) -> Transformer:
    """A fresh model for these vocabularies. Raises UserError if there is not memory for it."""
    src_vocab, tgt_vocab = len(tokenizers.src), len(tokenizers.tgt)
    try:
        return Transformer(config.model, src_vocab, tgt_vocab, tokenizers.is_shared, PAD_ID)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise UserError(
            "a model of this size does not fit into memory: see section model"
        ) from None
