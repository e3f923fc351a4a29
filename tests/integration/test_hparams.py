"""TensorBoard's HParams tab, queried through its API: runs by options and scores."""

from pathlib import Path
from typing import Any

import pytest
from bare_runs import stop_at
from commands import Command, logged_points
from number_task import numbers_config, write_config
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.plugins.base_plugin import TBContext
from tensorboard.plugins.hparams import api_pb2, get_experiment, list_session_groups
from tensorboard.plugins.hparams.backend_context import Context

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.training.loop import train


@pytest.fixture(scope="module")
def config(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("numbers")
    settings = numbers_config(folder, max_steps=20, warmup_steps=4, log_every=5, device="cpu")
    settings["model"] = {"d_model": 16, "heads": 2, "layers": 1, "d_ff": 16}
    settings["validation"] = {"every": 5, "unit": "steps", "metric": "chrf"}
    return write_config(folder, settings)


def api(folder: Path) -> tuple[Context, RequestContext]:
    multiplexer = EventMultiplexer()
    multiplexer.AddRunsFromDirectory(str(folder))
    multiplexer.Reload()
    provider = MultiplexerDataProvider(multiplexer, str(folder))
    return Context(TBContext(data_provider=provider)), RequestContext()


def sessions(folder: Path) -> dict[str, dict[str, Any]]:
    """Options and scores of each session group, by name."""
    context, request_context = api(folder)
    request = api_pb2.ListSessionGroupsRequest(
        slice_size=100, allowed_statuses=api_pb2.Status.values()
    )
    answer = list_session_groups.Handler(request_context, context, "", request).run()
    found = {}
    for group in answer.session_groups:
        assert [session.name for session in group.sessions] == [group.name]
        options = {n: getattr(v, v.WhichOneof("kind")) for n, v in group.hparams.items()}
        found[group.name] = options | {m.name.tag: m.value for m in group.metric_values}
    assert len(found) == answer.total_size == len(answer.session_groups)
    return found


def best_point(run: Path) -> dict[str, float]:
    points = logged_points(run)
    return max(
        (point for point in points if "valid/chrf" in point),
        key=lambda point: (point["valid/chrf"], -point["valid/loss"]),
    )


def test_hparams_plugin_shows_options_and_best_scores(config, seq2seq: Command, tmp_path):
    for name, rate in (("a", 5e-3), ("b", 1e-3)):
        run = ("train", config, "--run-dir", tmp_path / name)
        assert seq2seq(*run, "--set", f"training.lr={rate}").exit_code == 0
    found = sessions(tmp_path)
    assert found.keys() == {"a", "b"}
    for name, rate in (("a", 5e-3), ("b", 1e-3)):
        assert found[name]["training.lr"] == rate
        assert found[name]["model.d_model"] == 16
        assert found[name]["validation.metric"] == "chrf"
        assert found[name]["model.tie_embeddings"] == "true"
        for tag, value in best_point(tmp_path / name).items():
            if tag in ("valid/chrf", "valid/loss"):
                shown = found[name][tag.replace("valid/", "best/")]
                assert shown == pytest.approx(value, rel=1e-5)
    context, request_context = api(tmp_path)
    request = api_pb2.GetExperimentRequest()
    experiment = get_experiment.Handler(request_context, context, "", request).run()
    assert experiment.hparam_infos[0].name == "training.lr", "what differs comes first"
    shown_at_first = [info.name.tag for info in experiment.metric_infos[:5]]
    assert shown_at_first[:4] == ["Loss/train", "Loss/valid", "best/chrf", "best/loss"]
    names = [info.name for info in experiment.hparam_infos]
    assert not any(name.startswith(("data.train.s", "data.train.t")) for name in names)
    assert names.index("text.train.src") > names.index("model.d_model")


@pytest.mark.slow
def test_resumed_run_is_one_hparams_session_with_its_latest_options(
    config, seq2seq: Command, tmp_path
):
    run = tmp_path / "run"
    for step in (5, 12):  # once with a validation still to come
        train(load_config(config), run, hooks=stop_at(step))
    seq2seq("train", config, "--run-dir", run, "--set", "training.max_steps=25").ok()
    found = sessions(tmp_path)
    assert found.keys() == {"run"}
    assert found["run"]["training.max_steps"] == 25
    assert found["run"]["best/chrf"] == pytest.approx(best_point(run)["valid/chrf"], rel=1e-5)
    assert len(list(run.glob("events.out.tfevents.*"))) == 4  # of three starts, and the options
