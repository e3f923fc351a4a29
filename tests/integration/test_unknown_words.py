"""Out-of-vocabulary names, translated by a model that has learned to copy them."""

import random
from pathlib import Path

import pytest
from commands import Command
from number_task import FAST, WORDS, numbers_config, write_config, write_pairs


def name(generator: random.Random) -> str:
    return "".join(generator.choices("BDFGKLMNPRSTVZ") + generator.choices("aeioulnrst", k=4))


def pairs_with_names(count: int, seed: int) -> list[tuple[str, str]]:
    """Digits are translated, names are copied: `3 Kora 4` → `three Kora four`."""
    generator = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = generator.choices("0123456789", k=generator.randint(2, 6))
        for _ in range(generator.randint(0, 2)):
            names = " ".join(name(generator) for _ in range(generator.choice((1, 1, 2))))
            words.insert(generator.randint(0, len(words)), names)
        pairs.append((" ".join(words), " ".join(WORDS.get(word, word) for word in words)))
    return pairs


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    config = numbers_config(folder, **FAST, max_steps=250)
    config["data"] = {
        "train": write_pairs(folder, "train", pairs_with_names(2_000, seed=1)),
        "valid": write_pairs(folder, "valid", pairs_with_names(60, seed=2)),
    }
    config["tokenizer"]["vocab_size"] = 14
    write_pairs(folder, "test", pairs_with_names(200, seed=3))
    write_config(folder, config)
    return folder


@pytest.fixture(scope="module")
def run(folder: Path, seq2seq: Command) -> Path:
    seq2seq("train", folder / "numbers.yaml", "--run-dir", folder / "run").ok()
    return folder / "run"


@pytest.mark.slow
def test_replace_unk_copies_unknown_names(run, folder, seq2seq):
    options = ("--replace-unk", "--align", "--format", "tsv", "--precision", "fp32")
    found = seq2seq("translate", run, "-i", folder / "test.src", *options).stdout.splitlines()
    references = (folder / "test.tgt").read_text().splitlines()
    right = links_right = 0
    for line, reference in zip(found, references, strict=True):
        source, translation, links = line.split("\t")
        right += translation == reference
        places = [int(n) for link in links.split() for n in link.split("-")]
        assert max(places[::2]) < len(source.split())
        assert sorted(places[1::2]) == list(range(len(translation.split())))
        if translation == reference:
            names = [n for n, word in enumerate(reference.split()) if word[0].isupper()]
            links_right += all(f"{n}-{n}" in links.split() for n in names)
    assert right >= 0.9 * len(references)
    assert links_right == right
    banned = seq2seq("translate", run, "3 Kora 4", "--ban", "Kora", "--replace-unk").stdout
    assert banned == "three four\n"


@pytest.mark.slow
def test_without_replace_unk_no_unknown_token_is_output(run, folder, seq2seq):
    """The model predicts <unk> for names, so the search has to forbid it."""
    options = ("--precision", "fp32", "--beam-size")
    for beam_size in (1, 2):
        output = seq2seq("translate", run, "-i", folder / "test.src", *options, beam_size).stdout
        assert len(output.splitlines()) == 200
        assert {*output.split()} <= {*WORDS.values()}
