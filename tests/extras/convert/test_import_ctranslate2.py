"""CTranslate2 models and Argos packages: as its converters and this program write them."""

import json
import re
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from commands import Command
from foreign_models import write_ctranslate2, write_marian_mt
from number_task import FAST, numbers_config
from safetensors.numpy import load_file

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.extras.convert.ctranslate2 import ModelFile, read_model_file
from seq2seq_cli.extras.convert.ctranslate2 import read as read_ctranslate2
from seq2seq_cli.extras.convert.foreign import fit_positions
from seq2seq_cli.extras.convert.missing_rows import IMPOSSIBLE
from seq2seq_cli.extras.export.marian import marian_base
from seq2seq_cli.model.positions import sinusoidal_positions

pytestmark = pytest.mark.filterwarnings("ignore")
SIDES = ("encoder", "decoder")
TYPES = ("float32", "int8", "int16", "int32", "float16", "bfloat16")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one MarianMT model, and what CTranslate2 makes of it."""
    folder = tmp_path_factory.mktemp("converted")
    write_marian_mt(folder / "marian", 3, tags=(">>deu<<", ">>eng<<"))
    for kind in (None, "int8", "int16", "float16", "bfloat16"):
        write_ctranslate2(folder / "marian", folder / str(kind), kind)
    return folder


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, seq2seq: Command) -> Path:
    """A trained run, and its exports."""
    folder = tmp_path_factory.mktemp("exported")
    config = numbers_config(folder, 400)
    config["tokenizer"] = {"kind": "bpe"}
    config["training"] |= {**FAST, "max_steps": 60}
    config["data"]["languages"] = {"src": "de", "tgt": "en"}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert seq2seq("train", folder / "config.yaml", "--run-dir", folder / "run").exit_code == 0
    for name in ("ctranslate2", "argos"):
        output = folder / ("quick.argosmodel" if name == "argos" else name)
        seq2seq("export", folder / "run", "--format", name, "-o", output).ok()
    return folder


def write_model_file(file: ModelFile, path: Path, version: int = 6) -> None:
    """Write variables as CTranslate2 does, without aliases."""

    def text(value: str) -> bytes:
        return struct.pack("<H", len(value.encode()) + 1) + value.encode() + b"\0"

    parts = [
        struct.pack("<I", version),
        text(file.spec),
        struct.pack("<II", 1, len(file.variables)),
    ]
    for name, array in file.variables.items():
        code, count = TYPES.index(array.dtype.name), array.nbytes
        if version < 4:
            code, count = array.dtype.itemsize, array.size
        parts += [text(name), struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)]
        parts += [struct.pack("<BI", code, count), array.tobytes()]
    path.write_bytes(b"".join([*parts, struct.pack("<I", 0)]))


def copied(source: Path, target: Path, *, version: int = 6, **config: object) -> ModelFile:
    """Copy a model without model.bin, whose content is returned; change its config.json."""
    target.mkdir()
    for path in source.iterdir():
        if path.name != "model.bin":
            (target / path.name).write_bytes(path.read_bytes())
    options = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(options | config))
    return read_model_file(source / "model.bin")


@pytest.mark.parametrize("kind", [None, "int8", "int16", "float16", "bfloat16"])
def test_greedy_translations_equal_ctranslate2s(
    kind: str | None, converted: Path, tmp_path: Path, seq2seq: Command
) -> None:
    result = seq2seq("import", converted / str(kind), tmp_path / "run").ok()
    assert re.search(r"(100|9\d) of 100 greedy translations equal CTranslate2's", result.stdout)
    assert ("dequantized" in result.stdout) == (kind in ("int8", "int16"))
    assert "dialect: CTranslate2" in result.stdout
    assert load_config(tmp_path / "run" / "config.yaml").model.source_eos


def test_a_model_whose_encoder_sees_no_eos(
    converted: Path, tmp_path: Path, seq2seq: Command
) -> None:
    """As OpenNMT's models; with a start token of the vocabulary and computed positions."""
    source = tmp_path / "model"
    file = copied(converted / "None", source, add_source_eos=False, decoder_start_token="▁one")
    file.variables.pop("decoder/start_from_zero_embedding")
    for side in ("encoder", "decoder"):
        file.variables.pop(f"{side}/position_encodings/encodings")
        assert file.variables[f"{side}/scale_embeddings"]
    # An older name of the same option, which has no effect where both are there.
    file.variables["decoder/embeddings/multiply_by_sqrt_depth"] = np.array(0, np.int8)
    write_model_file(file, source / "model.bin")
    result = seq2seq("import", source, tmp_path / "run").ok()
    assert "100 of 100 greedy translations equal CTranslate2's" in result.stdout
    options = load_config(tmp_path / "run" / "config.yaml").model
    assert (options.source_eos, options.position_offset) == (False, 1)
    assert options.position_base == pytest.approx(marian_base(options.d_model))


