"""Fused operations of training on a CPU: one pass in C, next to what it computes in PyTorch.

They are used in training, for gradients in fp32 or bf16. Everywhere else, as on a GPU, under
torch.compile, without kernels for the processor or after an edit of the model's code, PyTorch
computes; SEQ2SEQ_CPU_ISA=plain makes it do so.

Dropout draws other numbers in C: a hash of the module's key, of the place of a row in the update
and of the place of a number in the row. Nothing is stored, and it does not matter which process or
thread computes a row, or whether its batch was split.

R positions of the row of a packed batch, S of a memory's, D d_model, V vocabulary.
"""

import ctypes
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call

from seq2seq_cli.native import library as native
from seq2seq_cli.native.model_code import is_edited

_TYPES = {torch.float32: 0, torch.bfloat16: 1}  # by their numbers in native.h
_ACTIVATIONS: dict[type[nn.Module], int] = {nn.ReLU: 1, nn.GELU: 2, nn.SiLU: 3}
_ROWS_OF_A_SUM = 64  # as training.h has it
_NO_NORM = (None, None, 0.0)  # in place of a norm's weight, bias and epsilon


class Dropout(Protocol):
    """A dropout module. Its key is of the module and the update; None: a random one."""

    p: float
    training: bool
    key: int | None

    def __call__(self, x: Tensor, /) -> Tensor: ...


class Rows(Protocol):
    """Sentences one after another in a packed batch, and the place of each row in the update."""

    num_tokens: int  # the rows after them are padding
    starts_B: Tensor
    lengths_B: Tensor
    places_R: Tensor | None  # int64; None: the number of the row


def drop(x: Tensor, dropout: Dropout, places_R: Tensor | None) -> Tensor:
    """Return dropout(x)."""
    if dropout.p > 0 and trains_in_c(dropout.training, x):
        return _result_of(_Add, None, x, *_NO_NORM, _row_dropout(dropout, places_R), places_R)
    return dropout(x)


def add(
    x: Tensor,
    y: Tensor,
    dropout: Dropout,
    norm: nn.Module | None = None,
    places_R: Tensor | None = None,
) -> Tensor:
    """Return norm(x + dropout(y)); without a norm, the sum."""
    if not trains_in_c(dropout.training, x, y):
        added = x + dropout(y)
        return added if norm is None else _apply(norm, added)
    weights = None if norm is None else _weights_of(norm)
    row_dropout = _row_dropout(dropout, places_R)
    added = _result_of(_Add, x, y, *(weights or _NO_NORM), row_dropout, places_R)
    return added if norm is None or weights else _apply(norm, added)


def normalize(x: Tensor, norm: nn.Module) -> Tensor:
    """Return norm(x)."""
    weights = _weights_of(norm)
    if weights is not None and trains_in_c(norm.training, x):
        return _result_of(_Add, None, x, *weights, native.RowDropout(), None)
    return _apply(norm, x)


def _apply(norm: nn.Module, x: Tensor) -> Tensor:
    """Return norm(x), by PyTorch; to train LayerNorm in bf16 on a CPU, by way of fp32.

    PyTorch adds up the gradients of its weight and bias in the type of x there, and a sum in bf16
    does not grow any more after some hundred rows. Sharded weights are in bf16, too.
    """
    is_in_bf16 = x.dtype == torch.bfloat16 and x.device.type == "cpu"
    if isinstance(norm, nn.LayerNorm) and is_in_bf16 and torch.is_grad_enabled():
        weights = {name: weight.float() for name, weight in norm.named_parameters()}
        normed: Tensor = functional_call(norm, weights, x.float()).to(x.dtype)
    else:
        normed = norm(x)
    return normed


def activate(
    x: Tensor, activation: nn.Module, dropout: Dropout, places_R: Tensor | None = None
) -> Tensor:
    """Return dropout(activation(x)), perhaps in the memory of x."""
    is_exact = getattr(activation, "approximate", "none") == "none"  # of GELU
    kind = _ACTIVATIONS.get(type(activation)) if is_exact else None
    if kind is not None and trains_in_c(dropout.training, x):
        return _result_of(_Activate, x, kind, _row_dropout(dropout, places_R), places_R)
    return dropout(activation(x))


def attend(
    queries_1RD: Tensor,
    memory_1SD: Tensor | None,
    layouts: tuple[Rows, Rows],
    heads: int,
    scale: float,
    is_causal: bool,
    rotations: tuple[Tensor, Tensor] | None,
    dropout: Dropout,
) -> Tensor:
    """Return dropout(softmax(scale · q Kᵀ)) V of each head side by side, 1RD.

    The memory has keys and values side by side, 1S2D. Without one, queries, keys and values are
    side by side, 1R3D; if attention is causal, row i attends to rows 0 to i of its sentence.
    Queries and keys are rotated by cosines and sines of each position and dimension, if given.
    Inputs have to be such that `trains_in_c` is true.
    """
    options = (heads, scale, is_causal, rotations, _row_dropout(dropout, layouts[0].places_R))
    return _result_of(_Attend, queries_1RD, memory_1SD, layouts, *options)


