"""The native engine, step by step: what searches in PyTorch ask for.

B sentences, W hypotheses of each, S source positions, P positions of all sources together, T target
positions so far, C blocks of slots of the KV cache, D d_model, L decoder layers, V vocabulary.
"""

from ctypes import addressof

import numpy as np
import torch
from torch import Tensor, nn

from seq2seq_cli.decoding.engines.capabilities import unknown_part
from seq2seq_cli.decoding.engines.native_model import NativeModel, packed, unsupported_option
from seq2seq_cli.model.layers import without_eos
from seq2seq_cli.model.parameters import unique_parameters
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native import library as native
from seq2seq_cli.native.library import Precision
from seq2seq_cli.tokenizers.tokenizer import PAD_ID

CPU = torch.device("cpu")
_ACTIVATIONS = (nn.ReLU, nn.GELU, nn.SiLU)


class CpuDecoder:
    """Computes in C: a sentence has the same results, to the last bit, in any batch."""

    device = CPU

    @staticmethod
    def unsupported(model: Transformer, precision: Precision) -> str | None:
        """Return the reason why it cannot compute the model on this machine, or None."""
        if model.device.type != "cpu":
            return "it needs a CPU"
        return unsupported_option(model.config, precision) or unknown_part(model, _ACTIVATIONS)

    def __init__(self, model: Transformer | NativeModel, precision: Precision = "fp32") -> None:
        """`unsupported` must have returned None. A native model has its own precision."""
        if isinstance(model, Transformer):
            weights = {name: w.float().numpy() for name, w in unique_parameters(model).items()}
            num_features = 0 if model.feature_ids is None else len(model.feature_ids)
            parts = packed(weights, model.config, precision)
            model = NativeModel(parts, model.config, precision, num_features)
        self.native_model = model
        self.precision, self.vocab_size = model.precision, model.vocab_size

    @torch.inference_mode()
    def start(self, src_BS: Tensor) -> "CpuDecodingState":
        model = self.native_model
        if not model.source_eos:
            src_BS = without_eos(src_BS, PAD_ID)
        src_BS = src_BS.contiguous()
        num_tokens = int((src_BS != PAD_ID).sum())
        memory_PL2D = _empty(num_tokens, model.num_layers, 2, model.d_model)
        state = CpuDecodingState(model, memory_PL2D, *src_BS.shape)
        threads = torch.get_num_threads()
        workspace = native.workspace(model.encoder, num_tokens, src_BS.size(1), threads)
        positions, places_BS = model.positions(src_BS.size(1)), model.places(src_BS.numpy())
        native.library().encode(
            addressof(model.encoder),
            addressof(state.batch),
            num_tokens,
            src_BS.data_ptr(),
            PAD_ID,
            None if places_BS is None else places_BS.ctypes.data,
            positions.ctypes.data,
            workspace.ctypes.data,
            threads,
        )
        return state


