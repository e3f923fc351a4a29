"""Compares an imported run with the program that its model is from."""

import itertools
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import torch

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.data.batch_plan import pad_rows
from seq2seq_cli.decoding.requests import Request
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.extras.convert import marian
from seq2seq_cli.extras.convert.ctranslate2 import pieces_in
from seq2seq_cli.extras.convert.foreign import ForeignModel
from seq2seq_cli.extras.convert.writer import orders_of
from seq2seq_cli.extras.export.ctranslate2 import greedy
from seq2seq_cli.extras.export.marian import Marian
from seq2seq_cli.text.io import lines_to_translate
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer

SENTENCES = 100
_TRIES = 10 * SENTENCES  # as some sentences may have no tokens
_LONGEST = 40  # tokens of a sentence, and of a translation that is compared
_BATCH = 10
_TOLERANCE = 1e-4  # of logits in fp32
_LOWEST = -1e3  # lower logits are impossible in both programs, and further apart in fp32
_SHARE_EQUAL = 0.97  # of translations; fp32 sums in another order occasionally change a token


def sentences(tokenizer: Tokenizer, text: Path | None) -> list[str]:
    """Return lines of a file, UserError if it has none, or the same ones of the vocabulary."""
    if text is not None:
        lines = (line for line in lines_to_translate(text) if tokenizer.to_ids(line))
        if not (found := list(itertools.islice(lines, SENTENCES))):
            raise UserError(f"there is no text in {text}")
        return found
    random, tags = Random(0), [s for s in tokenizer.user_defined_symbols() if s.startswith(">>")]
    tag_ids = {*tokenizer.ids_of(tags)}
    ids = [i for i in range(EOS_ID + 1, len(tokenizer)) if i not in tag_ids]
    made: list[str] = []
    for number in range(_TRIES * bool(ids)):
        if len(made) == SENTENCES:
            break
        tokens = random.choices(ids, k=random.randint(1, _LONGEST // 2))
        tag = f"{random.choice(tags)} " if tags and number % 2 else ""
        line = tokenizer.to_text(tokens)
        if not line.startswith(">>") and tokenizer.to_ids(line):
            made.append(tag + line)
    return made


def verify_huggingface(
    source: Path, model: ForeignModel, translator: Translator, text: Path | None
) -> str:
    """Compare ids and logits with transformers; return what was compared, or raise UserError."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
    from transformers.utils import logging

    orders = orders_of(model)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with redirect_stderr(StringIO()):
        try:
            theirs = AutoModelForSeq2SeqLM.from_pretrained(source, dtype=torch.float32).eval()
            tokenizer = AutoTokenizer.from_pretrained(source)
        except Exception as error:  # it raises any type for a damaged file
            raise _unreadable("transformers", source, error) from None
    lines = sentences(translator.tokenizers.src, text)
    ids = [ids[:_LONGEST] for ids in translator.tokenizers.src.to_ids_batch(lines)]
    for line, ours in zip(lines, ids, strict=True):
        expected = tokenizer(line)["input_ids"][:-1][:_LONGEST]
        if [orders.src.ids[token] for token in ours] != expected:
            line = repr(short(line))
            raise UserError(f"the import tokenizes a line differently from transformers: {line}")
    known = [i for i, token in enumerate(orders.tgt.ids) if token is not None]  # each row once
    if orders.tgt.is_start_copied:
        known.remove(BOS_ID)
    columns = [orders.tgt.ids[token] for token in known]
    start, random, largest = theirs.config.decoder_start_token_id, Random(1), 0.0
    for first in range(0, len(ids), _BATCH):
        batch = ids[first : first + _BATCH]
        targets = [random.choices(known, k=_LONGEST // 2) for _ in batch]
        logits = theirs(
            input_ids=_padded([[orders.src.ids[i] for i in (*row, EOS_ID)] for row in batch], 0),
            attention_mask=_padded([[1] * (len(row) + 1) for row in batch], 0),
            decoder_input_ids=torch.tensor(
                [[start, *(orders.tgt.ids[i] for i in row)] for row in targets]
            ),
        ).logits.detach()
        with torch.no_grad():
            found = translator.model(
                _padded([[*row, EOS_ID] for row in batch], PAD_ID),
                torch.tensor([[BOS_ID, *row] for row in targets]),
            )
        pair = (logits[..., columns].clamp(_LOWEST), found[..., known].clamp(_LOWEST))
        largest = max(largest, (pair[0] - pair[1]).abs().max().item())
    if not largest <= _TOLERANCE:
        raise UserError(
            f"the import's logits differ from transformers' by {largest:.1e} "
            f"(more than {_TOLERANCE:.0e}); --no-verify imports it nevertheless"
        )
    return (
        f"logits of {len(lines)} sentences equal transformers' in fp32 (at most {largest:.0e} "
        "apart), and so do their tokens"
    )


def _unreadable(program: str, source: Path, error: Exception) -> UserError:
    return UserError(
        f"{program} cannot read {source}: {short(str(error))}; put all of its files there, or "
        "import it with --no-verify"
    )


def _padded(rows: Sequence[Sequence[Any]], value: int) -> torch.Tensor:
    return torch.from_numpy(pad_rows(rows, value))


def verify_marian(
    source: Path, model: ForeignModel, translator: Translator, text: Path | None
) -> str:
    """Compare with CTranslate2, which converts Marian's models, in its own dialect.

    It computes the sinusoids and epsilon of transformers, so the weights are compared with these.
    """
    from ctranslate2.converters import MarianConverter

    decoder = marian.decoder_options(source)
    paths = marian.vocabulary_paths(source, decoder)
    if paths[0].suffix == ".spm":
        return "not compared, as CTranslate2 reads no .spm vocabularies of Marian"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary, "model")
        weights = str(marian.model_path(source, decoder))
        try:
            MarianConverter(weights, [str(path) for path in paths]).convert(str(folder))
        except (KeyError, ValueError) as error:
            return f"not compared, as CTranslate2's converter refuses it ({short(str(error))})"
        compared = Marian().compared_model(translator.model)
        translator = Translator(compared, translator.tokenizers, translator.config)
        report = verify_ctranslate2(folder, model, translator, text)
    return f"{report}, computed with CTranslate2's positions and epsilon"


def verify_ctranslate2(
    folder: Path, model: ForeignModel, translator: Translator, text: Path | None
) -> str:
    """Compare greedy translations with CTranslate2's; return the result, or raise UserError."""
    import ctranslate2

    orders, tokenizers = orders_of(model), translator.tokenizers
    lines = sentences(tokenizers.src, text)
    tag = tokenizers.src.tag_ids(translator.config.decoding.tag)  # CTranslate2 puts it there
    sources = [ids[: _LONGEST - 1] for ids in tokenizers.src.to_ids_batch(lines)]
    requests = [Request([*tag, *ids, EOS_ID], _LONGEST) for ids in sources]
    options = DecodingConfig(beam_size=1, max_len_factor=0.0, max_len_extra=_LONGEST)
    found = translator.backend.search(requests, options, tokenizers.tgt)
    never = {*(orders.tgt.ids[i] for i in (PAD_ID, UNK_ID, BOS_ID)), model.tgt.pad}
    # CTranslate2 may have read names of entries differently, but its ids are the same.
    src_pieces, tgt_pieces = pieces_in(folder, (len(model.src.pieces), len(model.tgt.pieces)))
    end = [EOS_ID] if model.is_eos_given else []
    try:
        engine = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32")
    except (RuntimeError, ValueError) as error:
        raise _unreadable("CTranslate2", folder, error) from None
    expected = greedy(
        engine,
        [[_piece(src_pieces, orders.src.ids[i]) for i in (*ids, *end)] for ids in sources],
        _LONGEST,
        [[_piece(tgt_pieces, i)] for i in never - {None, model.tgt.eos}],
    )
    ours = [[_piece(tgt_pieces, orders.tgt.ids[i]) for i in best.ids] for best, *_ in found]
    num_equal = sum(a == b for a, b in zip(ours, expected, strict=True))
    if num_equal < _SHARE_EQUAL * len(lines):
        raise UserError(
            f"only {num_equal} of {len(lines)} greedy translations of the import equal "
            "CTranslate2's; --no-verify imports it nevertheless"
        )
    return f"{num_equal} of {len(lines)} greedy translations equal CTranslate2's in fp32"


def _piece(pieces: Sequence[str | None], token: int | None) -> str:
    return "<unk>" if token is None else pieces[token] or "<unk>"
