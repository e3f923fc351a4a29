"""MarianMT models of transformers, random ones: the same logits, tokens and translations."""

import json
from pathlib import Path

import pytest
import torch
from commands import Command
from foreign_models import WORDS, write_marian_mt

pytestmark = pytest.mark.filterwarnings("ignore")

TAGS = (">>deu<<", ">>eng<<")
VARIANTS = [
    {},
    {"shared": False},
    {"odd_ids": True},
    {"tags": TAGS},
    {"half": True},
    {"pickled": True},
    {"activation_function": "relu"},
    {"activation_function": "gelu"},
    {"activation_function": "quick_gelu"},
    {"scale_embedding": False},
    {"bias": False, "missing": 0.0},
    {"missing": 0.3},
    {"shared": False, "odd_ids": True},
    {"shared": False, "half": True, "scale_embedding": False},
    {"tags": TAGS, "odd_ids": True, "half": True},
    {"odd_ids": True, "activation_function": "relu"},
    {"shared": False, "pickled": True, "activation_function": "gelu"},
    {"tags": TAGS, "missing": 0.2, "scale_embedding": False},
    {"odd_ids": True, "pickled": True, "half": True},
    {"shared": False, "odd_ids": True, "missing": 0.2, "activation_function": "quick_gelu"},
]


def lines_of(count: int) -> list[str]:
    return [" ".join(WORDS[(3 * n + k) % len(WORDS)] for k in range(1 + n % 6)) for n in range(count)]


@pytest.mark.parametrize("seed", range(len(VARIANTS)))
def test_an_import_has_the_logits_and_translations_of_transformers(
    seed: int, tmp_path: Path, seq2seq: Command
) -> None:
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    options = VARIANTS[seed]
    source, run = tmp_path / "model", tmp_path / "run"
    write_marian_mt(source, seed, **options)
    result = seq2seq("import", source, run)
    assert result.exit_code == 0, result.stderr
    assert "logits of 100 sentences equal transformers'" in result.stdout
    assert "dialect: Hugging Face" in result.stdout
    assert ("half precision" in result.stdout) == ("half" in options)

    lines = lines_of(6)
    if "tags" in options:
        lines = [f"{TAGS[n % 2]} {line}" for n, line in enumerate(lines)]
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForSeq2SeqLM.from_pretrained(source, dtype=torch.float32).eval()
    ids = json.loads((source / "target_vocab.json").read_text()) if "shared" in options else None
    unk = tokenizer.unk_token_id if ids is None else ids["<unk>"]
    expected = []
    for line in lines:
        output = model.generate(
            **tokenizer(line, return_tensors="pt"),
            num_beams=1,
            max_new_tokens=20,
            suppress_tokens=[unk, model.config.pad_token_id],
            forced_eos_token_id=None,
        )
        unseen = {model.config.eos_token_id, *tokenizer.convert_tokens_to_ids(options.get("tags", ()))}
        tokens = [token for token in output[0, 1:].tolist() if token not in unseen]
        expected.append(" ".join(tokenizer.decode(tokens).split()))
    flags = ("--beam-size", 1, "--set", "decoding.precision=fp32")
    limit = ("--set", "decoding.max_len_extra=20")
    done = seq2seq("translate", run, *flags, *limit, stdin="".join(f"{x}\n" for x in lines))
    assert done.exit_code == 0, done.stderr
    found = done.stdout.splitlines()
    assert expected == found
