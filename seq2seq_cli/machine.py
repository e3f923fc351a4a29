"""The cores and memory that this process may use, within container limits, and new processes.

Does not import torch.
"""

import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.context import BaseContext

# Environment variables that PyTorch reads on import. Idle threads spin for about 10 µs: with the
# milliseconds that are GNU OpenMP's default, another program on one core slows the whole process
# down sevenfold. Large tensors are allocated on huge pages.
_TORCH_DEFAULTS = {"GOMP_SPINCOUNT": "10000", "THP_MEM_ALLOC_ENABLE": "1"}
_ROOT = Path("/")


def torch_environment() -> dict[str, str]:
    """Return the environment, with defaults for the variables that PyTorch reads on import."""
    defaults = dict(_TORCH_DEFAULTS)
    if num_cores() < _num_processors():  # OpenMP knows nothing of quotas
        defaults["OMP_NUM_THREADS"] = str(num_cores())
    return defaults | os.environ


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Defer Ctrl-C until the block ends; processes started in the block ignore it for good.

    The main process handles it and ends the others, which could only print a traceback while they
    import PyTorch.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def num_cores(root: Path = _ROOT) -> int:
    """Return the number of cores that this process may use, within a container's CPU quota."""
    quotas = [max(1, int(quota)) for quota in _cpu_quotas(root)]
    return min(_num_processors(), *quotas, sys.maxsize)


def available_memory(root: Path = _ROOT) -> int:
    """Return the bytes of memory still available, within container limits."""
    meminfo = root / "proc/meminfo"
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return min(_numbers(meminfo)["MemAvailable:"] << 10, *_left_in_cgroups(root), sys.maxsize)


def peak_memory() -> int:
    """Return this process's peak memory in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage's peak includes that of the parent process
        (peak,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) << 10
    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_rss if sys.platform == "darwin" else peak_rss << 10


def process_context(*imports: str) -> "BaseContext":
    """Return how to start new processes: on Linux, as forks of one that has made the imports.

    That one, which is started once, has nothing else of this process. The others begin within
    milliseconds, and share the memory of the imports. They have the environment that the first of
    them found, and no number of threads that was set here; Ctrl-C is blocked in them.
    """
    # Importing these takes 10 ms, which most commands need not spend.
    from multiprocessing import forkserver, get_context, resource_tracker

    if sys.platform != "linux":
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(list(imports))
    resource_tracker.ensure_running()  # which unblocks signals when it starts
    with held_interrupts():
        forkserver.ensure_running()
    first = context.Process(target=os.getpid)
    first.start()
    first.join()  # a Ctrl-C while we wait for the imports raises KeyboardInterrupt here
    return context


def new_process(*imports: str) -> "ProcessPoolExecutor":
    """Return an executor that has one new process, which Ctrl-C interrupts."""
    from concurrent.futures import ProcessPoolExecutor  # see process_context

    return ProcessPoolExecutor(1, process_context(*imports), allow_interrupts)


def allow_interrupts() -> None:
    """Unblock Ctrl-C in a process that `process_context` has started."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def end_with_parent(status: int) -> None:
    """Wait until the parent process ends, then end this process with the given status.

    Call it in a thread: it also ends threads that are blocked.
    """
    from multiprocessing import parent_process  # see process_context

    parent = parent_process()
    assert parent is not None, "started by multiprocessing"
    parent.join()
    os._exit(status)


def _num_processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _cpu_quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quota of each cgroup of this process, in cores."""
    for folder, is_first_version in _cgroups(root, "cpu"):
        try:
            if is_first_version:
                names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
                quota, period = ((folder / name).read_text().strip() for name in names)
            else:
                quota, period = (folder / "cpu.max").read_text().split()
        except OSError:
            continue
        if quota not in ("max", "-1"):
            yield int(quota) / int(period)


def _left_in_cgroups(root: Path) -> Iterator[int]:
    """Yield the bytes that each cgroup leaves to this process."""
    for folder, is_first_version in _cgroups(root, "memory"):
        names = ("limit_in_bytes", "usage_in_bytes") if is_first_version else ("max", "current")
        try:
            limit, used = ((folder / f"memory.{name}").read_text().strip() for name in names)
            cache = _numbers(folder / "memory.stat").get("inactive_file", 0)
        except OSError:
            continue
        if limit != "max":
            yield int(limit) - (int(used) - cache)


def _cgroups(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's cgroups and their parents, and whether they are v1."""
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = top / path.lstrip("/")
        for folder in (group, *(above for above in group.parents if above.is_relative_to(top))):
            yield folder, bool(controllers)


def _numbers(path: Path) -> dict[str, int]:
    """Read a file whose lines are a name and a number."""
    return {name: int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}
