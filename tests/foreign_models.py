"""Random models of other programs, written as these programs write them."""

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import yaml
from number_languages import GERMAN
from number_task import NAMES

WORDS = [*GERMAN, *NAMES]
SHAPE = {"d_model": 16, "layers": 2, "heads": 4, "d_ff": 24}


def sentencepiece_model(words: list[str], size: int, seed: int) -> bytes:
    """A SentencePiece model of random sentences of these words."""
    generator, model = random.Random(seed), io.BytesIO()
    lines = [" ".join(generator.choices(words, k=generator.randint(2, 9))) for _ in range(300)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    ids = range(len(processor))
    return [
        processor.id_to_piece(i)
        for i in ids
        if not (processor.is_control(i) or processor.is_unknown(i))
    ]


def vocabularies(
    seed: int, *, shared: bool, tags: tuple[str, ...] = (), missing: float = 0.05
) -> tuple[bytes, bytes, list[str], list[str]]:
    """SentencePiece models of both sides, and their entries without some pieces, in any order."""
    generator = random.Random(seed)
    src, tgt = sentencepiece_model(WORDS, 60, seed), sentencepiece_model(WORDS[::-1], 56, seed + 1)

    def entries(pieces: list[str]) -> list[str]:
        kept = [piece for piece in dict.fromkeys(pieces) if generator.random() >= missing]
        generator.shuffle(kept)
        return ["</s>", "<unk>", *kept, *tags]

    if shared:
        both = entries([*pieces_of(src), *pieces_of(tgt)])
        return src, tgt, both, both
    return src, tgt, entries(pieces_of(src)), entries(pieces_of(tgt))


def write_marian_mt(
    folder: Path,
    seed: int,
    *,
    shared: bool = True,
    odd_ids: bool = False,
    tags: tuple[str, ...] = (),
    missing: float = 0.05,
    bias: bool = True,
    half: bool = False,
    pickled: bool = False,
    sharded: bool = False,
    generation: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Write a random MarianMT model with its tokenizer, as transformers does."""
    from transformers import MarianConfig, MarianMTModel

    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    spms = vocabularies(seed, shared=shared, tags=tags, missing=missing)
    tables, common = [], min(map(len, spms[2:]))
    for pieces in spms[2:]:
        entries = [*pieces, "<pad>"]
        if odd_ids:
            random.Random(seed).shuffle(entries)
        # The sides have one id of padding, which every table of embeddings has.
        entries.remove("<pad>")
        entries.insert(7 if odd_ids else common, "<pad>")
        tables.append({piece: number for number, piece in enumerate(entries)})
    for name, model in zip(("source.spm", "target.spm"), spms[:2], strict=True):
        (folder / name).write_bytes(model)
    (folder / "vocab.json").write_text(json.dumps(tables[0]))
    if not shared:
        (folder / "target_vocab.json").write_text(json.dumps(tables[1]))
    tokenizer = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not shared}
    tokenizer |= {"source_lang": "de", "target_lang": "en", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    special = {"eos": tables[1]["</s>"], "pad": tables[1]["<pad>"]}
    sides = {
        f"{side}_{name}": SHAPE[ours]
        for side in ("encoder", "decoder")
        for name, ours in (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "d_ff"))
    }
    defaults = {"activation_function": "swish", "scale_embedding": True}
    config = MarianConfig(
        vocab_size=len(tables[0]),
        decoder_vocab_size=len(tables[1]),
        share_encoder_decoder_embeddings=shared,
        d_model=SHAPE["d_model"],
        **sides,
        pad_token_id=special["pad"],
        decoder_start_token_id=special["pad"],
        eos_token_id=special["eos"],
        bos_token_id=0,
        max_position_embeddings=64,
        **(defaults | options),
    )
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * (0.25 if parameter.dim() > 1 else 0.1))
        if bias:
            model.final_logits_bias.normal_(0, 0.5)
    model.generation_config.update(**(generation or {}))
    model = model.half() if half else model
    model.save_pretrained(folder, max_shard_size="5KB" if sharded and not pickled else "1GB")
    if pickled:
        (folder / "model.safetensors").unlink()
        weights = {n: w for n, w in model.state_dict().items() if "embed_positions" not in n}
        parts = [[*weights][::2], [*weights][1::2]] if sharded else [[*weights]]
        files = [f"pytorch_model-{n}.bin" for n in range(2)] if sharded else ["pytorch_model.bin"]
        for file, part in zip(files, parts, strict=True):
            torch.save({name: weights[name] for name in part}, folder / file)
        if sharded:
            table = {n: file for file, part in zip(files, parts, strict=True) for n in part}
            index = folder / "pytorch_model.bin.index.json"
            index.write_text(json.dumps({"metadata": {}, "weight_map": table}))


def write_marian(
    folder: Path,
    seed: int,
    *,
    shared: bool = True,
    norm: str = "post",
    activation: str = "swish",
    **options: Any,
) -> None:
    """Write a random model of the original Marian; `options` change its special:model.yml."""
    folder.mkdir(parents=True)
    src_spm, tgt_spm, src, tgt = vocabularies(seed, shared=shared)
    (folder / "source.spm").write_bytes(src_spm)
    (folder / "target.spm").write_bytes(tgt_spm)
    for name, pieces in (("src.vocab.yml", src), ("tgt.vocab.yml", tgt)):
        lines = [
            f"{json.dumps(piece, ensure_ascii=False)}: {number}\n"
            for number, piece in enumerate(pieces)
        ]
        (folder / name).write_text("".join(lines))
    names = ["src.vocab.yml", "src.vocab.yml" if shared else "tgt.vocab.yml"]
    decoder = {"relative-paths": True, "models": ["model.npz"], "vocabs": names}
    decoder |= {"beam-size": 6, "normalize": 0.6}
    (folder / "decoder.yml").write_text(yaml.safe_dump(decoder))
    pre = norm == "pre"
    config = {
        "type": "transformer",
        "enc-depth": SHAPE["layers"],
        "dec-depth": SHAPE["layers"],
        "transformer-heads": SHAPE["heads"],
        "transformer-ffn-activation": activation,
        "transformer-preprocess": "n" if pre else "",
        "transformer-postprocess": "da" if pre else "dan",
        "transformer-postprocess-top": "n" if pre else "",
        "transformer-postprocess-emb": "d",
        "transformer-decoder-autoreg": "self-attention",
        "transformer-no-projection": False,
        "transformer-guided-alignment-layer": "last",
        "tied-embeddings-all": shared,
    } | options
    arrays = marian_arrays(seed, (len(src), len(tgt)), shared=shared, suffix="_pre" * pre)
    text = yaml.safe_dump(config).encode() + b"\0"
    arrays["special:model.yml"] = np.frombuffer(text, np.int8)
    np.savez(folder / "model.npz", **arrays)


def marian_arrays(
    seed: int, sizes: tuple[int, int], *, shared: bool, suffix: str
) -> dict[str, np.ndarray]:
    """Random weights by Marian's names; with the suffix of pre-norm also the last norms."""
    generator = np.random.default_rng(seed)
    d_model, d_ff = SHAPE["d_model"], SHAPE["d_ff"]

    def random_array(*shape: int, center: float = 0.0) -> np.ndarray:
        return (generator.normal(center, 0.25, shape)).astype(np.float32)

    arrays = {"decoder_ff_logit_out_b": random_array(1, sizes[1])}
    if shared:
        arrays["Wemb"] = random_array(sizes[0], d_model)
    else:
        arrays["encoder_Wemb"] = random_array(sizes[0], d_model)
        arrays["decoder_Wemb"] = random_array(sizes[1], d_model)

    def norm(name: str, suffix: str) -> None:
        arrays[f"{name}_scale{suffix}"] = random_array(1, d_model, center=1.0)
        arrays[f"{name}_bias{suffix}"] = random_array(1, d_model)

    for side in ("encoder", "decoder"):
        for layer in range(1, SHAPE["layers"] + 1):
            name = f"{side}_l{layer}"
            for part in ("self", "context")[: 1 + (side == "decoder")]:
                for letter in "qkvo":
                    arrays[f"{name}_{part}_W{letter}"] = random_array(d_model, d_model)
                    arrays[f"{name}_{part}_b{letter}"] = random_array(1, d_model)
                norm(f"{name}_{part}_Wo_ln", suffix)
            for letter, rows, columns in (("1", d_model, d_ff), ("2", d_ff, d_model)):
                arrays[f"{name}_ffn_W{letter}"] = random_array(rows, columns)
                arrays[f"{name}_ffn_b{letter}"] = random_array(1, columns)
            norm(f"{name}_ffn_ffn_ln", suffix)
        if suffix:
            norm(f"{side}_top_ln", "")
    return arrays


def write_ctranslate2(marian_mt: Path, folder: Path, quantization: str | None = None) -> None:
    """Convert a MarianMT model by CTranslate2, and put its SentencePiece models beside it."""
    from ctranslate2.converters import TransformersConverter

    TransformersConverter(str(marian_mt)).convert(str(folder), quantization=quantization)
    for name in ("source.spm", "target.spm"):
        shutil.copy(marian_mt / name, folder / name)
