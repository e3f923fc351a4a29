"""MarianMT models of transformers, random ones: the same logits, tokens and translations."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from commands import Command
from foreign_models import WORDS, write_marian_mt
from hub_server import Repository, running_hub
from safetensors.torch import load_file, save_file
from served import serving

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.model.positions import sinusoidal_positions

pytestmark = pytest.mark.filterwarnings("ignore")

TAGS = (">>deu<<", ">>eng<<")
VARIANTS = [
    {},
    {"shared": False},
    {"odd_ids": True},
    {"tags": TAGS},
    {"half": True},
    {"pickled": True},
    {"sharded": True, "half": True},
    {"sharded": True, "pickled": True},
    {"activation_function": "relu"},
    {"activation_function": "gelu"},
    {"activation_function": "quick_gelu"},
    {"scale_embedding": False},
    {"bias": False, "missing": 0.0},
    {"missing": 0.3},
    {"shared": False, "odd_ids": True},
    {"shared": False, "half": True, "scale_embedding": False},
    {"tags": TAGS, "odd_ids": True, "half": True},
    {"odd_ids": True, "activation_function": "relu"},
    {"shared": False, "pickled": True, "activation_function": "gelu"},
    {"tags": TAGS, "missing": 0.2, "scale_embedding": False},
    {"odd_ids": True, "pickled": True, "half": True},
    {"shared": False, "odd_ids": True, "missing": 0.2, "activation_function": "quick_gelu"},
    {"tie_word_embeddings": False, "activation_function": "relu"},
]


def lines_of(count: int) -> list[str]:
    return [
        " ".join(WORDS[(3 * n + k) % len(WORDS)] for k in range(1 + n % 6)) for n in range(count)
    ]


@pytest.mark.parametrize("seed", range(len(VARIANTS)))
def test_an_import_has_the_logits_and_translations_of_transformers(
    seed: int, tmp_path: Path, seq2seq: Command
) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    options = VARIANTS[seed]
    source, run = tmp_path / "model", tmp_path / "run"
    write_marian_mt(source, seed, **options)
    result = seq2seq("import", source, run).ok()
    assert "logits of 100 sentences equal transformers'" in result.stdout
    assert "dialect: Hugging Face" in result.stdout
    assert ("half precision" in result.stdout) == ("half" in options)

    lines = lines_of(6)
    if "tags" in options:
        lines = [f"{TAGS[n % 2]} {line}" for n, line in enumerate(lines)]
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForSeq2SeqLM.from_pretrained(source, dtype=torch.float32).eval()
    ids = json.loads((source / "target_vocab.json").read_text()) if "shared" in options else None
    unk = tokenizer.unk_token_id if ids is None else ids["<unk>"]
    expected = []
    for line in lines:
        output = model.generate(
            **tokenizer(line, return_tensors="pt"),
            num_beams=1,
            max_new_tokens=20,
            suppress_tokens=[unk, model.config.pad_token_id],
            forced_eos_token_id=None,
        )
        unseen = {
            model.config.eos_token_id,
            *tokenizer.convert_tokens_to_ids(options.get("tags", ())),
        }
        tokens = [token for token in output[0, 1:].tolist() if token not in unseen]
        expected.append(" ".join(tokenizer.decode(tokens).split()))
    flags = ("--beam-size", 1, "--set", "decoding.precision=fp32")
    limit = ("--set", "decoding.max_len_extra=20")
    done = seq2seq("translate", run, *flags, *limit, stdin="".join(f"{x}\n" for x in lines)).ok()
    found = done.stdout.splitlines()
    assert expected == found


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory, seq2seq: Command) -> Path:
    """A MarianMT model with tags, `model`, and the run made of it, `run`."""
    folder = tmp_path_factory.mktemp("imported")
    options = {"num_beams": 3, "length_penalty": 0.8, "max_length": 30}
    write_marian_mt(folder / "model", 5, tags=TAGS, generation=options)
    assert seq2seq("import", folder / "model", folder / "run").exit_code == 0
    return folder


def test_generation_settings_come_along(imported: Path) -> None:
    config = load_config(imported / "run" / "config.yaml")
    assert (config.decoding.beam_size, config.decoding.length_penalty) == (3, 0.8)
    assert config.decoding.max_length(1_000) == 28  # without the start token and EOS
    assert (config.data.languages.src, config.data.languages.tgt) == ("de", "en")
    assert json.loads((imported / "run" / "manifest.json").read_text())["imported"]["notes"] == []


def test_an_export_takes_a_tag_in_angle_brackets(
    imported: Path, tmp_path: Path, seq2seq: Command
) -> None:
    given = ("export", imported / "run", "--format", "ctranslate2", "--output", tmp_path / "export")
    seq2seq(*given, "--tag", TAGS[0]).ok()


def test_a_text_to_compare_with_has_lines(imported: Path, tmp_path: Path, seq2seq: Command) -> None:
    (tmp_path / "text").write_text("\n \n")
    options = ("--text", tmp_path / "text")
    message = seq2seq("import", imported / "model", tmp_path / "run", *options).error()
    assert message == f"error: there is no text in {tmp_path / 'text'}\n"
    given = ("import", imported / "model", tmp_path / "run", *options, "--no-verify")
    assert "--text is for the comparison, which --no-verify leaves out" in seq2seq(*given).error()
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def trimmed(imported: Path, seq2seq: Command) -> Path:
    """The run with the vocabulary of a text alone, `trimmed` in the folder."""
    text = imported / "text.de"
    text.write_text("".join(f"{line}\n" for line in lines_of(6)))
    seq2seq("trim", imported / "run", "--text", text, "--output", imported / "trimmed").ok()
    return imported


@pytest.mark.parametrize("name", ["run", "trimmed"])
def test_every_command_works_on_an_imported_run(
    name: str, trimmed: Path, tmp_path: Path, seq2seq: Command
) -> None:
    run, lines = trimmed / name, lines_of(6)
    for side in ("src", "ref"):
        (tmp_path / side).write_text("".join(f"{line}\n" for line in lines))
    text = ("--src", tmp_path / "src", "--ref", tmp_path / "ref")
    for command in (
        ("translate", run, "--tag", TAGS[0], *lines[:2]),
        ("eval", run, *text),
        ("score", run, *text),
        ("inspect", run),
        ("attend", run, lines[3], "--output", tmp_path / "attention.html"),
    ):
        seq2seq(*command).ok()


@pytest.mark.filterwarnings("ignore")
def test_cards_name_the_model_that_a_run_comes_from(
    trimmed: Path, tmp_path: Path, seq2seq: Command
) -> None:
    lines = "".join(f"{line}\n" for line in lines_of(6))
    for side in ("src", "tgt"):
        (tmp_path / side).write_text(lines)
    data = {"train": {"src": str(tmp_path / "src"), "tgt": str(tmp_path / "tgt"), "tag": TAGS[0]}}
    config, tuned = tmp_path / "config.yaml", tmp_path / "tuned"
    config.write_text(yaml.safe_dump({"data": data, "training": {"max_steps": 1}}))
    seq2seq("train", config, "--run-dir", tuned, "--from", trimmed / "run").ok()
    cards = []
    for number, run in enumerate((trimmed / "run", trimmed / "trimmed", tuned)):
        output = tmp_path / str(number)
        seq2seq("export", run, "--format", "ctranslate2", "--output", output).ok()
        cards.append((output / "README.md").read_text())
        assert "was trained with" not in cards[-1]
        assert str(trimmed) not in cards[-1]
        assert "The licenses of the imported model and the training data" in cards[-1]
    imported, smaller, fine_tuned = cards
    assert "was imported from `model` with seq2seq-cli" in imported
    assert "the text that it was trained on is not known here" in imported
    assert "was made from `run` by reducing its vocabulary with seq2seq-cli" in smaller
    assert "was fine-tuned from `run` with seq2seq-cli" in fine_tuned
    assert "Fine-tuned on 6 pairs from:\n\n- `src` and `tgt`" in fine_tuned
    for card in (smaller, fine_tuned):
        assert "`run` derives from the imported `model`." in card
    for card in (imported, smaller):
        assert f"has the symbols {', '.join(f'`{tag}`' for tag in TAGS)}, which may be" in card


def test_an_imported_run_is_served(trimmed: Path) -> None:
    """As it is, and trimmed, by one server; a tag is no word of the text."""
    runs = (trimmed / "run", "--langs", "de-en", trimmed / "trimmed", "--langs", "en-de")
    with serving(*runs, "--processes", 1) as served:
        for source, target in (("de", "en"), ("en", "de")):
            for text, words in (
                (f"{TAGS[0]} eins zwei", [[8, 12], [13, 17]]),
                (f"{TAGS[0]}eu", [[7, 9]]),
            ):
                answer = served.translate(text, source=source, target=target, attention=True)
                (sentence,) = answer["sentences"]
                assert sentence["sourceWords"] == words
                assert {len(row) for row in sentence["attention"]} <= {len(words)}


def test_an_imported_run_is_not_resumed(imported: Path, seq2seq: Command) -> None:
    run = imported / "run"
    assert "train --from" in seq2seq("train", run / "config.yaml", "--run-dir", run).error()


def test_bad_words_come_along(tmp_path: Path, seq2seq: Command) -> None:
    """Words are banned; what is no word is noted; padding is impossible anyway."""
    write_marian_mt(tmp_path / "model", 6, missing=0.0)
    ids = json.loads((tmp_path / "model" / "vocab.json").read_text())
    path = tmp_path / "model" / "generation_config.json"
    bad = [[ids["<pad>"]], [ids["▁seven"]], [ids["s"]]]
    given = {"bad_words_ids": bad, "suppress_tokens": [ids["▁two"], ids["<pad>"]]}
    path.write_text(json.dumps(json.loads(path.read_text()) | given))
    result = seq2seq("import", tmp_path / "model", tmp_path / "run").ok()
    assert load_config(tmp_path / "run" / "config.yaml").decoding.banned_words == ("seven", "two")
    assert f"the tokens [{ids['s']}] of bad_words_ids are no word" in result.stdout
    assert f"[{ids['<pad>']}]" not in result.stdout


def test_further_search_options_come_along_or_are_named(tmp_path: Path, seq2seq: Command) -> None:
    write_marian_mt(tmp_path / "model", 6, missing=0.0)
    path = tmp_path / "model" / "generation_config.json"
    given = {"min_length": 4, "num_beam_groups": 2, "encoder_no_repeat_ngram_size": 3}
    given |= {"length_penalty": "x" * 1_000, "begin_suppress_tokens": [3], "typical_p": 1.0}
    path.write_text(json.dumps(json.loads(path.read_text()) | given))
    result = seq2seq("import", tmp_path / "model", tmp_path / "run", "--no-verify").ok()
    assert load_config(tmp_path / "run" / "config.yaml").decoding.min_len_extra == 3
    options = "num_beam_groups 2", "encoder_no_repeat_ngram_size 3", "begin_suppress_tokens [3]"
    for option in options:
        assert f"{option} has no equivalent" in result.stdout
    assert "length_penalty xxx" in result.stdout and "x" * 1_000 not in result.stdout


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"top_k": 10, "top_p": 0.9, "temperature": 0.7}, (True, 10, 0.9, 0.7)),
        ({}, (True, 50, 1.0, 1.0)),  # of transformers
        ({"top_k": 0}, (True, None, 1.0, 1.0)),
        ({"num_beams": 4}, (False, None, 1.0, 1.0)),
    ],
)
def test_sampling_comes_along(tmp_path: Path, seq2seq: Command, given, expected) -> None:
    write_marian_mt(tmp_path / "model", 6, missing=0.0)
    path = tmp_path / "model" / "generation_config.json"
    given = {"num_beams": 1, "do_sample": True, **given}
    path.write_text(json.dumps(json.loads(path.read_text()) | given))
    result = seq2seq("import", tmp_path / "model", tmp_path / "run", "--no-verify").ok()
    found = load_config(tmp_path / "run" / "config.yaml").decoding
    assert (found.sampling, found.top_k, found.top_p, found.temperature) == expected
    assert ("do_sample with num_beams has no equivalent" in result.stdout) != found.sampling


def test_logits_of_impossible_tokens_have_no_tolerance_to_meet(
    imported: Path, tmp_path: Path, seq2seq: Command
) -> None:
    """Exports for CTranslate2 have such biases; numbers of fp32 are 0.001 apart there."""
    source = shutil.copytree(imported / "model", tmp_path / "model")
    weights = load_file(source / "model.safetensors")
    weights["final_logits_bias"][0, ::2] -= 1e4
    save_file(weights, source / "model.safetensors")
    result = seq2seq("import", source, tmp_path / "run")
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("kind", ["t5", "mbart", "m2m_100", "pegasus", "bert"])
def test_other_architectures_are_refused_by_name(
    kind: str, imported: Path, tmp_path: Path, seq2seq: Command
) -> None:
    source = shutil.copytree(imported / "model", tmp_path / "model")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"model_type": kind}))
    (source / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": f"{kind}'s"}))
    assert f"model_type {kind}" in seq2seq("import", source, tmp_path / "run").error()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer_config.json", {"sp_model_kwargs": 5}),
        ("generation_config.json", {"watermarking_config": 5}),
    ],
)
def test_what_transformers_cannot_read_is_refused(
    name: str, change: dict, imported: Path, tmp_path: Path, seq2seq: Command
) -> None:
    source = shutil.copytree(imported / "model", tmp_path / "model")
    (source / name).write_text(json.dumps(json.loads((source / name).read_text()) | change))
    assert "transformers cannot read" in seq2seq("import", source, tmp_path / "run").error()


def test_broken_files_are_refused(imported: Path, tmp_path: Path, seq2seq: Command) -> None:
    source = shutil.copytree(imported / "model", tmp_path / "model")

    def message() -> str:
        result = seq2seq("import", source, tmp_path / "run", "--no-verify")
        assert result.exit_code in (0, 2)
        return result.stderr

    def is_refused() -> bool:
        return bool(message())

    for name in ("config.json", "vocab.json", "source.spm", "target.spm", "model.safetensors"):
        whole = (source / name).read_bytes()
        for part in range(0, 10, 3):
            (source / name).write_bytes(whole[: len(whole) * part // 10])
            assert is_refused(), (name, part)
        (source / name).unlink()
        assert is_refused(), name
        (source / name).write_bytes(whole)
    config = json.loads((source / "config.json").read_text())
    for change in (
        {"d_model": 32},
        {"d_model": -4},
        {"vocab_size": 10**12},
        {"encoder_layers": 10**9},
        {"encoder_attention_heads": 3, "decoder_attention_heads": 3},
        {"decoder_start_token_id": 10**6},
        {"eos_token_id": "x"},
        {"activation_function": "gelu_new"},
        {"activation_function": ["swish"]},
    ):
        (source / "config.json").write_text(json.dumps(config | change))
        assert is_refused(), change
        assert ".part" not in message()
    (source / "config.json").write_text(json.dumps(config | {"bad_words_ids": 5}))
    (source / "tokenizer_config.json").write_text('{"unk_token": ["<unk>"]}')
    assert is_refused()
    (source / "tokenizer_config.json").unlink()
    assert not is_refused()
    assert is_refused(), "the run exists"


def test_weights_that_are_not_whole_floats_are_refused(
    imported: Path, tmp_path: Path, seq2seq: Command
) -> None:
    source, name = shutil.copytree(imported / "model", tmp_path / "model"), "final_logits_bias"
    weights = load_file(source / "model.safetensors")
    (source / "model.safetensors").unlink()
    bias = weights[name]
    for bad in (
        bias.to_sparse(),
        bias.to("meta"),
        bias.to(torch.complex64),
        bias.to(torch.int8),
        torch.quantize_per_tensor(bias, 0.1, 0, torch.qint8),
        torch.zeros(1).expand(1 << 40),
    ):
        torch.save(weights | {name: bad}, source / "pytorch_model.bin")
        message = seq2seq("import", source, tmp_path / "run", "--no-verify").error()
        assert f"{name} is not a complete floating-point tensor" in message
    parameters = {name: torch.nn.Parameter(weight) for name, weight in weights.items()}
    torch.save(parameters, source / "pytorch_model.bin")
    assert seq2seq("import", source, tmp_path / "run", "--no-verify").exit_code == 0
    run, other = tmp_path / "run", imported / "run"
    assert (run / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ([np.zeros((0, 16))] * 2, "its table of positions does not fit"),
        (
            [sinusoidal_positions(offset, offset + 9, 16) for offset in (0, 1)],
            "different positions",
        ),
    ],
)
def test_other_tables_of_positions_are_refused(
    tables: list[np.ndarray | torch.Tensor],
    reason: str,
    imported: Path,
    tmp_path: Path,
    seq2seq: Command,
) -> None:
    source = shutil.copytree(imported / "model", tmp_path / "model")
    weights = load_file(source / "model.safetensors")
    for side, table in zip(("encoder", "decoder"), tables, strict=True):
        weights[f"model.{side}.embed_positions.weight"] = torch.as_tensor(table, dtype=torch.float)
    save_file(weights, source / "model.safetensors")
    assert reason in seq2seq("import", source, tmp_path / "run", "--no-verify").error()


def test_indexes_of_several_files_are_not_trusted(tmp_path: Path, seq2seq: Command) -> None:
    """They name files of the folder only, all of which must be there."""
    source, outside = tmp_path / "model", tmp_path / "outside.safetensors"
    write_marian_mt(source, 1, sharded=True)
    index = source / "model.safetensors.index.json"
    table = json.loads(index.read_text())["weight_map"]
    name, file = next(iter(table.items()))
    outside.write_bytes((source / file).read_bytes())
    long = "x" * 10_000
    for given in ("../outside.safetensors", str(outside), "..", "", "a\0b", long, "config.json", 3):
        index.write_text(json.dumps({"weight_map": table | {name: given}}))
        result = seq2seq("import", source, tmp_path / "run", "--no-verify")
        assert result.exit_code == 2, given
        assert "Traceback" not in result.stderr
    for content in ("[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'):
        index.write_text(content)
        assert seq2seq("import", source, tmp_path / "run", "--no-verify").exit_code == 2, content
    index.write_text(json.dumps({"weight_map": table}))
    (source / file).unlink()
    result = seq2seq("import", source, tmp_path / "run", "--no-verify")
    assert f"its folder has no file {file}" in result.stderr


@pytest.mark.parametrize("options", [{}, {"sharded": True}, {"pickled": True, "sharded": True}])
def test_a_model_is_imported_from_a_hub_by_its_name(
    options: dict[str, bool], tmp_path: Path, seq2seq: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is the one of the folder; what is not read is not downloaded."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    write_marian_mt(tmp_path / "model", 1, **options)
    files = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    with running_hub() as hub:
        repository = hub.repositories["someone/opus"] = Repository(is_private=False)
        repository.commit("main", {**files, "tf_model.h5": b"for TensorFlow"})
        seq2seq("import", "someone/opus", tmp_path / "run", "--no-verify").ok()
        assert not [request for request in hub.requests if "tf_model.h5" in request]
        missing = seq2seq("import", "someone/else", tmp_path / "other")
    assert "the hub has no repository someone/else" in missing.error()
    monkeypatch.chdir(tmp_path)
    mistyped = seq2seq("import", "cache/opus", tmp_path / "other")
    assert mistyped.stderr == "error: there is no file or folder cache/opus to import\n"
    assert seq2seq("import", tmp_path / "model", tmp_path / "local", "--no-verify").exit_code == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("run", "local")]
    assert weights[0] == weights[1]


def test_a_pickle_is_not_executed(imported: Path, tmp_path: Path, seq2seq: Command) -> None:
    source = shutil.copytree(imported / "model", tmp_path / "model")
    (source / "model.safetensors").unlink()
    program = b"cos\nsystem\n(S'touch " + str(tmp_path / "executed").encode() + b"'\ntR."
    (source / "pytorch_model.bin").write_bytes(program)
    assert "is damaged" in seq2seq("import", source, tmp_path / "run").error()
    assert not (tmp_path / "executed").exists()
