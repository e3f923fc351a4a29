"""Random damage to bytes, to trees of plain data, and to files."""

import copy
import json
import re
import shutil
from pathlib import Path
from random import Random
from typing import Any

DEEP = 3_000

# Values that options, fields and cells do not expect.
ODD_VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 3, 7, 1.5, -0.0, 1e-320, 1e308, 10**9, 2**31, 2**63, 10**30),
    *(float("inf"), float("-inf"), float("nan"), "", " ", "x", "auto", "1e-3", "\x00"),
    *("\ud800", "a\nb", "é" * 300, "../..", "/", "/dev/null", "/dev/zero", ".", "~", "x" * 5_000),
    *([], {}, [None], [[]], {"": None}, {"x": {"y": 1}}, [1, 2, 3], {"encoder": 1}, "%s %d {0}"),
]

# At the edges of what options accept, and choices of some.
LIKELY_VALUES: list[Any] = [
    *(True, False, None, 0, 1, 2, 3, 7, 40, 1_000, 65_536, 100_000, 2**31 - 1, 2**63 - 1),
    *(0.0, 1e-320, 0.001, 0.5, 0.999999999, 1.0, 10.0, 1_000.0, 1e38, 1e300, {"encoder": 3}),
    *("auto", "fp32", "bf16", "int8", "cpu", "cuda", "word", "char", "bpe", "unigram", "nfkc_cf"),
    *(
        "gnmt",
        "power",
        "skip",
        "post",
        "gelu",
        "adam",
        "cosine",
        ["two"],
        ["6", "你"],
        "zh",
        "loss",
    ),
]

# Pieces of YAML, JSON, TSV and numbers that parsers have stumbled over.
WORDS = [
    *(
        b"\x00",
        b"\n",
        b"\r",
        b"\t",
        b"\xff",
        b"\xfe\xff",
        b"\xef\xbb\xbf",
        b"\xc2\x85",
        b"\xe2\x80\xa8",
    ),
    *(b":", b": ", b"- ", b"? ", b"&a ", b"*a", b"<<: ", b"!!", b"| ", b"> ", b"#", b"%YAML 9.9\n"),
    *(
        b"---\n",
        b"...\n",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b'"',
        b"'",
        b"\\",
        b'"\\ud800"',
        b'"\\x00"',
    ),
    *(b"!!int abc", b'!!int ""', b'!!float ""', b"!!bool x", b"!!timestamp x", b"!!binary x"),
    *(b"!!timestamp 2020-99-99", b"!!set {a}", b"!!omap [a: 1]", b"!!python/object:os.system x"),
    *(b"!!str", b"!!map", b"!!seq", b"!!null", b"!!merge x", b"? [a]\n: b\n", b"? {a: b}\n: c\n"),
    *(
        b"0x" + b"f" * 5_000,
        b"9" * 5_000,
        b"1:" * 30 + b"1",
        b"0b",
        b"0o9",
        b"1_0",
        b"1e999",
        b"-.inf",
    ),
    *(b".nan", b"NaN", b"Infinity", b"-1", b"1e-320", b"~", b"null", b"=", b"yes", b"2020-01-01"),
    *(b"[" * DEEP, b"{a: " * DEEP, b"- " * DEEP, b'{"src":' * DEEP, b"a.b.c=1", b"model.layers"),
]


