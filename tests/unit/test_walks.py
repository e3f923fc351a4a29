"""The walks of docs/architecture.md are those of the code."""

from pathlib import Path

import pytest
from faults.victims import call, config_of, make_run
from number_task import write_config
from walks import calls_during, calls_until, documented_functions, documented_walk, is_called

from seq2seq_cli.native import library as native

# Another search than those in C makes two more calls, and one for each step.
ENGINES = [
    ("plain", ("-b", "2"), "engines/base.py", "logits", 6),
    ("native", ("--set", "decoding.repetition_penalty=1.1"), "engines/cpu_decoder.py", "logits", 6),
    ("native", (), "search/native_search.py", "search", 4),  # which calls C once for a batch
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("walks") / "word", "word")


@pytest.mark.parametrize(("engine", "options", "file", "function", "calls"), ENGINES)
def test_a_sentence_comes_to_the_engine(run, engine, options, file, function, calls):
    if engine == "native" and not native.precisions():
        pytest.skip("not compiled")
    arguments = ("--device", "cpu", *options, "--set", f"decoding.engine={engine}")
    search = "decoding/backends.py: search"  # not when the engine is compared with the model
    chain = calls_until(lambda: call("translate", run, "1 2 3", *arguments), file, function, search)
    walk = chain[chain.index("cli/translate.py: translate") :]
    assert walk[:4] == documented_walk("Second walk")[:4]
    assert walk[-1] == f"decoding/{file}: {function}"
    assert len(walk) - 1 <= calls


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEQ2SEQ_CACHE", str(tmp_path / "cache"))
    return write_config(tmp_path, config_of(tmp_path, "bpe"))


def test_train_reaches_the_optimizer_in_three_calls(config, tmp_path):
    command = ("train", config, "--run-dir", tmp_path / "run")
    chain = calls_until(lambda: call(*command), "optim/adam.py", "step")
    walk = chain[chain.index("cli/train.py: train") :]
    assert walk == documented_walk("First walk")[:-1]
    assert len(walk) == 3


@pytest.mark.slow
def test_all_functions_of_the_training_walk_are_called(config, tmp_path):
    """But for what several processes need, and a class that has no function of its own."""
    others = {
        ("strategy.py", "DataParallel", "sum_gradients"),
        ("launcher.py", "", "launch"),
        ("processes.py", "", "process_context"),
        ("extras/shard/fully_shard.py", "FullyShard", "start"),
        ("optimizer_shards.py", "", "load_shards"),
        ("config/schema.py", "", "Config"),
    }

    def commands() -> None:
        auto = ("--set", "training.tokens_per_batch=auto", "--set", "validation.metric=auto")
        train = ("train", config, "--run-dir", tmp_path / "run", *auto)
        assert call(*train).exit_code == 0
        assert call(*train, "--set", "training.max_steps=3").exit_code == 0
        infinite = ("--set", "training.lr=1e30")
        assert call("train", config, "--run-dir", tmp_path / "nan", *infinite).exit_code == 2
        assert call("check", config).exit_code == 0

    named = set(documented_functions("First walk"))
    assert others < named
    called = calls_during(commands)
    assert {name for name in named - others if not is_called(name, called)} == set()
