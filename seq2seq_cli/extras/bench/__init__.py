"""seq2seq bench: speed and memory of training and translation."""
