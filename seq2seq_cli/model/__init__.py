"""The Transformer, in tensors: it knows token ids, never text."""
