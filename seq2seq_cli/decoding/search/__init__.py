"""Search for the best hypotheses, on token ids."""
