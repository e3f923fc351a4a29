"""Test cases of the fuzzer: damaged inputs, each with a command that reads them.

A case is made from a random generator in a folder of its own, which holds what `victims.make_run`
writes: text, a config and a trained run.
"""

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import yaml
from commands import Result
from faults.hostile_lines import hostile_file, lines_of
from faults.mutations import (
    LIKELY_VALUES,
    ODD_VALUES,
    damage_file,
    damaged_bytes,
    damaged_safetensors,
    damaged_tree,
    damaged_vocabulary,
)
from faults.victims import yaml_of
from number_task import number_pairs

from seq2seq_cli.config.loader import flatten
from seq2seq_cli.config.schema import Config

Loss = Callable[[Result], str | None]


@dataclass
class Case:
    """A command to run in a folder, and a check of its output on success."""

    arguments: list[object]
    stdin: bytes | None = None
    loss: Loss = lambda result: None
    may_change: tuple[str, ...] = ()  # what the command writes, relative to the folder


def case_of_config(random: Random, folder: Path) -> Case:
    """A damaged YAML file."""
    path = folder / "numbers.yaml"
    given = path.read_bytes()
    if random.random() < 0.5:
        path.write_bytes(damaged_bytes(random, given))
    else:
        tree = yaml.safe_load(given)
        if random.random() < 0.5:
            tree = Config.model_validate(tree, strict=None).model_dump(mode="json")
        path.write_bytes(yaml_of(damaged_tree(random, tree)))
    return Case(["check", path])


def case_of_override(random: Random, folder: Path) -> Case:
    """Odd --set options, to check a config or to translate."""
    config = Config.model_validate(yaml.safe_load((folder / "numbers.yaml").read_bytes()))
    names = list(flatten(config))
    translates = random.random() < 0.5
    overrides: list[str] = []
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(
            [n for n in names if n.startswith("decoding.")] if translates else names
        )
        value = yaml_of([random.choice(random.choice((ODD_VALUES, LIKELY_VALUES, LIKELY_VALUES)))])
        text = value.decode("utf-8", "replace").removeprefix("- ").strip()
        override = f"{name}={text}"
        if random.random() < 0.3:
            override = damaged_bytes(random, override.encode()).decode("utf-8", "replace")
        overrides += ["--set", override.replace("\x00", "")]  # no argument can hold one
    if not translates:
        return Case(["check", folder / "numbers.yaml", *overrides])
    search = random.choice(
        ([], ["-b", "3"], ["--sampling"], ["-b", "3", "--align", "--format", "tsv"])
    )
    return Case(
        ["translate", folder / "run", *search, *overrides],
        b"1 2 3\n\n4\n",
        lambda result: expect("lines", result.stdout.count("\n"), 3),
    )


def case_of_text(random: Random, folder: Path) -> Case:
    """Damaged parallel text to check; every line must be counted."""
    form = random.choice(("text", ".tsv", ".jsonl"))
    packed = random.random() < 0.3
    pairs = number_pairs(30, seed=random.randrange(10**6))
    if form == "text":
        contents = {
            ".src": "".join(f"{a}\n" for a, _ in pairs),
            ".tgt": "".join(f"{b}\n" for _, b in pairs),
        }
    elif form == ".tsv":
        contents = {".tsv": "".join(f"{a}\t{b}\n" for a, b in pairs)}
    else:
        contents = {".jsonl": "".join(json.dumps({"src": a, "tgt": b}) + "\n" for a, b in pairs)}
    num_lines = []
    paths = []
    for ending, text in contents.items():
        content = text.encode()
        if form == "text" and random.random() < 0.3:
            content += hostile_file(random)
        elif random.random() < 0.8:
            content = damaged_bytes(random, content)
        num_lines.append(len(lines_of(content)))
        if packed:
            content = gzip.compress(content)
            content = damaged_bytes(random, content) if random.random() < 0.2 else content
        paths.append(folder / f"odd{ending}{'.gz' * packed}")
        paths[-1].write_bytes(content)
    place = random.choice(("train", "valid"))
    corpus = (
        dict(zip(("src", "tgt"), paths, strict=True)) if form == "text" else {"pairs": paths[0]}
    )
    options = {f"data.{place}.{name}": path for name, path in corpus.items()}
    options |= {f"data.{place}.{name}": "null" for name in {"src", "tgt", "pairs"} - set(corpus)}
    options["data.on_bad_line"] = random.choice(("skip", "error"))
    overrides = [word for item in options.items() for word in ("--set", "{}={}".format(*item))]

    def loss(result: Result) -> str | None:
        (line,) = re.findall(rf"^{place}.* text .*", result.stdout, re.MULTILINE)
        counted = (
            "pairs?|unreadable" if place == "valid" else "pairs?|with an empty side|over|unreadable"
        )  # a single one is "1 pair"
        numbers = re.findall(rf"([\d,]+) (?:{counted})", line)
        return expect(
            "lines counted", sum(int(n.replace(",", "")) for n in numbers), *num_lines[:1]
        )

    return Case(["check", folder / "numbers.yaml", *overrides], loss=loss)


