"""The config of a student: its shape, and what it takes over from the teacher."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq_cli.commands.init.init import choose, look_at
from seq2seq_cli.config.languages import languages_of
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.presets import Choice, Choices, commented_yaml, preset_for
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Corpus, DataConfig, ParallelText
from seq2seq_cli.config.tokenizer import TokenizerConfig
from seq2seq_cli.config.types import PresetName
from seq2seq_cli.console import counted
from seq2seq_cli.errors import UserError
from seq2seq_cli.files import write_atomic

_LEARNED = {"word", "char", "bpe", "unigram"}  # kinds that a vocabulary can be learned for
_TAKEN_OVER = {"kind", "shared", "user_defined_symbols", "split_digits", "graphemes"}
_TAKEN_OVER |= {"normalization"}
_FORM = re.compile(r"(\d{1,3})\+(\d{1,3})x(\d{1,5})", re.ASCII)


class Shape(NamedTuple):
    """The size of a student.

    Most of the time of a translation is the decoder's, so it is shallow (Kasai et al. 2021).
    """

    encoder: int
    decoder: int
    d_model: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Read `tiny` or `6+2x256`. Raises UserError for anything else."""
        match = _FORM.fullmatch(SHAPES.get(text, text))
        numbers = [int(number) for number in match.groups()] if match else [0]
        if 0 in numbers or numbers[-1] % 8:
            raise UserError(
                f"--shape {text}: give {', '.join(SHAPES)}, or layers of encoder and decoder and "
                "d_model, a multiple of 8, such as 6+2x256"
            )
        return cls(*numbers)

    def choices(self) -> Choices:
        """Return the options of section model for this size."""
        heads = math.gcd(self.d_model // 2, 8 if self.d_model >= 256 else 4)
        return {
            "model.d_model": Choice(self.d_model),
            "model.heads": Choice(heads),
            "model.layers": Choice(
                {"encoder": self.encoder, "decoder": self.decoder},
                "the decoder takes most of the time of a translation",
            ),
            "model.d_ff": Choice(4 * self.d_model, "four times d_model"),
        }


SHAPES = {"tiny": "6+2x128", "small": "6+2x192", "base": "6+2x256"}
_SHAPE_FOR: Mapping[PresetName, str] = {"small": "tiny", "medium": "small", "large": "base"}


def write_config(
    path: Path,
    translated: Sequence[Corpus],
    real: Sequence[Corpus],
    valid: ParallelText,
    teacher: Config,
    shape: Shape | None,
    overrides: Sequence[str],
) -> Config:
    """Write and return the config of a student for a text: what `init` chooses, and its shape.

    Kind and normalization of the vocabulary, languages and tag are the teacher's. Raises UserError
    for wrong overrides.
    """
    tag = teacher.decoding.tag
    text = ParallelText((*translated, *ParallelText((*real,)).with_tag(tag).corpora))
    look = look_at(text)
    preset = preset_for(look.counts.pairs)
    shape = shape or Shape.parse(_SHAPE_FOR[preset])
    # The updates of the preset `large` are for large models and GPUs.
    likely: PresetName = "small" if preset == "small" else "medium"
    chosen = dict(choose(look, likely, text, valid))
    data = DataConfig(train=text.corpora, valid=valid.corpora)
    given = data.model_dump(mode="json", exclude_defaults=True)
    chosen |= {f"data.{name}": Choice(value) for name, value in given.items()}
    if (languages := languages_of(teacher.data)) is not None:
        chosen["data.languages"] = Choice(languages._asdict(), "the teacher's")
    kind = TokenizerConfig.model_validate({"kind": chosen["tokenizer.kind"].value}).kind
    chosen |= (taken := _vocabulary(teacher))
    if "tokenizer.kind" in taken and kind != teacher.tokenizer.kind:
        chosen["tokenizer.vocab_size"] = Choice("auto")  # the reason was for another kind
    if teacher.model.ngrams == 1:  # millions of weights, which no other program computes
        chosen.pop("model.ngrams", None)
    chosen |= shape.choices()
    for name in ("bleu_tokenize", "lowercase", "merge_references"):
        if name in teacher.validation.model_fields_set:
            chosen[f"validation.{name}"] = Choice(getattr(teacher.validation, name))
    if tag is not None:
        chosen["decoding.tag"] = Choice(tag, "the teacher's")
    head = [
        f"Written by seq2seq distill for {counted(look.counts.pairs, 'pair')}.",
        "All other options have the defaults of configs/reference.yaml.",
    ]
    content = commented_yaml(head, chosen).encode()
    if not path.exists() or path.read_bytes() != content:
        write_atomic(path, content)
    return load_config(path, overrides, is_given_now=True)


def _vocabulary(teacher: Config) -> dict[str, Choice]:
    """Return the options of the teacher's vocabulary.

    If it cannot be learned (after `import` or `trim`), only the symbols and the normalization are
    taken over; an imported tokenizer may also normalize by itself.
    """
    taken, kind = _TAKEN_OVER, teacher.tokenizer.kind
    normalization = teacher.tokenizer.normalization
    if not {kind.src, kind.tgt} <= _LEARNED:
        is_normalized = {normalization.src, normalization.tgt} != {"identity"}
        taken = {"user_defined_symbols", *(["normalization"] if is_normalized else [])}
    given: dict[str, Any] = teacher.tokenizer.model_dump(mode="json", include=taken)
    return {f"tokenizer.{name}": Choice(value, "the teacher's") for name, value in given.items()}
