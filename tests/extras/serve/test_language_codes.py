"""Which language a client means, and which one a text is in."""

from types import SimpleNamespace

import pytest

from seq2seq_cli.config.languages import LanguagePair
from seq2seq_cli.extras.serve.documents.formats import read_plain_text
from seq2seq_cli.extras.serve.gateway import Gateway
from seq2seq_cli.extras.serve.languages import detect, find_language


@pytest.mark.parametrize(
    ("asked", "known", "found"),
    [
        ("de", ["de", "en"], "de"),
        ("DE", ["de", "en"], "de"),
        (" de_AT ", ["de", "en"], "de"),
        ("fr", ["de", "en"], None),
        ("german", ["de"], None),
        ("", ["de"], None),
        # The same script, whatever the region.
        ("zh", ["zh-Hant", "zh-Hans"], "zh-Hans"),
        ("zh-CN", ["zh-Hant", "zh-Hans"], "zh-Hans"),
        ("zh-TW", ["zh-Hans", "zh-Hant"], "zh-Hant"),
        ("zt", ["zh-Hans", "zh-Hant"], "zh-Hant"),
        ("zh-HK", ["zh-Hans"], "zh-Hans"),
        ("sr", ["sr-Latn", "sr-Cyrl"], "sr-Cyrl"),
        ("sr-Latn", ["sr-Cyrl", "sr-Latn"], "sr-Latn"),
        # Then the same region.
        ("pt", ["pt-PT", "pt-BR"], "pt-BR"),
        ("pt_PT", ["pt-BR", "pt-PT"], "pt-PT"),
        ("pb", ["pt-PT", "pt-BR"], "pt-BR"),
        ("en-US", ["en-GB", "en"], "en"),
        # Codes of which clients know one.
        ("nb", ["no", "da"], "no"),
        ("no", ["nb"], "nb"),
        ("iw", ["he"], "he"),
        ("tl", ["fil"], "fil"),
        ("en-GB-oxendict" + "-abcdefgh" * 3, ["en"], None),  # longer than codes have to be
        ("jw", ["jv"], "jv"),
    ],
)
def test_the_language_that_is_meant(asked, known, found):
    assert find_language(asked, known) == found


@pytest.mark.parametrize(
    ("pairs", "source", "target", "number"),
    [
        ("en>pt-BR pt>en", "en", "PT-PT", 0),  # pt is no target
        ("de>en-GB en>de", "de", "EN-US", 0),
        ("de>en-GB en>de", "EN-GB", "de", 1),
        ("de>en-GB en>de", "EN-GB", "EN-GB", None),  # the text is in it
    ],
)
def test_a_code_is_looked_for_among_the_sources_or_targets(pairs, source, target, number):
    languages = [LanguagePair(*pair.split(">")) for pair in pairs.split()]
    service = SimpleNamespace(runs=[SimpleNamespace(languages=pair) for pair in languages])
    gateway = Gateway(service, None, None, False)
    assert gateway.route("", read_plain_text, source, target) == (number, None)


@pytest.mark.parametrize(
    ("text", "languages", "found"),
    [
        ("Ich möchte ein kaltes Bier trinken.", ["en", "de"], "de"),
        ("我想喝一杯啤酒。", ["en", "zh-Hans"], "zh-Hans"),
        ("Eu gostaria de beber uma cerveja.", ["es", "pt-BR"], "pt-BR"),
        ("I would like a beer.", ["gsw", "en-GB"], "en-GB"),
        ("Gusto kong uminom ng malamig na serbesa ngayong gabi.", ["id", "fil"], "fil"),
    ],
)
def test_texts_are_in_languages_with_scripts_and_regions(text, languages, found):
    best, other = detect(text, languages)
    assert best.language == found
    assert best.confidence > other.confidence


def test_text_without_letters_is_in_no_language():
    assert [(each.language, each.confidence) for each in detect("42 :-)", ["de", "en"])] == [
        ("de", 0.0),
        ("en", 0.0),
    ]
