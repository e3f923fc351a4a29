"""One pair of sentences through the model, tensor by tensor, recorded by hooks.

B sentences (one), S source positions, T target positions, Q query positions and M memory positions
of an attention, D d_model, F d_ff, H heads, K size of one head, V target vocabulary.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from seq2seq_cli.console import printable
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.extras.inspect.attention_study import source_and_targets
from seq2seq_cli.extras.inspect.parameters import NamedTensor, summarize, table
from seq2seq_cli.model.attention import MultiHeadAttention, attention_scores
from seq2seq_cli.model.layers import FeedForward, Residual
from seq2seq_cli.model.packing import Padded
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID

Record = Callable[[str, str, Tensor], None]


@dataclass(frozen=True)
class Trace:
    """The tensors of one forward pass under teacher forcing, in the order of computation."""

    source: tuple[str, ...]  # tokens of the encoder's input
    target: tuple[str, ...]  # tokens of the decoder's input, BOS first
    tensors: tuple[NamedTensor, ...]

    def report(self) -> dict[str, Any]:
        tensors = [asdict(summarize(tensor)) for tensor in self.tensors]
        return {"source": self.source, "target": self.target, "tensors": tensors}

    def as_text(self) -> str:
        """Return the tokens and a line for each tensor."""
        source, target = (printable(" ".join(side)) for side in (self.source, self.target))
        rows = table([summarize(tensor) for tensor in self.tensors])
        return f"source  {source}\ntarget  {target}\n\n{rows}"


def trace_sentence(
    translator: Translator, source: str, target: str | None = None, tag: str | None = None
) -> Trace:
    """Trace a sentence with its own translation, or with a given target.

    `tag` replaces `decoding.tag`. Raises UserError for what `source_and_targets` refuses.
    """
    src, tgt = translator.tokenizers
    segment, (ids, *_) = source_and_targets(translator, source, target, tag)
    has_eos = translator.model.config.source_eos or not segment.src_ids
    src_ids, tgt_ids = [*segment.src_ids, *[EOS_ID] * has_eos], [BOS_ID, *ids]
    device = translator.model.device
    batch = (torch.tensor([ids], device=device) for ids in (src_ids, tgt_ids))
    tensors = tuple(trace_tensors(translator.model, *batch))
    return Trace(tuple(src.pieces_of(src_ids)), tuple(tgt.pieces_of(tgt_ids)), tensors)


@torch.inference_mode()
def trace_tensors(model: Transformer, src_BS: Tensor, tgt_in_BT: Tensor) -> list[NamedTensor]:
    """Return the tensors of a forward pass; the last are logits_BTV and their softmax.

    The model must be in evaluation mode. Residual connections are recorded as `sum`, x + f(x).
    """
    tensors: list[NamedTensor] = []

    def record(name: str, dimensions: str, values: Tensor) -> None:
        tensors.append(NamedTensor(name, dimensions, values))

    def record_embedding(side: str, letter: str, embedding: nn.Module, ids: Tensor) -> None:
        vectors = model.position_vectors(0, ids.size(1))
        positions = model.source_positions(ids) if side == "src" else None
        record(f"{side}_ids", f"B{letter}", ids)
        record(f"{side}_embedding", f"B{letter}D", embedding(ids))
        if side == "src" and model.src_ngrams is not None:
            record("src_ngrams", "BSD", model.src_ngrams(ids, Padded(ids != model.pad_id)))
        if vectors is not None:
            placed = vectors if positions is None else vectors[positions[0]]
            record(f"{side}_positions", f"{letter}D", placed)

    with ExitStack() as handles:
        for name, module in model.named_modules():
            for handle in _hook(name, module, record):
                handles.enter_context(handle)
        record_embedding("src", "S", model.src_embedding, src_BS)
        memory = model.encode(src_BS, attention_log=[])
        record_embedding("tgt", "T", model.tgt_embedding, tgt_in_BT)
        logits_BTV = model.decode(tgt_in_BT, memory, attention_log=[])
    record("logits", "BTV", logits_BTV)
    record("probabilities", "BTV", logits_BTV.softmax(dim=-1))
    return tensors


def _hook(name: str, module: nn.Module, record: Record) -> Iterator[RemovableHandle]:
    """Record what a module computes, if it is of a kind that is recorded."""
    states = "BSD" if name.startswith("encoder") else "BTD"

    def record_input(part: nn.Module, label: str) -> RemovableHandle:
        return part.register_forward_pre_hook(lambda _, given: record(label, states, given[0]))

    def record_output(part: nn.Module, label: str, dimensions: str) -> RemovableHandle:
        return part.register_forward_hook(lambda _, __, output: record(label, dimensions, output))

    if name in ("encoder.0", "decoder.0"):
        yield record_input(module, f"{name.partition('.')[0]}.input")
    elif isinstance(module, MultiHeadAttention):
        yield module.register_forward_hook(
            functools.partial(_record_attention, name, states, record), with_kwargs=True
        )
    elif isinstance(module, FeedForward):
        inner = f"{states[:2]}F"
        yield record_output(module.expand, f"{name}.expand", inner)
        yield record_output(module.activation, f"{name}.activation", inner)
        yield record_output(module.contract, f"{name}.contract", states)
    elif isinstance(module, Residual):
        if not module.norm_first:  # its output is the output of the norm
            yield record_input(module.norm, f"{name}.sum")
        yield record_output(module.norm, f"{name}.norm", states)
        if module.norm_first:
            yield record_output(module, f"{name}.sum", states)
    elif name in ("encoder_norm", "decoder_norm") and isinstance(module, nn.LayerNorm):
        yield record_output(module, name, states)


def _record_attention(
    name: str,
    states: str,
    record: Record,
    attention: MultiHeadAttention,
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
    output: Tensor,
) -> None:
    """Record an attention; scores and outputs of heads are computed again."""
    call = inspect.signature(attention.forward).bind(*arguments, **keywords).arguments
    weights_BHQM, v_BHMK, q_BHQK, k_BHMK = call["attention_log"][-1]
    scores_BHQM = attention_scores(attention.scale(q_BHQK), k_BHMK, call["mask_B1QM"])
    record(f"{name}.q", "BHQK", q_BHQK)
    record(f"{name}.k", "BHMK", k_BHMK)
    record(f"{name}.v", "BHMK", v_BHMK)
    record(f"{name}.scores", "BHQM", scores_BHQM)
    record(f"{name}.weights", "BHQM", weights_BHQM)
    record(f"{name}.heads", "BHQK", weights_BHQM @ v_BHMK)
    record(f"{name}.output", states, output)
