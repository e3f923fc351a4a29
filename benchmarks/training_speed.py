"""Our trainer and others', one after the other, on the same tokens: ratios of one run.

python benchmarks/training_speed.py tiny|base --work DIR [--hf PYTHON] [--marian PYMARIAN]

Run it from the repository's root, with Multi30k in data/multi30k, on an otherwise idle machine.
`--hf` is a Python with torch and transformers, `--marian` the pymarian command; each in a virtual
environment of its own. DIR receives the tokens for them, made by our tokenizer.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.text.corpus import read_pairs
from seq2seq_cli.tokenizers.tokenizer import fit_tokenizers

HERE = Path(__file__).parent
SECONDS = {"tiny": 20, "base": 45}
UPDATES = {"tiny": 80, "base": 20}
MARIAN_SECONDS = {"tiny": 30, "base": 80}
SHAPES = {"tiny": (128, 256, 4, 4, 0.3), "base": (512, 2048, 8, 6, 0.1)}


def lay_out_tokens(shape: str, work: Path) -> None:
    """The training text as pieces, a line each, and the vocabulary in the peers' formats."""
    config = load_config(HERE / f"{shape}.yaml")
    tokenizer = fit_tokenizers(config.train_text, config.tokenizer, "error").src
    pairs = [pair for pair in read_pairs(config.train_text, "error") if pair is not None]
    for side in ("src", "tgt"):
        lines = [" ".join(tokenizer.to_pieces(getattr(pair, side))) for pair in pairs]
        (work / f"train.{side}").write_text("".join(f"{line}\n" for line in lines))
    pieces = tokenizer.pieces()
    (work / "vocab").write_text("\n".join(pieces))
    names = ["</s>", "<unk>", *(p for p in pieces if p not in ("</s>", "<unk>"))]
    entries = (f"{json.dumps(name, ensure_ascii=False)}: {i}\n" for i, name in enumerate(names))
    (work / "vocab.yml").write_text("".join(entries))


def run(command: list[str], **environment: str) -> tuple[str, float]:
    """Its output, and the peak of the resident memory of all its processes in MB."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip
    peak = [0.0]

    def watch() -> None:
        while process.poll() is None:
            peak[0] = max(peak[0], sum(map(resident_mb, family(process.pid))))
            time.sleep(0.3)

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    watcher.join()
    return output, peak[0]


def family(pid: int) -> list[int]:
    """A process and all that it started."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [pid, *(one for child in text.split() for one in family(int(child)))]


def resident_mb(pid: int) -> float:
    try:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


def ours(shape: str, *overrides: str) -> tuple[float, float, dict]:
    settings = [f"--set={override}" for override in overrides]
    command = [sys.executable, "-m", "seq2seq_cli", "bench", "train", str(HERE / f"{shape}.yaml")]
    options = ["--json", f"--updates={UPDATES[shape]}", f"--warmup={UPDATES[shape] // 4}"]
    output, _ = run([*command, *options, *settings])
    found = json.loads(output[output.index("{\n") :])
    return found["tokens_per_second"], found["peak_memory_mb"], found


def huggingface(shape: str, work: Path, python: str, *options: str) -> tuple[float, float, dict]:
    script = str(HERE / "peers/huggingface.py")
    output, peak = run([python, script, str(work), shape, str(SECONDS[shape]), *options])
    return json.loads(output.splitlines()[-1])["tokens_per_second"], peak, {}


def marian(shape: str, work: Path, command: str) -> tuple[float, float, dict]:
    """Two one-thread processes, its fastest setting on two cores; words/s weighted by time."""
    d_model, d_ff, heads, layers, dropout = SHAPES[shape]
    model = work / f"marian-{shape}"
    model.mkdir(exist_ok=True)
    options = f"""--type transformer --model {model}/model.npz --overwrite
        --train-sets {work}/train.src {work}/train.tgt --vocabs {work}/vocab.yml {work}/vocab.yml
        --dim-emb {d_model} --transformer-dim-ffn {d_ff} --transformer-heads {heads}
        --enc-depth {layers} --dec-depth {layers} --transformer-dropout {dropout}
        --label-smoothing 0.1 --tied-embeddings-all --mini-batch-words 4096 --mini-batch 1000
        --maxi-batch 1000 --max-length 100 --cost-type ce-mean-words
        --optimizer-params 0.9 0.98 1e-09
        --learn-rate 0.0005 --lr-warmup 400 --clip-norm 1 --cpu-threads 2 --workspace 2000
        --disp-freq 2 --seed 42 --sync-sgd --shuffle-in-ram --quiet-translation"""
    timeout = ["timeout", "-s", "TERM", str(MARIAN_SECONDS[shape])]
    output, peak = run([*timeout, command, "train", *options.split()], OMP_NUM_THREADS="1")
    found = re.findall(r"Time ([\d.]+)s : ([\d.]+) words/s", output)[1:]  # the first warms up
    seconds = [float(time) for time, _ in found]
    words = [float(time) * float(rate) for time, rate in found]
    return sum(words) / sum(seconds), peak, {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--skip", nargs="*", default=[], help="systems by their names in the table")
    parser.add_argument("--hf")
    parser.add_argument("--marian")
    given = parser.parse_args()
    shape, work = given.shape, given.work
    work.mkdir(parents=True, exist_ok=True)
    lay_out_tokens(shape, work)
    systems: dict[str, Callable[[], tuple[float, float, dict]]] = {
        "ours": lambda: ours(shape),
        "ours, one process": lambda: ours(shape, "training.processes=1"),
        "ours, fp32": lambda: ours(shape, "training.precision=fp32"),
    }
    if given.hf:
        systems["HF loop, fp32"] = lambda: huggingface(shape, work, given.hf)
        systems["HF loop, bf16"] = lambda: huggingface(shape, work, given.hf, "bf16")
    if given.marian:
        systems["Marian"] = lambda: marian(shape, work, given.marian)
    systems = {name: measure for name, measure in systems.items() if name not in given.skip}
    rates: dict[str, list[float]] = {name: [] for name in systems}
    peaks = dict.fromkeys(systems, 0.0)
    for number in range(given.rounds):
        for name, measure in systems.items():
            rate, peak, details = measure()
            rates[name].append(rate)
            peaks[name] = max(peaks[name], peak)
            note = f", {details['share_of_ceiling']:.1%} of the ceiling" if details else ""
            print(
                f"round {number + 1}: {name}: {rate:,.0f} tokens/s, {peak:,.0f} MB{note}",
                flush=True,
            )
    print("\n| system | tokens/s, median (min to max) | ours, in the same round | peak MB |")
    print("|---|---|---|---|")
    for name, found in rates.items():
        ratios = [mine / other for mine, other in zip(rates["ours"], found, strict=True)]
        print(
            f"| {name} | {statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f}) "
            f"| {statistics.median(ratios):.2f}× ({min(ratios):.2f} to {max(ratios):.2f}) "
            f"| {peaks[name]:,.0f} |"
        )


main()