def softmax(logits_RV: Tensor, labels_R: Tensor, in_place: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return the probabilities, RV, and of the labels the logits and log-probabilities in fp32."""
    if not _has_kernels(logits_RV):
        log_p_RV = logits_RV.float().log_softmax(-1)
        logits_R, log_p_R = (x.gather(1, labels_R[:, None])[:, 0] for x in (logits_RV, log_p_RV))
        return log_p_RV.exp_().to(logits_RV.dtype), logits_R.float(), log_p_R
    p_RV, (rows, size) = logits_RV if in_place else logits_RV.clone(), logits_RV.shape
    logits_R, log_p_R = logits_RV.new_empty(2, rows, dtype=torch.float32)
    call = native.Softmax(type=_TYPES[p_RV.dtype], rows=rows, size=size)
    _point(call, logits=p_RV, labels=labels_R, label_logits=logits_R, label_log_probs=log_p_R)
    native.library().to_probabilities(ctypes.byref(call), torch.get_num_threads())
    return p_RV, logits_R, log_p_R


def trains_in_c(is_training: bool, *inputs: Tensor) -> bool:
    """Return True if a module is being trained on inputs that C supports."""
    return is_training and torch.is_grad_enabled() and _has_kernels(*inputs)


def _weights_of(norm: nn.Module) -> tuple[Tensor, Tensor, float] | None:
    """Return weight, bias and epsilon of a norm that C computes, else None.

    Sharded weights may be in bf16, which C cannot read. A norm with forward hooks has to be called,
    for the report of a loss that is not finite.
    """
    if type(norm) is not nn.LayerNorm or norm._forward_hooks:
        return None
    weight, bias = norm.weight, norm.bias
    if any(values is None or values.dtype != torch.float32 for values in (weight, bias)):
        return None
    return weight, bias, norm.eps


def _result_of(function: type[torch.autograd.Function], *inputs: Any) -> Tensor:
    result: Tensor = function.apply(*inputs)  # type: ignore[no-untyped-call]
    return result


def _has_kernels(*inputs: Tensor) -> bool:
    return (
        not torch.compiler.is_compiling()
        and len({x.dtype for x in inputs}) == 1
        and all(x.dtype in _TYPES and x.device.type == "cpu" for x in inputs)
        and native.has_training_kernels()
        and not is_edited()
    )


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor | None,
        y: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        epsilon: float,
        dropout: native.RowDropout,
        places_R: Tensor | None,
    ) -> Tensor:
        y, x = y.contiguous(), None if x is None else x.contiguous()
        rows, size = y.numel() // y.size(-1), y.size(-1)
        call = native.Residual(type=_TYPES[y.dtype], rows=rows, size=size, dropout=dropout)
        call.norm.epsilon = epsilon
        _point(call.norm, weight=weight, bias=bias)
        # The backward pass may need no more than the result of the norm, which whatever comes next
        # keeps, too (Bulò et al. 2018 invert batch normalization). Rounding to bf16 is too coarse.
        keeps_normed = weight is not None and y.dtype == torch.float32
        if keeps_normed:
            keeps_normed = bool(native.library().is_invertible(ctypes.byref(call.norm), size))
        added = y if x is None and dropout.least == 0 else torch.empty_like(y)
        normed = added
        if weight is not None and (added is y or not keeps_normed):
            normed = torch.empty_like(y)
        moments = y.new_empty(0 if weight is None else 2 * rows, dtype=torch.float32)
        _point(call, x=x, y=None if added is y else y, sum=added, normed=normed, moments=moments)
        _run(native.library().add_and_normalize, call, is_backward=False)
        ctx.call, ctx.has_residual, ctx.has_norm = call, x is not None, weight is not None
        ctx.places_R, ctx.keeps_normed = places_R, keeps_normed  # `call` points to the places
        kept = normed if keeps_normed else added
        ctx.save_for_backward(*(() if weight is None else (kept, moments, weight, bias)))
        return normed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        call, drops = ctx.call, ctx.call.dropout.least > 0
        gradient = gradient.contiguous()
        dy = torch.empty_like(gradient) if drops else None
        dweight = dbias = None
        if ctx.has_norm:
            kept, moments, weight, bias = ctx.saved_tensors
            added, normed = (None, kept) if ctx.keeps_normed else (kept, None)
            parts = weight.new_empty(2, -(-call.rows // _ROWS_OF_A_SUM), len(weight))
            dx = torch.empty_like(gradient) if ctx.has_residual or not drops else None
            _point(call.norm, weight=weight, bias=bias)
            _point(call, sum=added, normed=normed, moments=moments, dnormed=gradient, dx=dx, dy=dy)
            _point(call, dweight=parts[0], dbias=parts[1])
            _run(native.library().add_and_normalize, call, is_backward=True)
            dweight, dbias = parts.sum(1)
        else:  # of a sum, the gradient of x is the gradient
            dx = gradient
            if drops:
                _point(call, dsum=gradient, dx=None, dy=dy)
                _run(native.library().add_and_normalize, call, is_backward=True)
        residual = dx if ctx.has_residual else None
        return residual, dy if drops else dx, dweight, dbias, None, None, None


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, kind: int, dropout: native.RowDropout, places_R: Tensor | None
    ) -> Tensor:
        x = x.contiguous()
        is_relu = kind == _ACTIVATIONS[nn.ReLU]  # its gradient needs the result alone
        y = x if is_relu else torch.empty_like(x)
        rows, size = x.numel() // x.size(-1), x.size(-1)
        ctx.call = native.Activation(
            type=_TYPES[x.dtype], rows=rows, size=size, activation=kind, dropout=dropout
        )
        ctx.places_R = places_R  # to which `call` points
        _point(ctx.call, x=x, y=y)
        _run(native.library().activate, ctx.call, is_backward=False)
        if is_relu:
            ctx.mark_dirty(x)
        ctx.save_for_backward(y if is_relu else x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        (saved,) = ctx.saved_tensors
        gradient = gradient.contiguous()
        dx = torch.empty_like(gradient)
        _point(ctx.call, x=saved, y=saved, dy=gradient, dx=dx)
        _run(native.library().activate, ctx.call, is_backward=True)
        return dx, None, None, None


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        memory: Tensor | None,
        layouts: tuple[Rows, Rows],
        heads: int,
        scale: float,
        is_causal: bool,
        rotations: tuple[Tensor, Tensor] | None,
        dropout: native.RowDropout,
    ) -> Tensor:
        queries, memory = queries.contiguous(), None if memory is None else memory.contiguous()
        d_model = queries.size(-1) // (3 if memory is None else 1)
        layout, of_memory = layouts
        ctx.call = native.RowAttention(
            type=_TYPES[queries.dtype],
            sentences=len(layout.lengths_B),
            heads=heads,
            size=d_model // heads,
            is_causal=is_causal,
            q_stride=queries.size(-1),
            k_stride=(queries if memory is None else memory).size(-1),
            scale=scale,
            dropout=dropout,
        )
        _point(ctx.call, starts=layout.starts_B, lengths=layout.lengths_B)
        _point(ctx.call, memory_starts=of_memory.starts_B, memory_lengths=of_memory.lengths_B)
        if rotations is not None:
            _point(ctx.call, cosines=rotations[0], sines=rotations[1])
        attended = queries.new_empty(*queries.shape[:2], d_model)
        attended[:, layout.num_tokens :] = 0
        q, k, v = _queries_keys_values(queries, memory, d_model)
        _point(ctx.call, q=q, k=k, v=v, y=attended)
        _run(native.library().attend_to_rows, ctx.call, is_backward=False)
        ctx.layouts, ctx.rotations = layouts, rotations
        ctx.save_for_backward(queries, memory)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        queries, memory = ctx.saved_tensors
        gradient = gradient.contiguous()
        dqueries, dmemory = torch.empty_like(queries), None
        dqueries[:, ctx.layouts[0].num_tokens :] = 0
        if memory is not None:
            dmemory = torch.empty_like(memory)
            dmemory[:, ctx.layouts[1].num_tokens :] = 0
        q, k, v = _queries_keys_values(queries, memory, gradient.size(-1))
        dq, dk, dv = _queries_keys_values(dqueries, dmemory, gradient.size(-1))
        _point(ctx.call, q=q, k=k, v=v, dy=gradient, dq=dq, dk=dk, dv=dv)
        _run(native.library().attend_to_rows, ctx.call, is_backward=True)
        return dqueries, dmemory, None, None, None, None, None, None


def _queries_keys_values(
    queries_1RD: Tensor, memory_1SD: Tensor | None, d_model: int
) -> list[Tensor]:
    if memory_1SD is None:
        return list(torch.split(queries_1RD, d_model, dim=-1))
    return [queries_1RD, *torch.split(memory_1SD, d_model, dim=-1)]


def _row_dropout(dropout: Dropout, places_R: Tensor | None) -> native.RowDropout:
    """Return what C needs of a dropout; the caller keeps the places in memory."""
    if dropout.p == 0:
        return native.RowDropout()
    key = dropout.key
    if key is None:
        key = int(torch.empty((), dtype=torch.int64).random_(-(2**63), None)) % 2**64
    least = min(round(dropout.p * 2**32), 2**32 - 1)
    row_dropout = native.RowDropout(key=key, least=least, scale=2**32 / (2**32 - least))
    _point(row_dropout, places=places_R)
    return row_dropout


def _point(call: ctypes.Structure, **tensors: Tensor | None) -> None:
    """Let fields of a structure point to the memory of tensors."""
    for name, tensor in tensors.items():
        setattr(call, name, None if tensor is None else tensor.data_ptr())


def _run(function: Callable[..., int | None], call: ctypes.Structure, is_backward: bool) -> None:
    if function(ctypes.byref(call), is_backward, torch.get_num_threads()):
        raise MemoryError
