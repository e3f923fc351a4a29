"""Start-up, threads and training, on an idle machine and beside one busy process, in turn.

python benchmarks/busy_machine.py RUN SRC CONFIG [CONFIG ...] [--before PYTHON] [--rounds 5]
    [--only start-up translating training]

RUN is a run folder whose sides share a vocabulary, SRC a text in its source language, CONFIG what
is trained for a moment. PYTHON is that of a virtual environment with another commit of this
package, which is measured too. The busy process is an endless loop of the same priority. Every
measurement is a process of its own:

* start-up: one sentence by a command of the shell (CTranslate2: by a Python script that loads its
  export), seconds of wall time from call to end;
* translating: 40 sentences one by one through the Python API, sentences per second, the best of
  three passes; PyTorch's number of threads is its default;
* training: `seq2seq bench train`, target tokens per second.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

CTRANSLATE2 = """
import sys
import ctranslate2, sentencepiece
folder, sentence = sys.argv[1:]
tokenizer = sentencepiece.SentencePieceProcessor(f"{folder}/tokenizer.model")
translator = ctranslate2.Translator(folder, compute_type="int8")
source = [*tokenizer.encode(sentence, out_type=str), "</s>"]
(found,) = translator.translate_batch([source], beam_size=1)
print(tokenizer.decode(found.hypotheses[0]))
"""
TRANSLATING = """
import sys, time
from seq2seq_cli import Translator
run, src, *overrides = sys.argv[1:]
translator = Translator.load(run, "cpu", overrides)
lines = open(src, encoding="utf-8").read().splitlines()[:40]
passes = []
for _ in range(3):
    started = time.perf_counter()
    for line in lines:
        translator.translate([line])
    passes.append(time.perf_counter() - started)
print(len(lines) / min(passes))
"""
MODES = {
    "greedy, int8": (),
    "beam 4, int8": ("decoding.beam_size=4",),
    "greedy, fp32": ("decoding.precision=fp32",),
}


def output(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr}")
    return done.stdout


def seconds(*command: object) -> float:
    started = time.perf_counter()
    output(*command)
    return time.perf_counter() - started


def training(python: Path, config: str) -> float:
    options = ("--updates=40", "--warmup=8", "--json")
    printed = output(python, "-m", "seq2seq_cli", "bench", "train", config, *options)
    return float(json.loads(printed[printed.index("{\n") :])["tokens_per_second"])


@contextmanager
def a_busy_process():
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


Measures = dict[str, dict[str, Callable[[], float]]]  # by what is measured, and of which system


def measures(given: argparse.Namespace, exported: Path) -> Measures:
    pythons = {"ours": Path(sys.executable)} | ({"before": given.before} if given.before else {})
    sentence = given.src.read_text(encoding="utf-8").splitlines()[0]
    found: Measures = {}
    if "start-up" in given.only:
        row = found["start-up, one sentence, s"] = {
            name: lambda p=python: seconds(p.parent / "seq2seq", "translate", given.run, sentence)
            for name, python in pythons.items()
        }
        script = (sys.executable, "-c", CTRANSLATE2, exported, sentence)
        row["CTranslate2"] = lambda: seconds(*script)
        row["import torch alone"] = lambda: seconds(sys.executable, "-c", "import torch")
    if "translating" in given.only:
        for mode, overrides in MODES.items():
            found[f"Python API, {mode}, sentences/s"] = {
                name: lambda p=python, o=overrides: float(
                    output(p, "-c", TRANSLATING, given.run, given.src, *o)
                )
                for name, python in pythons.items()
            }
    if "training" in given.only:
        for config in given.configs:
            found[f"training {Path(config).stem}, tokens/s"] = {
                name: lambda p=python, c=config: training(p, c) for name, python in pythons.items()
            }
    return found


def shown(values: list[float]) -> str:
    digits = 2 if max(values) < 100 else 0
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({least:,.{digits}f} to {most:,.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("src", type=Path)
    parser.add_argument("configs", nargs="+")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    kinds = ["start-up", "translating", "training"]
    parser.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    given = parser.parse_args()
    os.environ.pop("OMP_NUM_THREADS", None)
    os.environ["PYTHONSAFEPATH"] = "1"  # each Python imports its own package, not this folder's
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "ctranslate2"
        seq2seq = Path(sys.executable).parent / "seq2seq"
        if "start-up" in given.only:
            output(seq2seq, "export", given.run, "--format", "ctranslate2", "--output", exported)
        print("| | system | idle | beside a busy process | of idle |\n|---|---|---|---|---|")
        for name, systems in measures(given, exported).items():
            idle: dict[str, list[float]] = {system: [] for system in systems}
            busy: dict[str, list[float]] = {system: [] for system in systems}
            for _ in range(given.rounds):
                for system, measure in systems.items():
                    idle[system].append(measure())
                    with a_busy_process():
                        busy[system].append(measure())
            for system in systems:
                share = statistics.median(busy[system]) / statistics.median(idle[system])
                row = (name, system, shown(idle[system]), shown(busy[system]), f"{share:.2f}")
                print(f"| {' | '.join(row)} |", flush=True)


main()
