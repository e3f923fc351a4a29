"""Documents in several formats: their sentences are replaced, and everything else is copied."""
