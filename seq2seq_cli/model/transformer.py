"""The encoder-decoder Transformer of "Attention Is All You Need" (Vaswani et al. 2017).

B sentences, S source positions, T target positions, D d_model, V target vocabulary.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, assert_never

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.attention import (
    AttentionLog,
    MultiHeadAttention,
    causal_mask,
    padding_mask,
)
from seq2seq_cli.model.device import activation_dtype
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.kv_cache import Cache, LayerCache
from seq2seq_cli.model.layers import (
    DecoderLayer,
    EncoderLayer,
    Memory,
    without_eos,
)
from seq2seq_cli.model.ngrams import NgramEmbedding
from seq2seq_cli.model.packing import BatchLayout, LayoutOf, Padded
from seq2seq_cli.model.positions import rotations, sinusoidal_positions, source_positions
from seq2seq_cli.native import fused
from seq2seq_cli.tokenizers.tokenizer import EOS_ID, PAD_ID, Tokenizers


class AttentionWeights(NamedTuple):
    """Weights by layer: encoder BHSS, decoder self-attention BHTT, cross-attention BHTS."""

    encoder: list[Tensor]
    decoder: list[Tensor]
    cross: list[Tensor]


class Recorded(NamedTuple):
    """What every attention has computed, by its kind and layer by layer, and the logits."""

    attention: dict[str, AttentionLog]  # encoder, decoder and cross
    logits_BTV: Tensor


class Transformer(nn.Module):
    """Computes the logits of the next target token from the source and the target so far."""

    def __init__(
        self,
        config: ModelConfig,
        src_vocab: int,
        tgt_vocab: int,
        shared: bool,
        pad_id: int,
        num_features: int = 0,
    ) -> None:
        """Build the model; with a `shared` vocabulary, tying includes the source embedding.

        `num_features`: the ids after EOS that are features of the source.
        """
        super().__init__()
        assert not shared or src_vocab == tgt_vocab, "a shared vocabulary has one size"
        d_model = config.d_model
        self.config = config
        self.pad_id = pad_id
        shares_position = num_features > 0 and not config.feature_positions
        # The ids of features, which share one position; None: every token has its own.
        self.feature_ids = range(EOS_ID + 1, EOS_ID + 1 + num_features) if shares_position else None
        self.scale = math.sqrt(d_model) if config.embedding_scale else 1.0
        self.checkpoints_activations = False
        self.tgt_embedding = _embedding(tgt_vocab, d_model, pad_id)
        self.src_embedding = (
            self.tgt_embedding
            if shared and config.tie_embeddings
            else _embedding(src_vocab, d_model, pad_id)
        )
        self.src_ngrams = (
            NgramEmbedding(config.ngrams, config.ngram_buckets, d_model, config.ngram_dropout)
            if config.ngrams > 1
            else None
        )
        self.src_dropout, self.tgt_dropout = Dropout(config.dropout), Dropout(config.dropout)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers.encoder))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers.decoder))
        is_pre_norm = config.norm == "pre"
        epsilon = config.norm_epsilon
        self.encoder_norm = nn.LayerNorm(d_model, epsilon) if is_pre_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(d_model, epsilon) if is_pre_norm else nn.Identity()
        self.projection = nn.Linear(d_model, tgt_vocab, config.output_bias)
        if config.tie_embeddings:
            self.projection.weight = self.tgt_embedding.weight
        if self.device.type != "meta":
            self._initialize(config)

    def _initialize(self, config: ModelConfig) -> None:
        """Initialize matrices by Glorot, and embeddings so that input vectors have unit variance.

        The D × D matrices of attention have variance 2 / 5D instead of Glorot's 2 / 2D, as if
        they were D × 4D (Nguyen and Salazar 2019, section 2.2). Initial logits have unit variance
        too: if unscaled embeddings are tied to the projection, the last norm is initialized
        smaller.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, MultiHeadAttention):
                for linear in (module.query, module.key, module.value, module.output):
                    linear.weight.detach().mul_(math.sqrt(0.4))
        embedding_std = config.d_model**-0.5 if config.embedding_scale else 1.0
        for embedding in (self.src_embedding, self.tgt_embedding):
            nn.init.normal_(embedding.weight, std=embedding_std)
            nn.init.zeros_(embedding.weight[self.pad_id].detach())
        if self.src_ngrams is not None:  # n-grams that training has not met add nothing
            nn.init.zeros_(self.src_ngrams.embedding.weight)
        if config.tie_embeddings and not config.embedding_scale:
            last_layer = self.decoder[-1]
            assert isinstance(last_layer, DecoderLayer)
            is_pre = config.norm == "pre"
            last_norm = self.decoder_norm if is_pre else last_layer.feed_forward_residual.norm
            nn.init.constant_(last_norm.weight, config.d_model**-0.5)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        return self.tgt_embedding.weight.device

    def encode(
        self,
        src_BS: Tensor,
        layout: LayoutOf = Padded,
        attention_log: AttentionLog | None = None,
        cut_BS: Tensor | None = None,
    ) -> Memory:
        """Encode the source; every sentence must have at least one token (its EOS)."""
        if not self.config.source_eos:
            src_BS = without_eos(src_BS, self.pad_id)
        mask_B11S = padding_mask(src_BS, self.pad_id)
        src_layout = layout(mask_B11S[:, 0, 0])
        positions_BS = self.source_positions(src_BS)
        states_BSD = self._embed(
            self.src_embedding,
            self.src_dropout,
            src_BS,
            src_layout,
            0,
            cut_BS,
            positions_BS,
            self.src_ngrams,
        )
        rotation_B1SJ2 = None
        if positions_BS is not None and self.config.positions == "rotary":
            head_size = self.config.d_model // self.config.heads
            base = self.config.position_base
            rotation_SJ2 = rotations(0, src_BS.size(1), head_size, src_BS.device, base)
            rotation_B1SJ2 = rotation_SJ2[positions_BS][:, None]
        for layer in self.encoder:
            states_BSD = self._run(
                layer, states_BSD, src_layout, mask_B11S, attention_log, rotation_B1SJ2
            )
        normed_BSD = fused.normalize(states_BSD, self.encoder_norm)
        return Memory(normed_BSD, src_layout, mask_B11S, rotation_B1SJ2)

    def start_cache(self, memory: Memory) -> Cache:
        """Compute the keys and values of the encoder's output, once for all steps of a search."""
        states = memory.states_BSD, memory.layout, memory.rotation_B1SJ2
        layers = [LayerCache(layer.cross_attention.keys_values(*states)) for layer in self.decoder]  # type: ignore
        return Cache(layers, memory.mask_B11S)

    def decode(
        self, tgt_BT: Tensor, memory: Cache | Memory, attention_log: AttentionLog | None = None
    ) -> Tensor:
        """Return the logits_BTV of the token after each position of `tgt_BT`.

        With a cache, `tgt_BT` has only the positions after those in it, and it grows by them.
        Padding must be at the end of a row, where the causal mask hides it.
        """
        logits_BTV: Tensor = self.projection(
            self._decode(tgt_BT, memory, Padded(tgt_BT != self.pad_id), attention_log)
        )
        return logits_BTV

    def forward(self, src_BS: Tensor, tgt_in_BT: Tensor) -> Tensor:
        """Return logits_BTV under teacher forcing."""
        return self.decode(tgt_in_BT, self.encode(src_BS))

    def forward_hidden(
        self,
        src_BS: Tensor,
        tgt_in_BT: Tensor,
        layout: LayoutOf,
        cut_BS: Tensor | None = None,
        cut_BT: Tensor | None = None,
    ) -> tuple[Tensor, BatchLayout]:
        """Return the input of `projection` under teacher forcing, and its layout.

        Embeddings of the tokens that are cut off (True) of source and target are zeros.
        """
        memory = self.encode(src_BS, layout, cut_BS=cut_BS)
        tgt_layout = layout(tgt_in_BT != self.pad_id)
        return self._decode(tgt_in_BT, memory, tgt_layout, cut_BT=cut_BT), tgt_layout

    def attention_weights(self, src_BS: Tensor, tgt_in_BT: Tensor) -> AttentionWeights:
        """Return all attention weights under teacher forcing."""
        attention = self.record_attention(src_BS, tgt_in_BT).attention
        return AttentionWeights(
            **{kind: [record.weights_BHQM for record in log] for kind, log in attention.items()}
        )

    def record_attention(self, src_BS: Tensor, tgt_in_BT: Tensor) -> Recorded:
        """Record the weights and values of all attentions under teacher forcing."""
        encoder: AttentionLog = []
        decoder: AttentionLog = []
        memory = self.encode(src_BS, attention_log=encoder)
        logits_BTV = self.decode(tgt_in_BT, memory, decoder)
        logs = {"encoder": encoder, "decoder": decoder[0::2], "cross": decoder[1::2]}
        return Recorded(logs, logits_BTV)

    def _decode(
        self,
        tgt_BT: Tensor,
        memory: Cache | Memory,
        layout: BatchLayout,
        attention_log: AttentionLog | None = None,
        cut_BT: Tensor | None = None,
    ) -> Tensor:
        """Run the decoder: on the positions after those in a cache, or on all at once."""
        start, length = 0, tgt_BT.size(1)
        memories: Sequence[LayerCache | Memory]  # of each layer
        if isinstance(memory, Cache):
            start, memories = memory.length, memory.layers
            memory.length += length
        else:
            memories = [memory] * len(self.decoder)
        masks = (causal_mask(length, start + length, tgt_BT.device), memory.mask_B11S)
        states_BTD = self._embed(
            self.tgt_embedding, self.tgt_dropout, tgt_BT, layout, start, cut_BT
        )
        for layer, layer_memory in zip(self.decoder, memories, strict=True):
            states_BTD = self._run(layer, states_BTD, layout, layer_memory, masks, attention_log)
        return fused.normalize(states_BTD, self.decoder_norm)

    def _run(self, layer: nn.Module, *inputs: Any) -> Tensor:
        """Run a layer; with `checkpoints_activations` the backward pass runs it once more.

        Only its input is kept until then (Chen et al. 2016); dropout draws the same numbers again.
        """
        if self.checkpoints_activations and torch.is_grad_enabled():
            output_BTD: Tensor = checkpoint(layer, *inputs, use_reentrant=False)
        else:
            output_BTD = layer(*inputs)
        return output_BTD

    def source_positions(self, src_BS: Tensor) -> Tensor | None:
        """Return the position of every token of the source; None: 0, 1, 2, ...."""
        return None if self.feature_ids is None else source_positions(src_BS, self.feature_ids)

    def position_vectors(self, start: int, stop: int) -> Tensor | None:
        """Return what is added to the embeddings of these positions, TD; None if nothing is."""
        match self.config.positions:
            case "rotary":
                return None
            case "sinusoidal":
                first, base = self.config.position_offset, self.config.position_base
                span = (start + first, stop + first)
                return sinusoidal_positions(*span, self.config.d_model, self.device, base)
        assert_never(self.config.positions)

    def _embed(
        self,
        embedding: nn.Embedding,
        dropout: Dropout,
        ids_BT: Tensor,
        layout: BatchLayout,
        start: int,
        cut_BT: Tensor | None = None,
        positions_BT: Tensor | None = None,
        ngrams: NgramEmbedding | None = None,
    ) -> Tensor:
        """Return embeddings plus positional encodings, BTD; the first position is `start`.

        `positions_BT`: the positions, if they do not follow one another from 0 on. `ngrams`: what
        is added to the embeddings of tokens. Tokens that are cut off (True) keep only their
        positional encodings, if there are any.
        """
        positions_TD = self.position_vectors(start, start + ids_BT.size(1))
        vectors_BTD = embedding(layout.pack_ids(ids_BT, self.pad_id)) * self.scale
        if ngrams is not None:
            vectors_BTD = vectors_BTD + ngrams(ids_BT, layout, cut_BT) * self.scale
        if cut_BT is not None:
            vectors_BTD = vectors_BTD.masked_fill(layout.pack_ids(cut_BT, True)[..., None], 0)
        if positions_TD is not None and positions_BT is not None:
            vectors_BTD = vectors_BTD + positions_TD[layout.pack_ids(positions_BT, 0)]
        elif positions_TD is not None:
            vectors_BTD = vectors_BTD + layout.pack_positions(positions_TD)
        embedded_BTD = fused.drop(vectors_BTD, dropout, layout.places_R)
        return embedded_BTD.to(activation_dtype(embedded_BTD))


def _embedding(vocab_size: int, d_model: int, pad_id: int) -> nn.Embedding:
    """Create an uninitialized embedding: on the meta device, PyTorch's initialization is slow."""
    weight_VD = torch.empty(vocab_size, d_model)
    return nn.Embedding(vocab_size, d_model, padding_idx=pad_id, _weight=weight_VD)


def build_model(config: ModelConfig, tokenizers: Tokenizers) -> Transformer:
    """Build a randomly initialized model in fp32 for the vocabularies of two tokenizers.

    Raises UserError if it does not fit into memory.
    """
    src_vocab, tgt_vocab = len(tokenizers.src), len(tokenizers.tgt)
    try:
        num_features = len(tokenizers.src.features)
        model = Transformer(
            config, src_vocab, tgt_vocab, tokenizers.is_shared, PAD_ID, num_features
        )
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):
            raise
        raise UserError(
            "a model of this size does not fit into memory: see section model"
        ) from None
    for parameter in model.parameters():  # as checkpoints hold them
        if parameter.is_floating_point():
            parameter.data = parameter.data.float()
    return model
