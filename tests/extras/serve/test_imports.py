"""The process that answers requests does without PyTorch; its model processes load it."""

import subprocess
import sys


def test_the_server_imports_without_torch():
    code = "import sys, seq2seq_cli.extras.serve.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
