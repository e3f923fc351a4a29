"""Documents in several formats: their sentences are replaced, the rest is copied.

Never imports torch.
"""
