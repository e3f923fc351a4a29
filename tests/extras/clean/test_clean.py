"""`seq2seq clean` finds planted faults of every kind, keeps everything else, and loses nothing."""

import gzip
import json
import os
import random
import re
import resource
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import zstandard
from commands import Command
from hypothesis import given
from hypothesis import strategies as st

from seq2seq_cli.commands.check.audit import audit_text
from seq2seq_cli.config.text import DataConfig, ParallelText
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.clean.cleaner import Job, judged
from seq2seq_cli.extras.clean.language_scripts import scripts_of
from seq2seq_cli.extras.clean.outputs import Outputs, opened_outputs
from seq2seq_cli.extras.clean.rules import (
    RULES,
    Batch,
    Characters,
    Limits,
    Profile,
    is_repetitive,
    profile_of,
)
from seq2seq_cli.extras.clean.seen_hashes import SeenHashes
from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.tokenizers.tokenizer import fit_tokenizers

GERMAN = [
    *("der", "alte", "Hund", "sucht", "heute", "seinen", "Knochen", "im"),
    *("großen", "Garten", "hinter", "dem", "Haus", "und", "bellt"),
]
ENGLISH = [
    *("the", "old", "dog", "seeks", "today", "his", "bone", "in", "a"),
    *("large", "garden", "behind", "our", "house", "and", "barks"),
]
EVERY = 5  # faults of a kind
TMX = """<tmx version="1.4"><header/><body><tu>
<tuv xml:lang="de"><seg>Ein Haus</seg></tuv><tuv xml:lang="en"><seg>A house</seg></tuv>
</tu></body></tmx>"""


def clean_pairs(count: int, seed: int = 1) -> list[tuple[str, str]]:
    """Different pairs of sentences without any fault."""
    draw = random.Random(seed)
    found: dict[tuple[str, str], None] = {}
    while len(found) < count:
        places = draw.sample(range(len(GERMAN)), 8)
        sides = (" ".join(words[i] for i in places) for words in (GERMAN, ENGLISH))
        src, tgt = (f"{side.capitalize()}." for side in sides)
        found[src, tgt] = None
    return list(found)


