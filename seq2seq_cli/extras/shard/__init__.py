"""Fully sharded training, for models that do not fit on one GPU."""