def test_half_of_a_pair_of_sentencepiece_models_is_not_taken_for_both(
    converted: Path, tmp_path: Path, seq2seq: Command
) -> None:
    source = shutil.copytree(converted / "None", tmp_path / "model")
    (source / "source.spm").unlink()
    message = seq2seq("import", source, tmp_path / "run").error()
    assert message == f"error: {source} is not complete: it has no source.spm\n"


def test_a_special_token_is_text(converted: Path, tmp_path: Path, seq2seq: Command) -> None:
    source = tmp_path / "model"
    write_model_file(copied(converted / "None", source, unk_token=["<unk>"]), source / "model.bin")
    message = seq2seq("import", source, tmp_path / "run").error()
    assert "the vocabulary lacks the unk_token ['<unk>']" in message


@pytest.mark.parametrize("version", [3, 4, 5, 6])
def test_older_versions_of_the_format(
    version: int, converted: Path, tmp_path: Path, seq2seq: Command
) -> None:
    source = tmp_path / "model"
    write_model_file(copied(converted / "int8", source), source / "again", version=6)
    file = read_model_file(source / "again")
    write_model_file(file, source / "model.bin", version=version)
    (source / "again").unlink()
    old = read_model_file(source / "model.bin")
    assert all(np.array_equal(old.variables[n], file.variables[n]) for n in file.variables)
    assert seq2seq("import", source, tmp_path / "run", "--no-verify").exit_code == 0


@pytest.mark.parametrize(("flag", "start"), [({}, 5), ({"with_target_bos": 0}, 0)])
def test_version_5_has_special_tokens_among_its_weights(
    flag: dict[str, int], start: int, converted: Path, tmp_path: Path, seq2seq: Command
) -> None:
    source = tmp_path / "model"
    file = copied(converted / "None", source)
    bos = json.loads((source / "shared_vocabulary.json").read_text())[5]
    del file.variables["decoder/start_from_zero_embedding"]
    numbers = {"user_decoder_start_tokens": 0, "with_source_eos": 1, **flag}
    tokens = {"unk_token": "<unk>", "bos_token": bos, "eos_token": "</s>"}
    for name, value in numbers.items():
        file.variables[name] = np.array(value, np.int8)
    for name, token in tokens.items():
        file.variables[name] = np.frombuffer(token.encode(), np.int8)
    write_model_file(file, source / "model.bin", version=5)
    (source / "config.json").unlink()
    found = read_ctranslate2(source)
    assert (found.tgt.start, found.model["source_eos"]) == (start, True)
    file.variables["user_decoder_start_tokens"] += 1
    write_model_file(file, source / "model.bin", version=5)
    message = seq2seq("import", source, tmp_path / "run").error()
    assert "it has a start token that the caller gives" in message


def test_language_codes_around_the_text_are_refused(
    converted: Path, tmp_path: Path, seq2seq: Command
) -> None:
    source = tmp_path / "model"
    file = copied(converted / "None", source, decoder_start_token="</s>")
    del file.variables["decoder/start_from_zero_embedding"]
    write_model_file(file, source / "model.bin")
    assert "as M2M100 and NLLB" in seq2seq("import", source, tmp_path / "run").error()


def test_sentencepiece_models_of_any_name(converted: Path, tmp_path: Path) -> None:
    """Also of the names that this program's exports have."""
    source = shutil.copytree(converted / "None", tmp_path / "model")
    expected = read_ctranslate2(source).sentencepiece
    for names in (("src.model", "tgt.model"), ("tokenizer.model",)):
        for name, old in zip(names, ("source.spm", "target.spm"), strict=False):
            shutil.copyfile(converted / "None" / old, source / name)
            (source / old).unlink(missing_ok=True)
        found = read_ctranslate2(source).sentencepiece
        assert found is not None and found[0] == expected[0]
        assert (found[1] == expected[1]) == (len(names) == 2)
        for name in names:
            (source / name).unlink()


