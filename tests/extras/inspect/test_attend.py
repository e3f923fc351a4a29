"""seq2seq attend: its files and their numbers, other programs that read them, TensorBoard."""

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT, Command
from faults.victims import config_of
from number_task import numbers_config, write_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seq2seq_cli.errors import how_to_install

KINDS = ("encoder", "decoder", "cross")
AXES = {"layer": 1, "head": 4}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def studies_of(path: Path) -> list[dict]:
    return json.loads(path.read_text())["studies"]


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as arrays:
        return dict(arrays)


def test_numbered_files_are_replaced_with_force_alone(trained, seq2seq: Command, here):
    (here / "a.2.npz").write_text("x")
    command = ("attend", trained, "3 1 4", "2", "--output", "a.npz")
    assert "a.2.npz has content" in seq2seq(*command).error()
    assert [path.name for path in here.iterdir()] == ["a.2.npz"]
    assert seq2seq(*command, "--force").exit_code == 0


def test_own_translation_in_all_formats(trained, seq2seq: Command, here):
    files = [f"a.{suffix}" for suffix in ("HTML", "PNG", "svg", "json", "npz")]
    options = [part for file in files for part in ("--output", file)]
    result = seq2seq("attend", trained, "3 1 4", *options).ok()
    assert "  → three one four\n" in result.stdout
    assert [line for line in result.stdout.splitlines() if line.startswith("wrote")] == [
        f"wrote {file}" for file in files
    ]
    (study,) = studies_of(here / "a.json")
    arrays = arrays_of(here / "a.npz")
    assert study["target"]["tokens"] == ["▁three", "▁one", "▁four", "</s>"]
    assert arrays["predicted_tokens"].tolist() == study["target"]["tokens"]
    assert arrays["decoder_tokens"].tolist() == ["<s>", "▁three", "▁one", "▁four"]
    for kind in KINDS:
        maps = study["attention"][kind]
        sizes = AXES | {"query": len(maps["queries"]), "memory": len(maps["memory"]), "batch": 1}
        for given in (
            maps["weights"],
            maps["value_norms"],
            *study["head_statistics"][kind].values(),
        ):
            assert np.shape(given["values"]) == tuple(sizes[axis] for axis in given["axes"])
        for name in ("attention", "value_norms", *study["head_statistics"][kind]):
            axes = arrays[f"{kind}_{name}_axes"]
            assert arrays[f"{kind}_{name}"].shape == tuple(sizes[axis] for axis in axes)
        weights = arrays[f"{kind}_attention"]
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
        np.testing.assert_allclose(weights[:, 0], maps["weights"]["values"], rtol=1e-5)
        importance = study["head_statistics"][kind]["importance"]["values"]
        np.testing.assert_allclose(arrays[f"{kind}_importance"], importance, rtol=1e-5)
    for name, array in arrays.items():
        if array.ndim > 0 and not name.endswith("_axes"):
            axes = arrays[f"{name}_axes"].tolist()
            assert len(axes) == array.ndim
            assert "alternative" not in axes or array.shape[axes.index("alternative")] == 5
    assert "▁three" in (here / "a.HTML").read_text(encoding="utf-8")


def test_translations_and_alignments_are_those_of_translate(trained, seq2seq: Command, here):
    search = ("--beam-size", 3, "--n-best", 2)
    lines = ("3 1 4", "2 7")
    assert seq2seq("attend", trained, *lines, *search, "-o", "a.json", "-o", "a.npz").exit_code == 0
    translated = seq2seq(
        *("translate", trained, *lines, *search, "--precision", "fp32", "--align", "--log-probs"),
        *("--format", "jsonl"),
    )
    found = [json.loads(line) for line in translated.stdout.splitlines()]
    expected = [one for first in found for one in (first, *first["n_best"])]
    studies = studies_of(here / "a.json")
    assert len(studies) == len(expected) == 4
    for number, (study, best) in enumerate(zip(studies, expected, strict=True), start=1):
        assert study["target"]["text"] == best.get("translation", best.get("text"))
        assert study["target"]["tokens"][:-1] == best["tokens"]
        assert study["alignment"] == best["alignment"]
        assert study["log_prob"] == pytest.approx(best["log_prob"], abs=1e-4)
        arrays = arrays_of(here / f"a.{number}.npz")
        assert arrays["predicted_tokens"].tolist() == study["target"]["tokens"]


