"""Tensors: the Transformer. Knows ids, never text."""
