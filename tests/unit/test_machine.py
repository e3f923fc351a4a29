"""Container limits, and the environment that PyTorch reads when it is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Command

from seq2seq_cli.machine import available_memory, may_have_gpu, num_cores, num_threads

HERE = num_cores()
SETTINGS = ("GOMP_SPINCOUNT", "THP_MEM_ALLOC_ENABLE")


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_container_limits_cap_cores_and_memory(tmp_path):
    machine = tmp_path / "proc"
    write(machine / "meminfo", "MemTotal: 4000 kB\nMemAvailable:    3000 kB\nHugePages_Free: 0\n")
    write(machine / "self/cgroup", "4:memory:/a/b\n3:cpu:/\n0::/c\n")
    assert available_memory(tmp_path) == 3000 * 1024
    groups = tmp_path / "sys/fs/cgroup"
    write(groups / "memory/a/memory.limit_in_bytes", "2000000\n")
    write(groups / "memory/a/memory.usage_in_bytes", "500000\n")
    write(groups / "memory/a/memory.stat", "cache 300000\ninactive_file 100000\n")
    assert available_memory(tmp_path) == 1_600_000
    write(groups / "c/memory.max", "max\n")
    write(groups / "c/memory.current", "700000\n")
    write(groups / "c/memory.stat", "anon 700000\n")
    assert available_memory(tmp_path) == 1_600_000
    write(groups / "c/memory.max", "900000\n")
    assert available_memory(tmp_path) == 200_000


@pytest.mark.parametrize(("quota", "cores"), [("max", HERE), ("100000", 1), ("150000", 1)])
def test_cgroup_v2_cpu_quota_is_a_number_of_cores(tmp_path, quota, cores):
    write(tmp_path / "proc/self/cgroup", "0::/pod/container\n")
    write(tmp_path / "sys/fs/cgroup/pod/cpu.max", f"{quota} 100000\n")
    write(tmp_path / "sys/fs/cgroup/pod/container/cpu.max", "max 100000\n")
    assert num_cores(tmp_path) == cores


@pytest.mark.parametrize(
    ("quota", "cores"), [("-1", HERE), ("50000", 1), (f"{HERE + 1}00000", HERE)]
)
def test_cgroup_v1_limits(tmp_path, quota, cores):
    write(tmp_path / "proc/self/cgroup", "4:cpu,cpuacct:/a\n3:memory:/b\n")
    write(tmp_path / "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", f"{quota}\n")
    write(tmp_path / "sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n")
    assert num_cores(tmp_path) == cores


@pytest.mark.parametrize("count", [1, 2, 5])
def test_usable_cores_respect_the_cpu_quota(tmp_path, count, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64))
    write(tmp_path / "proc/self/cgroup", "0::/\n")
    write(tmp_path / "sys/fs/cgroup/cpu.max", f"{count * 100_000} 100000\n")
    assert num_cores(tmp_path) == count


@pytest.mark.parametrize(
    ("given", "threads"),
    [("3", 3), ("4,2", 4), (" 2 ", 2), ("0", HERE), ("-1", HERE), ("abc", HERE), ("", HERE)],
)
def test_invalid_numbers_of_threads_are_ignored_as_by_openmp(monkeypatch, given, threads):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert num_threads() == threads


def test_environment_defaults_keep_the_users_settings(
    seq2seq: Command, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GOMP_SPINCOUNT", "5")
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "to be restored")
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE")
    seq2seq("eval", "nowhere")
    assert [os.environ[name] for name in SETTINGS] == ["5", "1"]


IMPORTING = """
import os
before, hooks = dict(os.environ), []
os.register_at_fork = lambda **hook: hooks.append(hook)
import torch
num_hooks = len(hooks)
from seq2seq_cli import Translator
print(os.environ == before, len(hooks) - num_hooks)
"""


@pytest.mark.slow
def test_import_changes_neither_environment_nor_forks():
    printed = subprocess.run([sys.executable, "-c", IMPORTING], stdout=subprocess.PIPE, check=True)
    assert printed.stdout.split() == [b"True", b"0"]


@pytest.mark.skipif(os.name == "nt", reason="devices are no files")
@pytest.mark.parametrize("device", ["nvidiactl", "nvidia0", "nvhost-gpu", "nvgpu", "kfd", "dxg"])
def test_a_device_of_a_gpu_is_seen(tmp_path, device):
    write(tmp_path / "dev/null", "")
    assert not may_have_gpu(tmp_path)
    write(tmp_path / "dev" / device, "")
    assert may_have_gpu(tmp_path)
