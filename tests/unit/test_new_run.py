"""`seq2seq init`: what is split off, what is chosen, and what is never overwritten."""

import gzip
import json
import random
import re
from pathlib import Path

import pytest
from click.testing import _NamedTextIOWrapper
from commands import ROOT

from seq2seq_cli.commands.dry_run import dry_run
from seq2seq_cli.commands.init.init import less_dropout
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.presets import PRESETS, preset_for
from seq2seq_cli.config.schema import Config

WORDS = ["red", "green", "old", "new", "house", "tree", "cat", "dog", "way", "sees", "likes"]


def sentence_pairs(count: int) -> list[tuple[str, str]]:
    """Sentences, many of them with several translations, or again in capitals."""
    generator = random.Random(1)
    lines = [" ".join(generator.choices(WORDS, k=5)) + "." for _ in range(count // 2)]
    sources = [*lines, *(generator.choice(lines).upper() for _ in range(count - len(lines)))]
    return [(src, f"{number} {src.lower()}") for number, src in enumerate(sources)]


def unspaced(words: str, targets: list[str]) -> list[tuple[str, str]]:
    """Sentences of a script without spaces, and without a mark at their end."""
    generator = random.Random(3)
    return [("".join(generator.choices(words.split(), k=6)), tgt.rstrip(".")) for tgt in targets]


PAIRS = sentence_pairs(600)
FORMULAS = [
    tuple(line.split("\t"))
    for line in (ROOT / "data/parsing/train.tsv").read_text().splitlines()[:1_000]
]
QUICKSTART = zip(
    *((ROOT / f"data/quickstart/train.{side}").read_text().splitlines() for side in ("de", "en")),
    strict=True,
)
CHARACTERS, SUBWORDS = ({"src": kind, "tgt": kind} for kind in ("char", "bpe"))


def write_tsv(path: Path, pairs: list[tuple[str, str]]) -> Path:
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs))
    return path


def read_part(folder: Path, part: str) -> list[tuple[str, str]]:
    src, tgt = ((folder / f"{part}.{side}").read_text().splitlines() for side in ("src", "tgt"))
    return list(zip(src, tgt, strict=True))


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write_tsv(tmp_path / "all.tsv", PAIRS)


def test_parts_are_the_text_and_share_no_source(text, seq2seq):
    seq2seq("init", text, "--valid-size", 40, "--test-size", 30, "--yes").ok()
    parts = {part: read_part(Path("mine"), part) for part in ("train", "valid", "test")}
    assert sorted(pair for part in parts.values() for pair in part) == sorted(PAIRS)
    sources = [{src.lower() for src, _ in pairs} for pairs in parts.values()]
    assert sum(map(len, sources)) == len(set.union(*sources))
    assert 40 <= len(parts["valid"]) < 50
    assert 30 <= len(parts["test"]) < 40
    config = load_config(Path("mine.yaml"), is_given_now=True)
    assert config.train_text.files == (Path("mine/train.src"), Path("mine/train.tgt"))
    assert config.valid_text.files == (Path("mine/valid.src"), Path("mine/valid.tgt"))


def test_languages_are_those_in_the_names_of_the_text(text, seq2seq):
    """The parts that are written do not have these names any more."""
    assert seq2seq("init", text, "--yes").exit_code == 0
    assert load_config(Path("mine.yaml"), is_given_now=True).data.languages is None
    for side, lines in zip(("de", "pt_BR"), zip(*PAIRS, strict=True), strict=True):
        Path(f"all.{side}").write_text("".join(f"{line}\n" for line in lines))
    options = ("--output", "named.yaml", "--yes")
    assert seq2seq("init", "all.de", "all.pt_BR", *options).exit_code == 0
    languages = load_config(Path("named.yaml"), is_given_now=True).data.languages
    assert (languages.src, languages.tgt) == ("de", "pt-BR")


