"""Text as people have it, taken apart into sentences and put together again; never imports torch.

Whatever is not a sentence (white space, markup, times of subtitles) comes out as it went in.
"""
