"""Documents in several formats: extracts sentences and replaces them; never imports torch.

Everything else (white space, markup, times of subtitles) is copied.
"""
