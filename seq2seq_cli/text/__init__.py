"""Text: corpora and their formats, lines, sentences and words. Never imports torch."""