FAULTS = {  # by rule: a faulty pair from a sound one
    "empty": lambda src, tgt: (src, "  "),
    "control": lambda src, tgt: (src, f"{tgt}\x07"),
    "replaced": lambda src, tgt: (f"{src} \ufffd", tgt),
    "mojibake": lambda src, tgt: (f"{src} Ã¤rgerlich", tgt),
    "words": lambda src, tgt: (f"{src} " * 20, f"{tgt} " * 20),
    "word_length": lambda src, tgt: (f"{src} {'ab' * 21}", tgt),
    "markup": lambda src, tgt: (f"<b>{src}</b>", f"<b>{tgt}</b>"),
    "letters": lambda src, tgt: (f"{src} {'= 3 + ' * 20}", f"{tgt} {'= 3 + ' * 20}"),
    "script": lambda src, tgt: (src, "Старая собака ищет сегодня свою кость в большом саду."),
    "ratio": lambda src, tgt: (src, f"{tgt} {tgt.lower()} " + " ".join(ENGLISH) * 2),
    "copy": lambda src, tgt: (src, src.upper()),
    "addresses": lambda src, tgt: (f"{src} www.example.org", tgt),
    "repetition": lambda src, tgt: (src, f"{tgt[:-1]}, his bone, his bone, his bone, his bone"),
    "numbers": lambda src, tgt: (f"{src} 1984", f"{tgt} 1985"),
    "held_out": None,
    "duplicate": None,
    "near_duplicate": None,
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text of which the file `kinds` has each line's fault, or "" for none."""
    folder = tmp_path_factory.mktemp("planted")
    draw = random.Random(2)
    everything = clean_pairs(1_100)
    held_out, sound = everything[:20], everything[20:]
    rows = [("", pair) for pair in sound[100:]]
    spare = iter(sound[:100])
    for rule, damage in FAULTS.items():
        if damage is not None:
            rows += [(rule, damage(*next(spare))) for _ in range(EVERY)]
    rows += [("held_out", (pair[0].upper(), "Something else.")) for pair in held_out[:EVERY]]
    draw.shuffle(rows)
    earlier = [pair for rule, pair in rows if not rule][:EVERY]
    rows += [("duplicate", pair) for pair in earlier]
    rows += [("near_duplicate", (f"{src}!", tgt.upper())) for src, tgt in earlier]
    for name, lines in (
        ("kinds", [rule for rule, _ in rows]),
        ("a.de", [src for _, (src, _) in rows]),
        ("a.en", [tgt for _, (_, tgt) in rows]),
        ("test.tsv", ["\t".join(pair) for pair in held_out]),
    ):
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def test_every_planted_fault_is_found_and_nothing_else(planted, seq2seq: Command, tmp_path):
    outputs = ("-o", tmp_path / "x.de", "-o", tmp_path / "x.en", "--rejected", tmp_path / "no.tsv")
    text = (planted / "a.de", planted / "a.en", "--against", planted / "test.tsv")
    result = seq2seq("clean", *text, *outputs, "--json", "--examples", 1).ok()
    kinds, src, tgt = (lines_of(planted / name) for name in ("kinds", "a.de", "a.en"))
    rejected = [line.split("\t") for line in lines_of(tmp_path / "no.tsv")]
    found = {int(line): rule for rule, line, *_ in rejected}
    expected = {i: rule for i, rule in enumerate(kinds, 1) if rule}
    assert found == expected  # so none is missed, and none wrongly dropped
    for _, line, *sides in rejected:
        assert sides == [src[int(line) - 1], tgt[int(line) - 1]]
    sound = [i for i, rule in enumerate(kinds) if not rule]
    assert lines_of(tmp_path / "x.de") == [src[i] for i in sound]
    assert lines_of(tmp_path / "x.en") == [tgt[i] for i in sound]
    report = json.loads(result.stdout)
    assert report["pairs"] == len(kinds)
    assert report["kept"] == len(sound)
    counts = {name: finding["pairs"] for name, finding in report["findings"].items()}
    assert {name: count for name, count in counts.items() if count} == Counter(expected.values())
    assert all(len(finding["examples"]) <= 1 for finding in report["findings"].values())


@pytest.mark.parametrize("rule", [name for name, damage in FAULTS.items() if damage])
def test_a_rule_can_be_left_out(rule: str, planted, seq2seq: Command):
    text = (planted / "a.de", planted / "a.en", "--dry-run", "--json")
    findings = json.loads(seq2seq("clean", *text, "--without", rule).stdout)["findings"]
    assert rule not in findings
    assert findings["near_duplicate"]["pairs"] >= EVERY


def test_results_do_not_depend_on_processes_and_formats(planted, seq2seq: Command, tmp_path):
    pairs = zip(lines_of(planted / "a.de"), lines_of(planted / "a.en"), strict=True)
    tsv = "".join(f"{src}\t{tgt}\n" for src, tgt in pairs)
    (tmp_path / "in.tsv.gz").write_bytes(gzip.compress(tsv.encode()))
    two = (planted / "a.de", planted / "a.en", "-o", tmp_path / "1.tsv.zst", "--processes", 2)
    one = (tmp_path / "in.tsv.gz", "-o", tmp_path / "2.tsv.gz", "--processes", 1)
    first, second = seq2seq("clean", *two), seq2seq("clean", *one)
    assert first.exit_code == second.exit_code == 0, first.stderr + second.stderr

    def unpacked(name: str) -> bytes:
        with (tmp_path / f"1{name}.zst").open("rb") as file:
            content = zstandard.ZstdDecompressor().stream_reader(file).read()
        assert content == gzip.decompress((tmp_path / f"2{name}.gz").read_bytes())
        return content

    assert unpacked(".tsv").count(b"\n") > unpacked(".rejected.tsv").count(b"\n") > 0
    assert first.stdout.split("wrote")[0] == second.stdout.split("wrote")[0]


def test_clean_text_stays_as_it_is(seq2seq: Command, tmp_path: Path):
    text = "".join(f"{src}\t{tgt}\n" for src, tgt in clean_pairs(50))
    (tmp_path / "in.tsv").write_text(text)
    assert seq2seq("clean", tmp_path / "in.tsv", "-o", tmp_path / "out.tsv").exit_code == 0
    assert (tmp_path / "out.tsv").read_text() == text
    assert (tmp_path / "out.rejected.tsv").read_text() == ""


def test_features_and_unreadable_lines_are_kept_apart(seq2seq: Command, tmp_path: Path):
    (tmp_path / "in.tsv").write_bytes(b"go\tV;PST\tgo\nsee\tV;PST\tsaw\n\xff\tV\tx\nonly\n")
    columns = ("--fields", 1, 3, "--features", 2)
    seq2seq("clean", tmp_path / "in.tsv", *columns, "-o", tmp_path / "out.tsv").ok()
    assert lines_of(tmp_path / "out.tsv") == ["go\tgo\tV;PST", "see\tsaw\tV;PST"]
    rows = [line.split("\t") for line in lines_of(tmp_path / "out.rejected.tsv")]
    assert [row[:2] for row in rows] == [["unreadable", "3"], ["unreadable", "4"]]
    assert "not valid UTF-8" in rows[0][2]


def test_pairs_without_features_keep_their_column(seq2seq: Command, tmp_path: Path):
    rows = ["gehen\tging\tV;PST", "Baum\tBaeume\t", "\tHaus\t", "rufen\trief\tV;PST"]
    (tmp_path / "in.tsv").write_text("".join(f"{row}\n" for row in rows))
    options = ("--features", 3, "--without", "copy")
    for read, written in (("in.tsv", "once.tsv"), ("once.tsv", "twice.tsv")):
        seq2seq("clean", tmp_path / read, *options, "-o", tmp_path / written).ok()
        assert lines_of(tmp_path / written) == [rows[0], rows[1], rows[3]]
    assert lines_of(tmp_path / "once.rejected.tsv") == [f"empty\t3\t{rows[2]}"]


def test_other_scripts_have_other_lengths(seq2seq: Command, tmp_path: Path):
    """Chinese needs fewer characters, and no spaces: the median and the scripts are of the text."""
    draw = random.Random(3)
    characters = [chr(code) for code in range(0x4E00, 0x4F00)]
    pairs = [(src, "".join(draw.sample(characters, 14)) + "。") for src, _ in clean_pairs(40)]
    pairs[7] = (pairs[7][0], "Not a translation into Chinese.")
    (tmp_path / "in.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    for languages in ((), ("--langs", "de-zh")):
        result = seq2seq("clean", tmp_path / "in.tsv", "--dry-run", "--json", *languages)
        report = json.loads(result.stdout)
        assert report["kept"] == 39
        assert report["findings"]["script"]["examples"][0][0] == 8


@pytest.mark.parametrize("language", ["bo", "dz"])
def test_syllables_of_tibetan_are_not_one_long_word(language, seq2seq: Command, tmp_path: Path):
    tibetan = "འགྲོ་བ་མིའི་རིགས་རྒྱུད་ཡོངས་ལ་སྐྱེས་ཙམ་ཉིད་ནས་ཆེ་མཐོངས་དང་། ཐོབ་ཐངགི་རང་དབང་འདྲ་མཉམ་དུ་ཡོད་ལ།"
    english = "All human beings are born free and equal in dignity and rights."
    (tmp_path / "in.tsv").write_text(f"{tibetan}\t{english}\n", encoding="utf-8")
    options = ("--dry-run", "--json", "--langs", f"{language}-en")
    for rejects, limits in ((0, ()), (1, ("--max-words", 15))):
        report = seq2seq("clean", tmp_path / "in.tsv", *options, *limits).ok().stdout
        findings = json.loads(report)["findings"]
        assert sum(finding["pairs"] for finding in findings.values()) == rejects
        assert findings["words"]["pairs"] == rejects


@pytest.mark.parametrize(
    ("language", "scripts"),
    [
        ("mn-Mong", None),
        ("vi-hani", None),
        ("ja-Jpan", ["Han", "Kana"]),
        ("mn", ["Cyrillic"]),
        ("de-1996", ["Latin"]),
    ],
)
def test_a_script_that_is_named_replaces_the_usual_one(language: str, scripts: list[str] | None):
    assert scripts_of(language) == scripts


def repeats(*lines: str, **limits: int) -> list[bool]:
    pairs = [Pair(line, line) for line in lines]
    batch = Batch(pairs, Characters(), Limits(**limits), Profile(1.0, ((), ())))
    return is_repetitive(batch, batch.src).tolist()


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("ha ha ha ha", True),
        ("Ha, ha, ha, ha!", True),
        ("Ha! ha. HA, ha?", True),
        ("ha ha ha", False),
        ("Ein Haus, ein Haus. Ein Haus! EIN HAUS", True),
        ("der Server 8.8.8.8", False),
        ("काका की कोकिला, काका की कोकिला", False),
        ("அந்த வாக்குக்கு மதிப்பு, அந்த வாக்குக்கு மதிப்பு", False),
        ("मुझे किताबें पढ़ना बहुत पसंद है " * 5, True),
        ("über 1,000,000,000,000 Sterne", False),
        ("Das ist gut ❤️ ❤️ ❤️ ❤️", False),
        ("该项目投资10000元人民币。", False),
        ("该项目投资100000000元人民币。", False),
        ("参加者は20000人でした。", False),
        ("นี่คือ 10000 บาท", False),
        ("哈哈哈哈，你好吗？", False),
        ("哈哈哈哈哈哈哈哈，你好吗？", True),
        ("第1章、第2章、第3章、第4章、第5章", False),
        ("第1章、第1章、第1章、第1章", True),
        ("好的好的好的好的", True),
        ("好的，好的，好的！", False),
        ("我们今天去公园里散步吧，" * 4, True),
        ("我们今天去公园里散步吧，" * 3, False),
    ],
)
def test_repeated_words_are_found(line: str, is_found: bool):
    assert repeats(line) == [is_found]


