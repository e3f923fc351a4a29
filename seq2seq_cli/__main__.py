"""The `seq2seq` command, which is also `python -m seq2seq_cli`."""

import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Import the commands and run one of them; Ctrl-C during the imports prints no traceback."""
    try:
        from seq2seq_cli.cli import main as run
    except KeyboardInterrupt:
        if sys.stderr:
            sys.stderr.write("interrupted\n")
        os._exit(130)
    run()


if __name__ == "__main__":
    main()
