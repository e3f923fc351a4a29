"""The attention of a model at a validation, for TensorBoard: heat maps, and entropy by head.

L layers, H heads.
"""

import struct
from collections.abc import Sequence

import numpy as np
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import summary

from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.extras.inspect.attention_figure import FigureOptions, draw_attention
from seq2seq_cli.extras.inspect.attention_study import KINDS, study_attention
from seq2seq_cli.extras.inspect.head_statistics import batches_of, token_pairs, weight_statistics
from seq2seq_cli.extras.plot.figures import figure_bytes
from seq2seq_cli.text.corpus import Pair

_MOST_SENTENCES = 3
_SAMPLE = 100  # pairs for the entropy
_RGBA = 4  # TensorBoard's number for red, green, blue and opacity


def plot_attention(translator: Translator, pairs: Sequence[Pair]) -> list[Summary]:
    """Draw the first `validation.samples` pairs, at most three; measure entropy on the first 100.

    The entropy is the mean over all queries of these pairs. The targets are the references, so that
    the same tokens are seen at every validation. Pairs with an empty side or more than
    `data.max_length` tokens are skipped.
    """
    model = translator.model
    was_training = model.training
    model.eval()
    try:
        sample = token_pairs(translator, pairs[:_SAMPLE])
        statistics = weight_statistics(model, batches_of(sample, model.device)) if sample else {}
        count = min(_MOST_SENTENCES, translator.config.validation.samples)
        images = []
        for number, pair in enumerate(sample[:count], start=1):
            text = pair.text
            (study,) = study_attention(translator, text.source_line, text.tgt, tag=text.tag)
            for kind in KINDS:
                png = figure_bytes(draw_attention(study, FigureOptions(kind)), ".png")
                images.append(_image(f"attention/{kind}/sentence_{number}", png))
    finally:
        model.train(was_training)
    entropies = {
        f"attention_entropy/{kind}/layer_{layer + 1}/head_{head + 1}": float(entropy)
        for kind in statistics
        for (layer, head), entropy in np.ndenumerate(statistics[kind].entropy_LH.numpy())
    }
    scalars = [summary.scalar(*item) for item in entropies.items()]  # type: ignore[no-untyped-call]
    return images + scalars


def _image(name: str, png: bytes) -> Summary:
    width, height = struct.unpack(">II", png[16:24])  # in the header of every PNG
    image = Summary.Image(width=width, height=height, colorspace=_RGBA, encoded_image_string=png)
    return Summary(value=[Summary.Value(tag=name, image=image)])