def _empty(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return memory for C, whatever the caller has set as PyTorch's default type and device."""
    return torch.empty(sizes, dtype=dtype, device=CPU)


def _numbers(start: int, stop: int) -> Tensor:
    return torch.arange(start, stop, dtype=torch.int32, device=CPU)


class CpuDecodingState:
    """The `DecodingState` of one batch; keys and values are never moved.

    Each step of each hypothesis fills a slot; a hypothesis has a list of the slots of its past. A
    block has slots for the sentences that were there when it was allocated, a column for each.
    """

    def __init__(
        self, model: NativeModel, memory_PL2D: Tensor, sentences: int, longest: int
    ) -> None:
        """The library fills `memory_PL2D`: with bf16, in the first half, but for fp32 models."""
        self._model = model
        self._memory_PL2D = memory_PL2D
        self._starts_B, self._lengths_B = _empty(2, sentences, dtype=torch.int32)
        self._workspace, self._workspace_sizes = np.empty(0, np.uint8), (0, 0, 0)
        self._positions = model.positions(0)
        kv_size = native.library().kv_size(addressof(model.decoder))
        self._kv_type = torch.float32 if kv_size == 4 else torch.bfloat16
        self.blocks: list[Tensor] = []  # of the KV cache
        self._addresses_C = _empty(0, dtype=torch.int64)
        self._num_columns_C = _empty(0, dtype=torch.int32)
        self._columns_BC = _empty(sentences, 0, dtype=torch.int32)
        self._slots_BWT: Tensor | None = None  # None: every hypothesis has all slots
        self._num_slots = 0
        # Always points to the present tensors.
        self.batch = native.NativeBatch(longest=longest, memory=memory_PL2D.data_ptr())
        self._point_to_sources()

    def logits(self, last_BW: Tensor) -> Tensor:
        model, threads = self._model, torch.get_num_threads()
        logits_BWV = _empty(*last_BW.shape, model.num_outputs)
        last_BW = last_BW.contiguous()
        self._add_slots(last_BW.size(1))
        rows, length = last_BW.numel(), self.batch.length
        had_rows, had_threads, until = self._workspace_sizes
        if rows > had_rows or threads > had_threads or length > until:  # for some more steps, too
            until = length + native.SLOTS
            self._workspace_sizes = (rows, threads, until)
            longest = max(self.batch.longest, until)
            self._workspace = native.workspace(model.decoder, rows, longest, threads)
            self._positions = model.positions(until)
        native.library().decode(
            addressof(model.decoder),
            addressof(self.batch),
            last_BW.data_ptr(),
            self._positions.ctypes.data,
            logits_BWV.data_ptr(),
            self._workspace.ctypes.data,
            threads,
        )
        return logits_BWV

    def _add_slots(self, width: int) -> None:
        """Give every hypothesis a slot at the end of its list."""
        first, self._num_slots = self._num_slots, self._num_slots + width
        self.batch.width = width
        self.batch.length += 1
        while self._num_slots > native.SLOTS * len(self.blocks):
            columns_B = _numbers(0, len(self._columns_BC))
            sizes = (self._model.num_layers, native.SLOTS, len(columns_B), 2, self._model.d_model)
            self.blocks.append(_empty(*sizes, dtype=self._kv_type))
            addresses = [block.data_ptr() for block in self.blocks]
            self._addresses_C = torch.tensor(addresses, device=CPU)
            num_columns = [block.size(2) for block in self.blocks]
            self._num_columns_C = torch.tensor(num_columns, dtype=torch.int32, device=CPU)
            self._columns_BC = torch.cat([self._columns_BC, columns_B[:, None]], dim=1)
            self.batch.num_blocks = len(self.blocks)
            self.batch.blocks = self._addresses_C.data_ptr()
            self.batch.num_columns = self._num_columns_C.data_ptr()
            self.batch.columns = self._columns_BC.data_ptr()
        if self._slots_BWT is not None:
            new_W1 = _numbers(first, self._num_slots)[:, None]
            new_BW1 = new_W1.expand(len(self._slots_BWT), -1, -1)
            self._slots_BWT = torch.cat([self._slots_BWT, new_BW1], dim=2)
            self.batch.slots = self._slots_BWT.data_ptr()

    def reorder(self, origin_BW: Tensor) -> None:
        if self._slots_BWT is None:
            if origin_BW.size(1) == 1:
                return
            slots_T = _numbers(0, self.batch.length)
            self._slots_BWT = slots_T.expand(len(origin_BW), 1, -1)
        index = origin_BW[:, :, None].expand(-1, -1, self.batch.length)
        self._slots_BWT = self._slots_BWT.gather(1, index)

    def keep(self, sentences_B: Tensor) -> None:
        self._starts_B, self._lengths_B = self._starts_B[sentences_B], self._lengths_B[sentences_B]
        self._point_to_sources()
        self._columns_BC = self._columns_BC[sentences_B]
        self.batch.columns = self._columns_BC.data_ptr()
        if self._slots_BWT is not None:
            self._slots_BWT = self._slots_BWT[sentences_B]

    def _point_to_sources(self) -> None:
        self.batch.sentences = len(self._starts_B)
        self.batch.starts = self._starts_B.data_ptr()
        self.batch.lengths = self._lengths_B.data_ptr()