@given(st.lists(st.text("aA1é ,._-", min_size=4)), st.integers(1, 4))
def test_repeated_words_are_found_as_simple_code_does(lines: list[str], most: int):
    def is_found(line: str) -> bool:
        words = re.findall(r"\d+(?:[.,]\d+)*|[^\W_]+", line.casefold())
        spans = [(i, length) for i in range(len(words)) for length in range(1, 11)]
        return any(
            words[i : i + length * (most + 1)] == words[i : i + length] * (most + 1)
            and len(words) >= i + length * (most + 1)
            for i, length in spans
        )

    lines = [re.sub(r"(.)\1+", r"\1", line) for line in lines]  # no character over 10 times
    batch_words = [len(line.split()) for line in lines]
    expected = [n > most and is_found(line) for line, n in zip(lines, batch_words, strict=True)]
    assert repeats(*lines, max_repeats=most) == expected


@pytest.mark.parametrize(
    ("src", "tgt", "is_found"),
    [
        ("La ville compte 12 500 habitants.", "The city has 12,500 inhabitants.", False),
        ("12 500 habitants", "12 500 inhabitants", False),
        ("12\u2009500 habitants", "12,500 inhabitants", False),
        ("En 2019, 1 234 567,50 euros", "1,234,567.50 euros in 2019", False),
        ("En 2019 300 000 visiteurs", "300,000 visitors in 2019", False),
        ("Chambre 10 200 personnes et 300", "200 people in room 10, and 300", False),
        ("Appelez le 030 123 456", "Call 030-123-456", False),
        ("En 2019 300 personnes", "300 people in 2019", False),
        ("La ville compte 12 500 habitants.", "The city has 15,500 inhabitants.", True),
        ("La ville compte 12 500 habitants.", "The city has 12,501 inhabitants.", True),
        ("En 2019 300 personnes", "2,019,300 people", True),
        ("Le train 12 5000", "The train 12,5000", True),
        ("En 1984", "In 1985", True),
        ("بلغ ١٢٬٥٠٠٫٧٥", "It was 12,500.75", False),
        ("بلغ ١٢،٥٠٠", "It was 12,500", False),
        ("共１２，５００人，３．５％，２：３０", "12,500 people, 3.5%, 2:30", False),
        ("到1984，300人", "300 people until 1984", False),
        ("共12，500人", "12,501 people", True),
    ],
)
def test_other_numbers_are_found(src: str, tgt: str, is_found: bool):
    for pair in (Pair(src, tgt), Pair(tgt, src)):
        batch = Batch([pair], Characters(), Limits(), Profile(1.0, ((), ())))
        assert RULES["numbers"].rejects(batch).tolist() == [is_found]


