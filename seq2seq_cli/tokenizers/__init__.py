"""Splitting text into the units of a vocabulary."""
