"""Memory and processor time of training on short strings, beside a plain PyTorch loop.

python benchmarks/short_strings.py FOLDER [--updates 20]

Both train a pre-norm Transformer with d_model 256, 4+4 layers, 4 heads and d_ff 1,024 on batches of
about 4,096 tokens, with one thread: `seq2seq train` on words of 6 to 10 letters, the loop on random
numbers in rows of 10, without positions, padding or vocabulary. FOLDER receives text and runs.
Memory is the peak of the resident memory of the process, start included.
"""

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path

from seq2seq_cli.machine import torch_environment

PAIRS, LETTERS = 20_000, "abcdefghijklmnopqrstuvwxyz"
PRECISIONS = ("bf16", "fp32")
PLAIN_LOOP = """
import sys, torch
from torch import nn
from torch.nn.functional import cross_entropy

vocabulary, d_model, length = 32, 256, 10
model = nn.Transformer(d_model, 4, 4, 4, 1024, 0.3, batch_first=True, norm_first=True)
embedding, projection = nn.Embedding(vocabulary, d_model), nn.Linear(d_model, vocabulary)
parts = nn.ModuleList([model, embedding, projection])
optimizer = torch.optim.AdamW(parts.parameters(), 1e-4)
mask = nn.Transformer.generate_square_subsequent_mask(length)
for _ in range(int(sys.argv[1])):
    src = torch.randint(vocabulary, (4096 // length, length))
    tgt = torch.randint(vocabulary, (4096 // length, length + 1))
    with torch.autocast("cpu", torch.bfloat16, enabled=sys.argv[2] == "bf16"):
        logits = projection(model(embedding(src), embedding(tgt[:, :-1]), tgt_mask=mask))
    loss = cross_entropy(logits.float().flatten(0, 1), tgt[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def write_text(folder: Path) -> list[str]:
    """Write words and the same words reversed; return the options that make a config of them."""
    generator = random.Random(1)
    words = ["".join(generator.choices(LETTERS, k=generator.randint(6, 10))) for _ in range(PAIRS)]
    rows = "".join(f"{word}\t{word[::-1]}\n" for word in words)
    (folder / "words.tsv").write_text(rows)
    (folder / "config.yaml").write_text(
        f"data: {{train: {{pairs: {folder / 'words.tsv'}}}}}\n"
        "tokenizer: {kind: char}\n"
        "model: {d_model: 256, heads: 4, layers: 4, d_ff: 1024, dropout: 0.3}\n"
        "training: {tokens_per_batch: 4096, warmup_steps: 1, processes: 1, device: cpu}\n"
    )
    return ["train", str(folder / "config.yaml")]


def measure(command: list[str]) -> tuple[float, float]:
    """Return the peak of resident memory in MB, and processor seconds."""
    environment = torch_environment() | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return usage.ru_maxrss * 1_024 / 1e6, usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--updates", type=int, default=20, help="after 5 that are not timed")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    train = write_text(given.folder)
    print("| precision | | memory, MB | processor seconds per update |\n|---|---|--:|--:|")
    for precision in PRECISIONS:
        for name in ("plain loop", "seq2seq train"):
            used = {}
            for updates in (5, 5 + given.updates):
                if name == "plain loop":
                    command = [sys.executable, "-c", PLAIN_LOOP, str(updates), precision]
                else:
                    run = given.folder / f"{precision}-{updates}-{os.getpid()}"
                    options = {"max_steps": updates, "precision": precision}
                    sets = [f"--set=training.{key}={value}" for key, value in options.items()]
                    command = [sys.executable, "-m", "seq2seq_cli", *train, "--run-dir", str(run)]
                    command += sets
                used[updates] = measure(command)
            (_, before), (peak, after) = used.values()
            print(
                f"| {precision} | {name} | {peak:,.0f} | {(after - before) / given.updates:.2f} |"
            )


if __name__ == "__main__":
    main()
