"""export(): writes a run in another format with a model card, and compares both."""

import itertools
import logging
from collections.abc import Sequence
from pathlib import Path
from random import Random

from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.languages import languages_from_option
from seq2seq_cli.config.loader import load_config, yaml_text
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.text import Languages
from seq2seq_cli.console import counted
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.decoding.translator import Translator, input_of
from seq2seq_cli.errors import UserError, short
from seq2seq_cli.evaluation import located
from seq2seq_cli.extras.export.format import Format, Source, is_imported
from seq2seq_cli.extras.export.limits import format_named, unsupported
from seq2seq_cli.extras.export.model_card import model_card
from seq2seq_cli.extras.export.vocabularies import lines_for
from seq2seq_cli.files import write_atomic
from seq2seq_cli.paths import check_utf8
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import read_pairs
from seq2seq_cli.text.quoting import normalize_spaces
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, Tokenizer

logger = logging.getLogger(__name__)

_LINES_TO_COMPARE = 200
_MADE_UP, _LONGEST_MADE_UP = 40, 20  # lines, and tokens of their translations
_SHARE_EQUAL = 0.97  # of translations; fp32 sums in another order occasionally change a token

# Lines that are difficult for tokenizers; their ids are compared in every export.
DIFFICULT_LINES = (
    "<s> </s> <pad> <unk> <0x41> ▁",
    "a<s>b</s>c<pad>d<unk>e<0x41>f<0xE2><0x82>g",
    "</s>",
    "▁a ▁▁ b▁ ▁",
    "a\tb\u00a0c  d\u3000e\u2028f\x1cg ",
    "Kwyjibo Zxqv Qwrtz a Kwyjibo",
    "ÄÖÜ äöü ß ŒÆ ĳ №½ ﬁ ①",
    "你好，世界。こんにちは！カタカナ 안녕하세요",
    "Привет, мир! שלום مرحبا हिन्दी ไทย",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 \U0010ffff",
    "\x00\x01\x7f\u200b\u200d\ufeff\ufffd\ufffe",
    "||| \\n {} && <b>a</b> &amp; http://a.b/c?d=e#f",
)


def export(
    run_dir: Path,
    format_name: str,
    output: Path,
    which: str,
    langs: str | None,
    tag: str | None,
    license_name: str,
) -> str:
    """Write the export and compare; return a report of how many translations are equal.

    `which` names the weights, as --model does; `langs`, such as de-en, replaces data.languages, and
    `tag` decoding.tag. Raises UserError if the output exists, if the format cannot represent the
    run, if a line has other ids there, or if too many translations differ.
    """
    target = format_named(format_name)
    target.check_output(output)
    check_utf8(output.absolute())
    run = RunFolder(run_dir)
    run.ensure_is_run()
    overrides = [] if tag is None else [f"decoding.tag={yaml_text(tag)}"]
    overrides.append("decoding.precision=fp32")
    translator = Translator.load(run_dir, "cpu", overrides, which=which, with_pytorch=True)
    translator.config = _with_languages(translator.config, langs)
    config, tokenizers = translator.config, translator.tokenizers
    if reason := unsupported(format_name, config, tokenizers) or target.limits_of_run(translator):
        raise UserError(f"--format {format_name} does not support this model: {reason}")
    target.require(config, tokenizers)
    usage = target.usage(config, tokenizers)
    written = _with_languages(load_config(run.config), langs)
    about = (target.library, usage, license_name, which)
    card = model_card(run, written, translator.statistics, *about)
    with target.opened(output, config) as folder:
        target.write(translator, folder)
        write_atomic(folder / "README.md", card.encode("utf-8"))
        report = _compare(target, translator, run_dir, folder)
    return f"wrote {output}: {report}"


def _with_languages(config: Config, langs: str | None) -> Config:
    """Return the config with other languages of source and target."""
    if langs is None:
        return config
    src, tgt = languages_from_option(langs)
    if config.data.direction == "reverse":
        src, tgt = tgt, src
    return config.updated(data={"languages": Languages(src=src, tgt=tgt)})


