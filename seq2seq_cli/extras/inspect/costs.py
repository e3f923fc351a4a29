"""What a model costs: floating-point operations and memory, counted from its modules.

D is d_model.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from seq2seq_cli.config.schema import TrainingConfig
from seq2seq_cli.config.types import OptimizerName
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.layers import DecoderLayer, EncoderLayer
from seq2seq_cli.model.parameters import is_matrix_of_layer
from seq2seq_cli.model.transformer import Transformer

_TRAINING_FACTOR = 3  # the backward pass costs twice the forward pass (Kaplan et al. 2020, 2.1)
_BYTES = 4  # of a number in fp32
_LAYERS = {EncoderLayer, DecoderLayer}
# Numbers that an optimizer keeps for each weight: in the matrices of layers, and elsewhere.
_STATE: dict[OptimizerName, tuple[int, int]] = {
    "adam": (2, 2),
    "adamw": (2, 2),
    "schedule_free_adamw": (3, 3),
    "muon": (1, 2),
}


@dataclass(frozen=True)
class Flops:
    """Floating-point operations of a forward pass, by token; a multiply-add counts as two.

    As in Kaplan et al. 2020, table 1, matrix products are counted and nothing else: embeddings,
    norms, activations and softmax are not. Attention computes every weight, also those that the
    causal mask hides: scores and averages cost 4 D for each pair of positions in a layer.
    """

    source_token: int  # with the keys and values of cross-attention
    source_token_by_source_length: int
    target_token: int
    target_token_by_target_length: int
    target_token_by_source_length: int

    def forward(self, source_length: int, target_length: int) -> int:
        """Return the operations for a sentence pair under teacher forcing."""
        source = self.source_token + self.source_token_by_source_length * source_length
        target = self.target_token + self.target_token_by_source_length * source_length
        target += self.target_token_by_target_length * target_length
        return source_length * source + target_length * target


def training_factor(training: TrainingConfig) -> int:
    """Return how many times a forward pass an update costs, forward and backward."""
    return _TRAINING_FACTOR * training.passes


def linear_weights(model: nn.Module) -> Counter[str]:
    """Count the weights of linear layers by the tokens that they multiply: src or tgt.

    A module with several names is computed several times.
    """
    counts = Counter[str]()
    for side, part in _linear_layers(model):
        counts[side] += part.weight.numel()
    return counts


def update_flops(model: Transformer) -> Counter[str]:
    """Count the operations of linear layers for a token, src or tgt, forward and backward.

    A frozen layer has no gradient of its weight, nor of its input if all before it is frozen, too;
    the first layer of post-norm models counts as if the embeddings were trained.
    """
    is_trained = {name: p.requires_grad for name, p in model.named_parameters()}
    trains_src = model.src_embedding.weight.requires_grad or any(
        trains for name, trains in is_trained.items() if name.startswith("encoder")
    )
    needs_input = {"src": trains_src, "tgt": any(is_trained.values())}
    counts = Counter[str]()
    for side, part in _linear_layers(model):
        num_products = 1 + part.weight.requires_grad + needs_input[side]
        counts[side] += 2 * num_products * part.weight.numel()
    return counts


def _linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, part in model.named_modules(remove_duplicate=False):
        if isinstance(part, nn.Linear):
            is_memory = name.endswith((".cross_attention.key", ".cross_attention.value"))
            yield "src" if name.startswith("encoder") or is_memory else "tgt", part


def count_flops(model: Transformer) -> Flops | None:
    """Count the operations of a model, which may be on the meta device.

    None if it has layers of another kind: these may multiply other matrices.
    """
    linear = linear_weights(model)
    by_length = {"src": 0, "cross": 0, "tgt": 0}
    for name, part in model.named_modules(remove_duplicate=False):
        if isinstance(part, MultiHeadAttention):
            decoder = "cross" if name.endswith(".cross_attention") else "tgt"
            by_length["src" if name.startswith("encoder") else decoder] += 4 * part.key.out_features
        elif not isinstance(part, nn.Linear | nn.Embedding) and any(
            parameter.dim() > 1 for parameter in part.parameters(recurse=False)
        ):
            return None
    if not {type(layer) for layer in (*model.encoder, *model.decoder)} <= _LAYERS:
        return None
    return Flops(
        source_token=2 * linear["src"],
        source_token_by_source_length=by_length["src"],
        target_token=2 * linear["tgt"],
        target_token_by_target_length=by_length["tgt"],
        target_token_by_source_length=by_length["cross"],
    )


@dataclass(frozen=True)
class Memory:
    """Sizes in bytes."""

    weights_fp32: int
    weights_bf16: int
    weights_int8: int  # matrices in int8 with a scale for each row; vectors in fp32
    training: int  # weights, gradients, optimizer state, EMA in fp32; without activations
    cache_per_source_token: int  # keys and values of cross-attention in fp32, for each sentence
    cache_per_target_token: int  # of self-attention, for each hypothesis

    def cache(self, source_length: int, target_length: int) -> int:
        """Return the KV cache of a sentence with one hypothesis."""
        source = self.cache_per_source_token * source_length
        return source + self.cache_per_target_token * target_length


def measure_memory(model: Transformer, training: TrainingConfig) -> Memory:
    """Compute the sizes; parameters that are frozen have neither gradients nor optimizer state."""
    parameters = list(model.parameters())
    count = sum(p.numel() for p in parameters)
    of_layer, of_other = _STATE[training.optimizer]
    trained = sum(
        p.numel() * (1 + (of_layer if is_matrix_of_layer(name, p) else of_other))
        for name, p in model.named_parameters()
        if p.requires_grad
    )
    weights = 1 if training.ema_decay is None else 2  # and their EMA
    cache = {"cross_attention": 0, "self_attention": 0}
    for name, module in model.decoder.named_modules(remove_duplicate=False):
        part, _, projection = name.rpartition(".")
        if isinstance(module, nn.Linear) and projection in ("key", "value"):
            cache[part.rpartition(".")[2]] += _BYTES * module.out_features
    return Memory(
        weights_fp32=_BYTES * count,
        weights_bf16=2 * count,
        weights_int8=sum(
            p.numel() + _BYTES * len(p) if p.dim() > 1 else _BYTES * p.numel() for p in parameters
        ),
        training=_BYTES * (weights * count + trained),
        cache_per_source_token=cache["cross_attention"],
        cache_per_target_token=cache["self_attention"],
    )
