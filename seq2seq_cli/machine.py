"""The cores and memory that this process may use, within container limits, and who started it.

Does not import torch.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Environment variables that PyTorch reads on import. Idle threads spin for about 10 µs: with GNU
# OpenMP's default of milliseconds, another program on one core makes the process seven times
# slower. Large tensors are allocated on huge pages.
TORCH_DEFAULTS = {"GOMP_SPINCOUNT": "10000", "THP_MEM_ALLOC_ENABLE": "1"}
_ROOT = Path("/")
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # glibc's malloc.h
_MANY_FILES = 1 << 16
_NEVER = -1  # as an unsigned threshold, the maximum
_TOP_PAD_BYTES = 64 << 20

PARENT = os.getppid()  # read before the seconds that `import torch` takes, in which it may end


def torch_environment() -> dict[str, str]:
    """Return the environment, with defaults for the variables that PyTorch reads on import."""
    defaults = dict(TORCH_DEFAULTS)
    if num_cores() < _num_processors():  # OpenMP knows nothing of quotas
        defaults["OMP_NUM_THREADS"] = str(num_cores())
    return defaults | os.environ


def num_cores(root: Path = _ROOT) -> int:
    """Return the number of cores that this process may use, within a container's CPU quota."""
    cores = _num_processors()
    for folder, is_first_version in _cgroups(root, "cpu"):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first_version else ("cpu.max",)
        try:
            quota, period = " ".join((folder / name).read_text() for name in names).split()
        except OSError:
            continue
        if quota not in ("max", "-1"):
            cores = min(cores, max(1, int(int(quota) / int(period))))
    return cores


def num_threads() -> int:
    """Return the number of threads that this process computes with, PyTorch's if it is imported."""
    if (torch := sys.modules.get("torch")) is not None:
        return int(torch.get_num_threads())
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()  # `4,2`: of nested loops
    return int(given if given.isdecimal() else 0) or num_cores()


def set_num_threads(count: int) -> None:
    """Set it for this process and its children, also if PyTorch is imported later."""
    os.environ["OMP_NUM_THREADS"] = str(count)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)


@functools.cache
def use_one_torch_thread_after_fork() -> None:
    """Let forked children use one of PyTorch's threads: OpenMP would wait for those they lack."""

    def use_one_thread() -> None:
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(1)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=use_one_thread)


def may_have_gpu(root: Path = _ROOT) -> bool:
    """Return False if there is no device of a GPU that PyTorch could use; PyTorch knows more."""
    if os.name == "nt":
        return True
    names = ("nvidiactl", "nvidia0", "nvhost-gpu", "nvgpu", "kfd", "dxg")  # Jetsons have nvhost
    return any((root / "dev" / name).exists() for name in names)


def available_memory(root: Path = _ROOT) -> int:
    """Return the bytes of memory still available, within container limits."""
    meminfo = root / "proc/meminfo"
    if sys.platform == "win32":
        status = (ctypes.c_uint64 * 8)(64)  # MEMORYSTATUSEX, which begins with its size
        ctypes.WinDLL("kernel32").GlobalMemoryStatusEx(status)
        return status[2]
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    available = _numbers(meminfo)["MemAvailable:"] << 10
    for folder, is_first_version in _cgroups(root, "memory"):
        names = ("limit_in_bytes", "usage_in_bytes") if is_first_version else ("max", "current")
        try:
            limit, used = ((folder / f"memory.{name}").read_text().strip() for name in names)
            cache = _numbers(folder / "memory.stat").get("inactive_file", 0)
        except OSError:
            continue
        if limit != "max":
            available = min(available, int(limit) - (int(used) - cache))
    return available


def peak_memory() -> int:
    """Return this process's peak memory in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage's peak includes the parent process's
        (peak,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(peak.split()[1]) << 10
    if sys.platform == "win32":
        counters = (ctypes.c_size_t * 9)()  # PROCESS_MEMORY_COUNTERS; -1 is this process
        size = ctypes.sizeof(counters)
        ctypes.WinDLL("kernel32").K32GetProcessMemoryInfo(ctypes.c_void_p(-1), counters, size)
        return counters[1]
    import resource

    peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak_rss if sys.platform == "darwin" else peak_rss << 10


def allow_many_open_files() -> None:
    """Raise this process's limit of open files to 65,536, or to what the system allows it."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MANY_FILES if most == resource.RLIM_INFINITY else min(most, _MANY_FILES)
    if limit != resource.RLIM_INFINITY and limit < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def retain_freed_pages() -> bool:
    """Serve large tensors from the heap and never trim it again; return False without glibc.

    By default, glibc unmaps every large block, so that each step waits for the kernel to clear its
    pages again. This costs some resident memory and changes no result.
    """
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 (only glibc has it)
        mallopt = library.mallopt
        library.malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_TOP_PAD, _TOP_PAD_BYTES))
    return sum(int(mallopt(option, value)) for option, value in settings) == len(settings)


def _num_processors() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


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
