"""Learning curves and the learning-rate range test."""
