"""Translate with Ray while its nodes are killed, and get the lines of one process.

    PYTHONPATH=tests python -m faults.ray_cluster [--kills 20] [--lines 120000] [--seed 1]

The first node, where the program runs, has no place for actors; two others have. At random moments
the raylet of one of those is killed by SIGKILL, which its actors notice a moment later, and after
another moment a new node joins.
The texts are translated again and again until there were that many kills; each time the files must
be, byte for byte, what one local process writes.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from number_task import number_pairs, numbers_config, write_config
from ray.cluster_utils import Cluster

NODES = 2
SECONDS = 3_600.0  # in which a translation must end, however many kills it meets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--lines", type=int, default=120_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryDirectory(prefix="seq2seq-ray-") as name:
        folder = Path(name)
        os.environ["SEQ2SEQ_CACHE"] = str(folder / "cache")
        run = train(folder)
        sources = write_texts(folder / "texts", given.lines, chance)
        expected = {source.name: translate_locally(run, source) for source in sources}
        kills, rounds = 0, 0
        while kills < given.kills:
            rounds += 1
            output = folder / f"output-{rounds}"
            suffered, seconds = translate_while_nodes_die(
                run, sources, output, chance, given.kills - kills
            )
            compare(sources, output, expected)
            kills += suffered
            shutil.rmtree(output)
            print(
                f"translation {rounds}: the same bytes after {suffered} kills in {seconds:.0f} "
                f"seconds; {kills} kills so far",
                flush=True,
            )


def train(folder: Path) -> Path:
    config = write_config(folder, numbers_config(folder, device="cpu", processes=1))
    run = folder / "run"
    command(["train", config, "--run-dir", run])
    return run


def write_texts(folder: Path, num_lines: int, chance: random.Random) -> list[Path]:
    """Write texts of so many lines, some empty; one text has no line end at its end."""
    folder.mkdir()
    for number in range(3):
        lines = [src for src, _ in number_pairs(num_lines // 3, seed=number)]
        lines = [chance.choice([line, line, ""]) for line in lines]
        (folder / f"{number}.txt").write_text("\n".join(lines) + "\n" * (number % 2))
    (folder / "empty.txt").write_text("")
    return sorted(folder.iterdir())


def translate_locally(run: Path, source: Path) -> bytes:
    output = source.parent.parent / "expected"
    command(["translate", run, "--input", source, "--output", output, "--beam-size", 4])
    return output.read_bytes()


def translate_while_nodes_die(
    run: Path, sources: list[Path], output: Path, chance: random.Random, most: int
) -> tuple[int, float]:
    """Return the number of kills, at most so many, and the seconds."""
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    workers = [cluster.add_node(num_cpus=1) for _ in range(NODES)]
    given = ["translate-ray", run, "--input", sources[0].parent / "*.txt", "--output", output]
    given += ["--concurrency", f"1:{NODES}", "--beam-size", 4]
    log = output.with_suffix(".log")
    kills, start = 0, time.monotonic()
    try:
        with log.open("wb") as file:
            translation = subprocess.Popen(
                [sys.executable, "-m", "seq2seq_cli", *map(str, given)],
                stdout=file, stderr=file, env={**os.environ, "RAY_ADDRESS": cluster.address},
            )  # fmt: skip
        while kills < most and not pause(translation, chance.uniform(1, 10)):
            cluster.remove_node(workers.pop(chance.randrange(NODES)), allow_graceful=False)
            kills += 1
            pause(translation, chance.choice([0.0, chance.uniform(0, 8)]))
            workers.append(cluster.add_node(num_cpus=1))
        assert translation.wait(SECONDS) == 0, log.read_text()[-5_000:]
    except subprocess.TimeoutExpired:
        translation.kill()
        raise AssertionError(f"no end:\n{log.read_text()[-5_000:]}") from None
    finally:
        cluster.shutdown()
    return kills, time.monotonic() - start


def pause(translation: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait; return whether the translation has ended before."""
    try:
        translation.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def compare(sources: list[Path], output: Path, expected: dict[str, bytes]) -> None:
    names = {path.name for path in output.iterdir()} - {".lock"}
    assert names == {*expected, *(f"{name}.shard.json" for name in expected)}, names
    for source in sources:
        found = (output / source.name).read_bytes()
        num_lines = len(source.read_text().split("\n")) - source.read_text().endswith("\n")
        num_lines -= not source.read_text()  # an empty text has no line
        assert found.count(b"\n") == num_lines, source.name
        assert found == expected[source.name], source.name


def command(given: list[object]) -> None:
    subprocess.run(
        [sys.executable, "-m", "seq2seq_cli", *map(str, given)], check=True, capture_output=True
    )


if __name__ == "__main__":
    main()
