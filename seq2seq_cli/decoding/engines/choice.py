"""Chooses the engine for a model: the first that supports it, or the one asked for by name.

B sentences, W hypotheses of each, V vocabulary.
"""

import copy
import functools
import itertools
import logging

import torch

from seq2seq_cli.config.types import DecodingPrecision, EngineName
from seq2seq_cli.decoding.engines.base import Decoder, PlainDecoder
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.search.scoring import padded_ids
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.device import has_fast_bf16
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native.library import Precision
from seq2seq_cli.native.model_code import is_edited
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID

logger = logging.getLogger(__name__)

Engine = CpuDecoder | PlainDecoder

# The fastest comes first; the last one computes every model.
ENGINES: dict[EngineName, type[Engine]] = {"native": CpuDecoder, "plain": PlainDecoder}
# By how much the logits of an engine may differ from the model's, relative to their norm. Rounding
# of fp32 is below 1e-5; bf16 and int8 round weights, keys and values too, so that an engine is also
# built in fp32, of the first layers.
_TOLERANCES: dict[Precision, float] = {"fp32": 1e-4, "bf16": 0.3, "int8": 0.3}
_DIFFERS = "its logits differ from the model's"


def make_decoder(
    model: Transformer, precision: DecodingPrecision, engine: EngineName = "auto"
) -> Decoder:
    """Return the first engine that supports the model in this precision, or the one named.

    Precision `auto` is the fastest that is exact enough for translating. An engine whose logits
    differ from the model's, as after an edit of the model's code, is rejected with a warning.
    Raises UserError with each engine's reason if no engine is left.
    """
    on_cpu = model.device.type == "cpu"
    precisions: list[Precision] = ["int8", "fp32"]
    if precision != "auto":
        precisions = [precision]
    elif not on_cpu:
        precisions = ["bf16" if has_fast_bf16(model.device) else "fp32"]
    reasons: dict[EngineName, str] = {}
    names = ENGINES if engine == "auto" else [engine]
    for tried, name in itertools.product(precisions, names):
        if reason := ENGINES[name].unsupported(model, tried):
            reasons[name] = reason
            continue
        decoder = ENGINES[name](model, tried)
        if name != "plain" and not agrees_with_model(decoder, model):
            reasons[name] = _DIFFERS
            continue
        reasons.pop(name, None)  # why not in int8, if this is fp32
        if on_cpu and (name == "plain" or _DIFFERS in reasons.values()):
            _note(name, _listed(reasons))
        return decoder
    if precision == "int8" and not on_cpu:
        raise UserError("decoding.precision int8 needs a CPU; on a GPU, use bf16 or fp32")
    raise UserError(
        f"no engine decodes this model with decoding.engine {engine} and decoding.precision "
        f"{precision}: {_listed(reasons)}"
    )


def agrees_with_model(decoder: Engine, model: Transformer) -> bool:
    """Compare the logits of two sentences with the model's, but for rounding.

    They are short, and in fp32 of the first layers only, unless the model's code has been edited.
    """
    was_training = model.training
    model.eval()
    try:
        is_same = _has_same_logits(decoder, model)
        if not is_same or decoder.precision == "fp32":
            return is_same
        compared = copy.copy(model)
        if not is_edited():
            layers = {"encoder": model.encoder[:1], "decoder": model.decoder[:1]}
            compared._modules = model._modules | layers
        return _has_same_logits(type(decoder)(compared, "fp32"), compared)
    finally:
        model.train(was_training)


def differs_from_c(model: Transformer) -> bool:
    """Return True if the model's code has been edited, and computes something else than C."""
    if not is_edited() or CpuDecoder.unsupported(model, "fp32"):
        return False
    return not agrees_with_model(CpuDecoder(model, "fp32"), model)


@torch.inference_mode()
def _has_same_logits(decoder: Decoder, model: Transformer) -> bool:
    """Compare a few steps: the second reads the KV cache. The search reports NaN and +infinity."""
    length, num_steps = (40, 20) if is_edited() else (4, 2)  # an edit may show only later
    src_vocab, tgt_vocab = model.src_embedding.num_embeddings, model.tgt_embedding.num_embeddings
    num_pieces = max(1, src_vocab - EOS_ID - 1)  # that are not special tokens
    ids = [min(EOS_ID + 1 + 37 * n % num_pieces, src_vocab - 1) for n in range(length)]
    src_BS = padded_ids([[*ids, EOS_ID], [*ids[::2], EOS_ID]])
    states = [each.start(src_BS) for each in (PlainDecoder(model), decoder)]
    last_BW = src_BS.new_full((2, 1), BOS_ID)
    for _ in range(num_steps):
        expected_BWV, actual_BWV = (state.logits(last_BW)[..., :tgt_vocab] for state in states)
        if not (expected_BWV < torch.inf).all():
            return True
        is_possible_BWV = expected_BWV.isfinite()
        if not torch.equal(actual_BWV.isfinite(), is_possible_BWV):
            return False
        expected = expected_BWV[is_possible_BWV]
        error = (actual_BWV[is_possible_BWV] - expected).norm()
        if not error <= _TOLERANCES[decoder.precision] * expected.norm():
            return False
        last_BW = expected_BWV.argmax(dim=-1)
    return True


def _listed(reasons: dict[EngineName, str]) -> str:
    return ", ".join(f"{name} ({reason})" for name, reason in reasons.items())


@functools.cache
def _note(engine: EngineName, reasons: str) -> None:
    """Log it once, not at every validation."""
    level = logging.WARNING if _DIFFERS in reasons else logging.INFO
    used = "the model's own code" if engine == "plain" else f"engine {engine}"
    if reasons:
        logger.log(level, f"decoding with {used}, which is slower; unsupported by {reasons}")
