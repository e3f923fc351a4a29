"""Writes trained models in the formats of other programs, and verifies the result."""
