"""A SentencePiece model as a tokenizer of Hugging Face's `tokenizers`."""

import re
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from seq2seq_cli.errors import UserError
from seq2seq_cli.text.tokenizer import EOS_ID, SPACE, STAND_IN, UNK_ID, Tokenizer


def fast_tokenizer(tokenizer: Tokenizer, max_length: int) -> Any:
    """What `AutoTokenizer` loads: the same ids, EOS at the end."""
    try:
        from tokenizers import AddedToken, decoders, processors
        from tokenizers import Tokenizer as Fast
        from transformers import PreTrainedTokenizerFast
    except ImportError:
        raise UserError(
            "--format huggingface needs the package transformers: pip install 'seq2seq-cli[export]'"
        ) from None
    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(tokenizer.model)
    fast = Fast(_model(proto))
    fast.normalizer = _normalizer(proto)
    for symbol in _symbols(proto):
        if fast.normalizer.normalize_str(symbol) != symbol:
            raise UserError(
                f"--format huggingface: tokenizer.normalization would change the symbol {symbol!r}"
            )
    fast.pre_tokenizer = _pre_tokenizer(proto)
    fast.decoder = decoders.Sequence(
        [
            decoders.ByteFallback(),
            decoders.Metaspace(SPACE, "always"),
            decoders.Replace(STAND_IN, SPACE),
        ]
    )
    pieces = tokenizer.pieces()
    fast.post_processor = processors.TemplateProcessing(
        single=f"$A {pieces[EOS_ID]}", special_tokens=[(pieces[EOS_ID], EOS_ID)]
    )
    fast.add_special_tokens([AddedToken(piece, normalized=False) for piece in pieces[:4]])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=fast,
        model_max_length=max_length,
        pad_token=pieces[0],
        unk_token=pieces[1],
        bos_token=pieces[2],
        eos_token=pieces[3],
        clean_up_tokenization_spaces=False,
        return_token_type_ids=False,
    )


def _model(proto: Any) -> Any:
    from tokenizers import models

    trainer = proto.trainer_spec
    ids = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    if trainer.model_type == trainer.WORD:
        return models.WordLevel(
            {piece: i for i, (piece, _) in enumerate(pieces)}, pieces[UNK_ID][0]
        )
    if trainer.model_type == trainer.BPE:
        ids = {piece: i for i, (piece, _) in enumerate(pieces)}
        return models.BPE(
            ids,
            _merges(pieces, ids),
            unk_token=pieces[UNK_ID][0],
            fuse_unk=True,
            byte_fallback=trainer.byte_fallback,
            ignore_merges=bool(_symbols(proto)),  # a symbol is made of nothing
        )
    return models.Unigram(pieces, UNK_ID, trainer.byte_fallback)


def _merges(pieces: list[tuple[str, float]], ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, the best piece first: BPE's order."""
    ranked = sorted(
        ((-score, ids[a], ids[b], a, b) for piece, score in pieces for a, b in _halves(piece, ids)),
    )
    return [(a, b) for *_, a, b in ranked]


def _halves(piece: str, ids: dict[str, int]) -> list[tuple[str, str]]:
    cuts = ((piece[:i], piece[i:]) for i in range(1, len(piece)))
    return [(a, b) for a, b in cuts if a in ids and b in ids]


def _normalizer(proto: Any) -> Any:
    """Unicode as SentencePiece's own table has it, then single spaces and none at the ends."""
    from tokenizers import Regex, normalizers

    steps: list[Any] = [
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Replace(SPACE, STAND_IN),
    ]
    if proto.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap))
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()]
    return normalizers.Sequence(steps)


def _pre_tokenizer(proto: Any) -> Any:
    """At spaces, and around the user's symbols, which are tokens wherever they stand."""
    from tokenizers import Regex, pre_tokenizers

    at_spaces = pre_tokenizers.Metaspace(SPACE, "always", split=True)
    symbols = sorted(map(re.escape, _symbols(proto)), key=len, reverse=True)
    if not symbols or proto.trainer_spec.model_type == proto.trainer_spec.WORD:
        return at_spaces
    around = pre_tokenizers.Split(Regex("|".join(symbols)), "isolated")
    return pre_tokenizers.Sequence([at_spaces, around])


def _symbols(proto: Any) -> list[str]:
    return [piece.piece for piece in proto.pieces if piece.type == piece.USER_DEFINED]
