"""Train, use and evaluate encoder-decoder Transformers on parallel text."""

__version__ = "0.1.0"
