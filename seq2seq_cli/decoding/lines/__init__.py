"""Translation of lines of text: streams, long lines, shards."""