def test_given_target_in_two_runs(trained, seq2seq: Command, here):
    options = ("--target", "two seven one", "--compare", trained, "--sample", 0)
    assert seq2seq("attend", trained, "2 7", *options, "-o", "a.json").exit_code == 0
    first, second = studies_of(here / "a.json")
    assert first == second
    assert "head_statistics" not in first
    (here / "2.src").write_text("2 7\n")
    (here / "2.tgt").write_text("two seven one\n")
    scored = seq2seq("score", trained, "--src", "2.src", "--ref", "2.tgt", "--json")
    assert first["log_prob"] == pytest.approx(json.loads(scored.stdout)["log_prob"], abs=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["2 7", "--output", "a.pdf"], "must end in .html, .png"),
        (["2 7", "--layer", "1"], "give --output with a name in .png or .svg"),
        (["2 7", "--output", "a.png", "--layer", "2"], "no layer 2"),
        (["2 7", "--output", "a.png", "--layer", "1", "--head", "5"], "no head 5"),
        (["2 7", "--output", "a.png", "--head", "1"], "--head requires --layer"),
        (["2 7", "3", "--target", "two"], "--target takes one sentence"),
        (["2 7", "--n-best", "2", "--target", "two"], "--target takes one sentence"),
        ([" "], "the sentence is empty"),
        ([" ", "--target", "two"], "the sentence is empty"),
        (["1 2! 3 4! 5 6!"], "in 3 parts"),
        (["1", "--target", "two " * 300], "more than data.max_length"),
        (["2", "--target", "two", "--set", "decoding.n_best=5"], "excludes --beam-size, --n-best"),
        (["2", "-o", "a.html", "-o", "none/b.html"], "none/b.html: there is no folder none"),
        (["2", "-o", "a.html", "-o", "./a.html"], "a.html is given twice"),
        (["2", "-o", "a.html", "-o", "a.png", "--layer", "2"], "no layer 2"),
        (["2", "-o", "a.html", "-o", "a.png", "--layer", "1", "--head", "5"], "no head 5"),
    ],
    ids=str,
)
def test_what_cannot_be_studied_is_refused(trained, seq2seq: Command, here, arguments, message):
    assert message in seq2seq("attend", trained, *arguments, "--sample", 0).error()
    assert not list(here.iterdir())


def test_line_of_several_sentences_with_its_target(trained, seq2seq: Command, here):
    seq2seq("attend", trained, "1 2! 3 4!", "--target", "one two three", "--sample", 0).ok()
    assert (here / "attention.html").exists()


def test_run_without_its_validation_text(trained, seq2seq: Command, here):
    shutil.copytree(trained, here / "run")
    config = here / "run/config.yaml"
    config.write_text(config.read_text().replace("valid.src", "gone.src"))
    result = seq2seq("attend", here / "run", "2 7", "-o", "a.json").ok()
    assert "gone.src does not exist" in result.stderr
    assert "head_statistics" not in studies_of(here / "a.json")[0]
    config.write_text(config.read_text().replace("gone.src", "uneven.src"))
    (trained.parent / "uneven.src").write_text("2 7\n")
    refused = seq2seq("attend", here / "run", "2 7", "-o", "a.json")
    assert "the output a.json has content: give --force to replace it" in refused.stderr
    result = seq2seq("attend", here / "run", "2 7", "-o", "a.json", "--force").ok()
    assert "no head statistics: parallel files differ in length" in result.stderr
    assert "head_statistics" not in studies_of(here / "a.json")[0]


def test_models_alternate_so_that_the_same_sentences_stand_side_by_side(
    trained, seq2seq: Command, here
):
    shutil.copytree(trained, here / "copy")
    options = ("--compare", "copy", "--beam-size", 3, "--n-best", 2, "--sample", 0)
    assert seq2seq("attend", trained, "3 1 4", "2 7", *options, "-o", "a.json").exit_code == 0
    studies = studies_of(here / "a.json")
    assert [study["run"] for study in studies] == [str(trained), "copy"] * 4
    for first, second in zip(studies[::2], studies[1::2], strict=True):
        assert first | {"run": "copy"} == second


def test_control_characters_are_escaped_on_the_terminal(trained, seq2seq: Command, here):
    shown = seq2seq(
        "attend", trained, "2\x1b[31m 7", "--target", "two \x1b[32m", "--sample", 0
    ).ok()
    assert "\x1b" not in shown.stdout and "\\x1b[31m" in shown.stdout


def test_bytes_that_are_no_text_are_question_marks(trained, seq2seq: Command, here):
    seq2seq("attend", trained, "2 caf\udce9", "-o", "a.json", "--sample", 0).ok()
    assert studies_of(here / "a.json")[0]["source"]["text"] == "2 caf?"


def python_block(heading: str) -> str:
    """The code of a section of the page."""
    page = (ROOT / "docs/attention.md").read_text(encoding="utf-8")
    return page.split(f"\n## {heading}\n")[1].split("```python\n")[1].split("```")[0]


