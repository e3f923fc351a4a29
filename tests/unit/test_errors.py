"""`docs/errors.md` and the source have the same error messages.

That the errors which tests provoke are among them is checked wherever a test runs a command.
"""

import errno
import json
import os
import subprocess
import sys
import threading

import pytest
from commands import ROOT
from error_catalogue import documented, is_documented, raised

from seq2seq_cli.errors import UserError, how_to_install, of_system, shortages_reported
from seq2seq_cli.plugins import EXTRAS, load


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), "there is not enough memory"),
        (ImportError("torch.so: failed to map segment"), "torch.so.*there is too little memory"),
    ],
)
def test_full_memory_is_an_error_of_the_user(error, expected):
    with pytest.raises(UserError, match=expected), shortages_reported():
        raise error


def test_a_limit_of_open_files_is_named():
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE), "tgt.ids")
    assert of_system(error).startswith("tgt.ids: Too many open files; raise the limit of open")


def test_a_missing_temporary_folder_is_named():
    error = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
    assert of_system(error).endswith("; set TMPDIR to a folder that can be written")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such a stack earlier")
def test_a_limit_of_threads_is_an_error_of_the_user():
    before = threading.stack_size(1 << 46)  # more than there are addresses
    try:
        with (
            pytest.raises(UserError, match="cannot start another thread or process"),
            shortages_reported(),
        ):
            threading.Thread(target=print).start()
    finally:
        threading.stack_size(before)
    with pytest.raises(RuntimeError, match="a bug"), shortages_reported():
        raise RuntimeError("a bug")


def test_every_error_message_is_documented():
    missing = {message: file for message, file in raised().items() if message not in documented()}
    lines = [f"- `{message}`\n  Cause and cure. ({file})" for message, file in missing.items()]
    assert not missing, "add to docs/errors.md:\n" + "\n".join(lines)


def test_every_documented_error_message_exists():
    assert not documented().keys() - raised().keys()


def test_every_documented_error_is_explained():
    assert len(raised()) > 90
    for message, explanation in documented().items():
        assert len(explanation.split()) >= 4, message


def test_undocumented_message_is_detected():
    assert is_documented("x.yaml, line 3: model.head: unknown option, did you mean model.heads?")
    assert not is_documented("something went wrong")


@pytest.mark.parametrize(
    ("record", "is_here", "expected"),
    [
        ({"url": "file://{here}/a%20clone", "dir_info": {}}, False, "'{here}/a clone[plot]'"),
        ({"url": "file://{here}/a%20clone", "dir_info": {}}, True, "'.[plot]'"),
        (
            {"url": "file://{here}/a%20clone", "dir_info": {"editable": True}},
            True,
            "--editable '.[plot]'",
        ),
        ({"url": "file://{here}/gone", "dir_info": {}}, False, "'seq2seq-cli[plot]'"),
        ({"url": "https://index.example/a.whl", "archive_info": {}}, False, "'seq2seq-cli[plot]'"),
    ],
)
def test_what_to_install_follows_what_is_installed(
    tmp_path, monkeypatch, record, is_here, expected
):
    (clone := tmp_path / "a clone").mkdir()
    (installed := tmp_path / "site/seq2seq_cli-9.dist-info").mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: seq2seq-cli\n")
    text = json.dumps(record).replace("{here}", str(tmp_path))
    (installed / "direct_url.json").write_text(text)
    monkeypatch.syspath_prepend(installed.parent)
    monkeypatch.chdir(clone if is_here else tmp_path)
    assert how_to_install("plot") == f"pip install {expected.replace('{here}', str(tmp_path))}"


@pytest.mark.parametrize(
    ("extra", "is_from_a_clone", "expected"),
    [
        ("hub", False, "pip install 'seq2seq-runtime[hub]'"),
        ("hub", True, "SEQ2SEQ_DISTRIBUTION=seq2seq-runtime pip install '.[hub]'"),
        ("plot", False, "pip uninstall seq2seq-runtime, then pip install 'seq2seq-cli[plot]'"),
        ("plot", True, "pip uninstall seq2seq-runtime, then pip install '.[plot]'"),
    ],
)
def test_the_runtime_stays_what_it_is_unless_it_lacks_the_extra(
    tmp_path, extra, is_from_a_clone, expected
):
    (site := tmp_path / "seq2seq_runtime-9.dist-info").mkdir()
    (site / "METADATA").write_text("Name: seq2seq-runtime\nProvides-Extra: hub\n")
    url = f"file://{tmp_path}" if is_from_a_clone else "https://index.example/a.whl"
    (site / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {}}))
    (tmp_path / "seq2seq_cli").symlink_to(ROOT / "seq2seq_cli")
    code = f"from seq2seq_cli.errors import how_to_install; print(how_to_install({extra!r}))"
    command = [sys.executable, "-S", "-c", code]  # -S: without what is installed here
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert said.stdout == f"{expected}\n", said.stderr


@pytest.mark.parametrize("extra", [name for name, extra in EXTRAS.items() if extra.packages])
def test_an_extra_without_its_packages_says_what_to_install(
    extra: str, monkeypatch: pytest.MonkeyPatch
):
    for package in EXTRAS[extra].packages:
        monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    first, *_ = EXTRAS[extra].packages
    with pytest.raises(UserError, match=rf"needs the package {first}: pip install .*\[{extra}\]"):
        load(extra, "command")
