"""Pad-ignoring, label-smoothed cross-entropy.

B sentences, T target positions, V target vocabulary.
"""

from torch import Tensor
from torch.nn import functional as F

from seq2seq_cli.data.batches import IGNORED


def sequence_loss(logits_BTV: Tensor, labels_BT: Tensor, label_smoothing: float) -> Tensor:
    """Cross-entropy in nats, summed over the target tokens; padding counts nothing.

    Against (1 - ε) · one-hot + ε / V (Szegedy et al. 2016, section 7). A sum, so that the caller
    divides once, by all tokens of an update.
    """
    return F.cross_entropy(
        logits_BTV.flatten(0, 1).float(),
        labels_BT.flatten(),
        ignore_index=IGNORED,
        reduction="sum",
        label_smoothing=label_smoothing,
    )