@pytest.mark.parametrize("offset", [0, 1, 2])
@pytest.mark.parametrize("has_halves", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_tables_of_positions_are_recognized(offset: int, has_halves: bool, dtype: str) -> None:
    d_model = 16
    for base in (10_000.0, marian_base(d_model), *([500.0] if dtype == "float32" else [])):
        table = sinusoidal_positions(offset, offset + 300, d_model, base=base).numpy()
        if has_halves:
            table = np.concatenate([table[:, 0::2], table[:, 1::2]], axis=1)
        assert fit_positions(table.astype(dtype), Path("x")) == (has_halves, base, offset)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"encoder/layernorm_embedding/gamma": np.ones(16, np.float32)}, "embedding norm"),
        ({"encoder/layer_0/ffn/linear_0_noact/weight": np.ones((24, 16), np.float32)}, "gated"),
        (
            {"decoder/layer_0/self_attention/relative_position_keys": np.ones((3, 4), np.float32)},
            "relative",
        ),
        (
            {"encoder/layer_0/self_attention/with_relative_position": np.array(1, np.int8)},
            "relative positions",
        ),
        (
            {
                "decoder/layer_0/ffn/linear_0/weight": np.ones((5, 16), np.float32),
                "decoder/layer_0/ffn/linear_0/bias": np.ones(5, np.float32),
                "decoder/layer_0/ffn/linear_1/weight": np.ones((16, 5), np.float32),
            },
            "feed-forward networks of different sizes",
        ),
        ({"encoder/position_encodings/encodings": np.ones((9, 16), np.float32)}, "known sinusoid"),
        ({"encoder/activation": np.array(1, np.int8)}, "activation"),
        ({"decoder/layer_0/self_attention/linear_0/weight": np.ones((5, 16), np.float32)}, "shape"),
        ({"encoder/embeddings_1/weight": np.ones((5, 16), np.float32)}, "features"),
        ({"decoder/scale_alibi": np.array(1, np.int8)}, "scale_alibi"),
        ({f"{side}/num_heads": np.array(0, np.int16) for side in SIDES}, "num_heads must be"),
        ({"encoder/activation": np.array(np.inf, np.float32)}, "activation is not a number"),
        (
            {"decoder/layer_0/attention/queries_scale": np.array(3e38, np.float32)},
            "decoder.0.cross_attention.query.weight contain NaN or infinity",
        ),
    ],
)
def test_what_a_run_cannot_represent_is_refused_by_name(
    change: dict, reason: str, converted: Path, tmp_path: Path, seq2seq: Command
) -> None:
    source = tmp_path / "model"
    file = copied(converted / "None", source)
    write_model_file(file._replace(variables=file.variables | change), source / "model.bin")
    assert reason in seq2seq("import", source, tmp_path / "run").error()
    write_model_file(file._replace(spec="WhisperSpec"), source / "model.bin")
    assert "WhisperSpec" in seq2seq("import", source, tmp_path / "run").stderr


