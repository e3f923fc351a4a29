"""Lines of text to lines of text: one line in is one line out, in order, always."""

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch

from seq2seq_cli.config import Config, DeviceName
from seq2seq_cli.config_file import load_config
from seq2seq_cli.data.batches import plan_in_order
from seq2seq_cli.decoding.search import greedy_search
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.device import choose_device
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.model.weights import load_weights
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.tokenizer import EOS_ID, PAD_ID, Tokenizers, load_tokenizers

logger = logging.getLogger(__name__)

_FREE_OF_TRAINING = ("decoding.", "validation.bleu_tokenize=")


class Translator:
    """A trained model with its tokenizers."""

    def __init__(self, model: Transformer, tokenizers: Tokenizers, config: Config) -> None:
        self.model = model
        self.tokenizers = tokenizers
        self.config = config

    @classmethod
    def load(
        cls,
        run_dir: Path,
        device: DeviceName = "auto",
        overrides: Sequence[str] = (),
        *,
        last: bool = False,
    ) -> Self:
        """The best model of a run, or its last one, with `key=value` overrides of its config.

        Raises UserError saying which file is missing, damaged or does not fit.
        """
        run = RunFolder(run_dir)
        weights = run.weights(last=last)
        for override in overrides:
            if not override.startswith(_FREE_OF_TRAINING):
                raise UserError(
                    f"--set {override}: a trained run takes only decoding.* options and "
                    "validation.bleu_tokenize"
                )
        config = load_config(run.config, overrides)
        tokenizers = load_tokenizers(run, config.tokenizer.shared)
        model = new_model(config, tokenizers)
        load_weights(model, weights)
        return cls(model.to(choose_device(device)).eval(), tokenizers, config)

    def translate(self, lines: Sequence[str]) -> list[str]:
        """The translation of every line; of an empty one, an empty one.

        A line longer than the training limit is translated in pieces of that length, which are
        joined, and reported as a warning.
        """
        pieces = [
            _pieces(ids, self.config.data.max_length)
            for ids in self.tokenizers.src.to_ids_of_all(lines)
        ]
        self._report_long_lines(pieces)
        owners = [line for line, of_line in enumerate(pieces) for _ in of_line]
        found = self._translate_ids([ids for of_line in pieces for ids in of_line])
        outputs: list[list[int]] = [[] for _ in lines]
        for owner, ids in zip(owners, found, strict=True):
            outputs[owner] += ids
        return [self.tokenizers.tgt.to_text(ids) for ids in outputs]

    def _report_long_lines(self, pieces: list[list[list[int]]]) -> None:
        counts = [len(of_line) for of_line in pieces if len(of_line) > 1]
        if counts:
            logger.warning(
                f"{len(counts):,} lines are longer than data.max_length "
                f"{self.config.data.max_length:,} tokens: translated in {sum(counts):,} pieces"
            )

    def _translate_ids(self, sources: list[list[int]]) -> list[list[int]]:
        """Search in batches of like length; results in the order of the sources."""
        outputs: list[list[int]] = [[] for _ in sources]
        lengths = np.array([len(ids) + 1 for ids in sources], dtype=np.int32)
        limit = self.config.decoding
        for batch in plan_in_order(lengths, lengths, limit.tokens_per_batch):
            src_BS = torch.full((len(batch), int(lengths[batch].max())), PAD_ID)
            for row, i in zip(src_BS, batch, strict=True):
                row[: lengths[i]] = torch.tensor([*sources[i], EOS_ID])
            max_lengths = [
                int(limit.max_len_factor * len(sources[i])) + limit.max_len_extra for i in batch
            ]
            found = greedy_search(self.model, src_BS.to(self.model.device), max_lengths)
            for i, ids in zip(batch, found, strict=True):
                outputs[i] = ids
        return outputs


def new_model(config: Config, tokenizers: Tokenizers) -> Transformer:
    """A fresh model for these vocabularies."""
    src_vocab, tgt_vocab = len(tokenizers.src), len(tokenizers.tgt)
    return Transformer(config.model, src_vocab, tgt_vocab, tokenizers.is_shared, PAD_ID)


def _pieces(ids: list[int], max_length: int) -> list[list[int]]:
    """As few pieces as possible, of nearly equal length; none for an empty line."""
    count = -(-len(ids) // max_length)
    cuts = [len(ids) * i // count for i in range(count + 1)] if count else [0]
    return [ids[start:stop] for start, stop in itertools.pairwise(cuts)]
