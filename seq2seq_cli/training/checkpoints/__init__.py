"""Checkpoints, and the model that a run ends with."""
