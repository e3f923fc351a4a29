"""Memory: what there is, and whether it did not suffice."""

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

_MESSAGES = ("DefaultCPUAllocator", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, on a GPU or here. (Mostly Linux ends the process instead.)"""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


def free_memory() -> None:
    """Give back what nobody holds any longer."""
    gc.collect()
    torch.cuda.empty_cache()


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that processes may still take here: the machine's, within the limits of containers."""
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return min(_numbers(meminfo)["MemAvailable:"] << 10, *_left_in_cgroups(root), sys.maxsize)


def _left_in_cgroups(root: Path) -> Iterator[int]:
    """Of this process's groups and those above them, in either version of cgroups."""
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if "memory" not in controllers and controllers:
            continue
        names = ("limit_in_bytes", "usage_in_bytes") if controllers else ("max", "current")
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        group = top / path.lstrip("/")
        for folder in (group, *(above for above in group.parents if above.is_relative_to(top))):
            try:
                limit, used = ((folder / f"memory.{name}").read_text().strip() for name in names)
                cache = _numbers(folder / "memory.stat").get("inactive_file", 0)
            except OSError:
                continue
            if limit != "max":
                yield int(limit) - (int(used) - cache)


def _numbers(path: Path) -> dict[str, int]:
    """Of a file whose lines are a name and a number."""
    return {name: int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}
