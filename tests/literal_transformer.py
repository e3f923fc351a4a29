"""The Transformer of "Attention Is All You Need" in NumPy: explicit loops, no batch.

Written from the paper and independent of the package: it shares nothing with it but the names of
the weights. Post-norm, no biases in the attention projections, no embedding scale, untied.
"""

import math

import numpy as np

Weights = dict[str, np.ndarray]


def linear(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    y = weights[f"{name}.weight"] @ x
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def layer_norm(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    normed = (x - mean) / math.sqrt(variance + 1e-5)
    return normed * weights[f"{name}.norm.weight"] + weights[f"{name}.norm.bias"]


def softmax(scores: list[float]) -> list[float]:
    largest = max(scores)
    powers = [math.exp(score - largest) for score in scores]
    return [power / sum(powers) for power in powers]


def positional_encoding(position: int, d_model: int) -> np.ndarray:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same."""
    encoding = np.zeros(d_model)
    for i in range(d_model // 2):
        angle = position / 10_000 ** (2 * i / d_model)
        encoding[2 * i] = math.sin(angle)
        encoding[2 * i + 1] = math.cos(angle)
    return encoding


def rotated(x: np.ndarray, position: int) -> np.ndarray:
    """Each pair (x[2j], x[2j + 1]) turned by position / 10000^(2j / K)."""
    turned = np.zeros(len(x))
    for j in range(len(x) // 2):
        angle = position / 10_000 ** (2 * j / len(x))
        turned[2 * j] = x[2 * j] * math.cos(angle) - x[2 * j + 1] * math.sin(angle)
        turned[2 * j + 1] = x[2 * j] * math.sin(angle) + x[2 * j + 1] * math.cos(angle)
    return turned


def scaled(scale, q, k, factor):
    """The score of a query; `factor` is learned."""
    product = float(q @ k)
    return {
        "sqrt": product / math.sqrt(len(q)),
        "none": product,
        "temperature": product / math.sqrt(len(q)) * factor,
    }[scale]


def multi_head_attention(
    weights, name, queries, memory, heads, is_causal, attention_scale, is_rotary
):
    """Returns the outputs, and the weights as [head][query][memory position]."""
    d_model = len(queries[0])
    size = d_model // heads
    q = [linear(weights, f"{name}.query", x) for x in queries]
    k = [linear(weights, f"{name}.key", x) for x in memory]
    v = [linear(weights, f"{name}.value", x) for x in memory]
    if is_rotary:
        for states in (q, k):
            for i, whole in enumerate(states):
                states[i] = np.concatenate([rotated(part, i) for part in np.split(whole, heads)])
    factors = weights.get(f"{name}.scale.inverse_temperature_H", np.ones(heads))
    gathered = [np.zeros(d_model) for _ in queries]
    shown = np.zeros((heads, len(queries), len(memory)))
    for head in range(heads):
        own = slice(head * size, (head + 1) * size)
        for i in range(len(queries)):
            visible = range(i + 1) if is_causal else range(len(memory))
            scores = [scaled(attention_scale, q[i][own], k[j][own], factors[head]) for j in visible]
            for j, weight in zip(visible, softmax(scores), strict=True):
                shown[head, i, j] = weight
                gathered[i][own] += weight * v[j][own]
    return [linear(weights, f"{name}.output", x) for x in gathered], shown


def feed_forward(weights: Weights, name: str, x: np.ndarray) -> np.ndarray:
    inner = np.array([max(0.0, value) for value in linear(weights, f"{name}.expand", x)])
    return linear(weights, f"{name}.contract", inner)


def add_and_norm(weights, name, states, sublayer_outputs):
    return [layer_norm(weights, name, x + y) for x, y in zip(states, sublayer_outputs, strict=True)]


def embed(weights, name, ids, positions):
    table = weights[f"{name}.weight"]
    if positions == "rotary":
        return [table[id_] for id_ in ids]
    return [table[id_] + positional_encoding(i, table.shape[1]) for i, id_ in enumerate(ids)]


def transformer(
    weights,
    src,
    tgt,
    heads,
    encoder_layers,
    decoder_layers,
    attention_scale="sqrt",
    positions="sinusoidal",
    rotary_cross_attention=False,
):
    """Logits [target position][vocabulary] and the weights of every attention, in order."""
    attentions = {"encoder": [], "decoder": [], "cross": []}
    kind = {"attention_scale": attention_scale, "is_rotary": positions == "rotary"}
    cross_kind = kind | {"is_rotary": rotary_cross_attention}
    states = embed(weights, "src_embedding", src, positions)
    for i in range(encoder_layers):
        name = f"encoder.{i}"
        attended, shown = multi_head_attention(
            weights, f"{name}.self_attention", states, states, heads, is_causal=False, **kind
        )
        attentions["encoder"].append(shown)
        states = add_and_norm(weights, f"{name}.self_attention_residual", states, attended)
        transformed = [feed_forward(weights, f"{name}.feed_forward", x) for x in states]
        states = add_and_norm(weights, f"{name}.feed_forward_residual", states, transformed)
    memory = states
    states = embed(weights, "tgt_embedding", tgt, positions)
    for i in range(decoder_layers):
        name = f"decoder.{i}"
        attended, shown = multi_head_attention(
            weights, f"{name}.self_attention", states, states, heads, is_causal=True, **kind
        )
        attentions["decoder"].append(shown)
        states = add_and_norm(weights, f"{name}.self_attention_residual", states, attended)
        gathered, shown = multi_head_attention(
            weights, f"{name}.cross_attention", states, memory, heads, is_causal=False, **cross_kind
        )
        attentions["cross"].append(shown)
        states = add_and_norm(weights, f"{name}.cross_attention_residual", states, gathered)
        transformed = [feed_forward(weights, f"{name}.feed_forward", x) for x in states]
        states = add_and_norm(weights, f"{name}.feed_forward_residual", states, transformed)
    return np.array([linear(weights, "projection", x) for x in states]), attentions
