"""seq2seq inspect on trained runs: the page, its options, and what it refuses."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import Command, logged_points
from number_task import numbers_config, write_config

from seq2seq_cli import Translator
from seq2seq_cli.extras.inspect.trace import trace_sentence


@pytest.fixture(scope="module")
def shared(tmp_path_factory, seq2seq: Command) -> Path:
    """A run with one bpe vocabulary, a deep encoder and post-norm, that keeps two steps."""
    folder = tmp_path_factory.mktemp("shared")
    config = numbers_config(folder, max_steps=4, warmup_steps=2, save_every=2, keep_every=2)
    config["tokenizer"] = {"kind": "bpe", "vocab_size": 300, "user_defined_symbols": ["<2en>"]}
    layers = {"encoder": 3, "decoder": 1}
    config["model"] = {"d_model": 16, "heads": 2, "d_ff": 16, "layers": layers, "norm": "post"}
    path = write_config(folder, config)
    assert seq2seq("train", path, "--run-dir", folder / "run").exit_code == 0
    for text in folder.glob("*.src"):
        text.unlink()
    return folder / "run"


def inspected(seq2seq: Command, run: Path, *options: object) -> dict[str, Any]:
    result = seq2seq("inspect", run, *options, "--json").ok()
    return json.loads(result.stdout)


def test_page_of_a_run(trained, seq2seq):
    result = seq2seq("inspect", trained).ok()
    model = Translator.load(trained, "cpu").model
    total = sum(p.numel() for p in model.parameters())
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert f"run {trained} (best model)" in lines
    (shape,) = (line for line in lines if line.startswith("model "))
    assert "1+1 layers, d_model 64, d_ff 64, 4 heads of 16, attention scale sqrt, pre-norm" in shape
    assert f"parameters {total:,} 100.0%" in lines
    assert "tied projection.weight is tgt_embedding.weight" in lines
    assert "source vocabulary 14 word" in lines
    assert "target vocabulary 14 word" in lines
    assert "special tokens <pad> 0, <unk> 1, <s> 2, </s> 3" in lines
    assert any(line.startswith("longest ▁") and "▁three" in line for line in lines)


def test_progress_is_that_of_the_metrics(trained, seq2seq):
    points = logged_points(trained)
    losses = {p["valid/loss"]: p["step"] for p in points if "valid/loss" in p}
    best = min(losses)
    report = inspected(seq2seq, trained)["run"]
    assert report["trained"] == {"steps": 240}
    assert report["validation"]["model"] == f"step {losses[best]:,}"
    assert report["validation"]["scores"]["loss"] == best
    line = f"trained               240 updates; this model: loss {best:.3f} (step {losses[best]:,})"
    assert line in seq2seq("inspect", trained).stdout.splitlines()


def test_report_of_a_shared_vocabulary_without_text_or_metrics(shared, seq2seq, tmp_path):
    run = Path(shutil.copytree(shared, tmp_path / "run"))
    for name in ("metrics.jsonl", "manifest.json", "statistics.json", "train.log"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints")
    report = inspected(seq2seq, run)["run"]
    assert report["trained"] is None
    assert "not known: the run has no metrics.jsonl" in seq2seq("inspect", run).stdout
    assert report["flops"]["source_length"] == 25
    vocabulary = report["vocabulary"]["both"]
    assert report["vocabulary"]["shared"] and vocabulary["kind"] == "bpe"
    assert vocabulary["symbols"] == {"<2en>": 4} and vocabulary["bytes"] == 256
    assert vocabulary["size"] == 4 + 1 + 256 + vocabulary["pieces"]
    assert set(report["parameters"]["tied"]) == {"src_embedding.weight", "projection.weight"}
    assert inspected(seq2seq, run, "--trace", "3 1 4")["trace"]["tensors"]


@pytest.mark.parametrize("which", ["best", "last", "2"])
def test_every_kept_model_can_be_inspected(shared, seq2seq, which):
    weights = Translator.load(shared, "cpu", which=which).model.state_dict()
    tensors = inspected(seq2seq, shared, "--tensors", "--model", which)["tensors"]["tensors"]
    assert len(tensors) > 30
    for tensor in tensors:
        values = weights[tensor["name"]].double()
        assert tensor["shape"] == list(values.shape)
        assert tensor["mean"] == pytest.approx(values.mean().item())
        assert tensor["std"] == pytest.approx(values.std(correction=0).item())
    page = seq2seq("inspect", shared, "--tensors", "--model", which).stdout
    assert page.rstrip().endswith("is tgt_embedding.weight")
    assert inspected(seq2seq, shared, "--model", which)["run"]["weights"] == which


def test_frozen_parts_need_no_gradients(shared, seq2seq, tmp_path):
    run = Path(shutil.copytree(shared, tmp_path / "run"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["training"]["freeze"] = ["encoder"]
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    report = inspected(seq2seq, run)["run"]
    total, encoder = report["parameters"]["total"], sum(report["parameters"]["encoder"].values())
    assert report["memory"]["training"] == 4 * encoder + 16 * (total - encoder)
    assert "(3 ×, without training.freeze)" in seq2seq("inspect", run).ok().stdout


def test_a_run_with_a_precision_of_its_own_is_inspected(trained, seq2seq, tmp_path):
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    config = yaml.safe_load((run / "config.yaml").read_text())
    config["decoding"]["precision"] = "int8"
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert inspected(seq2seq, run, "--trace", "1 2") == inspected(
        seq2seq, trained, "--trace", "1 2"
    )


def test_split_shows_words_bytes_and_unknown_tokens(trained, shared, seq2seq):
    split = inspected(seq2seq, trained, "--split", "3  x 1")["split"]
    assert [(token["piece"], token["note"]) for token in split["tokens"]] == [
        ("▁3", ""),
        ("<unk>", "unknown"),
        ("▁1", ""),
    ]
    assert [token["words"] for token in split["tokens"]] == [[0], [1], [2]]
    assert split["words"] == ["3", "x", "1"]
    page = seq2seq("inspect", trained, "--split", "3  x 1").stdout
    assert "text    3 x 1\ntokens  3 tokens, 3 words, 1 unknown\n" in page
    assert "(unknown: x)" in page
    assert "tokens  1 token, 1 word\n" in seq2seq("inspect", trained, "--split", "3").stdout
    target = inspected(seq2seq, trained, "--split", "three", "--side", "target")["split"]
    assert [token["piece"] for token in target["tokens"]] == ["▁three"]
    page = seq2seq("inspect", shared, "--split", "<2en> 3 é").stdout
    assert "2 bytes" in page and "(byte: é)" in page and "<2en>" in page
    assert "tokens  none\n" in seq2seq("inspect", shared, "--split", "").stdout


def test_split_is_what_the_tokenizer_computes(shared, seq2seq):
    text = "seven 3 ÿ1"
    split = inspected(seq2seq, shared, "--split", text)["split"]
    src = Translator.load(shared, "cpu").tokenizers.src
    assert [token["id"] for token in split["tokens"]] == src.to_ids(text)
    assert [token["piece"] for token in split["tokens"]] == src.to_pieces(text)


@pytest.mark.parametrize("side", ["source", "target"])
def test_neighbors_have_the_greatest_cosines(trained, seq2seq, side):
    translator = Translator.load(trained, "cpu")
    is_target = side == "target"
    token = "three" if is_target else "3"
    found = inspected(seq2seq, trained, "--neighbors", token, "--side", side)["neighbors"]
    model = translator.model
    embedding = (model.tgt_embedding if is_target else model.src_embedding).weight.detach()
    pieces = translator.tokenizers[is_target].pieces()
    own = pieces.index(f"▁{token}")
    assert (found["side"], found["piece"], found["id"]) == (side, f"▁{token}", own)
    unit = embedding / embedding.norm(dim=1, keepdim=True).clamp(min=1e-8)
    cosines = {i: float(unit[i] @ unit[own]) for i in range(len(unit)) if i != own}
    expected = sorted(cosines.values(), reverse=True)[:10]
    assert [n["cosine"] for n in found["nearest"]] == pytest.approx(expected, abs=1e-4)
    for neighbor in found["nearest"]:
        assert neighbor["piece"] == pieces[neighbor["id"]]
        assert neighbor["cosine"] == pytest.approx(cosines[neighbor["id"]], abs=1e-4)


def test_token_is_given_by_piece_text_or_id(trained, seq2seq):
    named = ("▁three", "three", str(inspected_id(seq2seq, trained, "▁three")))
    pages = {
        seq2seq("inspect", trained, "--neighbors", n, "--side", "target").stdout for n in named
    }
    assert len(pages) == 1
    digit = inspected_id(seq2seq, trained, "▁3", "source")
    assert inspected_id(seq2seq, trained, "3", "source") == digit  # text comes before id


def inspected_id(seq2seq: Command, run: Path, token: str, side: str = "target") -> int:
    return inspected(seq2seq, run, "--neighbors", token, "--side", side)["neighbors"]["id"]


def test_trace_follows_the_models_own_translation(trained, seq2seq):
    trace = inspected(seq2seq, trained, "--trace", "3 1 4")["trace"]
    assert trace["source"] == ["▁3", "▁1", "▁4", "</s>"]
    assert trace["target"] == ["<s>", "▁three", "▁one", "▁four"]
    tensors = {tensor["name"]: tensor for tensor in trace["tensors"]}
    assert tensors["encoder.0.self_attention.weights"]["shape"] == [1, 4, 4, 4]
    assert tensors["decoder.0.self_attention.scores"]["non_finite"] == pytest.approx(6 / 16)
    probabilities = tensors["probabilities"]
    assert probabilities["dimensions"] == "BTV"
    assert probabilities["mean"] == pytest.approx(1 / probabilities["shape"][-1])
    page = seq2seq("inspect", trained, "--trace", "3 1 4").stdout
    assert page.startswith("source  ▁3 ▁1 ▁4 </s>\ntarget  <s> ▁three ▁one ▁four\n")
    assert "B1 H4 Q4 M4" in page and all(name in page for name in tensors)


def test_trace_of_a_given_target_has_the_models_log_probabilities(trained):
    translator = Translator.load(trained, "cpu", exact=True)
    trace = trace_sentence(translator, "3 1", "seven one")
    probabilities_TV = trace.tensors[-1].values[0]
    labels = translator.tokenizers.tgt.to_ids("seven one")
    (scored,) = translator.score([("3 1", "seven one")])
    for position, label in enumerate(labels):
        log_prob = math.log(probabilities_TV[position, label])
        assert log_prob == pytest.approx(scored.log_probs[position], abs=1e-4)
    assert not any(tensor.values.requires_grad for tensor in trace.tensors)


def test_parts_of_the_output_can_be_combined(trained, seq2seq):
    options = ("--split", "3 1", "--neighbors", "3", "--trace", "3", "--target", "three")
    assert list(inspected(seq2seq, trained, *options)) == ["split", "neighbors", "trace"]
    page = seq2seq("inspect", trained, *options).stdout
    assert "tokens  2 tokens, 2 words" in page and "target  <s> ▁three\n" in page


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--target", "three"), "--target and --tag require --trace"),
        (("--tag", "<bt>"), "--target and --tag require --trace"),
        (("--side", "target"), "--side requires --split or --neighbors"),
        (("--model", "7"), "has no model 7; valid: best, last"),
        (
            ("--neighbors", "thre", "--side", "target"),
            "the target vocabulary has no token 'thre', which it splits into <unk>; "
            "similar tokens: ▁three",
        ),
        (("--neighbors", ""), "--neighbors needs a token"),
        (("--neighbors", "99"), "the source vocabulary has no token '99'"),
        (("--trace", "3 1 . 4 ."), "this line would be translated in 2 parts"),
        (("--trace", "3", "--target", "three " * 300), "more than data.max_length"),
        (("--trace", " "), "the sentence is empty"),
    ],
)
def test_errors(trained, seq2seq, options, expected):
    assert expected in seq2seq("inspect", trained, *options).error()


def test_foreign_and_damaged_runs_are_refused(trained, seq2seq, tmp_path):
    assert "there is no run folder" in seq2seq("inspect", tmp_path / "none").stderr
    assert "is not a run folder" in seq2seq("inspect", tmp_path).stderr
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    points = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(points + '{"step": 300, "train/lo')  # a crash
    assert inspected(seq2seq, run)["run"]["trained"]["steps"] == 240
    (run / "metrics.jsonl").write_text("[]\n" + points)
    assert "is damaged: b'[]\\n' is not an entry" in seq2seq("inspect", run).stderr
    weights = bytearray((run / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (run / "model.safetensors").write_bytes(weights)
    result = seq2seq("inspect", run, "--tensors")
    assert result.exit_code == 2 and "is damaged" in result.stderr


def test_unprintable_pieces_cannot_control_the_terminal(shared, seq2seq):
    result = seq2seq("inspect", shared, "--split", "\x1b[2J")
    assert "\x1b" not in result.stdout and "\\x1b" in result.stdout
