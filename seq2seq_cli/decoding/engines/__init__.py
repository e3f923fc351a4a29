"""Engines that compute a model's logits step by step; a search works with any of them."""
