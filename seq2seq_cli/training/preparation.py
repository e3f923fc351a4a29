"""Everything before the first update: audit the text, learn the vocabulary, make the ids."""

from dataclasses import dataclass

from seq2seq_cli.config import Config
from seq2seq_cli.data.store import TokenStore, open_store
from seq2seq_cli.decoding.translator import load_tokenizers
from seq2seq_cli.errors import UserError
from seq2seq_cli.evaluation import HeldOut, read_held_out
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.parallel import Audit, audit_training_text, hash_of_files
from seq2seq_cli.text.tokenizer import Tokenizers, fit_tokenizers


@dataclass(frozen=True)
class Prepared:
    """What `train` trains on, and what `check` reports of it."""

    tokenizers: Tokenizers
    train: TokenStore
    train_audit: Audit
    valid: HeldOut | None
    valid_audit: Audit | None
    data_hashes: dict[str, str]


def prepare(config: Config, run: RunFolder | None = None) -> Prepared:
    """Read the text and make it ids; a run that has begun lends its tokenizers.

    Raises UserError for text that cannot be trained on.
    """
    data = config.data
    train_audit, valid_audit = audit_training_text(data.train, data.valid, data.on_bad_line)
    tokenizers = (
        load_tokenizers(run, config.tokenizer.shared)
        if run is not None
        else fit_tokenizers(data.train, config.tokenizer, data.on_bad_line)
    )
    valid = read_held_out(data.valid, tokenizers, data.on_bad_line) if data.valid else None
    hashes = {"train": hash_of_files(data.train.files)}
    if data.valid is not None:
        hashes["valid"] = hash_of_files(data.valid.files)
    train = open_store(data.train, tokenizers, data.on_bad_line, data.max_length)
    return Prepared(tokenizers, train, train_audit, valid, valid_audit, hashes)


def must_be_same_data(prepared: Prepared, manifest: dict[str, object]) -> None:
    """Raises UserError when a run would go on with other text than it began with."""
    begun_with = manifest.get("data", {})
    assert isinstance(begun_with, dict)
    changed = [name for name, value in prepared.data_hashes.items() if begun_with[name] != value]
    if changed:
        raise UserError(
            f"the text of data.{' and data.'.join(changed)} changed since this run began; "
            "put it back, or start another run with --run-dir"
        )