def test_languages_are_identified(seq2seq: Command, tmp_path: Path):
    pytest.importorskip("py3langid")
    french = "Le vieux chien cherche aujourd'hui son os dans le grand jardin derrière la maison."
    rows = [*clean_pairs(30), (clean_pairs(31)[30][0], french)]
    (tmp_path / "in.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in rows))
    options = ("--dry-run", "--json", "--langs", "de-en")
    found = seq2seq("clean", tmp_path / "in.tsv", *options, "--identify-languages")
    report = json.loads(found.stdout)
    assert [line for line, *_ in report["findings"]["language"]["examples"]] == [31]
    assert report["kept"] == 30
    assert json.loads(seq2seq("clean", tmp_path / "in.tsv", *options).stdout)["kept"] == 31


@pytest.mark.parametrize(
    ("language", "sentence"),
    [
        ("nn", "Eg veit ikkje kva eg skal gjere i dag, men eg vil gjerne gå ein tur i skogen."),
        ("nb", "Jeg vet ikke hva jeg skal gjøre i dag, men jeg vil gjerne gå en tur i skogen."),
        ("yue", "我哋今日唔知做乜嘢好，不如去公園行下啦，你話好唔好呀？佢哋都嚟緊嘅。"),
        ("zh_Hant", "我們今天不知道做什麼好，不如去公園走走吧，你說好不好？"),
    ],
)
def test_languages_like_another_are_identified(language, sentence, seq2seq: Command, tmp_path):
    pytest.importorskip("py3langid")
    (tmp_path / "in.tsv").write_text(f"{sentence}\tI would like to take a walk in the forest.\n")
    options = ("--dry-run", "--json", "--langs", f"{language}-en", "--identify-languages")
    report = json.loads(seq2seq("clean", tmp_path / "in.tsv", *options).ok().stdout)
    assert report["kept"] == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "give --output, or --dry-run"),
        (("-o", "x.txt"), "a file of pairs is .tsv"),
        (("-o", "a", "-o", "b", "-o", "c"), "give --output once"),
        (("-o", "{folder}/in.tsv"), "would be read and written"),
        (("-o", "a", "-o", "a"), "would be read and written"),
        (("--dry-run", "--without", "unreadable"), "--without unreadable: the rules are empty"),
        (("--dry-run", "--langs", "german"), "write two language codes"),
        (("--dry-run", "--identify-languages"), "needs --langs"),
        (
            ("--dry-run", "--langs", "de-en", "--identify-languages", "--without", "language"),
            "--identify-languages and --without language exclude each other",
        ),
        (("--dry-run", "--against", "{folder}/no.tsv"), "there is no file"),
        (("--dry-run", "--rejected", "x.tsv"), "--rejected is a file to write"),
    ],
)
def test_wrong_options_are_named(options, expected, seq2seq: Command, tmp_path: Path):
    (tmp_path / "in.tsv").write_text("Ein Haus\tA house\n")
    given_options = (option.format(folder=tmp_path) for option in options)
    assert expected in seq2seq("clean", tmp_path / "in.tsv", *given_options).error()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--fields", 1, 2), "--fields is for a file of pairs"),
        (
            ("--fields", 1, 2, *("--against", "{folder}/a.de") * 2),
            "--fields is for a file of pairs",
        ),
        (("--features", 7), "features of src are its second column"),
    ],
)
def test_options_of_files_of_pairs_are_not_ignored(options, expected, seq2seq, tmp_path):
    for name in ("a.de", "a.en"):
        (tmp_path / name).write_text("Ein Haus\n")
    given_options = (str(option).format(folder=tmp_path) for option in options)
    command = ("clean", tmp_path / "a.de", tmp_path / "a.en", "--dry-run", *given_options)
    assert expected in seq2seq(*command).error()


