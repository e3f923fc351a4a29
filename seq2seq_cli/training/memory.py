"""Whether memory did not suffice, and giving it back."""

import gc

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