def _compare(target: Format, translator: Translator, run_dir: Path, folder: Path) -> str:
    """Compare an export with the run; return a report, or raise UserError."""
    config, tokenizers = translator.config, translator.tokenizers
    inputs, kind = _validation_inputs(translator, run_dir), "validation"
    if not inputs and (is_imported(tokenizers) or not config.data.train):
        inputs, kind = _made_up_inputs(tokenizers.src), "made-up"
    lines = lines_for(tokenizers, [*DIFFICULT_LINES, *(line.text for line in inputs)])
    known = tokenizers.src.to_ids_batch(lines), target.source_ids(folder, lines, tokenizers)
    for text, our_ids, their_ids in zip(lines, *known, strict=True):
        if our_ids != their_ids:
            line = repr(short(text))
            raise UserError(f"the export tokenizes a line differently from the run: {line}")
    kept = {"max_len_factor", "max_len_extra", "tokens_per_batch", "tag"}  # else greedy search
    options = config.decoding.model_dump(include=kept)
    if kind == "made-up":  # translations of which may never end
        options |= {"max_len_factor": 0.0, "max_len_extra": _LONGEST_MADE_UP}
    compared = _comparable(target, translator, inputs, DecodingConfig(**options))
    if not compared:
        return "there are no validation lines to compare translations of"
    inputs, sources = map(list, zip(*compared, strict=True))
    options |= target.compared_search(config.decoding)
    config = config.model_copy(update={"decoding": DecodingConfig(**options)})
    model = target.compared_model(translator.model)
    greedy = Translator(model, tokenizers, config, statistics=translator.statistics)
    number = counted(len(inputs), f"{kind} line")
    logger.info(f"translating {number} with both programs, to compare the translations")
    ours = greedy.search(inputs, report=lambda issues: None)
    theirs = target.translate(folder, sources, tokenizers)
    equal = sum(a == target.shown(b[0]) for a, b in zip(theirs, ours, strict=True))
    report = f"{equal} of {len(inputs)} greedy translations of {kind} lines are equal"
    if equal < _SHARE_EQUAL * len(inputs):
        raise UserError(f"the export does not translate as the run does: {report}")
    return report


def _made_up_inputs(tokenizer: Tokenizer) -> list[TranslationInput]:
    """Return lines of random entries, for imported models, which have no validation text."""
    random, inner = Random(1), range(EOS_ID + 1, len(tokenizer))
    ids = (random.choices(inner, k=random.randint(1, 12)) for _ in range(_MADE_UP))
    return [TranslationInput(normalize_spaces(tokenizer.to_text(line))) for line in ids]


def _comparable(
    target: Format,
    translator: Translator,
    inputs: Sequence[TranslationInput],
    decoding: DecodingConfig,
) -> list[tuple[TranslationInput, Source]]:
    """Return inputs with what other programs translate.

    They split no lines into segments, and may lack positions or the tag: such lines are left out.
    """
    config = translator.config
    limit = float("inf") if config.model.positions == "rotary" else target.max_positions
    if not target.has_tags:
        inputs = [line for line in inputs if line.tag in (None, config.decoding.tag)]
    texts = lines_for(translator.tokenizers, [line.text for line in inputs])
    compared = []
    for line, text, cut in zip(inputs, texts, translator.cut(inputs)[0], strict=True):
        if len(cut) == 1:
            ids = cut[0].src_ids
            longest = decoding.max_length(len(ids))
            if max(len(ids), longest) < limit:
                compared.append((line, Source(text, ids, longest)))
    return compared


def _validation_inputs(translator: Translator, run_dir: Path) -> list[TranslationInput]:
    """Return some validation sources; none, with a warning, if the text no longer exists."""
    config = translator.config
    if (text := config.valid_text) is None:
        return []
    if (found := located(text, run_dir)) is None:
        lacking = f"the run's validation text {text.files[0]} does not exist"
        logger.warning(f"translations are not compared: {lacking}")
        return []
    pairs = itertools.islice(read_pairs(found, config.data.on_bad_line), _LINES_TO_COMPARE)
    return [input_of(pair) for pair in pairs if pair is not None]