def test_a_file_that_is_cut_off_anywhere_is_refused(
    converted: Path, tmp_path: Path, seq2seq: Command
) -> None:
    source = tmp_path / "model"
    copied(converted / "None", source)
    whole = (converted / "None" / "model.bin").read_bytes()
    sizes = [*range(0, 64, 3), *range(64, len(whole), len(whole) // 40), len(whole) - 1]
    for size in sizes:
        (source / "model.bin").write_bytes(whole[:size])
        assert seq2seq("import", source, tmp_path / "run").exit_code == 2, size
    assert not (tmp_path / "run").exists()


def test_what_ctranslate2_cannot_read_is_refused(
    exported: Path, tmp_path: Path, seq2seq: Command
) -> None:
    source = shutil.copytree(exported / "ctranslate2", tmp_path / "model")
    (source / "config.json").unlink()
    assert "CTranslate2 cannot read" in seq2seq("import", source, tmp_path / "run").error()
    seq2seq("import", source, tmp_path / "run", "--no-verify").ok()


def test_an_exported_run_comes_back(exported: Path, tmp_path: Path, seq2seq: Command) -> None:
    lines = "".join(f"{n} {n % 7} {n % 3}\n" for n in range(10))
    options = ("--beam-size", 1, "--set", "decoding.precision=fp32")
    for option in ("replace_unk=false", "max_len_factor=2", "max_len_extra=20"):
        options = (*options, "--set", f"decoding.{option}")
    expected = seq2seq("translate", exported / "run", *options, stdin=lines).stdout
    (exported / "ctranslate2" / "src.model").touch()  # tokenizer.model counts
    for name in ("ctranslate2", "quick.argosmodel"):
        run = tmp_path / name
        result = seq2seq("import", exported / name, run).ok()
        assert "100 of 100 greedy translations equal CTranslate2's" in result.stdout
        assert seq2seq("translate", run, *options, stdin=lines).stdout == expected
    assert load_file(run / "model.safetensors")["projection.bias"].min() == IMPOSSIBLE
    config = load_config(run / "config.yaml")
    assert (config.data.languages.src, config.data.languages.tgt) == ("de", "en")
    assert (config.decoding.beam_size, config.decoding.length_penalty) == (4, 0.2)
    back = seq2seq("export", run, "--format", "ctranslate2", "-o", tmp_path / "back").ok()
    assert "greedy translations of made-up lines are equal" in back.stdout


def test_rotary_models_and_tags_come_back(tmp_path: Path, seq2seq: Command) -> None:
    """A package has one tag, which CTranslate2 puts before every source."""
    config = numbers_config(tmp_path, 200)
    train = config["data"]["train"]
    config["data"] |= {"train": [{**train, "tag": "<a>"}], "languages": {"src": "de", "tgt": "en"}}
    config["tokenizer"] = {"kind": "bpe"}
    config["model"] |= {"positions": "rotary", "attention_bias": False, "tie_embeddings": False}
    config["training"] |= {**FAST, "max_steps": 20}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    assert seq2seq("train", tmp_path / "config.yaml", "--run-dir", tmp_path / "run").exit_code == 0
    package, again = tmp_path / "tagged.argosmodel", tmp_path / "again"
    flags = ("--format", "argos", "--tag", "<a>", "-o", package)
    seq2seq("export", tmp_path / "run", *flags).ok()
    result = seq2seq("import", package, again).ok()
    assert "100 of 100 greedy translations equal CTranslate2's" in result.stdout
    options = load_config(again / "config.yaml")
    assert (options.model.positions, options.decoding.tag) == ("rotary", "<a>")
    flags = ("--beam-size", 1, "--set", "decoding.precision=fp32")
    for option in ("tag=<a>", "replace_unk=false", "max_len_factor=2", "max_len_extra=20"):
        flags = (*flags, "--set", f"decoding.{option}")
    lines = "1 2 3\n4 4\n9 8 7 6\n"
    ours, theirs = (
        seq2seq("translate", run, *flags, stdin=lines).stdout for run in (tmp_path / "run", again)
    )
    assert ours == theirs


def rewritten(package: Path, output: Path, files: dict[str, bytes | None]) -> Path:
    """Copy a package with other files; None removes one."""
    with zipfile.ZipFile(package) as archive, zipfile.ZipFile(output, "w") as new:
        for name in archive.namelist():
            last = name.rpartition("/")[2]
            content = files.get(last, archive.read(name))
            if content is not None:
                new.writestr(name, content)
        folder = archive.namelist()[0].split("/")[0]
        for name, content in files.items():
            if content is not None and f"{folder}/{name}" not in archive.namelist():
                new.writestr(name if "/" in name else f"{folder}/{name}", content)
    return output


def test_bad_packages_are_refused(exported: Path, tmp_path: Path, seq2seq: Command) -> None:
    package, output = exported / "quick.argosmodel", tmp_path / "bad.argosmodel"
    changes: dict[str, dict[str, bytes | None]] = {
        "no sentencepiece.model": {"sentencepiece.model": None},
        "bpe.model": {"sentencepiece.model": None, "bpe.model": b"a b"},
        "no metadata.json": {"metadata.json": None},
        "it has no metadata.json": {"metadata.json": None, "folder/metadata.json/": b""},
        f"{output}/metadata.json is damaged": {"metadata.json": b"{"},
        f"{output}/sentencepiece.model is damaged": {"sentencepiece.model": b"x"},
        "no model/model.bin": {"model.bin": None},
        "it has the path": {"../evil": b"x"},
    }
    for message, files in changes.items():
        result = seq2seq("import", rewritten(package, output, files), tmp_path / "run")
        assert message in result.error()
    assert not (tmp_path.parent / "evil").exists()
    with zipfile.ZipFile(output, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/model/model.bin", bytes(200 << 20))
    assert "would expand" in seq2seq("import", output, tmp_path / "run").stderr
    for method in (zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2):
        with zipfile.ZipFile(output, "w", method) as archive:
            archive.writestr("x/model/model.bin", bytes(range(256)) * 40)
        content = output.read_bytes()
        output.write_bytes(content[:60] + bytes(20) + content[80:])
        assert "is damaged" in seq2seq("import", output, tmp_path / "run").stderr
    with zipfile.ZipFile(output, "w") as archive:
        archive.writestr("x/ä", "")
    output.write_bytes(output.read_bytes().replace("ä".encode(), b"\xff\xff"))
    assert "is damaged" in seq2seq("import", output, tmp_path / "run").stderr
    whole = package.read_bytes()
    for part in range(1, 12):
        output.write_bytes(whole[: len(whole) * part // 12])
        assert seq2seq("import", output, tmp_path / "run").exit_code == 2
    assert not (tmp_path / "run").exists()
