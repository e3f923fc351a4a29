"""Lines of text to lines of text: one line in is one line out, in order, always."""

import functools
import itertools
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch

from seq2seq_cli.config import Config
from seq2seq_cli.config_file import load_config
from seq2seq_cli.data.batches import plan_in_order
from seq2seq_cli.decoding import native
from seq2seq_cli.decoding.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.cuda_graphs import RecordedDecoder
from seq2seq_cli.decoding.fast import FastDecoder
from seq2seq_cli.decoding.joining import Found, Wanted, joined
from seq2seq_cli.decoding.linear import Number, has_int8
from seq2seq_cli.decoding.pieces import Piece, pieces_of
from seq2seq_cli.decoding.request import Hypothesis, Ids, Request
from seq2seq_cli.decoding.rules import BannedWords
from seq2seq_cli.decoding.scoring import Forced, force
from seq2seq_cli.decoding.search import search
from seq2seq_cli.decoding.states import Decoder, PlainDecoder
from seq2seq_cli.decoding.translation import Sentence, Translation
from seq2seq_cli.decoding_config import DecodingConfig
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.model.device import choose_device, has_fast_bf16, use_threads
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import load_weights
from seq2seq_cli.option_types import DeviceName
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.tokenizer import EOS_ID, PAD_ID, UNK_ID, Tokenizers, load_tokenizers

