"""Train, use and evaluate encoder-decoder Transformers on parallel text."""

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Support `from seq2seq_cli import Translator`, which imports torch only when needed."""
    if name == "Translator":
        from seq2seq_cli.decoding.translator import Translator

        return Translator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
