"""Text in the forms that people have, and how several corpora are mixed."""

import bz2
import gzip
import hashlib
import json
import lzma
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import zstandard

from seq2seq_cli.config.text import ParallelText
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.data.batch_plan import pairs_of_epoch, pairs_per_epoch
from seq2seq_cli.data.batch_sampler import BatchSampler
from seq2seq_cli.data.cache import cache_folder
from seq2seq_cli.data.token_store import open_store
from seq2seq_cli.errors import UserError
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import Pair, hash_of_files, read_pairs
from seq2seq_cli.text.features import feature_symbols
from seq2seq_cli.text.io import lines_to_translate
from seq2seq_cli.text.leakage import count_corpus
from seq2seq_cli.tokenizers.tokenizer import (
    EOS_ID,
    UNK_ID,
    Tokenizers,
    fit_tokenizers,
    save_tokenizers,
)

PAIRS = [("ja", "yes"), ("ein Haus", "a house"), ("Grüße 👋", "greetings")]
COMPRESS = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
NAMES = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}


def texts(text: ParallelText, on_bad_line="error") -> list[tuple[str, str] | None]:
    pairs = read_pairs(text, on_bad_line)
    return [pair and (pair.src, pair.tgt) for pair in pairs]


def tsv(folder: Path, name: str, pairs=PAIRS) -> Path:
    path = folder / f"{name}.tsv"
    path.write_text("".join(f"{src}\t{tgt}\n" for src, tgt in pairs), encoding="utf-8")
    return path


def test_the_name_of_a_text_tells_corpora_from_sides():
    sides = {"src": Path("a.de"), "tgt": Path("a.en")}
    texts = [ParallelText.of(**given) for given in (sides, {"pairs": Path("b.tsv")}, sides)]
    corpora = tuple(corpus for text in texts for corpus in text.corpora)
    assert ParallelText(corpora).name == "a.de and a.en, b.tsv"


# Compression


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_text_is_read_whole(tmp_path, suffix):
    """Also when several compressed parts follow one another, as parallel compressors write them."""
    content = tsv(tmp_path, "x").read_bytes()
    path = tmp_path / f"x.tsv{suffix}"
    path.write_bytes(COMPRESS[suffix](content) + COMPRESS[suffix](content * 900))
    assert texts(ParallelText.of(pairs=path)) == PAIRS * 901
    line = tmp_path / f"line{suffix}"
    line.write_bytes(COMPRESS[suffix]("grün\r\nb".encode()))
    assert list(lines_to_translate(line)) == ["grün", "b"]
    line.write_bytes(COMPRESS[suffix](b"") + bytes(2_048 * (suffix in (".bz2", ".xz"))))  # padding
    assert list(lines_to_translate(line)) == []


