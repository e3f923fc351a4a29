"""N lines in, N lines out: translates hostile files into every line-based format.

    PYTHONPATH=tests python -m faults.hostile_lines --files 1000 --seed 1

Every file goes through the stream and the writer of the command, with a model that is loaded once;
some go through the command itself too.
"""

import argparse
import gzip
import itertools
import json
import logging
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import torch
from faults.victims import KINDS, call, make_run

from seq2seq_cli.decoding.lines.stream import Job, translate_stream
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.text.io import line_writer, lines_to_translate

ATOMS = [
    *"aZ09.!?|<>&\"'\\{}[],:;#%@~_-– ",
    *"äßéñçøłžΩжяאبहกがカ漢字한",
    *("\t", "\r", "\r\r", "\x00", "\x01", "\x07", "\x0b", "\x0c", "\x1a", "\x1b[31m", "\x7f"),
    *("\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\xa0", "\xad", "\u2028", "\u2029", "\u3000"),
    *("\u200b", "\u200c", "\u200d", "\u2060", "\ufeff", "\ufffd", "\ufffe", "\uffff", "\U0010ffff"),
    *("\u202e", "\u202d", "\u2066", "\u2069", "\u061c", "שלום", "مرحبا", "\u202eabc\u202c"),
    *(
        "👩‍👩‍👧‍👦",
        "🏳️‍🌈",
        "👍🏽",
        "🇩🇪",
        "e\u0301",
        "\u0301",
        "Z" + "\u0335\u0317" * 20,
        "ﷺ",
        "½",
        "ﬁ",
    ),
    *("▁", "▁▁", "<s>", "</s>", "<unk>", "<pad>", "<0x0A>", "<0x00>", " ⁇ ", "⁇"),
    *(" ||| ", "|||", "\\n", "\\u000a", "{}", "null", "NaN", "3 1 4", "one two", "What?! No."),
]
BROKEN = [  # not UTF-8: stray and cut sequences, overlong forms, surrogates, beyond Unicode
    *(b"\xff", b"\xfe\xff", b"\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\x80"),
    *(b"\xe0\x80\x8a", b"\xc0\x8a", b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xed\xa0\xbd\xed\xb8\x80"),
    *(b"\xf4\x90\x80\x80", b"\xf8\x88\x80\x80\x80", "e\n".encode("utf-16"), b"\xe9t\xe9"),
]
BOM = b"\xef\xbb\xbf"
FORMATS = ("text", "tsv", "jsonl", "nbest")


def hostile_line(random: Random) -> bytes:
    """A line without its line feed."""
    kind = random.choices(
        ("blank", "space", "atoms", "broken", "bytes", "long token", "long line"),
        (10, 5, 50, 15, 10, 2, 2),
    )[0]
    if kind == "blank":
        return b""
    if kind == "space":
        return "".join(
            random.choices(" \t\r\x0b\x0c\x85\u2028\u3000", k=random.randint(1, 9))
        ).encode()
    if kind == "bytes":
        return random.randbytes(random.randint(1, 30)).replace(b"\n", b"")
    if kind == "long token":
        return random.choice(ATOMS).encode() * random.randint(50, 500)
    words = random.choices(ATOMS, k=200 if kind == "long line" else random.randint(1, 12))
    line = random.choice(("", " ")).join(words).encode()
    if kind == "broken":
        place = random.randint(0, len(line))
        line = line[:place] + random.choice(BROKEN) + line[place:]
    return line.replace(b"\n", b"")


def hostile_file(random: Random) -> bytes:
    """Random lines, or an edge case: empty, only line feeds, only a BOM, no final line feed."""
    if random.random() < 0.05:
        return random.choice((b"", b"\n", b"\n\n\n", b"\r\n\r\n", b"\r", BOM, BOM + b"\n", b"\x00"))
    ends = random.choice(((b"\n",), (b"\r\n",), (b"\n", b"\r\n", b"\r\r\n")))
    content = b"".join(
        hostile_line(random) + random.choice(ends) for _ in range(random.randint(1, 12))
    )
    if random.random() < 0.3:
        content = content.removesuffix(b"\n")
    content = content.lstrip(b"\xfe\xff")  # text in UTF-16 is refused
    return (BOM if random.random() < 0.1 else b"") + content


def lines_of(content: bytes) -> list[str]:
    """Split a file at its line feeds, independently of the package."""
    *ended, rest = content.removeprefix(BOM).split(b"\n")
    if rest or content == BOM:
        ended.append(rest)
    return [line.removesuffix(b"\r").decode("utf-8", "replace") for line in ended]


def complaint(content: bytes, outputs: dict[str, bytes]) -> str | None:
    """Say what is wrong with the outputs, or return None."""
    lines = lines_of(content)
    rows: dict[str, list[str]] = {}
    for form, output in outputs.items():
        *ended, rest = output.split(b"\n")
        if rest or len(ended) != len(lines):
            return f"{form}: {len(lines)} lines in, {len(ended)} out, then {rest[:40]!r}"
        rows[form] = [row.decode("utf-8") for row in ended]
    reports = [json.loads(row) for row in rows["jsonl"]]
    if [report["src"] for report in reports] != lines:
        return "jsonl: other sources, or another order"
    if [row.split("\t")[0] for row in rows["tsv"]] != [" ".join(line.split()) for line in lines]:
        return "tsv: other sources, or another order"
    if [row.split(" ||| ")[0] for row in rows["nbest"]] != [str(n) for n in range(len(lines))]:
        return "nbest: other numbers"
    if any(row.count("\t") != 1 for row in rows["tsv"]):
        return "tsv: not two columns"
    texts = rows["text"]
    if (
        not texts
        == [row.split("\t")[1] for row in rows["tsv"]]
        == [report["translation"] for report in reports]
    ):
        return "the formats hold different translations"
    blank = [not line.split() for line in lines]
    if any(text for text, is_blank in zip(texts, blank, strict=True) if is_blank):
        return "an empty line has a translation"
    return None


class LoadedJob(Job):
    """A job that loads its model once."""

    translator: Translator

    def load(self, expected: object = None) -> Translator:
        return self.translator


def loaded_jobs(run: Path) -> dict[str, LoadedJob]:
    overrides = (
        "decoding.precision=fp32",
        "decoding.max_len_factor=0.1",
        "decoding.max_len_extra=2",
    )
    jobs = {}
    for form in FORMATS:
        options = {"overrides": overrides, "output_format": form, "device": "cpu"}
        job = LoadedJob((run,), **options)
        object.__setattr__(job, "translator", Job((run,), **options).load())
        jobs[form] = job
    return jobs


def translated(jobs: dict[str, LoadedJob], path: Path, folder: Path) -> dict[str, bytes]:
    """The output of the command in every format."""
    outputs = {}
    for form, job in jobs.items():
        written = folder / f"out.{form}"
        written.unlink(missing_ok=True)
        lines = translate_stream(job, lines_to_translate(path), path, processes=1)
        with line_writer(written) as write:
            for row in itertools.chain.from_iterable(lines):
                write(row)
        outputs[form] = written.read_bytes()
    return outputs


def by_the_command(run: Path, path: Path, folder: Path) -> dict[str, bytes]:
    outputs = {}
    for form in FORMATS:
        written = folder / f"out.{form}"
        result = call("translate", run, "-i", path, "-o", written, "--format", form, "--force")
        assert result.exit_code == 0, result.stderr
        outputs[form] = written.read_bytes()
    return outputs


def failures(num_files: int, seed: int, folder: Path) -> Iterator[str]:
    """Yield a line for each file with a wrong output."""
    runs = {kind: make_run(folder / kind, kind) for kind in KINDS}
    jobs = {kind: loaded_jobs(run) for kind, run in runs.items()}
    num_lines = 0
    for number in range(num_files):
        random = Random(f"{seed}/{number}")
        content = hostile_file(random)
        path = folder / f"{number}.txt"
        path.write_bytes(content)
        if number % 10 == 0:
            path = folder / f"{number}.txt.gz"
            path.write_bytes(gzip.compress(content))
        kind = KINDS[number % len(KINDS)]
        outputs = [translated(jobs[kind], path, folder)]
        if number % 50 == 0:
            outputs.append(by_the_command(runs[kind], path, folder))
        num_lines += len(lines_of(content))
        for found in outputs:
            if what := complaint(content, found):
                yield f"file {number} ({kind}): {what}"
    print(f"{num_files:,} files, {num_lines:,} lines, {len(FORMATS)} formats, seed {seed}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable()  # that lines are damaged or long is no news here
    with tempfile.TemporaryDirectory() as folder:
        found = list(failures(given.files, given.seed, Path(folder)))
    print("\n".join(found) or "every line in is a line out")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
