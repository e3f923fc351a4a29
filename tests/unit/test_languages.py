"""The languages of a run: given, or found in the names of files and fields."""

import pytest

from seq2seq_cli.config.languages import languages_of
from seq2seq_cli.config.text import DataConfig


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ({"src": "train.de", "tgt": "train.en"}, ("de", "en")),
        ({"src": "a/x.DE.gz", "tgt": "b/x.pt_BR.zst"}, ("de", "pt-BR")),
        ({"src": "text/*.de.xz", "tgt": "text/*.zh-Hans.xz"}, ("de", "zh-Hans")),
        ({"pairs": "x.jsonl", "fields": ["translation.de", "translation.en"]}, ("de", "en")),
        ({"pairs": "x.tmx", "fields": ["de", "en-GB"]}, ("de", "en-GB")),
        ({"pairs": "x.tsv", "fields": ["1", "3"]}, None),
        ({"pairs": "x.tsv"}, None),
        ({"src": "train.src", "tgt": "train.tgt"}, None),
        ({"src": "train.de", "tgt": "train.txt"}, None),
        ({"src": "old.en", "tgt": "new.en"}, None),
        ({"src": "train", "tgt": "train.en"}, None),
    ],
)
def test_languages_in_names(train, expected):
    assert languages_of(DataConfig.model_validate({"train": train})) == expected


def test_given_languages_win_and_turn_with_the_direction():
    data = {
        "train": {"src": "train.de", "tgt": "train.en"},
        "languages": {"src": "gsw", "tgt": "en-CH"},
    }
    assert languages_of(DataConfig.model_validate(data)) == ("gsw", "en-CH")
    reverse = DataConfig.model_validate({**data, "direction": "reverse"})
    assert languages_of(reverse) == ("en-CH", "gsw")


@pytest.mark.parametrize("code", ["", "d", "german", "de_DE", "de-", "../de", "12"])
def test_what_is_no_language_code(code):
    data = {"train": {"pairs": "x.tsv"}, "languages": {"src": code, "tgt": "en"}}
    with pytest.raises(ValueError, match="is not a language code such as de"):
        DataConfig.model_validate(data)