def case_of_lines(random: Random, folder: Path) -> Case:
    """Hostile lines or damaged JSON lines to translate; as many must come out."""
    if random.random() < 0.5:
        content = hostile_file(random)
        options = ["--format", random.choice(("text", "tsv", "jsonl", "nbest"))]
    else:
        wishes = [{"src": "1 2", "prefix": "nine", "required": ["two"]}, {"src": "3"}]
        content = b"".join(
            json.dumps(damaged_tree(random, wish)).encode() + b"\n" for wish in wishes
        )
        content = damaged_bytes(random, content) if random.random() < 0.5 else content
        options = ["--input-format", "jsonl", "-b", "2"]
    options += random.choice(
        ([], ["--replace-unk"], ["--split-sentences"], ["--log-probs", "--format", "tsv"])
    )
    packed = random.random() < 0.2
    path = folder / f"odd.txt{'.gz' * packed}"
    num_lines = len(lines_of(content))
    if packed:
        content = gzip.compress(content)
        content = damaged_bytes(random, content) if random.random() < 0.3 else content
    path.write_bytes(content)
    return Case(
        ["translate", folder / "run", "-i", path, *options],
        loss=lambda result: expect("lines", result.stdout.count("\n"), num_lines),
    )


def case_of_scoring(random: Random, folder: Path) -> Case:
    """Damaged pairs or n-best lists to score; as many must come out."""
    content = "".join(
        f"{a}\t{b}\n" for a, b in number_pairs(5, seed=random.randrange(10**6))
    ).encode()
    path = folder / "odd.tsv"
    if random.random() < 0.3:
        listed = damaged_bytes(random, b"0 ||| one ||| x ||| 1\n0 ||| two ||| x ||| 2\n1 ||| six\n")
        path.write_bytes(listed)
        options: list[object] = ["--src", folder / "valid.src", "--nbest", path]
        num_lines = len(lines_of(listed))
    else:
        content = damaged_bytes(random, content)
        path.write_bytes(content)
        options = ["--pairs", path]
        num_lines = len(lines_of(content))
    if "--pairs" in options and random.random() < 0.5:

        def loss(result: Result) -> str | None:
            return expect("lines", json.loads(result.stdout)["num_lines"], num_lines)

        return Case(["eval", folder / "run", *options, "--json"], loss=loss)
    return Case(
        ["score", folder / "run", *options],
        loss=lambda result: expect("lines", result.stdout.count("\n"), num_lines),
    )


def case_of_tokenizer(random: Random, folder: Path) -> Case:
    """A damaged tokenizer, and text for it."""
    path = folder / "run" / "tokenizer.model"
    data = path.read_bytes()
    path.write_bytes(random.choice((damaged_bytes, *[damaged_vocabulary] * 3))(random, data))
    content = random.choice((b"1 2 3\nx\n", hostile_file(random)))
    options = random.choice(
        ([], ["--format", "jsonl"], ["--ban", "two"], ["--align", "--format", "tsv"])
    )
    return Case(
        ["translate", folder / "run", *options],
        content,
        lambda result: expect("lines", result.stdout.count("\n"), len(lines_of(content))),
    )


def case_of_run(random: Random, folder: Path) -> Case:
    """A damaged run folder, to translate with or to resume."""
    run = folder / "run"
    names = [path for path in run.rglob("*") if path.is_file() and "events" not in path.name]
    names = [path for path in names if path.name != "train.log"]
    path = random.choice(sorted(names))
    data = path.read_bytes()
    if random.random() < 0.4 and path.suffix == ".json":
        path.write_text(json.dumps(damaged_tree(random, json.loads(data))), encoding="utf-8")
    elif random.random() < 0.4 and path.suffix == ".yaml":
        path.write_bytes(yaml_of(damaged_tree(random, yaml.safe_load(data))))
    elif random.random() < 0.4 and path.suffix == ".safetensors":
        path.write_bytes(damaged_safetensors(random, data))
    else:
        damage_file(random, path)
    verb = random.choice(("translate", "eval", "score", "train", "train"))
    last = random.choice(([], ["--model", "last"]))
    if verb == "train":
        more = ["--set", "training.max_steps=4"]
        return Case(
            ["train", folder / "numbers.yaml", "--run-dir", run, *more], may_change=("run",)
        )
    if verb == "translate":
        search = random.choice(([], ["-b", "3"], ["--sampling"], ["--align", "--format", "tsv"]))
        return Case(
            ["translate", run, *search, *last],
            b"1 2 3\n\n4\n",
            lambda result: expect("lines", result.stdout.count("\n"), 3),
        )
    files = ["--src", folder / "valid.src", "--ref", folder / "valid.tgt"]
    return Case([verb, run, *last, *(files if verb == "score" else [])])


def expect(what: str, found: int, wanted: int) -> str | None:
    return None if found == wanted else f"{found} {what}, not {wanted}"


CASES: dict[str, tuple[int, Callable[[Random, Path], Case]]] = {  # with their shares
    "config": (4, case_of_config),
    "override": (3, case_of_override),
    "text": (4, case_of_text),
    "lines": (3, case_of_lines),
    "scoring": (1, case_of_scoring),
    "tokenizer": (3, case_of_tokenizer),
    "run": (6, case_of_run),
}
