"""`python -m seq2seq_cli` is the `seq2seq` command."""

from seq2seq_cli.cli import main

main()
