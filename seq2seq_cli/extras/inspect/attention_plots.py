"""The attention of a model at a validation, for TensorBoard: heat maps, and entropy by head.

L layers, H heads.
"""

from collections.abc import Sequence

import numpy as np

from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.extras.inspect.attention_figure import draw_attention
from seq2seq_cli.extras.inspect.attention_study import KINDS, study_attention
from seq2seq_cli.extras.inspect.head_statistics import batches_of, token_pairs, weight_statistics
from seq2seq_cli.extras.plot.figures import figure_bytes
from seq2seq_cli.text.corpus import Pair
from seq2seq_cli.training.logging.metrics_log import AttentionPlots

_MOST_SENTENCES = 3
_SAMPLE = 100  # pairs for the entropy


def plot_attention(translator: Translator, pairs: Sequence[Pair]) -> AttentionPlots:
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
        images = {}
        for number, pair in enumerate(sample[:count], start=1):
            text = pair.text
            (study,) = study_attention(translator, text.source_line, text.tgt, tag=text.tag)
            for kind in KINDS:
                figure = draw_attention(study, kind)
                images[f"attention/{kind}/sentence_{number}"] = figure_bytes(figure, "png")
    finally:
        model.train(was_training)
    return AttentionPlots(
        images,
        {
            f"attention_entropy/{kind}/layer_{layer + 1}/head_{head + 1}": float(entropy)
            for kind in statistics
            for (layer, head), entropy in np.ndenumerate(statistics[kind].entropy_LH.numpy())
        },
    )