def test_files_with_content_are_only_replaced_with_force(seq2seq: Command, tmp_path: Path):
    (tmp_path / "in.tsv").write_text("Ein Haus\tA house\n")
    (tmp_path / "out.rejected.tsv").write_text("mine\n")
    command = ("clean", tmp_path / "in.tsv", "-o", tmp_path / "out.tsv")
    assert "out.rejected.tsv has content: give --force" in seq2seq(*command).error()
    assert not (tmp_path / "out.tsv").exists()
    seq2seq(*command, "--force").ok()
    assert lines_of(tmp_path / "out.tsv") == ["Ein Haus\tA house"]
    assert (tmp_path / "out.rejected.tsv").read_text() == ""


@pytest.mark.parametrize("is_forced", [False, True])
def test_what_another_command_wrote_meanwhile_is_only_replaced_with_force(is_forced, tmp_path):
    outputs = Outputs.of([tmp_path / "a.de", tmp_path / "a.en"], None, (), may_replace=is_forced)
    refused = pytest.raises(UserError, match=r"a\.en has content: give --force")
    with (
        nullcontext() if is_forced else refused,
        opened_outputs(outputs, has_features=False) as write,
    ):
        write("", 1, Pair("Ein Haus", "A house"))
        outputs.kept[1].write_text("finished\n")
    assert lines_of(outputs.kept[1]) == ["A house" if is_forced else "finished"]
    assert len([*tmp_path.iterdir()]) == (3 if is_forced else 1)


