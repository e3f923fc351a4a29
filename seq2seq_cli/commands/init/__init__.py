"""seq2seq init."""
