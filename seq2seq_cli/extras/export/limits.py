"""The table of export formats, and which configs they cannot represent; never imports torch."""

from typing import TYPE_CHECKING, Literal, get_args

from seq2seq_cli import plugins

if TYPE_CHECKING:
    from seq2seq_cli.config.schema import Config
    from seq2seq_cli.extras.export.format import Format
    from seq2seq_cli.model.transformer import Transformer
    from seq2seq_cli.tokenizers.tokenizer import Tokenizers

FormatName = Literal["ctranslate2", "huggingface", "argos", "marian"]  # modules of this folder
FORMATS: tuple[FormatName, ...] = get_args(FormatName)


def format_named(name: str) -> "Format":
    """Return the format of a name in FORMATS."""
    return plugins.load("export", name).FORMAT


def unsupported(name: str, config: "Config", tokenizers: "Tokenizers | None" = None) -> str | None:
    """Return the reason why a format cannot represent a model of this config; None if it can.

    The `tokenizers` of the run differ from the config with `tokenizer.reuse`.
    """
    if tokenizers is not None:
        from seq2seq_cli.config.tokenizer import Kinds

        kinds = Kinds(src=tokenizers.src.kind, tgt=tokenizers.tgt.kind)
        config = config.updated(tokenizer={"shared": tokenizers.is_shared, "kind": kinds})
    return format_named(name).limits(config)


def exports(
    config: "Config",
    tokenizers: "Tokenizers | None" = None,
    edited: "Transformer | None" = None,
) -> dict[str, str | None]:
    """Return for every format the reason why it cannot represent the model, or None.

    `edited`: a model on the CPU whose code has been edited.
    Formats for imported vocabularies are left out if the model has learned its own.
    """
    kind = config.tokenizer.kind.src if tokenizers is None else tokenizers.src.kind
    names = [n for n in FORMATS if kind == "spm_vocab" or not format_named(n).is_for_imported]
    reasons: dict[str, str | None] = {name: unsupported(name, config, tokenizers) for name in names}
    if edited is None:
        return reasons
    return {n: why or format_named(n).limits_of_model(edited) for n, why in reasons.items()}


def exports_text(reasons: dict[str, str | None]) -> str:
    """Return on one line which formats are possible, and why the others are not."""
    possible = [name for name, reason in reasons.items() if reason is None]
    refused = [f"not {name}: {reason}" for name, reason in reasons.items() if reason is not None]
    return "; ".join([", ".join(possible) or "none", *refused])
