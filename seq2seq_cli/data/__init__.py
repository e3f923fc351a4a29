"""Ids: from text on disk to padded batches of tensors."""
