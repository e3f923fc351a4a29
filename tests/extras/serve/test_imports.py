"""Neither the process that answers requests nor those that translate import PyTorch."""

import subprocess
import sys
from pathlib import Path

import pytest
from served import serving

from seq2seq_cli.native import library as native


def test_the_server_imports_without_torch():
    code = "import sys, seq2seq_cli.extras.serve.server; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc")
@pytest.mark.skipif(not native.precisions(), reason="not compiled")
def test_no_process_of_a_server_has_loaded_pytorch(trained):
    with serving(trained, "--langs", "en-de") as server:
        server.translate("one two")
        translating = [*server.model_processes(), *server.workers()]
        assert len(translating) >= 2
        for process in (server.process.pid, *translating):
            maps = Path(f"/proc/{process}/maps").read_text()
            assert "libtorch" not in maps
            assert "libnative" in maps or process not in translating
