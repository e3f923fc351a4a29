"""What a model costs: floating-point operations and memory, as formulas of its sizes.

In the formulas: S source tokens, T target tokens, D d_model, F d_ff, V target vocabulary.
"""

from dataclasses import dataclass

from torch import nn

from seq2seq_cli.config.schema import ModelConfig, TrainingConfig
from seq2seq_cli.config.types import OptimizerName
from seq2seq_cli.model.weights import is_matrix_of_layer

TRAINING_FACTOR = 3  # the backward pass costs twice the forward pass (Kaplan et al. 2020, 2.1)
_BYTES = 4  # of a number in fp32
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
        """Return those of a sentence pair under teacher forcing."""
        source = self.source_token + self.source_token_by_source_length * source_length
        target = (
            self.target_token
            + self.target_token_by_target_length * target_length
            + self.target_token_by_source_length * source_length
        )
        return source_length * source + target_length * target

    def training(self, source_length: int, target_length: int) -> int:
        """Return those of a sentence pair in training, forward and backward."""
        return TRAINING_FACTOR * self.forward(source_length, target_length)


def count_flops(config: ModelConfig, tgt_vocab: int) -> Flops:
    """Count the operations of a model with this target vocabulary."""
    d_model, encoder, decoder = config.d_model, config.layers.encoder, config.layers.decoder
    square = 2 * d_model**2  # a projection of one vector
    feed_forward = 4 * d_model * config.d_ff
    by_length = 4 * d_model
    return Flops(
        source_token=encoder * (4 * square + feed_forward) + decoder * 2 * square,
        source_token_by_source_length=encoder * by_length,
        target_token=decoder * (6 * square + feed_forward) + 2 * d_model * tgt_vocab,
        target_token_by_target_length=decoder * by_length,
        target_token_by_source_length=decoder * by_length,
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


def measure_memory(model: nn.Module, config: ModelConfig, training: TrainingConfig) -> Memory:
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
    keys_and_values = 2 * config.layers.decoder * config.d_model * _BYTES
    return Memory(
        weights_fp32=_BYTES * count,
        weights_bf16=2 * count,
        weights_int8=sum(
            p.numel() + _BYTES * len(p) if p.dim() > 1 else _BYTES * p.numel() for p in parameters
        ),
        training=_BYTES * (weights * count + trained),
        cache_per_source_token=keys_and_values,
        cache_per_target_token=keys_and_values,
    )