def damaged_bytes(random: Random, data: bytes) -> bytes:
    """Apply one to four small random changes."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        start, end = sorted(random.randint(0, len(data)) for _ in range(2))
        short = slice(start, min(end, start + random.choice((1, 4, 40, len(data)))))
        accident = random.choice(("bit", "byte", "cut", "copy", "word", "value", "noise", "end"))
        if accident == "bit" and start < len(data):
            flipped = data[start] ^ 1 << random.randrange(8)
            data = data[:start] + bytes([flipped]) + data[start + 1 :]
        elif accident == "byte":
            data = data[:start] + random.randbytes(1) + data[start + 1 :]
        elif accident == "cut":
            data = data[: short.start] + data[short.stop :]
        elif accident == "copy":
            data = data[:end] + data[short] + data[end:]
        elif accident == "word":
            data = data[:start] + random.choice(WORDS) + data[random.choice((start, short.stop)) :]
        elif accident == "value" and (
            values := list(re.finditer(rb"(?<=: )[^,}\n]+|(?<==).*", data))
        ):
            start, end = random.choice(values).span()
            data = data[:start] + random.choice(WORDS) + data[end:]
        elif accident == "noise":
            data = data[:start] + random.randbytes(random.randint(1, 20)) + data[start:]
        elif accident == "end":
            data = data[:start]
    return data


def damaged_tree(random: Random, tree: Any) -> Any:
    """Return a copy of plain data with one to three values, names or sections changed."""
    tree = json.loads(json.dumps(tree))
    for _ in range(random.choice((1, 1, 2, 3))):
        node = tree
        while isinstance(node, dict | list) and node:
            place = random.choice(list(node) if isinstance(node, dict) else range(len(node)))
            inner = node[place]
            if not isinstance(inner, dict | list) or not inner or random.random() < 0.15:
                _damage_entry(random, node, place)
                break
            node = inner
    return tree


def _damage_entry(random: Random, node: Any, place: Any) -> None:
    accident = random.choice(("value", "value", "value", "near", "gone", "name"))
    value = node[place]
    if accident == "near" and isinstance(value, int | float):
        node[place] = random.choice(
            (value + 1, value - 1, -value, value * 1_000, value / 3, str(value))
        )
    elif accident == "gone":
        del node[place]
    elif accident == "name" and isinstance(node, dict):
        node[random.choice((f"{place}s", str(place)[:-1], "", "x", f"{place}.{place}"))] = node.pop(
            place
        )
    else:
        # A copy: the next damage may be to this value, or put it into itself.
        node[place] = copy.deepcopy(random.choice(random.choice((ODD_VALUES, LIKELY_VALUES))))


def damage_file(random: Random, path: Path) -> None:
    """Damage a file as disks, copying and people do."""
    accident = random.choice(("bytes",) * 5 + ("empty", "gone", "folder", "other", "zeros", "half"))
    data = path.read_bytes()
    if accident == "gone":
        path.unlink()
    elif accident == "folder":
        path.unlink()
        path.mkdir()
    elif accident == "other":
        others = [other for other in path.parent.iterdir() if other.is_file() and other != path]
        if others:
            shutil.copyfile(random.choice(sorted(others)), path)
    else:
        changed = {
            "empty": b"",
            "zeros": bytes(len(data)),
            "half": data[: len(data) // 2],
            "bytes": damaged_bytes(random, data),
        }
        path.write_bytes(changed[accident])


def damaged_safetensors(random: Random, data: bytes) -> bytes:
    """Change the header as JSON, or put NaN and infinity among the weights."""
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    if random.random() < 0.5:
        header = damaged_tree(random, header)
    else:
        number = random.choice((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f"))
        place = random.randrange(max(1, len(body) // 4)) * 4
        count = random.choice((1, 1, 50, len(body) // 4))
        body = body[:place] + (number * count)[: len(body) - place] + body[place + 4 * count :]
    text = json.dumps(header, default=str).encode()
    return len(text).to_bytes(8, "little") + text + body


def damaged_vocabulary(random: Random, data: bytes) -> bytes:
    """Return a valid SentencePiece file with changed pieces or settings."""
    from sentencepiece import sentencepiece_model_pb2

    model = sentencepiece_model_pb2.ModelProto.FromString(data)
    for _ in range(random.choice((1, 2, 5))):
        piece = random.choice([piece for piece in model.pieces if piece.type == piece.NORMAL])
        accident = random.choice(("text", "text", "type", "score", "kind", "map", "ids"))
        if accident == "text":
            odd = ("", "▁", "\n", "\x00", "a\tb", "<0x41>", "<s>", "x" * 9_999, "\u2028", "zero")
            piece.piece = random.choice(odd)
        elif accident == "type":
            piece.type = random.choice((2, 3, 4, 5))
        elif accident == "score":
            piece.score = random.choice((float("nan"), float("inf"), -1e30, 0.0))
        elif accident == "kind":
            model.trainer_spec.model_type = random.randint(1, 4)
            model.trainer_spec.byte_fallback = random.random() < 0.5
        elif accident == "map":
            charsmap = model.normalizer_spec.precompiled_charsmap or b"\x04\x00\x00\x00abcd"
            model.normalizer_spec.precompiled_charsmap = damaged_bytes(random, charsmap)
        else:
            name = random.choice(("unk_id", "bos_id", "eos_id", "pad_id"))
            setattr(model.trainer_spec, name, random.choice((-1, 0, 5, 10**6)))
    return model.SerializeToString()