@pytest.mark.filterwarnings("ignore")
def test_documented_lines_open_the_npz_in_bertviz(trained, seq2seq: Command, here):
    pytest.importorskip("bertviz")
    seq2seq("attend", trained, "3 1 4", "--sample", 0, "-o", "attention.npz").ok()
    names: dict = {}
    exec(python_block("BertViz"), names)
    page = (here / "bertviz.html").read_text()
    for text in ('"name": "Encoder"', '"name": "Cross"', '" three"', '"<s>"'):
        assert text in page
    names["model_view"] = vars(sys.modules["bertviz"])["model_view"]
    exec("page = model_view(**maps, **tokens, html_action='return')", names)
    assert '"name": "Cross"' in names["page"].data


@pytest.mark.filterwarnings("ignore")
@pytest.mark.slow
def test_documented_lines_attribute_the_export_with_inseq(seq2seq: Command, here):
    """With the method `attention`, inseq gives the cross-attention of `attend`."""
    inseq = pytest.importorskip("inseq")
    run = here / "run"
    config = write_config(here, config_of(here, "unigram"))
    assert seq2seq("train", config, "--run-dir", run).exit_code == 0
    exported = ("--format", "huggingface", "--output", "exported")
    assert seq2seq("export", run, *exported).exit_code == 0
    exec(python_block("inseq"), {})
    assert (here / "attribution.json").exists()
    target = "one two"
    assert seq2seq("attend", run, "1 2", "--target", target, "-o", "a.npz").exit_code == 0
    arrays = arrays_of(here / "a.npz")
    model = inseq.load_model("exported", "attention")
    (attributed,) = model.attribute("1 2", target, show_progress=False).sequence_attributions
    weights = attributed.source_attributions.permute(2, 3, 1, 0).numpy()  # as ours: LHTS
    ours = arrays["cross_attention"][:, 0]
    np.testing.assert_allclose(weights, ours, atol=1e-5)


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("plots")
    settings = numbers_config(folder, max_steps=20, warmup_steps=4, device="cpu")
    settings["model"] = {"d_model": 16, "heads": 2, "layers": 2, "d_ff": 16, "dropout": 0.1}
    settings["validation"] = {"every": 10, "unit": "steps", "metric": "loss", "samples": 1}
    return write_config(folder, settings)


def test_tensorboard_shows_attention_and_the_weights_stay_the_same(config, seq2seq: Command, here):
    for run, is_on in (("with", "true"), ("without", "false")):
        option = ("--set", f"validation.attention={is_on}")
        seq2seq("train", config, "--run-dir", run, *option).ok()
    weights = [(here / run / "model.safetensors").read_bytes() for run in ("with", "without")]
    assert weights[0] == weights[1]
    events = EventAccumulator(str(here / "with"), size_guidance={"images": 0}).Reload()
    tags = events.Tags()
    assert sorted(tags["images"]) == [f"attention/{kind}/sentence_1" for kind in sorted(KINDS)]
    for tag in tags["images"]:
        images = events.Images(tag)
        assert [image.step for image in images] == [10, 20]
        for image in images:
            assert image.encoded_image_string.startswith(b"\x89PNG")
            assert min(image.width, image.height) > 100
    entropies = [tag for tag in tags["scalars"] if tag.startswith("attention_entropy/")]
    assert len(entropies) == 3 * 2 * 2
    last = ("--model", "last", "--sample", 100, "-o", "a.json")
    assert seq2seq("attend", here / "with", "1 2", *last).exit_code == 0
    facts = studies_of(here / "a.json")[0]["head_statistics"]
    for kind in KINDS:
        for (layer, head), entropy in np.ndenumerate(facts[kind]["entropy"]["values"]):
            tag = f"attention_entropy/{kind}/layer_{layer + 1}/head_{head + 1}"
            assert events.Scalars(tag)[-1].value == pytest.approx(entropy, rel=1e-4)
            assert 0 < entropy < math.log(8)
    others = EventAccumulator(str(here / "without")).Reload().Tags()
    assert not others["images"]
    assert not [tag for tag in others["scalars"] if "entropy" in tag]


@pytest.mark.parametrize("command", [("train", "--run-dir", "run"), ("check",)], ids=str)
def test_without_matplotlib_nothing_is_begun(
    config, trained, seq2seq: Command, here, monkeypatch, command
):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    name, *options = command
    message = seq2seq(name, config, *options, "--set", "validation.attention=true").error()
    assert how_to_install("plot") in message
    assert not (here / "run/model.safetensors").exists()
    refused = seq2seq("attend", trained, "1 2", "--output", "a.json", "--output", "a.png")
    assert refused.exit_code == 2
    assert not (here / "a.json").exists()
