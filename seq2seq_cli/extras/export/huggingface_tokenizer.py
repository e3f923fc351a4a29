"""Converts a SentencePiece model to Hugging Face's `tokenizers`, with the same ids for any text.

Text such as `<s>` or `<0x41>` must not become a special token. One difference remains: with Unicode
normalization, `tokenizers` may lose a combining mark that has no composed form with its letter.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seq2seq_cli.config.languages import LanguagePair
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.export.sentencepiece_rules import WHITE_SPACE
from seq2seq_cli.extras.export.vocabularies import Rows, names_of
from seq2seq_cli.files import write_json
from seq2seq_cli.text.quoting import QUOTE, SPACE, STAND_IN
from seq2seq_cli.tokenizers.sentencepiece_tokenizer import parsed
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, UNK_ID, Tokenizer, Tokenizers

# Stand for these characters temporarily: in quoted text no digit follows QUOTE.
_STAND_IN, _QUOTE = QUOTE + "0", QUOTE + "1"
_UNQUOTING = (
    (QUOTE + QUOTE, _QUOTE),
    (QUOTE + STAND_IN, _STAND_IN),
    (STAND_IN, SPACE),
    (_STAND_IN, STAND_IN),
    (_QUOTE, QUOTE),
)


def fast_tokenizer(tokenizer: Tokenizer, max_length: int) -> Any:
    """Return the tokenizer that `AutoTokenizer` loads; it appends EOS."""
    from tokenizers import AddedToken, decoders, processors
    from tokenizers import Tokenizer as Fast
    from transformers import PreTrainedTokenizerFast

    proto = parsed(tokenizer.model)
    names = [piece.piece for piece in proto.pieces]
    if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        # It matches names. With ▁ inside, they match no text, as that is split before each ▁.
        names[:4] = [f"{name[:-1]}{SPACE}{name[-1]}" for name in names[:4]]
    symbols = tokenizer.user_defined_symbols()
    fast = Fast(_model(proto, names, has_symbols=bool(symbols)))
    fast.normalizer = _normalizer(proto)
    for symbol in symbols:
        if fast.normalizer.normalize_str(symbol) != SPACE + symbol:
            raise UserError(
                f"--format huggingface: tokenizer.normalization would change the symbol {symbol!r}"
            )
    fast.pre_tokenizer = _pre_tokenizer(proto, symbols)
    fast.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Metaspace(SPACE, "always"),
            decoders.Fuse(),
            *(decoders.Replace(before, after) for before, after in _UNQUOTING),
        ]
    )
    fast.post_processor = processors.TemplateProcessing(
        single=f"$A {names[EOS_ID]}", special_tokens=[(names[EOS_ID], EOS_ID)]
    )
    fast.add_special_tokens([AddedToken(name, normalized=False) for name in names[:4]])
    return PreTrainedTokenizerFast(
        tokenizer_object=fast,
        model_max_length=max_length,
        pad_token=names[0],
        unk_token=names[1],
        bos_token=names[2],
        eos_token=names[3],
        split_special_tokens=True,  # their names in a text are text
        clean_up_tokenization_spaces=False,
        return_token_type_ids=False,
    )


def write_marian_tokenizer(
    tokenizers: Tokenizers,
    rows: Rows,
    folder: Path,
    max_length: int,
    languages: LanguagePair | None,
) -> None:
    """Write the tables of transformers' MarianTokenizer, for vocabularies of imported models."""
    files = ("vocab.json", "target_vocab.json")[: 1 if tokenizers.is_shared else 2]
    for file, tokenizer, ids in zip(files, tokenizers, rows, strict=False):
        names = names_of(tokenizer, ids, start="<pad>")
        write_json(folder / file, {name: number for number, name in enumerate(names)})
    codes = zip(("source_lang", "target_lang"), languages or (), strict=False)
    options = {
        "tokenizer_class": "MarianTokenizer",
        **dict(codes),
        "separate_vocabs": not tokenizers.is_shared,
        "model_max_length": max_length,
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "split_special_tokens": True,  # their names in a text are text
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", options)


def _model(proto: Any, names: list[str], has_symbols: bool) -> Any:
    from tokenizers import models

    trainer = proto.trainer_spec
    ids = {name: number for number, name in enumerate(names)}
    if trainer.model_type == trainer.WORD:
        return models.WordLevel(ids, names[UNK_ID])
    if trainer.model_type == trainer.UNIGRAM:
        pieces = [(name, piece.score) for name, piece in zip(names, proto.pieces, strict=True)]
        return models.Unigram(pieces, UNK_ID, trainer.byte_fallback)
    is_bpe = trainer.model_type == trainer.BPE  # else characters: BPE without merges
    return models.BPE(
        ids,
        _merges(proto, ids) if is_bpe else [],
        unk_token=names[UNK_ID],
        fuse_unk=True,
        byte_fallback=trainer.byte_fallback,
        ignore_merges=has_symbols,  # symbols do not result from merges
    )


def _merges(proto: Any, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Return all pairs of pieces that form another piece, best piece first, as in BPE."""
    ranked = sorted(
        (-piece.score, ids[a], ids[b], a, b)
        for piece in proto.pieces
        if piece.type == piece.NORMAL
        for i in range(1, len(piece.piece))
        if (a := piece.piece[:i]) in ids and (b := piece.piece[i:]) in ids
    )
    return [(a, b) for *_, a, b in ranked]


def _normalizer(proto: Any) -> Any:
    """Normalize with SentencePiece's own table, and put ▁ before every word, none at the end."""
    from tokenizers import Regex, normalizers

    steps: list[Any] = [
        normalizers.Replace(Regex(f"[{re.escape(WHITE_SPACE)}]+"), " "),
        normalizers.Replace(QUOTE, QUOTE * 2),
        normalizers.Replace(STAND_IN, QUOTE + STAND_IN),
        normalizers.Replace(SPACE, STAND_IN),
    ]
    if proto.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap))
    steps += [
        normalizers.Replace(Regex(" {2,}"), " "),
        normalizers.Strip(),
        normalizers.Prepend(SPACE),
        normalizers.Replace(" ", SPACE),
        normalizers.Replace(Regex(f"{SPACE}+$"), ""),
    ]
    return normalizers.Sequence(steps)