@pytest.mark.parametrize("suffix", COMPRESS)
def test_damaged_compressed_files_are_rejected(tmp_path, suffix):
    whole = COMPRESS[suffix](np.random.default_rng(1).bytes(9_999).hex().encode())
    parts = [whole[: len(whole) // 2], whole[:-5], b"plain text\n" * 9]
    parts += [bytes([whole[0], whole[1] ^ 16, *whole[2:]]), whole[:20]]
    for damaged in (*parts, *(whole + part + whole for part in parts), whole + parts[0], b""):
        (tmp_path / f"x{suffix}").write_bytes(damaged)
        with pytest.raises(UserError, match=rf"is not a complete {NAMES[suffix]} file"):
            list(lines_to_translate(tmp_path / f"x{suffix}"))


def test_compression_bombs_are_refused(tmp_path):
    frame = COMPRESS[".zst"](b"a" * ((1 << 20) - 1) + b"\n")
    (tmp_path / "x.zst").write_bytes(frame * 300)
    with pytest.raises(UserError, match="100 times its size: this is not text"):
        list(lines_to_translate(tmp_path / "x.zst"))


# Moses archives


def archive(path: Path, **members: str) -> ParallelText:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name.replace("_", "."), content)
    return ParallelText.of(pairs=path, fields=["de", "en"])


def test_moses_zip_is_read_in_either_direction(tmp_path):
    de, en = ("".join(f"{pair[side]}\n" for pair in PAIRS) for side in (0, 1))
    text = archive(tmp_path / "x.zip", README="about", X_de_en_de=de, X_de_en_en=en)
    assert texts(text) == PAIRS
    turned = ParallelText.of(pairs=tmp_path / "x.zip", fields=["en", "de"])
    assert texts(turned) == [(en, de) for de, en in PAIRS]
    assert texts(text._replace(direction="reverse")) == texts(turned)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.zip"]


def test_unusable_zip_is_rejected_by_its_members(tmp_path):
    for members, message in (
        (
            {"X_de": "a\n"},
            r"must have one pair of files that end in \.de and \.en, but has 0 .*X\.de",
        ),
        ({"X_de": "", "X_en": "", "Y_de": "", "Y_en": ""}, "has 2"),
        ({"X_de": "a\nb\n", "X_en": "a\n"}, r"x\.zip:X\.de: 2, .*x\.zip:X\.en: 1"),
        ({"X_de": "a\n", "X_en": "a" * (1 << 23) + "\n"}, r"x\.zip:X\.en, line 1: longer than"),
    ):
        with pytest.raises(UserError, match=message):
            list(read_pairs(archive(tmp_path / "x.zip", **members)))
    content = (tmp_path / "x.zip").read_bytes()
    for damaged in (content[:-40], content[40:], content[:30] + content[60:], b"a\tb\n"):
        (tmp_path / "x.zip").write_bytes(damaged)
        with pytest.raises(UserError, match="not a complete zip file"):
            list(read_pairs(ParallelText.of(pairs=tmp_path / "x.zip", fields=["de", "en"])))


# TMX

UNITS = """\
<tu><tuv xml:lang="de"><seg>{0}</seg></tuv><tuv xml:lang="en"><seg>{1}</seg></tuv></tu>"""
TMX = """\
<?xml version="1.0" encoding="{encoding}"?>
<!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="de" datatype="xml"/><body>
{units}
</body></tmx>
"""


def tmx(path: Path, units: str, encoding: str = "utf-8") -> ParallelText:
    path.write_bytes(TMX.format(encoding=encoding, units=units).encode(encoding))
    return ParallelText.of(pairs=path, fields=["de", "en"])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_tmx_is_read_in_its_own_encoding(tmp_path, encoding):
    declared = encoding.removesuffix("-sig")
    units = "\n".join(UNITS.format(*pair) for pair in PAIRS * 500)
    content = TMX.format(encoding=declared, units=units).encode(encoding)
    (tmp_path / "x.tmx.xz").write_bytes(lzma.compress(content))
    text = ParallelText.of(pairs=tmp_path / "x.tmx.xz", fields=["de", "en"])
    assert texts(text) == PAIRS * 500


@pytest.mark.parametrize(
    ("encoding", "reason"), [("Shift_JIS", "multi-byte encodings"), ("x-none", "unknown encoding")]
)
def test_tmx_in_an_encoding_that_cannot_be_read_is_refused(tmp_path, encoding, reason):
    content = TMX.format(encoding=encoding, units=UNITS.format("ein", "one"))
    (tmp_path / "x.tmx").write_bytes(content.encode("ascii"))
    with pytest.raises(UserError, match=rf"x\.tmx: {reason}.*; convert it to UTF-8"):
        texts(ParallelText.of(pairs=tmp_path / "x.tmx", fields=["de", "en"]))


@pytest.mark.parametrize(
    ("segment", "text"),
    [
        ("a &lt;b&gt; &amp;#228; &#228;", "a <b> &#228; ä"),
        ("\n   two\r\n lines\n", "two  lines"),
        ('<bpt i="1">&lt;b&gt;</bpt>bold<ept i="1">&lt;/b&gt;</ept> text', "bold text"),
        ("before <ph>code <sub>note</sub> code</ph>after", "before after"),
        ("<hi>kept</hi> and <it pos='begin'>dropped</it> tail", "kept and  tail"),
        ("<![CDATA[a <b>]]>", "a <b>"),
        ("10&nbsp;Euro &mdash; &unknown; <ph>&nbsp;</ph>", "10\xa0Euro — &unknown;"),
    ],
)
def test_tmx_segments_become_plain_text(tmp_path, segment, text):
    assert texts(tmx(tmp_path / "x.tmx", UNITS.format(segment, "x"))) == [(text, "x")]


def test_tmx_languages_are_found_by_their_codes(tmp_path):
    """Case, region and the old attribute `lang` make no difference; the first of two counts."""
    unit = (
        '<tu><note>n</note><tuv lang="DE_de"><seg>ja</seg></tuv><tuv xml:lang="eng"><seg>no</seg>'
        '</tuv><tuv xml:lang="EN-gb"><seg>yes</seg></tuv><tuv xml:lang="en"><seg>yeah</seg></tuv>'
        "</tu>"
    )
    text = tmx(tmp_path / "x.tmx", unit)
    assert texts(text) == [("ja", "yes")]
    regional = ParallelText.of(pairs=tmp_path / "x.tmx", fields=["en-GB", "de"])
    assert texts(regional) == [("yes", "ja")]
    french = ParallelText.of(pairs=tmp_path / "x.tmx", fields=["de", "fr"])
    message = r"x\.tmx, line 4, unit 1: has no segment in fr \(its languages: de-de, eng"
    with pytest.raises(UserError, match=message):
        texts(french)
    assert texts(french, "skip") == [None]


def test_tmx_units_that_are_too_long_are_bad_lines(tmp_path):
    long = UNITS.format("x" * (1 << 23), "y")
    text = tmx(
        tmp_path / "x.tmx", "\n".join([UNITS.format("a", "b"), long, UNITS.format("c", "d")])
    )
    assert texts(text, "skip") == [("a", "b"), None, ("c", "d")]
    with pytest.raises(UserError, match=r"line 5, unit 2: longer than"):
        texts(text)


def test_damaged_and_hostile_tmx_is_rejected_with_its_line(tmp_path):
    path = tmp_path / "x.tmx"
    text = tmx(path, UNITS.format("a", "b"))
    whole = path.read_text()
    bomb = '<!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
    for content, message in (
        (whole[:-20], r"line 4: not XML: no element found"),
        (whole.replace("</seg>", "", 1), r"line 4: not XML: mismatched tag"),
        (whole.replace('<!DOCTYPE tmx SYSTEM "tmx14.dtd">', bomb), "line 2: defines an entity"),
        (whole.replace("<body>", f'<body a="{"a" * (1 << 23)}">'), "a tag has more than"),
    ):
        path.write_text(content)
        with pytest.raises(UserError, match=message):
            texts(text)


# Fields


def test_fields_name_keys_and_columns(tmp_path):
    records = [{"id": 1, "translation": {"de": de, "en": en}} for de, en in PAIRS]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    fields = ["translation.de", "translation.en"]
    assert texts(ParallelText.of(pairs=path, fields=fields)) == PAIRS
    message = r"x\.jsonl, line 1: needs text under the keys translation\.de and translation\.fr"
    with pytest.raises(UserError, match=message):
        texts(ParallelText.of(pairs=path, fields=["translation.de", "translation.fr"]))
    (tmp_path / "x.tsv").write_text("".join(f"7\t{en}\t\t{de}\n" for de, en in PAIRS))
    assert texts(ParallelText.of(pairs=tmp_path / "x.tsv", fields=[4, 2])) == PAIRS
    with pytest.raises(UserError, match="line 1: needs column 5, has 4"):
        texts(ParallelText.of(pairs=tmp_path / "x.tsv", fields=[5, 2]))


# Features

INFLECTED = [("gehen", "V;PST", "ging"), ("gehen", "V|PRS", "geht"), ("", "V", "x")]


def write_features(folder: Path, rows: Sequence[tuple[str, str, str]] = INFLECTED) -> ParallelText:
    path = folder / "x.tsv"
    path.write_text("".join("\t".join(row) + "\n" for row in rows))
    return ParallelText.of(pairs=path, fields=[1, 3], features=2)


EXPECTED = [
    Pair("gehen", "ging", None, "V;PST"),
    Pair("gehen", "geht", None, "V|PRS"),
    Pair("", "x", None, "V"),
]


def test_features_are_read_beside_the_sides(tmp_path):
    assert list(read_pairs(write_features(tmp_path))) == EXPECTED
    records = [dict(zip(("src", "tags", "tgt"), row, strict=True)) for row in INFLECTED]
    records[0]["tags"] = ["V", "PST"]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert list(read_pairs(ParallelText.of(pairs=path, features="tags"))) == EXPECTED
    (tmp_path / "src").write_text("".join(f"{src}\t{tags}\n" for src, tags, _ in INFLECTED))
    (tmp_path / "tgt").write_text("".join(f"{tgt}\n" for _, _, tgt in INFLECTED))
    two_files = {"src": tmp_path / "src", "tgt": tmp_path / "tgt"}
    assert list(read_pairs(ParallelText.of(**two_files, features=2))) == EXPECTED
    assert next(read_pairs(ParallelText.of(**two_files))) == Pair("gehen\tV;PST", "ging")
    with pytest.raises(UserError, match=r"x\.tsv, line 1: needs column 4, has 3"):
        texts(ParallelText.of(pairs=tmp_path / "x.tsv", fields=[1, 3], features=4))


def test_features_without_text_are_an_empty_source():
    assert EXPECTED[2].is_empty
    assert EXPECTED[0].source_line == "gehen\tV;PST"
    assert Pair("a\tb", "c").source_line == "a b"  # not features
    assert Pair("a\tb", "c", None, "V").source_line == "a b\tV"  # a tab of the text is a space


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
@pytest.mark.parametrize("normalization", ["identity", "nfkc_cf"])
def test_each_feature_is_a_token_before_those_of_the_text(tmp_path, kind, normalization):
    text = write_features(tmp_path, INFLECTED * 9)
    plain = ParallelText.of(pairs=tsv(tmp_path, "plain", [("gehen", "\u2420")] * 3))
    text = text._replace(corpora=text.corpora + plain.corpora)
    config = TokenizerConfig(kind=kind, vocab_size=330, normalization=normalization)
    src, tgt = fit_tokenizers(text, config)
    assert list(src.features) == ["<feature PRS>", "<feature PST>", "<feature V>"]
    prs, pst, v = src.features.values()
    store = open_store(text, Tokenizers(src, tgt), "error")
    assert store.src[0].tolist() == [v, pst, *src.to_ids("gehen"), EOS_ID]
    assert store.src[len(store) - 1].tolist() == [*src.to_ids("gehen"), EOS_ID]
    assert src.feature_ids("V PRS;NEG") == [UNK_ID, v, prs]
    assert src.feature_ids("") == []
    assert src.to_text([*src.feature_ids("V"), *src.to_ids("gehen")]) == "gehen"
    assert src.is_of_words == (kind == "word")
    # Text cannot become a feature, and features do not become text.
    assert not {*src.to_ids("<feature V> V;PST\tV")} & {prs, pst, v}
    learned = [piece for piece in src.pieces()[EOS_ID + 1 :] if piece not in src.features]
    assert not {"V", "P", "S", "T", "R"} & set("".join(learned))


@pytest.mark.parametrize(
    ("features", "expected"),
    [
        ("N;NOM(2,PL),SG", ["N", "NOM(2,PL)", "SG"]),
        ("V;ARGAC(1;SG);X(A(1|SG),B);PST", ["V", "ARGAC(1;SG)", "X(A(1|SG),B)", "PST"]),
        ("V(;A(1;2);B", ["V(", "A(1;2)", "B"]),
        ("N;ABL(PL;PSS(2,PL))", ["N", "ABL(PL;PSS(2,PL))"]),
        ("Case=Nom|Number=Sing", ["Case=Nom", "Number=Sing"]),
        (" V ;; PST ", ["V", "PST"]),
        ("", []),
        ("a," * 300_000, ["a"] * 300_000),
    ],
    ids=range(8),
)
def test_separators_of_features(features, expected):
    assert feature_symbols(features) == [f"<feature {name}>" for name in expected]


def test_a_vocabulary_without_features_has_no_place_for_them(tmp_path):
    plain = ParallelText.of(pairs=tsv(tmp_path, "a", PAIRS * 9))
    src, _ = fit_tokenizers(plain, TokenizerConfig(vocab_size=330))
    assert src.to_ids("ein\tBier") == src.to_ids("ein Bier")
    with pytest.raises(UserError, match=r"no features, but a source has: V;PST; they are learned"):
        src.feature_ids("V;PST")
    (tmp_path / "reused").mkdir()
    save_tokenizers(RunFolder(tmp_path / "reused"), Tokenizers(src, src))
    with pytest.raises(UserError, match="reused lacks <feature PRS>, <feature PST>, <feature V>,"):
        fit_tokenizers(write_features(tmp_path), TokenizerConfig(reuse=tmp_path / "reused"))
    with pytest.raises(UserError, match="no line has features; leave out"):
        fit_tokenizers(write_features(tmp_path, [("a", "", "b")]), TokenizerConfig(vocab_size=330))


def test_a_wrong_column_of_features_is_found(tmp_path):
    text = write_features(tmp_path, [("a", f"{number}", "b") for number in range(10_001)])
    with pytest.raises(
        UserError, match=r"more than 10,000 different features, such as <feature 0>"
    ):
        fit_tokenizers(text, TokenizerConfig(kind="char", vocab_size=100))


# Several corpora, tags and directions


def test_corpora_follow_one_another_with_their_tags(tmp_path):
    one, two = (
        ParallelText.of(pairs=tsv(tmp_path, "a"), tag="<bt>"),
        ParallelText.of(pairs=tsv(tmp_path, "b", [("neu", "new")])),
    )
    text = ParallelText(one.corpora + two.corpora)
    tagged = [Pair(*pair, "<bt>") for pair in PAIRS]
    assert list(read_pairs(text)) == [*tagged, Pair("neu", "new")]
    assert text.with_tag("<x>").tags == ["<bt>", "<x>"]
    turned = [Pair(pair.tgt, pair.src, pair.tag) for pair in tagged]
    both = [*tagged, *turned, Pair("neu", "new"), Pair("new", "neu")]
    assert list(read_pairs(text._replace(direction="both"))) == both
    (counts,) = count_corpus(text._replace(direction="both"), [], "error")
    assert counts.pairs == 8


@pytest.mark.parametrize("kind", ["bpe", "unigram", "char", "word"])
def test_tag_is_one_token_before_those_of_the_source(tmp_path, kind):
    plain = ParallelText.of(pairs=tsv(tmp_path, "a", PAIRS * 9))
    tagged = ParallelText.of(pairs=tsv(tmp_path, "a", PAIRS * 9), tag="<2en>")
    config = TokenizerConfig(kind=kind, vocab_size=330, normalization="nfkc_cf")
    tokenizers = fit_tokenizers(tagged, config)
    with_tag, without = (open_store(text, tokenizers, "error") for text in (tagged, plain))
    tag_ids = tokenizers.src.tag_ids("<2en>")
    assert len(tag_ids) == 1
    for number, (src, _) in enumerate(PAIRS):
        ids = tokenizers.src.to_ids(src)
        assert with_tag.src[number].tolist() == [*tag_ids, *ids, EOS_ID]
        assert without.src[number].tolist() == [*ids, EOS_ID]
        assert with_tag.tgt[number].tolist() == without.tgt[number].tolist()
    with pytest.raises(UserError, match=r"lacks the tag <2fr> \(its user-defined symbols: <2en>\)"):
        tokenizers.src.tag_ids("<2fr>")
    for piece in (tokenizers.src.pieces()[-1], "</s>"):
        with pytest.raises(UserError, match="lacks the tag"):
            tokenizers.src.tag_ids(piece)


def test_one_plain_corpus_has_the_cache_of_earlier_versions(tmp_path):
    """Else a run that an earlier version began would start its epoch anew."""
    text = ParallelText.of(pairs=tsv(tmp_path, "a"))
    tokenizers = fit_tokenizers(text, TokenizerConfig(vocab_size=330))
    models = [hashlib.sha256(tokenizer.model).hexdigest() for tokenizer in tokenizers]
    parts = [1, hash_of_files([tmp_path / "a.tsv"]), [".tsv"], models, "error", 99]
    store = open_store(text, tokenizers, "error", 99)
    assert store.key == hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
    facts = cache_folder() / store.key / "facts.json"
    written = json.loads(facts.read_text())
    facts.write_text(json.dumps({**written, "sizes": [3]}))
    assert open_store(text, tokenizers, "error", 99).sizes == (3,)
    assert "sizes" in json.loads(facts.read_text())  # it was read, not written anew
    keys = {
        open_store(other, tokenizers, "error", 99).key
        for other in (
            text,
            text._replace(direction="reverse"),
            text._replace(direction="both"),
            text._replace(corpora=text.corpora * 2),
            ParallelText.of(pairs=tmp_path / "a.tsv", fields=[2, 1]),
        )
    }
    assert len(keys) == 5


def test_text_in_both_directions_has_the_vocabulary_of_one(tmp_path):
    text = ParallelText.of(pairs=tsv(tmp_path, "a", PAIRS * 9))
    config = TokenizerConfig(vocab_size=330)
    one, both = (fit_tokenizers(t, config) for t in (text, text._replace(direction="both")))
    assert one.src.model == both.src.model


# Epochs


def test_draws_are_in_proportion_to_weights_or_by_temperature():
    assert pairs_per_epoch([10, 30], [1.0, 1.0], None) == [10, 30]
    assert pairs_per_epoch([10, 30], [2.5, 0.001], None) == [25, 1]
    assert pairs_per_epoch([10, 30], [1.0, 1.0], 1.0) == [10, 30]
    sizes = [1_000, 100_000, 0]
    drawn = pairs_per_epoch(sizes, [1.0] * 3, 5.0)
    shares = np.array(sizes[:2]) ** 0.2
    expected = shares / shares.sum() * sum(sizes)
    assert np.allclose(drawn[:2], expected, atol=1)
    assert pairs_per_epoch([10, 30], [1.0, 1.0], 10_000.0) == [20, 20]


def test_epochs_draw_every_pair_of_a_corpus_equally_often():
    sizes, drawn = [7, 10, 4], [7, 25, 1]
    total = Counter[int]()
    for epoch in range(1, 9):
        pairs = pairs_of_epoch(sizes, drawn, seed=3, epoch=epoch)
        of_corpora = np.histogram(pairs, [0, 7, 17, 21])[0]
        assert of_corpora.tolist() == drawn
        assert np.array_equal(pairs, pairs_of_epoch(sizes, drawn, seed=3, epoch=epoch))
        total.update(pairs.tolist())
    assert {total[pair] for pair in range(7)} == {8}
    assert {total[pair] for pair in range(7, 17)} == {20}
    assert {total[pair] for pair in range(17, 21)} == {2}
    assert pairs_of_epoch(sizes, sizes, seed=3, epoch=1) is None
    first, second = (pairs_of_epoch([10], [5], 3, epoch) for epoch in (1, 2))
    assert sorted([*first, *second]) == list(range(10))
    other = pairs_of_epoch([10], [5], 4, 1)
    assert not np.array_equal(first, other)


def test_batches_have_the_pairs_of_the_epoch(tmp_path):
    corpora = [
        ParallelText.of(pairs=tsv(tmp_path, name, PAIRS * count)).corpora[0]
        for name, count in (("a", 10), ("b", 20))
    ]
    text = ParallelText(tuple(corpora))
    tokenizers = fit_tokenizers(text, TokenizerConfig(kind="word", vocab_size=99))
    store = open_store(text, tokenizers, "error", 99)
    assert store.sizes == (30, 60)
    mixed = BatchSampler(store, 40, seed=1, drawn=[45, 20])
    buffer = BatchSampler(store, 40, seed=1, drawn=[45, 20]).buffer(0)
    for epoch in (1, 2, 3):
        pairs, plan = pairs_of_epoch(store.sizes, [45, 20], 1, epoch), buffer.plan(epoch, ())
        assert sorted(np.concatenate(plan)) == pairs.tolist()
        assert list(mixed.num_batches(range(epoch, epoch + 1))) == [(len(plan), 1)]
        consumed = [(40, 2)]  # after a change of the batch size
        rest = np.concatenate([*plan[:2], *buffer.plan(epoch, consumed)])
        assert sorted(rest) == pairs.tolist()
    whole, explicit = BatchSampler(store, 40, 1), BatchSampler(store, 40, 1, drawn=[30, 60])
    for epoch in (1, 2):
        both = (sampler.batches(epoch, 0, len(sampler)) for sampler in (whole, explicit))
        assert all(one.src_BS.equal(other.src_BS) for one, other in zip(*both, strict=True))
    assert whole.key == explicit.key == store.key != mixed.key
