"""seq2seq check."""