logger = logging.getLogger(__name__)

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
    ) -> None:
        """`decoder`: what searches use; the model itself in fp32 where it is left out."""
        self.model = model
        self.tokenizers = tokenizers
        self.config = config
        self.decoder = decoder or make_decoder(model, "fp32")
        banned = config.decoding.banned
        self._banned = BannedWords(banned, tokenizers.tgt) if banned else None

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
            number = _number(config, model, exact)
            decoder = make_decoder(model, number, cuda_graphs=config.decoding.cuda_graphs)
        return cls(model, tokenizers, config, decoder)

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The translation of every line; of an empty one, an empty one.

        A line longer than the training limit is translated in pieces, which are joined, and
        reported as a warning.
        """
        found = self.search([Sentence(line) for line in lines])
        return [translations[0].text for translations in found]

    def search(
        self,
        sentences: Sequence[Sentence],
        wanted: Wanted = Wanted(),  # noqa: B008 (it is immutable)
        *,
        first_number: int = 0,
        split_sentences: bool = False,
    ) -> list[list[Translation]]:
        """For every line up to `decoding.n_best` translations, the best first, at least one.

        `first_number` is the number of the first line in the whole input, on which chance depends.
        A prefix or required words belong to the first piece of a line that is cut.
        """
        limit = self.config.data.max_length
        src = self.tokenizers.src
        lines = src.to_ids_of_all([sentence.text for sentence in sentences])
        pieces = [
            pieces_of(ids, sentence.text, src, limit, each=split_sentences)
            for ids, sentence in zip(lines, sentences, strict=True)
        ]
        _report_long_lines(lines, pieces, limit)
        requests = [
            self._request(piece, sentence if number == 0 else None, first_number + line)
            for line, (sentence, of_line) in enumerate(zip(sentences, pieces, strict=True))
            for number, piece in enumerate(of_line)
        ]
        found = iter(self._search_pieces(requests, wanted))
        is_ranked = self.config.decoding.beam_size > 1
        return [
            joined([next(found) for _ in of_line], self.tokenizers, wanted, is_ranked=is_ranked)
            for of_line in pieces
        ]

    def search_greedily(self, lines: Sequence[str]) -> list[list[Translation]]:
        """Whatever the config says: nothing but the likeliest token each time."""
        bounds = ("max_len_factor", "max_len_extra", "tokens_per_batch")
        kept = {name: getattr(self.config.decoding, name) for name in bounds}
        config = self.config.model_copy(update={"decoding": DecodingConfig(**kept)})
        greedy = Translator(self.model, self.tokenizers, config, self.decoder)
        return greedy.search([Sentence(line) for line in lines])

    def longest(self, src_length: int) -> int:
        """Tokens that a translation of so many source tokens may have."""
        options = self.config.decoding
        return int(options.max_len_factor * src_length) + options.max_len_extra

    def shortest(self, src_length: int) -> int:
        """Tokens that it must have."""
        options = self.config.decoding
        return int(options.min_len_factor * src_length) + options.min_len_extra

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Translation]:
        """Given translations with the log-probability of every token."""
        src, tgt = self.tokenizers
        ids = list(
            zip(
                src.to_ids_of_all([pair[0] for pair in pairs]),
                tgt.to_ids_of_all([pair[1] for pair in pairs]),
                strict=True,
            )
        )
        forced = force(self.model, ids, self.config.decoding.tokens_per_batch)
        return [
            Translation(
                text=pair[1], tokens=tuple(tgt.pieces_of(one)), log_probs=tuple(found.log_probs)
            )
            for pair, (_, one), found in zip(pairs, ids, forced, strict=True)
        ]

    def _request(self, piece: Piece, sentence: Sentence | None, number: int) -> Request:
        options = self.config.decoding
        prefix = self._wished(sentence.prefix) if sentence else ()
        required = tuple(map(self._wished, sentence.required)) if sentence else ()
        if required and (options.sample or options.beam_size == 1 or options.diversity_groups > 1):
            raise UserError("required words need a beam search (--beam-size 5) without groups")
        longest = self.longest(len(piece.ids))
        return Request(
            src=[*piece.ids, EOS_ID],
            text=piece.text,
            max_length=max(longest, len(prefix) + sum(map(len, required))),
            min_length=min(longest, self.shortest(len(piece.ids))),
            prefix=prefix,
            required=tuple(ids for ids in required if ids),
            number=number,
        )

    def _wished(self, text: str) -> tuple[int, ...]:
        """Ids of what must stand in a translation."""
        ids = tuple(self.tokenizers.tgt.to_ids(text))
        if UNK_ID in ids:
            raise UserError(f"the vocabulary of this run cannot write {text!r}")
        return ids

    def _search_pieces(self, requests: Sequence[Request], wanted: Wanted) -> list[list[Found]]:
        """Search in batches of like length; results in the order of the requests."""
        options = self.config.decoding
        outputs: list[list[Hypothesis]] = [[] for _ in requests]
        lengths = np.array([len(request.src) for request in requests], dtype=np.int32)
        width = options.n_best if options.sample else options.beam_size
        for batch in plan_in_order(lengths, lengths, options.tokens_per_batch // width):
            found = search(self.decoder, [requests[i] for i in batch], options, self._banned)
            for i, hypotheses in zip(batch, found, strict=True):
                outputs[i] = hypotheses

        pairs = [
            (request.src[:-1], one.ids)
            for request, hypotheses in zip(requests, outputs, strict=True)
            for one in hypotheses
        ]
        forced: Iterator[Forced | None] = itertools.repeat(None)
        if any(wanted) or options.replace_unk:
            aligned = wanted.alignment or options.replace_unk
            limit = options.tokens_per_batch
            forced = iter(force(self.model, pairs, limit, with_attention=aligned))
        return [
            [
                Found(
                    text=request.text,
                    src=request.src[:-1],
                    ids=one.ids,
                    score=one.score if options.beam_size > 1 else None,
                    forced=next(forced),
                )
                for one in hypotheses
            ]
            for request, hypotheses in zip(requests, outputs, strict=True)
        ]


def make_decoder(model: Transformer, number: Number, *, cuda_graphs: bool = False) -> Decoder:
    """On a CPU a fast twin of the model if there is one; on a GPU the model or recorded steps."""
    if model.device.type == "cpu":
        if CpuDecoder.why_unsupported(model, number) is None:
            return CpuDecoder(model, number)
        if FastDecoder.why_unsupported(model) is None:
            return FastDecoder(model, number)
        return PlainDecoder(model, use_bf16=number == "bf16")
    if number == "int8":
        raise UserError("decoding.precision int8 is for CPUs; on a GPU take bf16 or fp32")
    on_gpu = RecordedDecoder if cuda_graphs else PlainDecoder
    return on_gpu(model, use_bf16=number == "bf16")


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


def _number(config: Config, model: Transformer, exact: bool) -> Number:
    asked = config.decoding.precision
    if asked != "auto":
        return asked
    if exact:
        return "fp32"
    if model.device.type == "cpu":
        return "int8" if "int8" in native.precisions() or has_int8() else "fp32"
    return "bf16" if has_fast_bf16(model.device) else "fp32"


def _report_long_lines(lines: Sequence[Ids], pieces: Sequence[Sequence[Piece]], limit: int) -> None:
    counts = [len(cut) for ids, cut in zip(lines, pieces, strict=True) if len(ids) > limit]
    if counts:
        logger.warning(
            f"{len(counts):,} lines are longer than data.max_length {limit:,} tokens: translated "
            f"in {sum(counts):,} pieces"
        )
