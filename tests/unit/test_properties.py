"""Properties of all configs, texts and plans, on generated examples: the same each time.

`pytest tests/unit/test_properties.py --hypothesis-profile=long --hypothesis-seed=7` looks for
others, for longer.
"""

import codecs
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np
import pytest
from faults.hostile_lines import ATOMS, BROKEN, lines_of
from faults.mutations import ODD_VALUES
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from seq2seq_cli.config.loader import config_yaml, load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.data.batch_plan import bucket_by_length, plan_epoch
from seq2seq_cli.data.batches import IGNORE_INDEX, Batch, make_batch
from seq2seq_cli.decoding.lines.merging import Outputs, SegmentResult, merge_segments
from seq2seq_cli.decoding.lines.segmentation import Bounds, segment_lines
from seq2seq_cli.decoding.search.scoring import NOT_SCORED
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.subwords.sampled_buffer import regroup
from seq2seq_cli.text.corpus import read_pairs
from seq2seq_cli.text.io import lines_to_translate, raw_lines
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID, Tokenizer, Tokenizers


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder for all examples of a test: each overwrites the last."""
    return tmp_path_factory.mktemp("properties")


# Configs


def options_of(section: type[BaseModel], prefix: str = "") -> dict[str, TypeAdapter[Any]]:
    """The validators of single options, by full name."""
    found: dict[str, TypeAdapter[Any]] = {}
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= options_of(inner, f"{prefix}{name}.")
        else:
            kind = Annotated[inner, *field.metadata] if field.metadata else inner
            found[prefix + name] = TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False))
    return found


OPTIONS = {
    name: kind
    for name, kind in options_of(Config).items()
    if not name.startswith(("data.train", "data.valid"))
}
VALUES = [
    *(value for value in ODD_VALUES if value != "\ud800"),  # no YAML: refused before options are
    *(4, 8, 16, 64, 1_000, 0.1, 0.5, 0.9, 0.999, ["one", "two"]),
    *("skip", "error", "word", "char", "bpe", "unigram", "nfkc", "identity", "pre", "post", "relu"),
    *(
        "gelu",
        "rotary",
        "temperature",
        "adam",
        "adamw",
        "cosine",
        "linear",
        "constant",
        "cpu",
        "cuda",
        "fp32",
        "bf16",
        "int8",
    ),
    *(
        "forward",
        "reverse",
        "both",
        "epochs",
        "steps",
        "13a",
        "zh",
        "loss",
        "bleu",
        "chrf",
        "power",
        "gnmt",
        "full",
    ),
]


def is_valid(name: str, value: object) -> bool:
    is_strict = not name.endswith(("banned_words", "metrics", "reuse", "symbols"))
    try:
        OPTIONS[name].validate_python(value, strict=is_strict)
    except ValidationError:
        return False
    return True


VALID = {name: [value for value in VALUES if is_valid(name, value)] for name in OPTIONS}
INVALID = {  # also as text, which JSON's Infinity is to YAML
    name: [v for v in VALUES if not is_valid(name, v) and not is_valid(name, json.dumps(v))]
    for name in OPTIONS
}


@st.composite
def chosen(draw: st.DrawFn, values: dict[str, list[Any]], least: int) -> dict[str, Any]:
    """Draw some options with some of their values."""
    names = st.lists(st.sampled_from(sorted(values)), unique=True, min_size=least, max_size=8)
    return {name: draw(st.sampled_from(values[name])) for name in draw(names)}


def written(folder: Path, options: dict[str, Any]) -> Path:
    tree: dict[str, Any] = {"data": {"train": {"src": "train.de", "tgt": "train.en"}}}
    for name, value in options.items():
        *path, last = name.split(".")
        section = tree
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    path = folder / "odd.yaml"
    path.write_text(json.dumps(tree))  # JSON is YAML, and quotes all text
    return path


@given(options=chosen(VALID, least=0))
def test_valid_config_survives_saving_and_loading(folder, options):
    try:
        config = load_config(written(folder, options))
    except UserError:  # options that are valid alone may exclude each other
        assume(False)
    (folder / "whole.yaml").write_text(config_yaml(config), encoding="utf-8")
    assert load_config(folder / "whole.yaml") == config


@given(
    good=chosen(VALID, least=0),
    bad=chosen({name: values for name, values in INVALID.items() if values}, least=1),
)
def test_every_config_error_is_named_in_one_message(folder, good, bad):
    with pytest.raises(UserError) as raised:
        load_config(written(folder, good | bad))
    assert all(name in str(raised.value) for name in bad)
    assert len(str(raised.value)) < 20_000


@given(
    text=st.text()
    | st.lists(st.sampled_from("[]{}:,&*!|>-?'\"#%@\n ab1"), max_size=30).map("".join)
)
def test_arbitrary_text_as_config_is_rejected(folder, text):
    path = folder / "text.yaml"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(UserError):
        load_config(path)


@given(
    text=st.text()
    | st.sampled_from([name + "=" for name in OPTIONS]).flatmap(
        lambda start: st.text(max_size=9).map(lambda end: start + end)
    )
)
def test_override_is_applied_or_rejected(folder, text):
    try:
        config = load_config(written(folder, {}), [text])
    except UserError:
        return
    assert isinstance(config, Config)


# Tokenizers

KINDS = ("bpe", "unigram", "char", "word")
SEEN = "the quick brown fox, über den Hund! 你好，世界 42 . 。"
LEARNED = [SEEN, *SEEN.split()] * 4
TOKENIZERS = {
    kind: Tokenizer.fit(LEARNED, TokenizerConfig(kind=kind, vocab_size=400)) for kind in KINDS
}
SPECIAL = {PAD_ID, BOS_ID, EOS_ID}
odd_texts = st.lists(
    st.text(max_size=5) | st.sampled_from([*ATOMS, "\ud800", *SEEN.split()]), max_size=12
).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(st.sampled_from(SEEN)), words=st.lists(st.sampled_from(SEEN.split())))
def test_text_of_trained_characters_survives_tokenization(kind, text, words):
    tokenizer = TOKENIZERS[kind]
    text = " ".join(words) if kind == "word" else text
    ids = tokenizer.to_ids(text)
    assert UNK_ID not in ids
    assert tokenizer.to_text(ids) == " ".join(text.split())


@pytest.mark.parametrize("kind", KINDS)
@given(text=odd_texts)
def test_any_text_has_valid_ids_and_decodes_to_one_line(kind, text):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.to_ids(text)
    assert all(0 <= i < len(tokenizer) for i in ids)
    assert not SPECIAL & set(ids)
    back = tokenizer.to_text(ids)
    assert back.splitlines() in ([], [back])
    if kind in ("bpe", "unigram"):
        assert back == " ".join(text.split()).encode("utf-8", "replace").decode()
        assert back == tokenizer.normalize(text)


@given(ids=st.lists(st.integers(0, min(map(len, TOKENIZERS.values())) - 1)))
def test_any_ids_decode_to_one_line(ids):
    for tokenizer in TOKENIZERS.values():
        text = tokenizer.to_text(ids)
        assert text.splitlines() in ([], [text])


# Readers


@given(parts=st.lists(st.binary(max_size=6) | st.sampled_from([b"\n", b"\r\n", *BROKEN])))
def test_line_count_is_the_number_of_line_feeds(folder, parts):
    content = b"".join(parts)
    assume(not content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)))  # refused
    path = folder / "any.txt"
    path.write_bytes(content)
    assert list(lines_to_translate(path)) == lines_of(content)
    assert len(list(raw_lines(path))) == content.count(b"\n") + (content[-1:] not in (b"", b"\n"))


@given(pairs=st.lists(st.tuples(odd_texts, odd_texts), min_size=1, max_size=8))
def test_jsonl_preserves_every_pair(folder, pairs):
    lines = [json.dumps({"src": src, "tgt": tgt}) + "\n" for src, tgt in pairs]
    (folder / "x.jsonl").write_text("".join(lines))
    found = list(read_pairs(ParallelText.of(pairs=folder / "x.jsonl")))
    assert [(pair.src, pair.tgt) for pair in found if pair] == [
        tuple(side.encode("utf-8", "replace").decode().replace("\n", " ") for side in pair)
        for pair in pairs
    ]


@given(rows=st.lists(st.lists(odd_texts, min_size=1, max_size=3), max_size=8))
def test_tsv_lines_are_pairs_or_counted_as_bad(folder, rows):
    lines = ["\t".join(row).replace("\n", "") for row in rows]
    content = "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")
    (folder / "x.tsv").write_bytes(content)
    found = list(read_pairs(ParallelText.of(pairs=folder / "x.tsv"), "skip"))
    assert len(found) == len(lines)
    for raw, pair in zip(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), found, strict=False):
        is_pair = raw.count(b"\t") == 1 and b"\xed\xa0" not in raw
        assert (pair is not None) == is_pair


# Plans and batches

lengths = st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=200)


@given(
    lengths=lengths,
    budget=st.integers(1, 400),
    most=st.none() | st.integers(1, 9),
    seed=st.integers(0, 2**63 - 1),
)
def test_epoch_plan_has_every_pair_once_within_tokens_per_batch(lengths, budget, most, seed):
    src, tgt = np.array(lengths, dtype=np.int32).T
    longer = np.maximum(src, tgt)
    plan = plan_epoch(src, tgt, budget, seed, epoch=3, pairs_per_batch=most)
    again = plan_epoch(src.copy(), tgt.copy(), budget, seed, epoch=3, pairs_per_batch=most)
    assert all(len(batch) <= (most or len(batch)) for batch in plan)
    assert [batch.tolist() for batch in plan] == [batch.tolist() for batch in again]
    for one in (plan, bucket_by_length(src, tgt, budget)):
        assert sorted(np.concatenate(one).tolist()) == list(range(len(lengths)))
        assert all(len(batch) == 1 or len(batch) * longer[batch].max() <= budget for batch in one)


@given(lengths=lengths, share=st.floats(0, 1))
def test_regrouped_batches_are_as_many_as_wanted_and_small(lengths, share):
    src, tgt = np.array(lengths, dtype=np.int32).T
    longer = np.maximum(src, tgt)
    wanted = max(1, round(share * len(lengths)))
    batches = regroup(src, tgt, wanted)
    assert len(batches) == wanted
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    largest = max(len(batch) * longer[batch].max() for batch in batches)
    ordered = np.sort(longer).tolist()
    assert num_batches_within(ordered, largest) <= wanted < num_batches_within(ordered, largest - 1)


def num_batches_within(ordered: list[int], budget: int) -> float:
    """The least number of batches of sentences in this order; infinity if one is too long."""
    count, size = 1, 0
    for length in ordered:
        size += 1
        if size * length > budget:
            count, size = count + 1, 1
        if length > budget:
            return math.inf
    return count


sentences = st.lists(st.integers(4, 99), max_size=9).map(lambda ids: np.array([*ids, EOS_ID]))


@given(
    pairs=st.lists(st.tuples(sentences, sentences), min_size=1, max_size=9), share=st.integers(1, 4)
)
def test_batch_has_its_pairs_and_padding_only(pairs, share):
    src, tgt = zip(*pairs, strict=True)
    batch: Batch = make_batch(SimpleNamespace(src=src, tgt=tgt), range(len(pairs)))  # type: ignore
    for row, (one, other) in enumerate(pairs):
        src_S, tgt_in_T, labels_T = batch.src_BS[row], batch.tgt_in_BT[row], batch.labels_BT[row]
        assert src_S.tolist() == [*one] + [PAD_ID] * (len(src_S) - len(one))
        assert labels_T.tolist() == [*other] + [IGNORE_INDEX] * (len(labels_T) - len(other))
        assert tgt_in_T.tolist() == [BOS_ID, *other[:-1]] + [PAD_ID] * (len(labels_T) - len(other))
    assert batch.num_tokens == sum(map(len, tgt))
    assert batch.num_src_tokens == sum(map(len, src))
    assert batch.num_positions == len(pairs) * (max(map(len, src)) + max(map(len, tgt)))
    parts = [batch.shard(share, first) for first in range(share)]
    assert sum(part.num_tokens for part in parts) == batch.num_tokens
    assert sum(part.num_src_tokens for part in parts) == batch.num_src_tokens


# Long lines


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
@given(
    line=odd_texts,
    limit=st.integers(1, 12),
    tokens=st.integers(1, 12),
    sentences=st.integers(1, 3),
    each=st.booleans(),
)
def test_segmentation_loses_no_text(kind, line, limit, tokens, sentences, each):
    """An identity translator returns the line, except for its white space."""
    tokenizer = TOKENIZERS[kind]
    bounds = Bounds(limit, min(tokens, limit), sentences)
    (pieces,), _ = segment_lines([line], tokenizer, bounds, each=each)
    assert all(0 < len(piece.ids) <= limit for piece in pieces)
    for sentence, parts in itertools.groupby(pieces, key=lambda piece: piece.sentence):
        ids = [token for part in parts for token in part.ids]
        assert ids == tokenizer.to_ids(sentence) * (len(ids) // len(tokenizer.to_ids(sentence)))
    if any(tokenizer.is_byte(token) for piece in pieces for token in (piece.ids[0], piece.ids[-1])):
        return  # half of a character may be in another part
    echoes = [[SegmentResult(piece, piece.ids, 0.0, NOT_SCORED)] for piece in pieces]
    tokenizers = Tokenizers(tokenizer, tokenizer)
    (found,) = merge_segments(line, echoes, tokenizers, Outputs(), is_ranked=False)
    assert "".join(found.text.split()) == "".join(tokenizer.normalize(line).split())
