"""Makes the C library keep the memory that a step frees, because the next step needs it again."""

import ctypes

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # glibc's malloc.h
_NEVER = -1  # as an unsigned threshold, the maximum
_TOP_PAD_BYTES = 64 << 20


def retain_freed_pages() -> bool:
    """Serve large tensors from the heap and never trim it; return False without glibc.

    By default, glibc maps every large block and unmaps it on release, so that each step waits for
    the kernel to clear its pages again. This costs some resident memory and changes no result.
    Memory that was freed before the call is returned to the system.
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
