"""Linear layers of the torch engine: fp32, bf16 or dynamically quantized int8."""

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.decoding.engines.base import Precision

Linear = Callable[[Tensor], Tensor]

_FEW_ROWS = 8  # up to this many rows, fbgemm's kernels are faster than oneDNN's
_SMALL = 1 << 17  # a layer with fewer weights stays in fp32 while its rows are few
_WORTH_INT8 = 5 << 20  # products above which int8 is faster in a small layer


def make_linear(layers: Sequence[nn.Linear], precision: Precision, *, relu: bool = False) -> Linear:
    """Join layers of the same input into one, outputs side by side; inputs have two dimensions."""
    weight = torch.cat([layer.weight.detach() for layer in layers])
    bias = None
    if layers[0].bias is not None:
        bias = torch.cat([layer.bias.detach() for layer in layers])
    if precision == "int8" and (engines := int8_engines()):
        return _Int8(weight, bias, relu, engines)
    if precision == "bf16":
        return _Bf16(weight, bias, relu)
    return _Fp32(weight, bias, relu)


class _Fp32:
    """fp32, with a transposed weight: with few rows such products take half the time."""

    def __init__(self, weight: Tensor, bias: Tensor | None, relu: bool) -> None:
        self._weight, self._bias, self._relu = weight.T.contiguous(), bias, relu

    def __call__(self, states: Tensor) -> Tensor:
        if self._bias is None:
            outputs = torch.mm(states, self._weight)
        else:
            outputs = torch.addmm(self._bias, states, self._weight)
        return outputs.relu_() if self._relu else outputs


class _Bf16:
    def __init__(self, weight: Tensor, bias: Tensor | None, relu: bool) -> None:
        self._weight, self._relu = weight.bfloat16(), relu
        self._bias = None if bias is None else bias.bfloat16()

    def __call__(self, states: Tensor) -> Tensor:
        outputs = F.linear(states.bfloat16(), self._weight, self._bias)
        return (outputs.relu_() if self._relu else outputs).float()


class _Int8:
    """int8: weights with a scale for every output, inputs with one scale for all rows of a call.

    So the result of a row depends slightly on the other rows.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, relu: bool, engines: tuple[str, str]
    ) -> None:
        scales = weight.abs().amax(dim=1).clamp_(min=1e-12) / 127
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings():  # PyTorch has deprecated these tensors, see int8_engines
            warnings.simplefilter("ignore")
            quantized = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
        self._few, self._many = (_packed(quantized, bias, engine) for engine in engines)
        ops = torch.ops.quantized
        self._exact = _Fp32(weight, bias, relu) if weight.numel() < _SMALL else None
        self._size, self._num_outputs = weight.numel(), len(weight)
        self._multiply = ops.linear_relu_dynamic if relu else ops.linear_dynamic

    def __call__(self, states: Tensor) -> Tensor:
        rows = states.size(0)
        if self._exact is not None and rows * self._size < _WORTH_INT8:
            return self._exact(states)
        packed = self._few if rows <= _FEW_ROWS else self._many
        try:
            outputs: Tensor = self._multiply(states, packed, False)
        except RuntimeError:  # there is no scale for NaN
            if states.isfinite().all():
                raise
            return states.new_full((rows, self._num_outputs), torch.nan)
        return outputs


def has_int8() -> bool:
    """Whether PyTorch has 8-bit products, and the processor has instructions for them (VNNI)."""
    checks = ("_is_vnni_supported", "_is_avx512_vnni_supported", "_is_amx_tile_supported")
    has_vnni = any(getattr(torch.cpu, name)() for name in checks if hasattr(torch.cpu, name))
    return has_vnni and int8_engines() is not None


def int8_engines() -> tuple[str, str] | None:
    """Return PyTorch's kernels for few rows and for many; None if this processor has none."""
    supported = torch.backends.quantized.supported_engines
    if "onednn" not in supported or not hasattr(torch, "quantize_per_channel"):
        return None
    return ("fbgemm" if "fbgemm" in supported else "onednn"), "onednn"


def _packed(quantized: Tensor, bias: Tensor | None, engine: str) -> Tensor:
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = engine
    try:
        packed: Tensor = torch.ops.quantized.linear_prepack(quantized, bias)
        return packed
    finally:
        torch.backends.quantized.engine = before