@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_a_full_disk_leaves_none_of_the_files(suffix: str, seq2seq: Command, tmp_path: Path):
    """Compressed files are mostly written when they are closed, others when a buffer is full."""
    draw = random.Random(2)
    pairs = [("".join(draw.choices("abcdefgh ", k=400)), tgt) for _, tgt in clean_pairs(400)]
    (tmp_path / "in.tsv").write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    src, tgt = (tmp_path / f"out/a.{side}{suffix}" for side in ("de", "en"))
    command = ("clean", tmp_path / "in.tsv", "-o", src, "-o", tgt, "--without", "ratio")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        message = seq2seq(*command, "--processes", 1).error()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert f"error: {src.parent}" in message  # versions of Python close another file first
    assert ": File too large" in message
    assert not [*src.parent.iterdir()]
    seq2seq(*command, "--processes", 1).ok()
    assert len([*src.parent.iterdir()]) == 3


class Watched(list[tuple[int, Pair]]):
    """A list that can be watched."""


@pytest.mark.parametrize("processes", [1, 2])
def test_only_some_batches_are_in_memory(processes: int):
    made: list[weakref.ref[Watched]] = []

    def batches() -> Iterator[Watched]:
        for number in range(70):
            batch = Watched([(number, Pair("Ein Haus", "A house"))])
            made.append(weakref.ref(batch))
            yield batch

    pairs = [Pair("Ein Haus", "A house")]
    job = Job((), Limits(), profile_of(pairs, Characters()))
    with judged(batches(), job, processes) as verdicts:
        found = [(batch[0][0], sum(each() is not None for each in made)) for batch, _ in verdicts]
    assert [number for number, _ in found] == [*range(70)]
    assert max(num_alive for _, num_alive in found) <= 2 * processes + 2


def test_held_out_text_that_cannot_be_read_is_an_error(seq2seq: Command, tmp_path: Path):
    (tmp_path / "in.tsv").write_text("1\tA house\tx\tEin Haus\n2\tA tree\tx\tEin Baum\n")
    (tmp_path / "test.tsv").write_text("Ein Haus\tA house\n")
    command = ("clean", tmp_path / "in.tsv", "--fields", 4, 2, "-o", tmp_path / "out.tsv")
    (tmp_path / "none.tsv").write_text("")
    (tmp_path / "good.tsv").write_text("1\tA house\tx\tEin Haus\n")
    for name, reason in (("test.tsv", "needs column 4, has 2"), ("none.tsv", "it has no lines")):
        against = ("--against", tmp_path / "good.tsv", "--against", tmp_path / name)
        message = seq2seq(*command, *against).error()
        assert f"{name}: no line can be read: " in message and reason in message
    assert not (tmp_path / "out.tsv").exists()


