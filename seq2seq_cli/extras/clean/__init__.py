"""seq2seq clean."""
