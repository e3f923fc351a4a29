"""Files are replaced whole, and read up to a limit."""

import errno
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from seq2seq_cli.errors import DamagedFileError, UserError
from seq2seq_cli.files import (
    new_folder,
    own_part,
    read_bounded,
    read_json,
    reading,
    replacing,
    require_new_folder,
    write_atomic,
    write_json,
)
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.io import line_writer
from seq2seq_cli.weight_file import read_arrays


def test_write_atomic_replaces_the_file_and_never_changes_it(tmp_path):
    """Whoever has the old file open still reads all of it."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("rb") as old:
        write_atomic(path, b"new content")
        assert old.read() == b"old"
    assert path.read_bytes() == b"new content"
    assert list(tmp_path.iterdir()) == [path]


def test_write_atomic_that_fails_leaves_the_old_file_and_names_it(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()  # which no file can replace
    with pytest.raises(OSError) as error:
        write_atomic(path, b"new")
    assert error.value.filename == str(path)
    assert list(tmp_path.iterdir()) == [path]


def test_several_may_write_the_same_file_without_a_lock(tmp_path):
    """Whoever is last wins, and a reader never sees a mixture."""
    contents = [bytes([letter]) * 5_000 for letter in b"abcd"]
    path = tmp_path / "file"
    with ThreadPoolExecutor(4) as pool:
        for _ in pool.map(lambda n: write_atomic(path, contents[n % 4]), range(200)):
            assert path.read_bytes() in contents
    assert list(tmp_path.iterdir()) == [path]


def test_errors_tell_whether_a_file_is_gone(tmp_path):
    path = tmp_path / "link"
    with pytest.raises(DamagedFileError, match="link is missing"), reading(path):
        path.read_bytes()
    path.symlink_to(tmp_path / "nowhere")  # its folder lists it
    with pytest.raises(FileNotFoundError), reading(path):
        path.read_bytes()


def test_json_holds_names_that_are_not_utf8(tmp_path):
    command = ["seq2seq", "train", os.fsdecode(b"caf\xe9.yaml")]
    write_json(tmp_path / "a.json", command)
    (tmp_path / "a.json").read_text("utf-8")
    assert read_json(tmp_path / "a.json") == command


def test_read_bounded_reads_files_up_to_the_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(UserError, match="file is larger than 4 bytes"):
        read_bounded(path, 4)


def test_weights_of_a_removed_checkpoint_are_chosen_again(tmp_path):
    run = RunFolder(tmp_path)
    run.config.touch()
    run.checkpoint(1).mkdir(parents=True)
    (run.checkpoint(1) / "weights.safetensors").write_bytes(b"weights")

    def read(path: Path) -> tuple[Path, bytes]:
        if run.checkpoint(1).exists():  # a training goes on
            run.checkpoint(1).rename(run.checkpoint(2))
        with reading(path):
            return path, path.read_bytes()

    chosen = run.checkpoint(2) / "weights.safetensors"
    assert run.with_weights("last", read) == (chosen, b"weights")
    chosen.unlink()
    with pytest.raises(DamagedFileError, match="is missing"):
        run.with_weights("last", read)


def test_weights_that_a_training_replaces_while_they_are_read_are_read_again(tmp_path):
    run = RunFolder(tmp_path)
    run.config.touch()
    begun = []

    def read(path: Path) -> np.ndarray:
        """Read the file twice, as the engine in C and PyTorch do."""
        sha256 = read_arrays(path, {"a": (1,)})[1]
        if not begun:
            begun.append(path)
            save_file({"a": np.ones(1, np.float32)}, path)
        return read_arrays(path, {"a": (1,)}, sha256)[0]["a"]

    save_file({"a": np.zeros(1, np.float32)}, run.model)
    assert run.with_weights("best", read) == 1


def test_new_folders_are_missing_or_empty_and_not_the_current_one(tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    for folder in ("missing", "empty"):
        require_new_folder(tmp_path / folder)
    (tmp_path / "file").touch()
    for taken in (tmp_path, tmp_path / "file"):
        with pytest.raises(UserError, match="exists and is not an empty folder"):
            require_new_folder(taken)
    monkeypatch.chdir(tmp_path / "empty")
    for current in (Path(), tmp_path / "empty"):
        with pytest.raises(UserError, match="is the current folder"):
            require_new_folder(current)


def test_new_folder_is_there_when_it_is_whole(tmp_path, monkeypatch):
    folder = tmp_path / "deep/folder"
    with pytest.raises(RuntimeError), new_folder(folder) as part:
        (part / "file").touch()
        raise RuntimeError
    assert not [*folder.parent.iterdir()]
    other = folder.parent / "folder.part"  # of the user
    other.mkdir()
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    with new_folder(Path("deep/folder")) as part:
        (part / "file").touch()
    assert [path.name for path in folder.iterdir()] == ["file"]
    assert {*folder.parent.iterdir()} == {folder, other}


def test_new_folder_that_another_process_fills_is_kept(tmp_path):
    folder = tmp_path / "folder"
    with pytest.raises(UserError, match="folder is not empty any more"), new_folder(folder):
        folder.mkdir()
        (folder / "file").touch()
    assert [*tmp_path.iterdir()] == [folder]
    assert [*folder.iterdir()] == [folder / "file"]


@pytest.mark.parametrize(("name", "written"), [(None, "folder"), ("weights", "folder/weights")])
def test_new_folder_on_a_full_disk_is_named(name, written, tmp_path):
    folder = tmp_path / "folder"
    with pytest.raises(OSError) as error, new_folder(folder) as part:
        raise OSError(errno.ENOSPC, "No space left on device", name and str(part / name))
    assert error.value.filename == str(tmp_path / written)
    assert not [*tmp_path.iterdir()]


def kill_while_writing(path: Path, how: str, write: str) -> None:
    """Start a process that is killed in the block of a function of `files`."""
    program = (
        "import os, pathlib, signal, sys\n"
        f"from seq2seq_cli.files import {how}\n"
        f"with {how}(pathlib.Path(sys.argv[1])) as part:\n"
        f"    {write}\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL


def test_new_folder_removes_those_of_killed_processes_and_no_others(tmp_path):
    folder, other = tmp_path / "folder", tmp_path / "folder.part"
    other.mkdir()
    kill_while_writing(folder, "new_folder", "(part / 'file').touch()")
    assert len([*tmp_path.iterdir()]) == 2
    with new_folder(folder) as first:
        with new_folder(tmp_path / "another"), new_folder(folder) as second:
            assert {first, second, other} < {*tmp_path.iterdir()}
        folder.rmdir()
    assert {*tmp_path.iterdir()} == {folder, tmp_path / "another", other}


def test_replacing_removes_the_files_of_killed_processes_and_no_others(tmp_path):
    output, other = tmp_path / "output", tmp_path / "output.part"
    other.touch()
    kill_while_writing(output, "replacing", "part.write_bytes(b'text')")
    assert len([*tmp_path.iterdir()]) == 2
    with replacing(output) as first:
        first.write_bytes(b"first")
        with replacing(output) as second:
            assert {first, second, other} == {*tmp_path.iterdir()}
    assert {*tmp_path.iterdir()} == {output, other}


def test_a_new_file_that_another_process_takes_for_left_over_is_made_again(tmp_path):
    made = []

    def make(part):
        part.touch()
        made.append(part)
        if len(made) == 1:
            part.unlink()  # as another process does before this one has locked it

    with own_part(tmp_path / "output", make) as part:
        assert [*tmp_path.iterdir()] == [part] == made[1:]
    assert not [*tmp_path.iterdir()]


def test_a_part_that_disappears_each_time_is_an_error(tmp_path):
    """As on a file system that does not find what it has just made."""
    with pytest.raises(FileNotFoundError) as raised, own_part(tmp_path / "output", Path.exists):
        pass
    assert raised.value.filename == str(tmp_path / "output")


def test_a_kill_before_the_lock_leaves_a_file_that_is_known_and_removed(tmp_path):
    output = tmp_path / "src.model"
    program = (
        "import os, pathlib, signal, sys\n"
        "from seq2seq_cli.files import own_part\n"
        "def make(part):\n"
        "    part.touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "with own_part(pathlib.Path(sys.argv[1]), make):\n"
        "    pass\n"
    )
    subprocess.run([sys.executable, "-c", program, str(output)], check=False)
    assert len([*tmp_path.iterdir()]) == 1
    RunFolder(tmp_path).ensure_new_or_empty()
    with replacing(output):
        pass
    assert [*tmp_path.iterdir()] == [output]


@pytest.mark.parametrize(("make", "write"), [("new_folder", "joinpath"), ("replacing", "touch")])
def test_sigterm_leaves_nothing_half_written(make, write, tmp_path):
    program = (
        "import pathlib, signal, sys\n"
        f"from seq2seq_cli.files import {make}\n"
        f"with {make}(pathlib.Path(sys.argv[1])) as part:\n"
        f"    part.{write}()\n"
        "    signal.raise_signal(signal.SIGTERM)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "output")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert "Terminated: terminated" in ended.stderr
    assert not [*tmp_path.iterdir()]


def test_a_run_is_checked_while_its_training_removes_files(tmp_path, monkeypatch):
    (file := tmp_path / "weights").touch()

    def then_removed(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        found = stat(path, follow_symlinks=follow_symlinks)
        if path.name == file.name and follow_symlinks:
            path.unlink()
        return found

    stat = Path.stat
    monkeypatch.setattr(Path, "stat", then_removed)
    RunFolder(tmp_path).reject_escaping_links()
    assert not [*tmp_path.iterdir()]


def test_lines_that_find_no_room_on_the_disk_name_their_file():
    full = Path("/dev/full")
    with pytest.raises(OSError) as error, line_writer(full) as write:
        write("line")
    assert error.value.filename == str(full)


def test_a_file_that_another_process_writes_is_refused_and_keeps_its_lines(tmp_path, caplog):
    output = tmp_path / "output"
    output.write_text("an earlier, longer line\n")
    with line_writer(output) as write:
        write("first")
        with pytest.raises(UserError, match="another process is writing"), line_writer(output) as w:
            w("other")
        write("second")
    assert output.read_text() == "first\nsecond\n"
    assert not caplog.records
    with pytest.raises(KeyboardInterrupt), line_writer(output) as write:
        write("third")
        raise KeyboardInterrupt
    assert caplog.messages == [f"{output} is incomplete; --force replaces it"]
    output.write_text("first\nsecond\n")
    refused = pytest.raises(UserError, match="has content: give --force")
    with refused, line_writer(output, may_replace=False) as write:
        write("third")
    assert output.read_text() == "first\nsecond\n"