def test_held_out_sources_without_letters_are_removed(seq2seq: Command, tmp_path: Path):
    (tmp_path / "in.tsv").write_text("... ？\tWhat?\n♥  ♥\tlove\n♥♦\tcards\n")
    (tmp_path / "test.tsv").write_text("… ?\tWhat?\n♥ ♥\tlove\n")
    options = ("--against", tmp_path / "test.tsv", "--without", "letters", "--dry-run", "--json")
    report = json.loads(seq2seq("clean", tmp_path / "in.tsv", *options).ok().stdout)
    assert (report["findings"]["held_out"]["pairs"], report["kept"]) == (2, 1)


def test_fields_are_columns_of_held_out_text_of_the_same_format(seq2seq: Command, tmp_path: Path):
    rows = [{"de": "Ein Haus", "en": "A house"}, {"de": "Ein Baum", "en": "A tree"}]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "same.jsonl").write_text(json.dumps(rows[1]) + "\n")
    (tmp_path / "test.tsv").write_text("Ein Haus\tA house\n")
    against = ("--against", tmp_path / "test.tsv", "--against", tmp_path / "same.jsonl")
    command = ("clean", tmp_path / "in.jsonl", "--fields", "de", "en", "--dry-run", "--json")
    assert json.loads(seq2seq(*command, *against).ok().stdout)["kept"] == 0
    assert json.loads(seq2seq(*command, *against[:2]).ok().stdout)["kept"] == 1
    (tmp_path / "test.tmx").write_text(TMX)
    for corpus in (["in.jsonl"], ["in.de", "in.en"]):
        for language in ("de", "en"):
            (tmp_path / f"in.{language}").write_text("".join(f"{row[language]}\n" for row in rows))
        files = [tmp_path / name for name in corpus]
        found = seq2seq("clean", *files, *command[2:], "--against", tmp_path / "test.tmx").ok()
        assert json.loads(found.stdout)["kept"] == 1
    both = ("--against", tmp_path / "test.tmx", "--against", tmp_path / "test.tsv")
    assert json.loads(seq2seq("clean", *files, *command[2:], *both).ok().stdout)["kept"] == 1
    (tmp_path / "test.tsv").write_text("A house\tNOUN\tEin Haus\n")
    columns = ("--fields", 3, 1, *command[5:], *against[:2])
    assert json.loads(seq2seq("clean", *files, *columns).ok().stdout)["kept"] == 1
    files[0].write_text("Ein Haus\tNOUN\nEin Baum\tNOUN\n")
    found = seq2seq("clean", *files, *columns, "--features", 2).ok()
    assert json.loads(found.stdout)["kept"] == 1


@pytest.mark.parametrize("folder", ["{}", "{}/*", "{}/b*"])
def test_a_folder_of_pairs_next_to_a_file_is_read_as_pairs(folder, seq2seq: Command, tmp_path):
    (tmp_path / "held").mkdir()
    for name in ("a.tsv", "held/b.tsv"):
        (tmp_path / name).write_text(f"{name}\ta text\nein Baum: {name}\ta tree: {name}\n")
    given = (tmp_path / "a.tsv", folder.format(tmp_path / "held"))
    options = ("--dry-run", "--json", "--without", "copy")
    report = json.loads(seq2seq("clean", *given, *options).ok().stdout)
    assert (report["pairs"], report["kept"]) == (4, 4)
    for against in (given, given[::-1]):
        named = [name for path in against for name in ("--against", path)]
        report = json.loads(seq2seq("clean", *given, *options, *named).ok().stdout)
        assert report["findings"]["held_out"]["pairs"] == 4


