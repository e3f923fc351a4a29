"""`decoding.beam_size: auto` and `length_penalty: auto`: what a run chooses, and who uses it."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import yaml
from bare_runs import stop_at
from commands import Command
from number_task import FAST, as_ensemble, number_pairs, numbers_config, write_config, write_pairs

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.errors import Interrupted
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.choose_search import choose_search_of_ensemble
from seq2seq_cli.training.ensemble import scores_of, train_ensemble
from seq2seq_cli.training.loop import train
from seq2seq_cli.training.run import Hooks


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    """A run that ends before it has learned its task, so that searches differ."""
    folder = tmp_path_factory.mktemp("search")
    settings = numbers_config(folder, **FAST | {"max_steps": 24, "device": "cpu", "processes": 1})
    settings["model"] |= {"d_model": 32, "heads": 2, "d_ff": 32}
    settings["data"]["valid"] = write_pairs(folder, "valid", number_pairs(120, seed=2))
    settings["validation"] = {"every": 24, "unit": "steps", "metric": "symbol_error_rate"}
    return write_config(folder, settings)


@pytest.fixture(scope="module")
def run(config, seq2seq: Command) -> Path:
    before = config.read_bytes()
    folder = config.parent / "run"
    result = seq2seq("train", config, "--run-dir", folder).ok()
    *_, search, finished = result.stderr.splitlines()
    assert search.startswith("search: greedy: symbol_error_rate ")
    assert "; default: " in search and finished.startswith("finished after 24 updates")
    assert config.read_bytes() == before
    assert yaml.safe_load((folder / "config.yaml").read_text())["decoding"]["beam_size"] == "auto"
    return folder


def found(run: Path) -> dict:
    return json.loads((run / "search.json").read_text())


def translated(seq2seq: Command, run: Path, *options: object) -> str:
    return seq2seq("translate", run, "-i", run.parent / "valid.src", *options).ok().stdout


def in_full(beam_size: int, length_penalty: float) -> tuple[object, ...]:
    return ("-b", beam_size, "--set", f"decoding.length_penalty={length_penalty}")


def with_search(run: Path, folder: Path, **changes: object) -> Path:
    """A copy of the run that has chosen another search."""
    copy = shutil.copytree(run, folder / "run")
    (copy / "search.json").write_text(json.dumps(found(run) | changes))
    shutil.copy(run.parent / "valid.src", folder)
    return copy


def score(seq2seq: Command, run: Path, beam_size: int, length_penalty: float) -> float:
    options = in_full(beam_size, length_penalty)[2:]
    options += ("--set", f"decoding.beam_size={beam_size}", "--set", "decoding.precision=int8")
    return json.loads(seq2seq("eval", run, "--json", *options).stdout)["symbol_error_rate"]


def test_measured_scores_are_those_of_eval(run, seq2seq):
    greedy, beam = found(run)["measured"]
    assert (greedy["beam_size"], beam["beam_size"]) == (1, 5)
    for one in (greedy, beam):
        assert score(seq2seq, run, one["beam_size"], one["length_penalty"]) == one["score"]
    assert greedy["score"] != beam["score"]


def test_no_penalty_next_to_the_chosen_one_is_much_better(run, seq2seq):
    """Nor is 1: each is measured by a search of its own."""
    beam = found(run)["measured"][1]
    penalty = beam["length_penalty"]
    for other in {1.0, max(0.0, round(penalty - 0.2, 1)), min(2.0, round(penalty + 0.2, 1))}:
        assert beam["score"] - score(seq2seq, run, 5, other) < 0.3


def test_the_choice_is_a_beam_if_it_gains_enough(run):
    """Lower error rates are better."""
    greedy, beam = found(run)["measured"]
    gains = greedy["score"] - beam["score"] >= 0.3
    assert found(run)["beam_size"] == (5 if gains else 1)


@pytest.mark.parametrize(("beam_size", "length_penalty"), [(1, 0.4), (5, 0.0), (3, 2.0)])
def test_translate_uses_what_the_run_has_chosen(run, seq2seq, tmp_path, beam_size, length_penalty):
    changed = with_search(run, tmp_path, beam_size=beam_size, length_penalty=length_penalty)
    default = translated(seq2seq, changed)
    assert default == translated(seq2seq, changed, *in_full(beam_size, length_penalty))
    assert translated(seq2seq, changed, *in_full(2, 1)) == translated(seq2seq, run, *in_full(2, 1))


def test_members_and_their_ensemble_are_compared_by_the_same_search(config, run, tmp_path):
    """By the one of validations, whatever the members have chosen."""
    changed = with_search(run, tmp_path, beam_size=5, length_penalty=0.0)
    folder = RunFolder(as_ensemble(tmp_path / "ensemble", [changed, changed]))
    lines = scores_of(folder, load_config(config)).splitlines()
    first, second, ensemble = (line.split()[-2:] for line in lines[-3:])
    assert first[0] == second[0] == ensemble[0]


def test_members_have_no_score_of_a_metric_that_was_chosen_later(config, run, tmp_path):
    member = shutil.copytree(run, tmp_path / "run")
    text = (member / "config.yaml").read_text().replace("metric: symbol_error_rate", "metric: ter")
    (member / "config.yaml").write_text(text)
    folder = RunFolder(as_ensemble(tmp_path / "ensemble", [member]))
    names, first, ensemble = scores_of(folder, load_config(config)).splitlines()[-3:]
    assert names.split() == ["validation", "ter", "loss"]
    assert (len(first.split()), len(ensemble.split())) == (3, 3)  # `member 1` is two words


@pytest.mark.slow
def test_an_ensemble_has_a_search_of_its_own(run, seq2seq, tmp_path):
    """Of two equal members it is theirs, until it is another one."""
    changed = with_search(run, tmp_path, beam_size=3, length_penalty=2.0)
    ensemble = as_ensemble(tmp_path / "ensemble", [changed, changed])
    of_members = translated(seq2seq, changed)
    assert translated(seq2seq, ensemble) == of_members
    choose_search_of_ensemble(RunFolder(ensemble))
    for measured, of_run in zip(found(ensemble)["measured"], found(run)["measured"], strict=True):
        assert measured["score"] == pytest.approx(of_run["score"], abs=1)
    own = found(ensemble)
    assert translated(seq2seq, ensemble) == translated(
        seq2seq, ensemble, *in_full(own["beam_size"], own["length_penalty"])
    )
    (ensemble / "search.json").write_text(json.dumps(own | {"beam_size": 5, "length_penalty": 0}))
    assert translated(seq2seq, ensemble) == translated(seq2seq, ensemble, *in_full(5, 0))
    assert translated(seq2seq, ensemble) != of_members
    with_another = translated(seq2seq, ensemble, "--ensemble", run)  # the search of the first
    assert with_another == translated(seq2seq, ensemble, "--ensemble", run, *in_full(5, 0))


@pytest.mark.slow
def test_a_trained_ensemble_has_chosen_its_search(config, run, tmp_path):
    ensemble = as_ensemble(tmp_path / "ensemble", [run])
    train_ensemble(load_config(config), ensemble, 1)
    chosen = found(ensemble)  # with its times
    own = {"scored_by": chosen["scored_by"]}
    assert without_speed(ensemble) == without_speed(run) | own
    train_ensemble(load_config(config), ensemble, 1)  # to which shards and distillations hold
    assert found(ensemble) == chosen
    member = RunFolder(ensemble).member(1).search
    member.write_text(json.dumps(json.loads(member.read_text()) | {"scored_by": "another text"}))
    choose_search_of_ensemble(RunFolder(ensemble))
    assert found(ensemble)["scored_by"] != chosen["scored_by"]
    train_ensemble(load_config(config), ensemble, 2)
    assert found(ensemble)["measured"][0]["score"] != chosen["measured"][0]["score"]


def test_an_n_best_list_needs_no_beam_size(run, seq2seq, tmp_path):
    greedy = with_search(run, tmp_path, beam_size=1, length_penalty=0.6)
    given = ("--n-best", 3, "--format", "tsv")
    assert translated(seq2seq, greedy, *given) == translated(
        seq2seq, greedy, *given, *in_full(3, 0.6)
    )


def test_inspect_reports_what_was_measured(run, seq2seq):
    assert json.loads(seq2seq("inspect", run, "--json").stdout)["run"]["search"] == found(run)
    assert "beam 5 with length penalty " in seq2seq("inspect", run).stdout


def test_a_damaged_choice_is_refused(run, seq2seq, tmp_path):
    damaged = with_search(run, tmp_path, beam_size=0)
    message = seq2seq("translate", damaged, "1 2").error()
    assert "search.json is damaged: beam_size is not valid" in message


def test_the_choice_is_made_once_and_again_for_another_model(config, run, seq2seq, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    assert seq2seq("train", config, "--run-dir", copy).exit_code == 0
    assert found(copy) == found(run)  # with its times
    (copy / "search.json").unlink()  # as after a crash
    assert seq2seq("train", config, "--run-dir", copy).exit_code == 0
    assert without_speed(copy) == without_speed(run)
    longer = ("--set", "training.max_steps=28", "--set", "training.save_every=2")
    assert seq2seq("train", config, "--run-dir", copy, *longer).exit_code == 0
    assert found(copy)["step"] == 28
    before = found(copy)
    (copy / "model.safetensors").write_bytes(b"damaged")  # so that an average takes its place
    averaged = (*longer, "--set", "training.average_checkpoints=2")
    seq2seq("train", config, "--run-dir", copy, *averaged).ok()
    assert found(copy) != before
    other = (*longer, "--set", "validation.metric=chrf", "--allow-changed", "validation.metric")
    assert seq2seq("train", config, "--run-dir", copy, *other).exit_code == 0
    assert (found(copy)["step"], found(copy)["metric"]) == (28, "chrf")
    without = (*other, "--set", "data.valid=null", "--allow-changed", "data.valid")
    seq2seq("train", config, "--run-dir", copy, *without).ok()
    assert not (copy / "search.json").exists()
    ensemble = RunFolder(as_ensemble(tmp_path / "ensemble", [copy]))
    ensemble.search.write_text((run / "search.json").read_text())
    choose_search_of_ensemble(ensemble)
    assert not ensemble.search.exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_a_lost_model_is_named_and_leaves_the_choice(config, run, seq2seq, tmp_path, is_there):
    copy = shutil.copytree(run, tmp_path / "run")
    model = copy / "model.safetensors"
    whole = model.read_bytes()
    model.unlink()
    if is_there:
        model.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    ended = seq2seq("train", config, "--run-dir", copy).ok()
    what = "damaged: its content does not match its hash" if is_there else "missing"
    assert f"model.safetensors is {what}; put it back, or use --model last" in ended.stderr
    assert found(copy) == found(run)


def test_signal_stops_the_choice_which_the_same_command_makes(config, run, tmp_path):
    folder, asked = RunFolder(tmp_path / "run"), []

    def stop(path: Path) -> None:  # after the last update, before its validation
        if path == folder.checkpoint(24) and not asked:
            asked.append(path)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Interrupted, match="stopped while choosing the default search") as raised:
        train(load_config(config), folder.path, hooks=Hooks(before_write=stop))
    assert raised.value.exit_status == 128 + signal.SIGTERM
    assert not folder.search.exists()
    train(load_config(config), folder.path)
    assert without_speed(folder.path) == without_speed(run)


def without_speed(run: Path) -> dict:
    chosen = found(run)
    for one in chosen["measured"]:
        del one["sentences_per_second"]
    return chosen


def test_a_run_that_time_has_ended_chooses_and_one_that_was_stopped_does_not(
    config, run, seq2seq, tmp_path
):
    ended = seq2seq(
        "train", config, "--run-dir", tmp_path / "ended", "--set", "training.max_hours=1e-9"
    )
    assert "(training.max_hours reached" in ended.stderr
    assert found(tmp_path / "ended")["step"] == 1
    longer = load_config(config, ["training.max_steps=26"])
    for stopped, step in ((tmp_path / "stopped", 2), (shutil.copytree(run, tmp_path / "run"), 25)):
        train(longer, stopped, hooks=stop_at(step))
        assert not (stopped / "search.json").exists()


@pytest.mark.parametrize(
    "option",
    [
        "decoding.beam_size=1",
        "validation.decode=false validation.metric=loss",
        "validation.merge_references=true data.valid.src={same} data.valid.tgt={same}",
    ],
)
def test_no_choice_without_something_to_choose_and_translations(config, seq2seq, tmp_path, option):
    (tmp_path / "same").write_text("1 2\n" * 120)
    option = option.format(same=tmp_path / "same")
    sets = [part for one in (*option.split(), "training.max_steps=1", "training.warmup_steps=1")
            for part in ("--set", one)]  # fmt: skip
    seq2seq("train", config, "--run-dir", tmp_path / "run", *sets).ok()
    assert not (tmp_path / "run/search.json").exists()


def test_a_given_beam_gets_its_length_penalty(config, seq2seq, tmp_path):
    given = ("--set", "decoding.beam_size=3", "--set", "training.max_steps=12")
    run = tmp_path / "run"
    assert seq2seq("train", config, "--run-dir", run, *given).exit_code == 0
    (measured,) = found(run)["measured"]
    assert measured["beam_size"] == found(run)["beam_size"] == 3


def test_a_run_with_numbers_keeps_them(config, seq2seq, tmp_path):
    """As runs of earlier versions have, when the same command resumes them."""
    numbers = ("--set", "decoding.beam_size=1", "--set", "decoding.length_penalty=1.0")
    given = ("train", config, "--run-dir", tmp_path / "run", "--set", "training.max_steps=12")
    assert seq2seq(*given, *numbers).exit_code == 0
    assert "is reset" not in seq2seq(*given).ok().stderr
    assert not (tmp_path / "run/search.json").exists()


@pytest.mark.slow
def test_averages_are_scored_as_in_validations(config, run, seq2seq, tmp_path):
    """So that scores in the header of the weights, and in model cards, are always of one search."""
    copy, output = with_search(run, tmp_path), tmp_path / "average.safetensors"
    seq2seq("train", config, "--run-dir", copy, "--set", "training.max_steps=26").ok()
    other = found(copy) | {"beam_size": 5, "length_penalty": 2.0}
    (copy / "search.json").write_text(json.dumps(other))
    table = seq2seq("average", copy, "--steps", "24,26", "--output", output).ok().stdout
    given = ("eval", copy, "--model", output, "--json", "--set")
    greedy, beam = (
        json.loads(seq2seq(*given, f"decoding.beam_size={size}").ok().stdout)["symbol_error_rate"]
        for size in (1, 5)
    )
    assert f"  symbol_error_rate {greedy:.3f}" in table.splitlines()[0] and greedy != beam
    seq2seq("average", copy, "--steps", "24,26", "--force").ok()
    for one in found(copy)["measured"]:  # the search of the model that it replaces is gone
        assert score(seq2seq, copy, one["beam_size"], one["length_penalty"]) == one["score"]
    settings = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(settings.replace("valid.src", "gone.src"))
    result = seq2seq("average", copy, "--steps", "24,26", "--force").ok()
    assert "search.json is removed" in result.stdout and not (copy / "search.json").exists()


def test_other_searches_are_left_alone():
    """Sampling and diverse groups; an n-best list has a beam that is large enough."""
    for options, width in (
        ({"sampling": True, "n_best": 7}, 1),
        ({"n_best": 4, "diversity_groups": 2}, 4),
        ({"n_best": 8}, 8),
        ({"beam_size": 2}, 2),
        ({}, 5),
    ):
        resolved = DecodingConfig(**options).with_search(5, 0.5)
        assert (resolved.beam_size, resolved.length_penalty) == (width, 0.5)
