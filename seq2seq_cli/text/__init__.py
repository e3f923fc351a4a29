"""Strings: reading parallel files, text ⇄ ids, scores of text. Never imports torch."""
