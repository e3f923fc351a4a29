"""Attention studies with random numbers, of sentences in several scripts.

L layers, H heads, Q query positions, M memory positions.
"""

import math
import unicodedata
from dataclasses import replace

import torch
from torch import Tensor

from seq2seq_cli.extras.inspect.attention_study import (
    AttentionMaps,
    AttentionStudy,
    HeadStatistics,
    Prediction,
    Sentence,
)
from seq2seq_cli.text.words import split_words, words_of_spans

GERMAN = ("▁Wir ▁haben ▁gestern ▁den ▁Film ▁ge sehen .", "▁We ▁saw ▁the ▁film ▁yester day .")
CHINESE = ("▁我 想 喝 一杯 啤酒 。", "▁I ▁would ▁like ▁a ▁be er .")
JAPANESE = ("▁ビール を 飲み たい です 。", "▁I ▁want ▁to ▁drink ▁beer .")
ARABIC = ("▁أريد ▁أن ▁أشرب ▁ال قهوة .", "▁I ▁want ▁to ▁drink ▁cof fee .")


def sentence(pieces: str) -> Sentence:
    """Build a sentence from SentencePiece's tokens, separated by spaces."""
    tokens = pieces.split(" ")
    text = "".join(tokens).replace("▁", " ").strip()
    ends = [len("".join(tokens[: n + 1]).replace("▁", " ")) - 1 for n in range(len(tokens))]
    spans = zip([0, *ends], ends, strict=False)
    return Sentence(
        text,
        (*tokens, "</s>"),
        tuple(split_words(text)),
        (*(words.start for words in words_of_spans(text, list(spans))), None),
        (*(not any(unicodedata.category(c)[0] in "LNM" for c in token) for token in tokens), True),
    )


def study(
    pair: tuple[str, str] = GERMAN,
    *,
    layers: int = 2,
    heads: int = 4,
    seed: int = 0,
    run: str = "runs/a",
) -> AttentionStudy:
    """A study whose numbers survive being stored in bytes, so that the page has them exactly."""
    generator = torch.Generator().manual_seed(seed)
    source, target = map(sentence, pair)
    bos = ("<s>", *target.tokens[:-1])

    def maps(queries: tuple[str, ...], memory: tuple[str, ...], causal: bool) -> AttentionMaps:
        scores_LHQM = 2 * torch.randn(layers, heads, len(queries), len(memory), generator=generator)
        if causal:
            is_future_QM = torch.ones(len(queries), len(memory), dtype=torch.bool).triu(1)
            scores_LHQM.masked_fill_(is_future_QM, -torch.inf)
        norms_LHM = torch.rand(layers, heads, len(memory), generator=generator) + 0.1
        norms_LHM = norms_LHM.bfloat16().float()
        return AttentionMaps(as_stored(scores_LHQM.softmax(-1)), norms_LHM, queries, memory)

    return AttentionStudy(
        run,
        source,
        target,
        encoder=maps(source.tokens, source.tokens, False),
        decoder=maps(target.tokens, bos, True),
        cross=maps(target.tokens, source.tokens, False),
        predictions=tuple(
            Prediction(
                token,
                0.9 / (n + 1),
                math.log(0.9 / (n + 1)),
                0.2 * n,
                tuple((f"▁other{r}", 0.02 / (r + 1)) for r in range(5)),
            )
            for n, token in enumerate(target.tokens)
        ),
        alignment=tuple((min(n, len(source.words) - 1), n) for n in range(len(target.words))),
        head_statistics={
            kind: facts(layers, heads, generator, kind == "cross")
            for kind in ("encoder", "decoder", "cross")
        },
    )


def as_stored(weights_LHQM: Tensor) -> Tensor:
    """Round weights to those that a page can hold: squares of multiples of 1/255."""
    return ((weights_LHQM.sqrt() * 255).round() / 255) ** 2


def facts(
    layers: int, heads: int, generator: torch.Generator, has_agreement: bool
) -> HeadStatistics:
    def random_LH() -> Tensor:
        return torch.rand(layers, heads, generator=generator)

    offsets_LH = torch.randint(-2, 3, (layers, heads), generator=generator)
    return HeadStatistics(
        random_LH(),
        2 * random_LH(),
        offsets_LH,
        random_LH(),
        random_LH() - 0.1,
        random_LH() if has_agreement else None,
    )


def with_text(made: AttentionStudy, text: str) -> AttentionStudy:
    """The study with all texts, tokens and words of its source replaced by one text."""
    source = made.source
    tokens = (text,) * len(source.tokens)
    new = Sentence(
        text, tokens, (text,) * len(source.words), source.word_of_token, source.is_punctuation
    )
    cross = replace(made.cross, memory=tokens)
    encoder = replace(made.encoder, queries=tokens, memory=tokens)
    return replace(made, run=text, source=new, encoder=encoder, cross=cross)
