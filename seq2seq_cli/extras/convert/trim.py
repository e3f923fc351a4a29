"""Reduces the vocabulary of a run to what a text needs; the other weights stay as they are."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from seq2seq_cli.config.languages import languages_of
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config, TrainingConfig
from seq2seq_cli.config.text import Languages, ParallelText
from seq2seq_cli.config.tokenizer import Kinds, VocabSizes
from seq2seq_cli.config.types import SIDES, TOKENIZER_KINDS
from seq2seq_cli.data.tokenization import chunks_of
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.extras.convert.spm_vocab_tokenizer import SpmVocabTokenizer, restricted
from seq2seq_cli.extras.convert.writer import write_run
from seq2seq_cli.extras.export.weights import with_rows
from seq2seq_cli.files import new_folder, require_new_folder, write_json
from seq2seq_cli.model.parameters import unique_parameters
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import read_pairs
from seq2seq_cli.tokenizers.sentencepiece_tokenizer import kind_of
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, Tokenizer, Tokenizers
from seq2seq_cli.training.checkpoints.manifest import imported_from


def trim(run_dir: Path, texts: Sequence[ParallelText], output: Path, which: str = "best") -> str:
    """Write the run with a smaller vocabulary to another folder, and return a report.

    The vocabulary keeps the tokens of the texts, special tokens, features, tags, symbols, bytes and
    single characters. The logits of these tokens do not change. Raises UserError for vocabularies
    without subwords, if `output` has files, and for texts that cannot be read.
    """
    require_new_folder(output)
    RunFolder(run_dir).ensure_is_run()
    translator = Translator.load(run_dir, "cpu", exact=True, which=which, with_pytorch=True)
    _check(translator)
    before = translator.tokenizers
    src_ids, tgt_ids = _kept(before, texts)
    after = _trimmed(before, src_ids, tgt_ids, translator.config.train_text.tags)
    config = _config(translator.config, after)
    old = unique_parameters(translator.model)
    new = with_rows(old, src_ids, tgt_ids)
    with new_folder(output) as part:
        folder = RunFolder(part)
        if translator.statistics is not None:  # whose words are known by their tokens
            statistics = translator.statistics.model_copy(update={"src_words": None})
            write_json(folder.statistics, statistics.model_dump())
        record = {"from": str(run_dir), "text": [text.name for text in texts]}
        write_run(folder, config, after, new, {**imported_from(run_dir), "trimmed": record})
        load_config(folder.config)  # what it refuses would be no run
    names = ["both sides"] if before.is_shared else ["source", "target"]
    lengths = zip(names, map(len, before), map(len, after), strict=False)
    sizes = [sum(p.numel() for p in weights.values()) for weights in (old, new)]
    return "\n".join(
        [
            *(f"entries     {was:,} → {now:,} ({side})" for side, was, now in lengths),
            f"parameters  {sizes[0]:,} → {sizes[1]:,}",
            f"size        {4e-6 * sizes[0]:.1f} MB → {4e-6 * sizes[1]:.1f} MB (fp32)",
            f"written to {output}",
        ]
    )


def _check(translator: Translator) -> None:
    for tokenizer in translator.tokenizers:
        kind = tokenizer.kind
        if isinstance(tokenizer, SpmVocabTokenizer):
            kind = kind_of(tokenizer.spm)
        if not TOKENIZER_KINDS[kind].has_subwords:
            raise UserError(
                "trim needs a vocabulary of subwords, which can spell what it drops, not of kind "
                f"{kind}"
            )
    if not translator.config.model.feature_positions:
        raise UserError("trim cannot keep model.feature_positions: false")
    if translator.config.model.ngrams > 1:
        raise UserError(
            "trim cannot keep model.ngrams: n-grams are found by the ids of their tokens"
        )


def _kept(tokenizers: Tokenizers, texts: Iterable[ParallelText]) -> tuple[list[int], list[int]]:
    """Return the ids that stay, of both sides; the same for both if they share a vocabulary."""
    kept = [_always_kept(tokenizer) for tokenizer in tokenizers]
    for text in texts:
        has_tokens = False
        pairs = (pair for pair in read_pairs(text, "error") if pair is not None)
        for chunk in chunks_of(pairs):
            for ids, tokenizer, side in zip(kept, tokenizers, SIDES, strict=True):
                rows = tokenizer.to_ids_batch([getattr(pair, side) for pair in chunk])
                has_tokens |= any(rows)
                ids.update(*rows)
        if not has_tokens:  # nothing but single characters would stay
            raise UserError(f"there is no text in {text.name}")
    if tokenizers.is_shared:
        kept = [kept[0] | kept[1]] * 2
    return sorted(kept[0]), sorted(kept[1])


def _always_kept(tokenizer: Tokenizer) -> set[int]:
    pieces, symbols = tokenizer.pieces(), tokenizer.user_defined_symbols()
    named = {*tokenizer.features.values(), *tokenizer.ids_of(symbols), *range(EOS_ID + 1)}
    single = (i for i, piece in enumerate(pieces) if len(piece) == 1 or tokenizer.is_byte(i))
    return named.union(single)


def _trimmed(
    tokenizers: Tokenizers, src_ids: list[int], tgt_ids: list[int], tags: Sequence[str]
) -> Tokenizers:
    """Return tokenizers with these entries; `tags` remain tags at the start of sources."""
    src = _with_entries(tokenizers.src, src_ids, tags)
    if tokenizers.tgt is tokenizers.src:
        return Tokenizers(src, src)
    tgt = _with_entries(tokenizers.tgt, tgt_ids, tags if tokenizers.is_shared else ())
    return Tokenizers(src, SpmVocabTokenizer(tgt.model, src) if tokenizers.is_shared else tgt)


def _with_entries(
    tokenizer: Tokenizer, ids: Sequence[int], tags: Sequence[str]
) -> SpmVocabTokenizer:
    pieces = tokenizer.pieces_of(ids)
    if isinstance(tokenizer, SpmVocabTokenizer):
        return tokenizer.trimmed(pieces, tags)
    return SpmVocabTokenizer.build(restricted(tokenizer.model, pieces), pieces, tags, quoted=True)


def _config(config: Config, tokenizers: Tokenizers) -> Config:
    """Return the config of a run that was not trained here."""
    languages = languages_of(config.data)
    data = {
        "train": (),
        **dict.fromkeys(("valid", "general", "sampling_temperature")),
        "languages": languages and Languages(src=languages.src, tgt=languages.tgt),
        "direction": "forward",
    }
    tokenizer = {
        "kind": Kinds(src="spm_vocab", tgt="spm_vocab"),
        "vocab_size": VocabSizes(src=len(tokenizers.src), tgt=len(tokenizers.tgt)),
        "shared": tokenizers.is_shared,
        "reuse": None,
        "split_digits": False,
    }
    config = config.updated(data=data, tokenizer=tokenizer)
    return config.model_copy(update={"preset": "none", "training": TrainingConfig()})
