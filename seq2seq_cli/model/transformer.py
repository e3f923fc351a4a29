"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017).

B sentences, S source positions, T target positions, D d_model, V target vocabulary.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.model.attention import Record, causal_mask, padding_mask
from seq2seq_cli.model.device import activation_dtype
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.layers import (
    DecoderLayer,
    EncoderLayer,
    LayerCache,
    sinusoidal_positions,
)
from seq2seq_cli.model.packing import Layout, Padded


class Memory(NamedTuple):
    """What the encoder gives to the decoder: its output, its layout, where there are tokens."""

    states_BSD: Tensor
    layout: Layout
    mask_B11S: Tensor


@dataclass
class Cache:
    """What the decoder looks at, kept between the steps of a search; the caller owns it."""

    layers: list[LayerCache]
    mask_B11S: Tensor  # where the source has tokens
    length: int = 0  # target positions decoded

    def select(self, rows_B: Tensor) -> "Cache":
        """The given sentences, in that order."""
        layers = [layer.select(rows_B) for layer in self.layers]
        return Cache(layers, self.mask_B11S[rows_B], self.length)


class AttentionWeights(NamedTuple):
    """Of every layer, first to last: encoder BHSS, decoder on itself BHTT, on the source BHTS."""

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]


class Transformer(nn.Module):
    """Source ids and the target so far, in; logits of the next target token, out."""

    def __init__(
        self, config: ModelConfig, src_vocab: int, tgt_vocab: int, shared: bool, pad_id: int
    ) -> None:
        """`shared`: both sides have one vocabulary, so that tying ties the source side too."""
        super().__init__()
        assert not shared or src_vocab == tgt_vocab, "a shared vocabulary has one size"
        d_model = config.d_model
        self.config = config
        self.pad_id = pad_id
        self.scale = math.sqrt(d_model) if config.embedding_scale else 1.0
        self.tgt_embedding = _embedding(tgt_vocab, d_model, pad_id)
        self.src_embedding = (
            self.tgt_embedding
            if shared and config.tie_embeddings
            else _embedding(src_vocab, d_model, pad_id)
        )
        self.dropout = Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers.encoder))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers.decoder))
        ends_normed = config.norm == "pre"
        self.encoder_norm = nn.LayerNorm(d_model) if ends_normed else nn.Identity()
        self.decoder_norm = nn.LayerNorm(d_model) if ends_normed else nn.Identity()
        self.projection = nn.Linear(d_model, tgt_vocab, bias=False)
        if config.tie_embeddings:
            self.projection.weight = self.tgt_embedding.weight
        if self.device.type != "meta":
            self._initialize(config)

    def _initialize(self, config: ModelConfig) -> None:
        """Glorot for matrices; embeddings such that a token's vector has unit variance.

        So have the first logits, as the last norm is smaller where embeddings that are not scaled
        are the projection too.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        embedding_std = config.d_model**-0.5 if config.embedding_scale else 1.0
        for embedding in (self.src_embedding, self.tgt_embedding):
            nn.init.normal_(embedding.weight, std=embedding_std)
            nn.init.zeros_(embedding.weight[self.pad_id].detach())
        if config.tie_embeddings and not config.embedding_scale:
            last_layer = self.decoder[-1]
            assert isinstance(last_layer, DecoderLayer)
            is_pre = config.norm == "pre"
            last_norm = self.decoder_norm if is_pre else last_layer.feed_forward_residual.norm
            nn.init.constant_(last_norm.weight, config.d_model**-0.5)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        return self.projection.weight.device

    def encode(
        self, src_BS: Tensor, layout: type[Layout] = Padded, record: Record | None = None
    ) -> Memory:
        """Read the source; every sentence holds at least one token (its EOS)."""
        mask_B11S = padding_mask(src_BS, self.pad_id)
        placed = layout(mask_B11S[:, 0, 0])
        states_BSD = self._embed(self.src_embedding, src_BS, placed, start=0)
        for layer in self.encoder:
            states_BSD = layer(states_BSD, placed, mask_B11S, record)
        return Memory(self.encoder_norm(states_BSD), placed, mask_B11S)

    def start_cache(self, memory: Memory) -> Cache:
        """The keys and values of the encoder's output, made once for all steps of a search."""
        layers = [
            LayerCache(layer.cross_attention.keys_values(memory.states_BSD, memory.layout))  # type: ignore
            for layer in self.decoder
        ]
        return Cache(layers, memory.mask_B11S)

    def decode(self, tgt_BT: Tensor, cache: Cache, record: Record | None = None) -> Tensor:
        """Logits_BTV of the token after each of `tgt_BT`.

        `tgt_BT` holds only the positions after those that the cache has, and the cache grows by
        them. Padding may stand only at the end of a row: nothing before it looks at it.
        """
        logits_BTV: Tensor = self.projection(
            self._decode(tgt_BT, cache, Padded(tgt_BT != self.pad_id), record)
        )
        return logits_BTV

    def forward(self, src_BS: Tensor, tgt_in_BT: Tensor) -> Tensor:
        """Teacher forcing: logits_BTV."""
        return self.decode(tgt_in_BT, self.start_cache(self.encode(src_BS)))

    def forward_hidden(
        self, src_BS: Tensor, tgt_in_BT: Tensor, layout: type[Layout]
    ) -> tuple[Tensor, Layout]:
        """What `projection` makes the logits of, in the layout that comes with it."""
        cache = self.start_cache(self.encode(src_BS, layout))
        placed = layout(tgt_in_BT != self.pad_id)
        return self._decode(tgt_in_BT, cache, placed), placed

    def attention_weights(self, src_BS: Tensor, tgt_in_BT: Tensor) -> AttentionWeights:
        """Who looks at whom, under teacher forcing."""
        encoder: Record = []
        decoder: Record = []
        memory = self.encode(src_BS, record=encoder)
        self.decode(tgt_in_BT, self.start_cache(memory), decoder)
        return AttentionWeights(encoder, decoder[0::2], decoder[1::2])

    def _decode(
        self, tgt_BT: Tensor, cache: Cache, layout: Layout, record: Record | None = None
    ) -> Tensor:
        start, cache.length = cache.length, cache.length + tgt_BT.size(1)
        mask_11TT = causal_mask(tgt_BT.size(1), cache.length, tgt_BT.device)
        states_BTD = self._embed(self.tgt_embedding, tgt_BT, layout, start)
        for layer, layer_cache in zip(self.decoder, cache.layers, strict=True):
            states_BTD = layer(states_BTD, layout, layer_cache, mask_11TT, cache.mask_B11S, record)
        normed_BTD: Tensor = self.decoder_norm(states_BTD)
        return normed_BTD

    def _embed(self, embedding: nn.Embedding, ids_BT: Tensor, layout: Layout, start: int) -> Tensor:
        """Token vectors plus position signals, BTD; the first position is number `start`."""
        positions_TD = sinusoidal_positions(
            start, start + ids_BT.size(1), embedding.embedding_dim, ids_BT.device
        )
        vectors_BTD = embedding(layout.place(ids_BT, self.pad_id)) * self.scale
        embedded_BTD: Tensor = self.dropout(vectors_BTD + layout.pack_positions(positions_TD))
        return embedded_BTD.to(activation_dtype(embedded_BTD))


def _embedding(vocab_size: int, d_model: int, pad_id: int) -> nn.Embedding:
    """Not yet initialized: on the meta device, PyTorch's way of it would import its compiler."""
    weight_VD = torch.empty(vocab_size, d_model)
    return nn.Embedding(vocab_size, d_model, padding_idx=pad_id, _weight=weight_VD)
