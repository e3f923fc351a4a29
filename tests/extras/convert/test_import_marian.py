"""Models of the original Marian, random ones: equal to CTranslate2's conversion, and to Marian."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import Command
from foreign_models import SHAPE, write_marian

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.extras.convert.marian import read_vocabulary
from seq2seq_cli.model.positions import sinusoidal_positions

VARIANTS = [
    {},
    {"shared": False},
    {"norm": "pre", "activation": "relu"},
    {"norm": "pre", "shared": False, "activation": "gelu"},
]


@pytest.mark.parametrize("number", range(len(VARIANTS)))
def test_greedy_translations_equal_ctranslate2s(
    number: int, tmp_path: Path, seq2seq: Command
) -> None:
    write_marian(tmp_path / "model", number, **VARIANTS[number])
    result = seq2seq("import", tmp_path / "model", tmp_path / "run", "--langs", "de-en").ok()
    assert "100 of 100 greedy translations equal CTranslate2's" in result.stdout
    assert "dialect: Marian" in result.stdout
    config = load_config(tmp_path / "run" / "config.yaml")
    assert (config.data.languages.src, config.data.languages.tgt) == ("de", "en")
    assert (config.decoding.beam_size, config.decoding.length_penalty) == (6, 0.6)
    assert config.model.norm_epsilon == 1e-9


def test_positions_are_marians_own(tmp_path: Path, seq2seq: Command) -> None:
    """Its increment of the logarithm of rates is log(10000) / (d/2 - 1)."""
    write_marian(tmp_path / "model", 1)
    assert seq2seq("import", tmp_path / "model", tmp_path / "run", "--no-verify").exit_code == 0
    options = load_config(tmp_path / "run" / "config.yaml").model
    half = SHAPE["d_model"] // 2
    increment = np.log(10_000) / (half - 1)
    angles = np.arange(50)[:, None] * np.exp(-increment * np.arange(half))
    ours = sinusoidal_positions(0, 50, SHAPE["d_model"], base=options.position_base).numpy()
    assert np.abs(ours[:, 0::2] - np.sin(angles)).max() < 1e-5
    assert np.abs(ours[:, 1::2] - np.cos(angles)).max() < 1e-5


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"}, "SSRU"),
        ({"transformer-decoder-autoreg": "average-attention"}, "average-attention"),
        ({"transformer-tied-layers": [1, 1]}, "tied layers"),
        ({"transformer-train-position-embeddings": True}, "learned positions"),
        ({"transformer-postprocess-emb": "nd"}, "embedding norm"),
        ({"transformer-preprocess": "d"}, "order of operations"),
        ({"type": "s2s"}, "s2s"),
        ({"transformer-ffn-depth": 3}, "another depth"),
        ({"transformer-ffn-activation": ["swish"]}, "the activation ['swish']"),
        ({"transformer-ffn-activation": "silu"}, "the activation silu"),
    ],
)
def test_what_a_run_cannot_represent_is_refused_by_name(
    options: dict, reason: str, tmp_path: Path, seq2seq: Command
) -> None:
    write_marian(tmp_path / "model", 1, **options)
    assert reason in seq2seq("import", tmp_path / "model", tmp_path / "run").error()
    assert not (tmp_path / "run").exists()


def test_bpe_of_moses_tokens_is_refused_by_name(tmp_path: Path, seq2seq: Command) -> None:
    write_marian(tmp_path / "model", 1)
    for side in ("source", "target"):
        (tmp_path / "model" / f"{side}.spm").rename(tmp_path / "model" / f"{side}.bpe")
    assert "it has source.bpe" in seq2seq("import", tmp_path / "model", tmp_path / "run").error()


def test_a_model_of_an_odd_size_is_refused(
    tmp_path: Path, seq2seq: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SHAPE, "d_model", 15)
    write_marian(tmp_path / "model", 1, **{"transformer-heads": 3})
    message = seq2seq("import", tmp_path / "model", tmp_path / "run").error()
    assert "cannot become a run: d_model is 15" in message


NARROW = {"decoder_l1_ffn_W1": (16, 5), "decoder_l1_ffn_b1": (1, 5), "decoder_l1_ffn_W2": (5, 16)}


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({"encoder_Wemb": ()}, "encoder_Wemb has the shape []"),
        ({"decoder_Wemb": ()}, "decoder_Wemb has the shape []"),
        ({"encoder_l1_ffn_b1": ()}, "encoder_l1_ffn_b1 has the shape []"),
        (NARROW, "feed-forward networks of different sizes"),
    ],
)
def test_arrays_of_other_shapes_are_refused(
    shapes: dict[str, tuple[int, ...]], reason: str, tmp_path: Path, seq2seq: Command
) -> None:
    path = tmp_path / "model" / "model.npz"
    write_marian(path.parent, 1, shared=False)
    changed = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    with np.load(path) as arrays:
        np.savez(path, **{**arrays, **changed})
    assert reason in seq2seq("import", path.parent, tmp_path / "run").error()


def test_bad_archives_are_refused(tmp_path: Path, seq2seq: Command) -> None:
    """Files that are cut off anywhere, expand without bound, or hold pickles."""
    folder = tmp_path / "model"
    write_marian(folder, 1)
    path = folder / "model.npz"
    whole = path.read_bytes()
    pickled = np.array([{"a": 1}], dtype=object)
    contents = [whole[: len(whole) * n // 12] for n in range(12)]
    for content in contents:
        path.write_bytes(content)
        assert seq2seq("import", folder, tmp_path / "run").exit_code == 2
    np.savez(path, bomb=pickled, allow_pickle=True)
    assert seq2seq("import", folder, tmp_path / "run").exit_code == 2
    np.savez_compressed(path, bomb=np.zeros(30_000_000, np.float32))
    assert "would expand" in seq2seq("import", folder, tmp_path / "run").stderr
    assert not (tmp_path / "run").exists()


def test_vocabularies_are_read_as_they_are_written(tmp_path: Path) -> None:
    """Also entries that YAML takes for other types, in all styles of quoting."""
    entries = [
        "</s>",
        "<unk>",
        "~",
        "true",
        "1",
        'a"b',
        "it's",
        "\\",
        ":",
        "a: b",
        "\u2028",
        "=",
        "#",
    ]
    path = Path("vocab.yml")
    numbered = {entry: number for number, entry in enumerate(entries)}
    double = "".join(f"{json.dumps(entry)}: {n}\n" for entry, n in numbered.items())
    assert read_vocabulary(double, path) == numbered
    single = "".join("'{}': {}\n".format(e.replace("'", "''"), n) for e, n in numbered.items())
    assert read_vocabulary(single, path) == numbered
    assert read_vocabulary(json.dumps(numbered), path) == numbered
    complex_keys = "".join(f"? {json.dumps(e)}\n: {n}\n" for e, n in numbered.items())
    assert read_vocabulary(complex_keys, path) == numbered
    plain = {"▁der": 0, "1": 1, "true": 2}
    assert read_vocabulary(yaml.safe_dump({"▁der": 0}, allow_unicode=True), path) == {"▁der": 0}
    assert read_vocabulary("".join(f"{e}: {n}\n" for e, n in plain.items()), path) == plain