def _pre_tokenizer(proto: Any, symbols: Iterable[str]) -> Any:
    """Split into words and user symbols, which are tokens wherever they occur.

    Consecutive unknown words become one token, as in SentencePiece.
    """
    from tokenizers import Regex, pre_tokenizers

    trainer = proto.trainer_spec
    if trainer.model_type == trainer.WORD:
        names = (piece.piece for piece in proto.pieces[EOS_ID + 1 :])
        words = _any_of(name[1:] for name in names if name.startswith(SPACE))
        known = Regex(f"{SPACE}{words}(?={SPACE}|\\z)")
        return pre_tokenizers.Split(known, "isolated")
    steps = [pre_tokenizers.Split(SPACE, "merged_with_next")]
    if patterns := sorted(map(re.escape, symbols), key=len, reverse=True):
        steps.append(pre_tokenizers.Split(Regex("|".join(patterns)), "isolated"))
    if trainer.model_type == trainer.UNIGRAM:
        pieces = [piece.piece for piece in proto.pieces if piece.type == piece.NORMAL]
        steps.append(pre_tokenizers.Split(Regex(_byte_like(pieces)), "merged_with_previous"))
    return pre_tokenizers.Sequence(steps)


def _byte_like(pieces: Iterable[str]) -> str:
    """Return a pattern that splits text like `<0x41>`, so that it does not match the byte token.

    If possible it splits where no piece spans the split, so that SentencePiece splits there too.
    """
    text = "".join(f"{piece} " for piece in pieces)
    cuts = (("<", "0x[0-9A-F]{2}>"), ("<0", "x[0-9A-F]{2}>"), ("<0x[0-9A-F]{2}", ">"))
    for before, after in cuts:
        across = f"{before[-1]}{after[0]}" if before[-1] != "}" else "[0-9A-F]>"
        if not re.search(across, text):
            return f"{before}(?={after})"
    return f"{cuts[0][0]}(?={cuts[0][1]})"


def _any_of(words: Iterable[str]) -> str:
    """Return a pattern that matches any of the words, grouped by two letters as there are many."""
    groups: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for word in words:
        groups[word[:1]][word[1:2]].append(word[2:])

    def either(parts: Iterable[str]) -> str:
        return f"(?:{'|'.join(parts)})"

    return either(
        re.escape(first)
        + either(
            re.escape(second) + either(map(re.escape, rest)) for second, rest in by_second.items()
        )
        for first, by_second in groups.items()
    )