def test_split_depends_on_the_sources_alone(text, seq2seq):
    """Not on the order of the lines, nor on the format of the file."""
    assert seq2seq("init", text, "--valid-size", 40, "--yes").exit_code == 0
    shuffled = random.Random(2).sample(PAIRS, len(PAIRS))
    lines = (json.dumps({"src": src, "tgt": tgt}) for src, tgt in shuffled)
    Path("all.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    options = ("--valid-size", 40, "--yes", "--output", "other.yaml")
    assert seq2seq("init", "all.jsonl.gz", *options).exit_code == 0
    for part in ("train", "valid", "test"):
        assert sorted(read_part(Path("mine"), part)) == sorted(read_part(Path("other"), part))


def test_features_are_split_off_with_their_sources(text, seq2seq):
    """No lemma is in two parts, whatever its features are."""
    rows = [(word + end, f"V;{tag}", word + tag.lower()) for word in WORDS for end in "abcdefg"
            for tag in ("PST", "NOM(2,PL)", "3,SG")]  # fmt: skip
    Path("all.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    options = ("--fields", 1, 3, "--features", 2, "--valid-size", 20, "--yes")
    assert "source           1.0 words" in seq2seq("init", "all.tsv", *options).ok().stdout
    parts = {part: read_part(Path("mine"), part) for part in ("train", "valid", "test")}
    written = sorted((*src.split("\t"), tgt) for part in parts.values() for src, tgt in part)
    assert written == sorted(rows)
    lemmas = [{src.split("\t")[0] for src, _ in part} for part in parts.values()]
    assert sum(map(len, lemmas)) == len(set.union(*lemmas))
    config = load_config(Path("mine.yaml"), is_given_now=True)
    assert config.train_text.has_features
    assert config.tokenizer.kind.src == "char"
    seq2seq("vocab", "mine.yaml", "--output", "vocabulary").ok()
    entries = Path("vocabulary/tokenizer.vocab").read_text().splitlines()
    features = [entry for entry in entries if entry.startswith("<feature ")]
    assert features == [f"<feature {name}>" for name in ("3", "NOM(2,PL)", "PST", "SG", "V")]
    seq2seq("init", "all.tsv", *options[:5], "--valid-size", 0, "--yes", "-o", "whole.yaml").ok()
    assert load_config(Path("whole.yaml"), is_given_now=True).train_text.corpora[0].features == "2"


def test_answers_and_options_write_the_same(text, seq2seq):
    options = ("--valid-size", 20, "--test-size", 10, "--hours", 0)
    assert seq2seq("init", text, *options, "--yes").exit_code == 0
    written = {path: path.read_bytes() for path in (Path("mine.yaml"), Path("mine/valid.src"))}
    asked = seq2seq("init", text, stdin="20\n10\n0\ny\n").ok()
    assert "Overwrite mine.yaml and mine/valid.src" in asked.stdout
    assert {path: path.read_bytes() for path in written} == written


def test_nothing_is_overwritten_without_asking(text, seq2seq):
    Path("mine.yaml").write_text("precious")
    for options, stdin in ((("--yes",), None), ((), "20\n10\n0\nn\n")):
        assert seq2seq("init", text, *options, stdin=stdin).exit_code != 0
        assert Path("mine.yaml").read_text() == "precious"
        assert not Path("mine").exists()
    Path("all").mkdir()
    part = write_tsv(Path("all/train.src"), PAIRS).rename("all/train.src")
    result = seq2seq("init", part, part, "-o", "all.yaml", stdin="20\n10\n0\ny\n")
    assert "all/train.src is part of the text" in result.stderr
    assert len(part.read_text().splitlines()) == len(PAIRS)


def test_existing_validation_text_is_used(text, seq2seq):
    write_tsv(Path("valid.tsv"), PAIRS[:9])
    for output, arguments, stdin in (
        ("a.yaml", ("--valid", "valid.tsv", "--yes"), None),
        ("b.yaml", (), "valid.tsv\n0\n"),
    ):
        seq2seq("init", text, "-o", output, *arguments, stdin=stdin).ok()
        config = load_config(Path(output), is_given_now=True)
        assert config.train_text.files == (text,)
        assert config.valid_text.files == (Path("valid.tsv"),)
    assert not Path("a").exists()


def test_columns_of_validation_text_are_named_if_the_training_text_is_two_files(text, seq2seq):
    Path("a.src").write_text("".join(f"{src}\tF\n" for src, _ in PAIRS))
    Path("a.tgt").write_text("".join(f"{tgt}\n" for _, tgt in PAIRS))
    Path("valid.tsv").write_text("".join(f"{src}\tF\t{tgt}\n" for src, tgt in PAIRS[:9]))
    given = ("init", "a.src", "a.tgt", "--features", 2, "--valid", "valid.tsv", "--yes")
    assert "or --fields 1 3 --features 2" in seq2seq(*given).error()
    seq2seq(*given, "--fields", 1, 3).ok()
    (valid,) = load_config(Path("mine.yaml"), is_given_now=True).valid_text.corpora
    assert valid.all_fields == ("1", "3", "2")


@pytest.mark.parametrize(
    ("pairs", "expected"),
    {
        "sentences": (PAIRS, {"kind": SUBWORDS, "shared": True, "metric": "auto"}),
        "words": (
            [("".join(w) + "x" * n, "".join(w) + "s") for n in range(9) for w in WORDS],
            {
                "kind": CHARACTERS,
                "shared": True,
                "metric": "exact_match",
                "metrics": ("cer",),
                "ngrams": 1,
            },
        ),
        "phones": (
            [("".join(w) + "x" * n, " ".join(w)) for n in range(9) for w in WORDS],
            {
                "kind": {"src": "char", "tgt": "word"},
                "shared": False,
                "metrics": ("symbol_error_rate",),
                "ngrams": 6,
            },
        ),
        "two scripts": (
            [(src, "Кот пьёт воду.") for src, _ in PAIRS],
            {"kind": SUBWORDS, "shared": False, "bleu_tokenize": "13a"},
        ),
        "Chinese": (
            [(src, "我们昨天去了那个新的房子。") for src, _ in PAIRS],
            {"kind": SUBWORDS, "shared": False, "bleu_tokenize": "zh"},
        ),
        "Chinese in words": (
            [(src, "我们 昨天 去 了 那个 新 的 房子 。") for src, _ in PAIRS],
            {"bleu_tokenize": "13a"},
        ),
        "Japanese": (
            [(src, "昨日、新しい家に行きました。") for src, _ in PAIRS],
            {"bleu_tokenize": "char"},
        ),
        "Korean words to phones": (
            [("새집", "s͈ ɛ dʑ i p"), ("나무", "n a m u"), ("물", "m u l")] * 30,
            {"kind": {"src": "char", "tgt": "word"}, "normalization": "nfd"},
        ),
        "Korean words in another spelling": (
            [("새집", "새 집"), ("나무", "나무"), ("물", "물")] * 30,
            {"kind": {"src": "char", "tgt": "char"}, "normalization": "identity"},
        ),
        "Vietnamese words to phones": (
            [("người mẹ", "ŋ ɨə j m ɛ"), ("xanh", "s a j ŋ̟"), ("xe đạp", "s ɛ ɗ aː p")] * 30,
            {"kind": {"src": "char", "tgt": "word"}, "metrics": ("symbol_error_rate",)},
        ),
        "phones to words": (
            [(" ".join(w + "xy" * n), w + "xy" * n) for n in range(9) for w in WORDS],
            {"kind": {"src": "word", "tgt": "char"}, "metric": "exact_match", "metrics": ("cer",)},
        ),
        "Chinese words in Latin letters": (
            [("北京", "bei jing"), ("上海人", "shang hai ren"), ("大学", "da xue")] * 30,
            {"kind": CHARACTERS, "metric": "exact_match"},
        ),
        "Chinese sentences without marks": (
            unspaced("我们 老师 学生 喜欢 昨天 去了 新的 房子", [src for src, _ in PAIRS]),
            {"kind": SUBWORDS, "metric": "auto"},
        ),
        "short Chinese sentences without marks": (
            [("我爱你", "i love you very much"), ("他走了", "he has gone away")] * 30,
            {"kind": SUBWORDS, "metric": "auto"},
        ),
        "Thai sentences": (
            unspaced("ฉัน ครู นักเรียน ชอบ เห็น หนังสือ บ้าน", [src for src, _ in PAIRS]),
            {"kind": SUBWORDS, "metric": "auto"},
        ),
        "Thai to Chinese sentences": (
            unspaced("ฉัน ครู นักเรียน ชอบ เห็น หนังสือ บ้าน", ["我们昨天去了新的房子"] * 60),
            {"kind": SUBWORDS, "metric": "auto", "bleu_tokenize": "zh"},
        ),
        "Japanese to Korean": (
            unspaced(
                "私は 先生が 学生の 好き 昨日 見ました 本を", ["선생님은 어제 집에 갔다"] * 60
            ),
            {"kind": SUBWORDS, "metric": "auto"},
        ),
        "words that end in an apostrophe": (
            [(f"{src}ить", f"{tgt}it'") for src, tgt in zip("лвбдзг", "lvbdzg", strict=True)] * 10,
            {"kind": CHARACTERS, "shared": False},
        ),
        "numbers": (
            [(f"{a}+{b}=", str(a + b)) for a in range(20) for b in range(20)],
            {"kind": CHARACTERS, "shared": True, "max_length": 256},
        ),
        "long strings": (
            [("acgt" * n, "tgca" * n) for n in range(1, 301)],
            {"kind": CHARACTERS, "max_length": 1 + 1_200 + 1},
        ),
        "formulas": (
            FORMULAS,
            {
                "kind": {"src": "word", "tgt": "word"},
                "shared": False,
                "metric": "exact_match",
                "metrics": ("symbol_error_rate",),
            },
        ),
        "formulas of sources with new words": (
            [(f"{src} {number}", tgt) for number, (src, tgt) in enumerate(FORMULAS)],
            {"kind": {"src": "bpe", "tgt": "word"}, "metric": "exact_match"},
        ),
        "too few formulas": (FORMULAS[:5], {"kind": SUBWORDS, "metric": "auto"}),
        "formulas to sentences": (
            [(tgt, src) for src, tgt in FORMULAS],
            {"kind": SUBWORDS, "metric": "auto"},
        ),
        "sentences of few words": (QUICKSTART, {"kind": SUBWORDS, "metric": "auto"}),
        "full width": ([(f"{src} ＡＢＣ", tgt) for src, tgt in PAIRS], {"normalization": "nfkc"}),
        "letters that NFKC makes equal": (
            [
                (f"{letter}{mark}", f"{letter}{mark}{letter}")
                for letter in "abcde"
                for mark in "ʰh²2"
            ],
            {"kind": CHARACTERS, "normalization": "identity"},
        ),
    }.values(),
    ids=lambda value: None,
)
def test_options_follow_from_the_text(text, seq2seq, pairs, expected):
    write_tsv(text, pairs)
    seq2seq("init", text, "--valid-size", 0, "--yes").ok()
    config = load_config(Path("mine.yaml"), is_given_now=True)
    options = {
        **config.tokenizer.model_dump(),
        **config.validation.model_dump(),
        "ngrams": config.model.ngrams,
        "max_length": config.data.max_length,
        "kind": dict(config.tokenizer.kind),
        "normalization": config.tokenizer.normalization.src,
    }
    assert {name: options[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("pairs", "epochs"),
    [(FORMULAS, 18), ([(f"{n}a", f"{n}b") for n in range(6_000)], 50)],
    ids=["formulas", "words"],
)
def test_the_length_of_runs_of_strings_follows_the_text(text, seq2seq, pairs, epochs):
    """Little text has more epochs, so that it has as many updates as 50 batches per epoch."""
    for part, expected in ((pairs, epochs), (pairs[: len(pairs) // 4], None)):
        write_tsv(text, part)
        assert seq2seq("init", text, "--valid-size", 0, "--yes").exit_code == 0
        training = load_config(Path("mine.yaml")).training
        assert training.max_steps is None
        assert training.max_epochs == expected if expected else training.max_epochs > epochs
        Path("mine.yaml").unlink()


@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("pronunciation", ()),
        ("inflection", ("--fields", 1, 3, "--features", 2)),
        ("kana", ()),
        ("parsing", ()),
    ],
)
def test_an_epoch_has_about_as_many_batches_as_init_says(text, seq2seq, task, options):
    """The tokens of a batch are phones, features, ▁ and the ends of lines, not only letters."""
    tsv = ROOT / f"data/{task}/train.tsv"
    seq2seq("init", tsv, *options, "--valid-size", 0, "--yes").ok()
    small = "model={d_model: 8, heads: 1, layers: 1, d_ff: 8}"
    config = load_config(Path("mine.yaml"), (small,), is_given_now=True)
    batches = dry_run(lambda run: len(run.data.batches), config)
    updates = re.search(r"about ([\d,]+) updates", Path("mine.yaml").read_text())
    promised = int(updates[1].replace(",", "")) / config.training.max_epochs
    assert batches == pytest.approx(promised, rel=0.15)


@pytest.mark.slow
def test_a_time_limit_of_strings_is_in_epochs(text, seq2seq):
    """And the few updates of a small text are more than its warm-up."""
    write_tsv(text, [(f"{n}a", f"{n}b") for n in range(40)])
    assert seq2seq("init", text, "--valid-size", 0, "--yes", "--hours", 1e-4).exit_code == 0
    assert "epochs here" in Path("mine.yaml").read_text()


@pytest.mark.slow
def test_a_time_limit_is_written(text, seq2seq):
    write_tsv(text, PAIRS[:60])
    options = ("--valid-size", 0, "--yes")
    assert seq2seq("init", text, *options, "--hours", 1e-4).exit_code == 0
    config, small = load_config(Path("mine.yaml")), PRESETS["small"].choices
    limited = config.training
    assert limited.max_hours == 1e-4
    assert config.model.dropout == small["model.dropout"].value / 2
    assert limited.max_steps == small["training.max_steps"].value  # `train` adapts them to the time


@pytest.mark.parametrize(("share", "expected"), [(1.0, 0.3), (0.6, 0.3), (0.4, 0.15)])
def test_only_a_much_shorter_run_has_less_dropout(share, expected):
    small = PRESETS["small"].choices
    assert {**small, **less_dropout(small, share)}["model.dropout"].value == expected


def test_nothing_is_written_if_the_time_trial_fails(text, seq2seq):
    """The trial comes before the parts of the text; all pairs are longer than data.max_length."""
    write_tsv(text, [("so " * 30_000 + str(n), "so") for n in range(40)])
    before = set(Path().iterdir())
    result = seq2seq("init", text, "--valid-size", 5, "--hours", 1, "--yes")
    assert result.exit_code == 2
    assert set(Path().iterdir()) == before


def test_config_is_checked_and_trained(text, seq2seq):
    assert seq2seq("init", text, "--valid-size", 10, "--test-size", 10, "--yes").exit_code == 0
    assert "bpe entries" in seq2seq("vocab", "mine.yaml").ok().stdout


def test_longest_string_is_that_of_all_lines(text, seq2seq):
    """More lines than are sampled; each long one may be in the sample."""
    pairs = [(f"w{n}", f"w{n}") for n in range(30_000)]
    for n in range(20):
        pairs[1 + 1_499 * n] = ("a" * (1_000 + n), "b")
    write_tsv(text, pairs)
    seq2seq("init", text, "--valid-size", 0, "--test-size", 0, "--yes").ok()
    assert load_config(Path("mine.yaml")).data.max_length == 1 + 1_019 + 1
    write_tsv(text, [*pairs, ("a" * 60_000, "b")])
    seq2seq("init", text, "--valid-size", 0, "--test-size", 0, "-o", "other.yaml", "--yes").ok()
    assert load_config(Path("other.yaml")).data.max_length == 4_000


def test_a_folder_is_not_split_into_itself(text, seq2seq):
    Path("mine").mkdir()
    text.rename("mine/all.tsv")
    message = seq2seq("init", "mine", "--output", "mine.yaml", "--yes").error()
    assert "mine is part of the text: choose another --output" in message
    assert [path.name for path in Path("mine").iterdir()] == ["all.tsv"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("all.tsv", "--valid-size", 599), "are too few to hold out 599 for valid and 30 for test"),
        (("all.tsv", "--preset", "huge"), "valid: small, medium, large"),
        (("all.tsv", "all.tsv", "all.tsv"), "3 are given"),
        (("nowhere.tsv",), "there is no file nowhere.tsv"),
        (("empty.tsv",), "no pairs in empty.tsv"),
        (("unsplit.tsv",), "is the text split into lines?"),
        (("all.tsv", "--valid", "all.tsv", "--valid-size", 3), "not both"),
    ],
)
def test_errors_of_init(text, seq2seq, arguments, message):
    Path("empty.tsv").write_text("\t\n\n")
    Path("unsplit.tsv").write_text("a" * 70_000 + "\tb\n")
    assert message in seq2seq("init", *arguments, "--yes").error()
    assert not Path("mine.yaml").exists() and not Path("mine").exists()


def test_each_preset_begins_where_the_one_before_ends():
    bounds = [preset.fewest_pairs for preset in PRESETS.values()]
    assert bounds == sorted(bounds) and bounds[0] == 0
    assert [preset_for(n) for n in (29_000, 160_000, 4_500_000)] == list(PRESETS)
    for name, preset in PRESETS.items():
        assert preset_for(preset.fewest_pairs) == name


def test_presets_train_with_paths_given_on_the_command_line(text, seq2seq):
    for name in PRESETS:
        options = ("data.train.pairs=all.tsv", "data.valid=null")
        path = Path(__file__).parents[2] / f"configs/{name}.yaml"
        assert isinstance(load_config(path, options, is_given_now=True), Config)


def test_answers_that_cannot_be_used_are_asked_for_again(text, seq2seq, monkeypatch):
    monkeypatch.setattr(_NamedTextIOWrapper, "isatty", lambda self: True)  # as at a terminal
    answers = "-5\nvalit.tsv\n1e3\n1,5\n20\n-2\nfew\n1,5\n10\n-1\nnan\n2h\n0\n"
    result = seq2seq("init", text, stdin=answers).ok()
    assert result.stdout.count("Error: ") == 10
    assert "there is no file valit.tsv" in result.stdout
    assert result.stdout.count("1,5 is not a number of pairs") == 2
    assert "2h is not a number of hours" in result.stdout
    assert len(read_part(Path("mine"), "valid")) >= 20
    assert len(read_part(Path("mine"), "test")) >= 10


def test_lines_for_other_commands_are_no_answers(text, seq2seq):
    message = seq2seq("init", text, stdin="second.tsv\n40\n").error()
    assert "cannot be used (there is no file second.tsv" in message
    assert "use options, or --yes" in message


def test_input_that_ends_is_answered_with_yes(text, seq2seq):
    result = seq2seq("init", text, stdin="20\n")
    assert (result.exit_code, "use options, or --yes" in result.stderr) == (2, True)


def test_problems_are_named_before_the_text_is_read_or_written(text, seq2seq):
    for arguments, problem in (
        ((text, "--output", "mine"), "the name of a config ends in .yaml"),
        ((text, "--output", "all.tsv/mine.yaml"), "all.tsv is not a folder"),
        ((text, "--output", "\udcff.yaml"), "is not valid UTF-8: use another name"),
        ((text, "--valid", "valit.tsv"), "there is no file valit.tsv"),
        ((text, "--fields", "1", "4"), "all.tsv, line 1: needs column 4, has 2"),
    ):
        result = seq2seq("init", *arguments, "--yes")
        assert problem in result.error()
        assert "training text" not in result.stdout
    Path("16.src").write_text("a\nb\n", "utf-16")
    result = seq2seq("init", "16.src", "16.src", "--yes")
    assert "16.src is not UTF-8 (is it UTF-16?)" in result.stderr
    assert {path.name for path in Path().iterdir()} == {"all.tsv", "16.src"}


def test_a_text_that_no_config_can_name_is_refused_before_updates_are_timed(text, seq2seq):
    odd = text.rename("\udcff.tsv")
    result = seq2seq("init", odd, "--valid-size", "0", "--hours", "1", "--yes")
    assert "is not valid UTF-8: use another name" in result.error()
    seq2seq("init", odd, "--yes").ok()  # the config names the parts that are held out


SCHEMA_LINE = "# yaml-language-server: $schema={}\n"


def test_the_example_is_the_quickstart(seq2seq, tmp_path, monkeypatch):
    """Its files are those of the repository, and its config finds its text."""
    monkeypatch.chdir(tmp_path)
    result = seq2seq("init", "--example").ok()
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 9
    for path in written:
        assert path.read_bytes() == (ROOT / path.relative_to(tmp_path)).read_bytes()
    load_config(Path("configs/quickstart.yaml"), is_given_now=True)
    text = ("data/quickstart/train.de", "data/quickstart/train.en")
    seq2seq("init", *text, "--output", "configs/mine.yaml", "--yes").ok()
    assert Path("configs/mine.yaml").read_text().startswith(SCHEMA_LINE.format("schema.json"))
    seq2seq("init", *text, "--output", "mine.yaml", "--yes").ok()
    assert Path("mine.yaml").read_text().startswith(SCHEMA_LINE.format("configs/schema.json"))
    other = seq2seq("init", "--example", "elsewhere", "--hours", 1).error()
    assert "--example takes a folder, and no other option than --yes" in other
    commands = [line.strip() for line in result.stdout.splitlines() if "  seq2seq" in line]
    assert all(command in (ROOT / "README.md").read_text() for command in commands)


def test_the_example_overwrites_nothing_without_asking(seq2seq, tmp_path):
    folder = tmp_path / "new" / "folder"
    assert seq2seq("init", "--example", folder).exit_code == 0
    assert seq2seq("init", "--example", folder, "--yes").exit_code == 0  # all are the same
    mine = folder / "data/quickstart/train.de"
    mine.write_text("precious")
    for options, stdin in ((("--yes",), None), ((), "n\n")):
        result = seq2seq("init", "--example", folder, *options, stdin=stdin)
        assert (result.exit_code, mine.read_text()) == (2, "precious")
        assert f"{mine} would be overwritten: name another folder" in result.stderr
    assert seq2seq("init", "--example", folder, stdin="y\n").exit_code == 0
    assert mine.read_bytes() == (ROOT / "data/quickstart/train.de").read_bytes()


def test_init_says_that_there_is_no_validation_text(text, seq2seq):
    """One pair in twenty is set aside: none of ten."""
    write_tsv(text, PAIRS[:1])
    result = seq2seq("init", text, "--yes").ok()
    assert "note             no validation text" in result.stdout
    assert "training text    1 pair; dropped" in result.stdout
    write_tsv(text, PAIRS)
    assert "validation text" not in seq2seq("init", text, "--yes", "-o", "b.yaml").stdout


def test_the_folder_of_the_config_is_made_even_if_no_pairs_are_held_out(text, seq2seq):
    seq2seq("init", text, "--valid-size", 0, "--output", "new/folder/mine.yaml", "--yes").ok()
    load_config(Path("new/folder/mine.yaml"), is_given_now=True)


def test_init_says_which_exports_the_config_supports(text, seq2seq):
    refusal = "not huggingface: it needs model.positions: sinusoidal"
    assert (
        f"exports          ctranslate2, argos; {refusal}" in seq2seq("init", text, "--yes").stdout
    )
    assert f"# Exports: ctranslate2, argos; {refusal}." in Path("mine.yaml").read_text()


def test_symbols_between_marks_are_pointed_out(text, seq2seq):
    write_tsv(text, [("".join(w) + "x" * n, ".".join(w)) for n in range(9) for w in WORDS])
    result = seq2seq("init", text, "--valid-size", 0, "--yes")
    assert "the target looks like symbols with a separator, such as r.e.d" in result.stdout
    write_tsv(text, [("well-known", "in U.S. terms"), ("e-mail", "a so-called one")] * 30)
    assert (
        "a separator"
        not in seq2seq("init", text, "-o", "b.yaml", "--valid-size", 0, "--yes").stdout
    )


def test_columns_are_written_as_the_documents_write_them(text, seq2seq):
    Path("all.tsv").write_text("".join(f"{src}\tV;PST\t{tgt}\n" for src, tgt in PAIRS))
    options = ("--fields", 1, 3, "--features", 2, "--valid-size", 0, "--yes")
    assert seq2seq("init", "all.tsv", *options).exit_code == 0
    written = "train: {pairs: all.tsv, fields: [1, 3], features: 2}"
    assert written in Path("mine.yaml").read_text()


def test_lines_that_cannot_be_read_are_explained(text, seq2seq):
    Path("all.tsv").write_text("a b\tc d\n" * 3 + "a\tb\tc\n")
    summary = seq2seq("init", "all.tsv", "--valid-size", 0, "--yes").ok().stdout
    assert "unreadable       the first: all.tsv, line 4: needs 2 columns" in summary
    with Path("all.tsv").open("a") as file:
        file.write("a\tb\tc\n" * 3)
    assert "all.tsv, line 4: needs 2 columns" in seq2seq("init", "all.tsv", "--yes").error()


def test_features_must_be_there(text, seq2seq):
    Path("all.tsv").write_text("a\t\tb\n" * 9)
    options = ("--fields", 1, 3, "--features", 2, "--yes")
    assert "all.tsv: no line has features" in seq2seq("init", "all.tsv", *options).error()
    assert not Path("mine.yaml").exists()
    message = seq2seq("init", "all.tsv", "--fields", 1, "--features", 2).stderr
    assert "it takes two values, and one of them is --features" in message


def test_more_columns_name_the_options_that_choose_them(text, seq2seq):
    Path("all.tsv").write_text("a\tb\tc\n")
    result = seq2seq("init", "all.tsv", "--yes")
    assert "--fields 1 3 --features 2 on the command line" in result.stderr


def test_init_needs_a_text_or_the_example(seq2seq, tmp_path):
    assert "or --example" in seq2seq("init").stderr
    assert "writes to one folder" in seq2seq("init", "--example", tmp_path, tmp_path).stderr
