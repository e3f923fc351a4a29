"""The walks of docs/architecture.md are those of the code."""

from pathlib import Path

import pytest
from faults.victims import call, make_run
from walks import calls_until, documented_walk

from seq2seq_cli.decoding.engines import cpu_library

ENGINES = [
    ("plain", ("-b", "2"), "base.py", "logits"),
    ("torch", (), "torch_decoder.py", "logits"),
    ("native", ("-b", "2"), "cpu_decoder.py", "logits"),
    ("native", (), "cpu_decoder.py", "argmax_token"),  # greedy search leaves the choice to it
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("walks") / "word", "word")


@pytest.mark.parametrize(("engine", "options", "file", "function"), ENGINES)
def test_a_sentence_comes_to_the_engine_in_four_calls(run, engine, options, file, function):
    if engine == "native" and not cpu_library.precisions():
        pytest.skip("not compiled")
    arguments = ("--device", "cpu", *options, "--set", f"decoding.engine={engine}")
    chain = calls_until(lambda: call("translate", run, "1 2 3", *arguments), file, function)
    walk = chain[chain.index("cli/translate.py: translate") :]
    assert walk[:-1] == documented_walk("Second walk")[:-1]
    assert walk[-1] == f"decoding/engines/{file}: {function}"
    assert len(walk) - 1 <= 4
