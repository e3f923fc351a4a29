"""Chooses the engine for a model: the first that supports it, or the one asked for by name."""

import functools
import logging

from seq2seq_cli.config.types import DecodingPrecision, EngineName
from seq2seq_cli.decoding.engines.base import Decoder, PlainDecoder
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.engines.linear import Precision, has_int8
from seq2seq_cli.decoding.engines.torch_decoder import TorchDecoder
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.device import has_fast_bf16
from seq2seq_cli.model.transformer import Transformer

logger = logging.getLogger(__name__)

Engine = type[CpuDecoder] | type[TorchDecoder] | type[PlainDecoder]

# The fastest comes first; the last one computes every model.
ENGINES: dict[EngineName, Engine] = {
    "native": CpuDecoder,
    "torch": TorchDecoder,
    "plain": PlainDecoder,
}


def make_decoder(model: Transformer, precision: Precision, engine: EngineName = "auto") -> Decoder:
    """Return the first engine that supports the model in this precision, or the one named.

    Raises UserError with each engine's reason if there is none.
    """
    names = ENGINES if engine == "auto" else [engine]
    reasons: list[str] = []
    for name in names:
        reason = ENGINES[name].unsupported(model, precision)
        if reason is None:
            if name == "plain" and engine == "auto" and model.device.type == "cpu":
                _note_plain(" and ".join(reasons))
            return ENGINES[name](model, precision)
        reasons.append(f"{name} ({reason})")
    if precision == "int8" and model.device.type != "cpu":
        raise UserError("decoding.precision int8 needs a CPU; on a GPU, use bf16 or fp32")
    raise UserError(
        f"no engine decodes this model with decoding.engine {engine} and decoding.precision "
        f"{precision}: {', '.join(reasons)}"
    )


def choose_precision(
    asked: DecodingPrecision, model: Transformer, engine: EngineName = "auto"
) -> Precision:
    """Resolve `decoding.precision: auto` to the fastest that is exact enough for translating."""
    if asked != "auto":
        return asked
    if model.device.type != "cpu":
        return "bf16" if has_fast_bf16(model.device) else "fp32"
    names = ENGINES if engine == "auto" else [engine]
    for name in names:
        if ENGINES[name].unsupported(model, "int8") is None and (name == "native" or has_int8()):
            return "int8"
    return "fp32"


@functools.cache
def _note_plain(reasons: str) -> None:
    """Log it once, not at every validation."""
    logger.info(f"decoding with the model's own code, which is slower; unsupported by {reasons}")
