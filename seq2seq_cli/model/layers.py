"""The feed-forward network, and the encoder and decoder layers.

B sentences, S source positions, T target positions, M memory positions, D d_model.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor, nn

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.config.types import Activation
from seq2seq_cli.model.attention import AttentionLog, MultiHeadAttention
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.kv_cache import LayerCache
from seq2seq_cli.model.packing import BatchLayout
from seq2seq_cli.native import fused
from seq2seq_cli.tokenizers.tokenizer import EOS_ID

ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,  # x · sigmoid(x) (Elfwing et al. 2018), also called swish
}


def without_eos(src_BS: Tensor, pad_id: int) -> Tensor:
    """Return the source with padding in place of EOS; a sentence of nothing else keeps it."""
    is_eos_BS = src_BS == EOS_ID
    is_eos_BS[:, 0] = False
    return src_BS.masked_fill(is_eos_BS, pad_id)


class FeedForward(nn.Module):
    """max(0, x W₁ + b₁) W₂ + b₂ at every position (section 3.3), or another activation."""

    def __init__(self, d_model: int, d_ff: int, activation: Activation, dropout: float) -> None:
        super().__init__()
        self.expand = nn.Linear(d_model, d_ff)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = Dropout(dropout)
        self.contract = nn.Linear(d_ff, d_model)

    def forward(self, states_BMD: Tensor, places_R: Tensor | None = None) -> Tensor:
        """Run the network; `places_R`: of the rows of a packed batch, for dropout."""
        x_BMF = self.expand(states_BMD)
        inner_BMF = fused.activate(x_BMF, self.activation, self.dropout, places_R)
        contracted_BMD: Tensor = self.contract(inner_BMF)
        return contracted_BMD


class Residual(nn.Module):
    """The residual connection around a sub-layer, with dropout and LayerNorm ("Add & Norm").

    post: norm(x + f(x)), as in the paper (section 3.1); pre: x + f(norm(x)), which trains deep
    models without careful warm-up (Xiong et al. 2020) and needs another norm after the last layer.
    """

    def __init__(self, d_model: int, dropout: float, norm_first: bool, epsilon: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_model, epsilon)
        self.dropout = Dropout(dropout)
        self.norm_first = norm_first

    def forward(
        self,
        states_BMD: Tensor,
        sublayer: Callable[[Tensor], Tensor],
        places_R: Tensor | None = None,
    ) -> Tensor:
        if self.norm_first:
            normed_BMD = fused.normalize(states_BMD, self.norm)
            return fused.add(states_BMD, sublayer(normed_BMD), self.dropout, None, places_R)
        return fused.add(states_BMD, sublayer(states_BMD), self.dropout, self.norm, places_R)


def _attention(config: ModelConfig, *, is_cross: bool = False) -> MultiHeadAttention:
    return MultiHeadAttention(
        config.d_model,
        config.heads,
        config.attention_bias,
        config.attention_dropout,
        config.attention_scale,
        is_rotary=config.rotary_cross_attention if is_cross else config.positions == "rotary",
        position_base=config.position_base,
    )


def _feed_forward(config: ModelConfig) -> FeedForward:
    return FeedForward(config.d_model, config.d_ff, config.activation, config.activation_dropout)


def _residual(config: ModelConfig) -> Residual:
    return Residual(config.d_model, config.dropout, config.norm == "pre", config.norm_epsilon)


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.feed_forward = _feed_forward(config)
        self.self_attention_residual = _residual(config)
        self.feed_forward_residual = _residual(config)

    def forward(
        self,
        states_BSD: Tensor,
        layout: BatchLayout,
        mask_B11S: Tensor | None,
        attention_log: AttentionLog | None = None,
        rotation_B1SJ2: Tensor | None = None,
    ) -> Tensor:
        """Run the layer; `rotation_B1SJ2`: see `MultiHeadAttention.queries_keys_values`."""

        def attend_to_source(x_BSD: Tensor) -> Tensor:
            attended_BSD: Tensor = self.self_attention(
                x_BSD, layout, mask_B11S, attention_log=attention_log, rotation=rotation_B1SJ2
            )
            return attended_BSD

        places_R = layout.places_R
        transform = partial(self.feed_forward, places_R=places_R)
        states_BSD = self.self_attention_residual(states_BSD, attend_to_source, places_R)
        output_BSD: Tensor = self.feed_forward_residual(states_BSD, transform, places_R)
        return output_BSD


class Memory(NamedTuple):
    """The encoder's output, with its layout, padding mask and positions."""

    states_BSD: Tensor
    layout: BatchLayout
    mask_B11S: Tensor
    rotation_B1SJ2: Tensor | None = None  # see `MultiHeadAttention.queries_keys_values`


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention to the encoder's output, then feed-forward."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.self_attention = _attention(config)
        self.cross_attention = _attention(config, is_cross=True)
        self.feed_forward = _feed_forward(config)
        self.self_attention_residual = _residual(config)
        self.cross_attention_residual = _residual(config)
        self.feed_forward_residual = _residual(config)

    def forward(
        self,
        states_BTD: Tensor,
        layout: BatchLayout,
        memory: LayerCache | Memory,
        masks: tuple[Tensor, Tensor | None],
        attention_log: AttentionLog | None = None,
    ) -> Tensor:
        """Run the layer; the keys and values of `states_BTD` are appended to a cache.

        With a `Memory`, `states_BTD` are all positions, and nothing is kept. `masks`: the causal
        mask, 11TT, and the padding mask of the source, B11S.
        """
        cache = memory if isinstance(memory, LayerCache) else None
        causal_11TT, memory_B11S = masks
        past = cache.past if cache is not None else None
        start = 0 if past is None else past.k_BHMK.size(2)

        def attend_to_past(x_BTD: Tensor) -> Tensor:
            if cache is None:
                attended_BTD: Tensor = self.self_attention(
                    x_BTD, layout, causal_11TT, is_causal=True, attention_log=attention_log
                )
                return attended_BTD
            q_BHTK, new = self.self_attention.queries_keys_values(x_BTD, layout, start)
            cache.past = new if past is None else past.extend(new)
            return self.self_attention.attend(
                q_BHTK, cache.past, causal_11TT, layout, attention_log
            )

        def attend_to_memory(x_BTD: Tensor) -> Tensor:
            if isinstance(memory, LayerCache):
                q_BHTK = self.cross_attention.queries(x_BTD, layout, start)
                return self.cross_attention.attend(
                    q_BHTK, memory.memory, memory_B11S, layout, attention_log
                )
            attended_BTD: Tensor = self.cross_attention(
                x_BTD,
                layout,
                memory_B11S,
                (memory.states_BSD, memory.layout),
                attention_log=attention_log,
                rotation=memory.rotation_B1SJ2,
            )
            return attended_BTD

        places_R = layout.places_R
        transform = partial(self.feed_forward, places_R=places_R)
        states_BTD = self.self_attention_residual(states_BTD, attend_to_past, places_R)
        states_BTD = self.cross_attention_residual(states_BTD, attend_to_memory, places_R)
        output_BTD: Tensor = self.feed_forward_residual(states_BTD, transform, places_R)
        return output_BTD