def test_a_folder_with_pairs_and_something_else_is_no_side(seq2seq: Command, tmp_path: Path):
    for name in ("held/a/README", "held/a/x.tsv", "held/b/README", "held/b/x.tsv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("ein Baum\ta tree\n")
    message = seq2seq("clean", tmp_path / "held/a", tmp_path / "held/b", "--dry-run").error()
    assert "README must be a .tsv, .jsonl, .tmx or .zip file" in message


@pytest.mark.parametrize("processes", [1, 2])
def test_an_error_leaves_no_files(processes: int, seq2seq: Command, tmp_path: Path):
    text = "".join(f"{src}\t{tgt}\n" for src, tgt in clean_pairs(300)).encode()
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.tsv.gz").write_bytes(gzip.compress(text)[:-20])
    options = ("-o", tmp_path / "out/x.tsv.gz", "--processes", processes)
    message = seq2seq("clean", tmp_path / "in/a.tsv.gz", *options).error()
    assert "not a complete gzip file" in message
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(("name", "target"), [("a.tsv.gz", "blob"), ("a.tsv", "blob.gz")])
def test_the_name_of_a_link_says_how_to_compress(name, target, seq2seq: Command, tmp_path: Path):
    (tmp_path / "in.tsv").write_text("ein Haus\ta house\n")
    (tmp_path / target).touch()
    (tmp_path / name).symlink_to(tmp_path / target)
    seq2seq("clean", tmp_path / "in.tsv", "-o", tmp_path / name).ok()
    seq2seq("clean", tmp_path / name, "-o", tmp_path / "again.tsv").ok()
    assert lines_of(tmp_path / "again.tsv") == ["ein Haus\ta house"]
    assert (tmp_path / name).is_symlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
def test_pipes_are_written_not_replaced(seq2seq: Command, tmp_path: Path):
    (tmp_path / "in.tsv").write_text("eins\tone\n\t\n")
    pipes = [tmp_path / name for name in ("kept.tsv", "rejected.tsv")]
    for pipe in pipes:
        os.mkfifo(pipe)
    descriptors = [os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) for pipe in pipes]
    command = ("clean", tmp_path / "in.tsv", "-o", pipes[0], "--rejected", pipes[1])
    result = seq2seq(*command)
    kept, rejected = (os.read(descriptor, 1_000) for descriptor in descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    assert result.exit_code == 0, result.stderr
    assert kept == b"eins\tone\n"
    assert rejected.startswith(b"empty\t2")
    assert all(pipe.is_fifo() for pipe in pipes)


def test_empty_files_have_no_lines(seq2seq: Command, tmp_path: Path):
    (tmp_path / "in.tsv").write_text("")
    result = seq2seq("clean", tmp_path / "in.tsv", "--dry-run")
    assert (result.exit_code, "has no lines" in result.stderr) == (2, True)


@given(st.lists(st.lists(st.integers(0, 40), max_size=20), max_size=20))
def test_seen_hashes_are_a_set(batches: list[list[int]]):
    seen, expected = SeenHashes(), set()
    for batch in batches:
        is_repeat = [n in expected or n in batch[:i] for i, n in enumerate(batch)]
        assert seen.add(np.array(batch, np.uint64)).tolist() == is_repeat
        expected |= set(batch)
    assert seen.contain(np.arange(50, dtype=np.uint64)).tolist() == [
        n in expected for n in range(50)
    ]


def test_check_counts_the_same_pairs_of_text_that_changes(seq2seq: Command, tmp_path: Path):
    """Both learn from the same lines what length ratio is usual."""
    source, target = "ein Satz von gewöhnlicher Länge", "a sentence of the usual length"
    lines = [f"{source}\t{target}\n"] * 9_000 + [f"{source}\t{f'{target} and ' * 5}\n"] * 13_000
    (tmp_path / "x.tsv").write_text("".join(lines), encoding="utf-8")
    found = json.loads(seq2seq("clean", tmp_path / "x.tsv", "--dry-run", "--json").ok().stdout)
    text = ParallelText.of(pairs=tmp_path / "x.tsv")
    tokenizers = fit_tokenizers(text, TokenizerConfig(kind="char", vocab_size=100))
    audit, _ = audit_text(text, tokenizers, DataConfig(train=text.corpora))
    assert audit.rejected["ratio"] == found["findings"]["ratio"]["pairs"] == 9_000
