"""Everything that a model's attention did for one pair of sentences: the data of `seq2seq attend`.

L layers, H heads, Q query positions, M memory positions (those attended to).
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class AttentionMaps:
    """One kind of attention (encoder, decoder or cross) in all layers and heads."""

    weights_LHQM: Tensor  # rows sum to 1
    value_norms_LHM: Tensor  # ‖v Wᴼ‖ of each memory position (Kobayashi et al. 2020)
    queries: tuple[str, ...]  # tokens
    memory: tuple[str, ...]

    @property
    def weighted_norms_LHQM(self) -> Tensor:
        """‖α · v Wᴼ‖: how much each memory position adds to the output of a head."""
        return self.weights_LHQM * self.value_norms_LHM[:, :, None]


@dataclass(frozen=True)
class Sentence:
    """One side of the pair, in tokens and in words."""

    text: str
    tokens: tuple[str, ...]  # EOS last
    words: tuple[str, ...]  # as alignments number them
    word_of_token: tuple[int | None, ...]  # None for EOS and tags
    is_punctuation: tuple[bool, ...]  # of tokens: EOS, and those without a letter, number or mark


@dataclass(frozen=True)
class Prediction:
    """The model's prediction of one target token under teacher forcing."""

    token: str
    probability: float  # 0 if it underflows
    log_prob: float  # in nats
    entropy: float  # of the whole distribution, in nats
    rivals: tuple[tuple[str, float], ...]  # the five most probable other tokens


@dataclass(frozen=True)
class HeadFacts:
    """What the heads of one kind of attention do on a sample of text; one number for each, LH."""

    confidence_LH: Tensor  # mean of the greatest weight, EOS left out (Voita et al. 2019)
    entropy_LH: Tensor  # mean entropy of the weights, in nats
    offset_LH: Tensor  # most frequent distance from the query to the greatest weight
    offset_share_LH: Tensor  # its share of the queries: positional heads are near 1
    importance_LH: Tensor  # increase of the loss, in nats per token, with the head zeroed
    agreement_LH: Tensor | None  # cross: share of words aligned as by the layer that aligns best


@dataclass(frozen=True)
class AttentionStudy:
    """One pair of sentences under one model."""

    run: str
    source: Sentence
    target: Sentence
    encoder: AttentionMaps
    decoder: (
        AttentionMaps  # from the decoder's input, which starts with BOS, to the tokens predicted
    )
    cross: AttentionMaps
    predictions: tuple[Prediction, ...]  # of the target's tokens
    alignment: tuple[tuple[int, int], ...]  # source and target words, by number
    head_facts: dict[str, HeadFacts] | None = None  # by kind

    @property
    def log_prob(self) -> float:
        """Return the log-probability of the target, in nats."""
        return sum(prediction.log_prob for prediction in self.predictions)
