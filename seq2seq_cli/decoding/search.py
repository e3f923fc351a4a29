"""Search for the best output ids.

B sentences still being decoded, S source positions, V target vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.text.tokenizer import BOS_ID, EOS_ID, PAD_ID, UNK_ID

NEVER_OUTPUT = (PAD_ID, UNK_ID, BOS_ID)


@torch.inference_mode()
def greedy_search(
    model: Transformer, src_BS: Tensor, max_lengths: Sequence[int]
) -> list[list[int]]:
    """The likeliest next token, again and again, until EOS or the row's maximum length.

    Returns ids without BOS and EOS. Keys and values are cached; a finished sentence leaves the
    batch. What a row gives does not depend on the rows beside it.
    """
    outputs: list[list[int]] = [[] for _ in max_lengths]
    cache = model.start_cache(model.encode(src_BS))
    unfinished = list(range(len(outputs)))
    last_B1 = src_BS.new_full((len(outputs), 1), BOS_ID)
    while unfinished:
        logits_BV = model.decode(last_B1, cache)[:, -1]
        logits_BV[:, list(NEVER_OUTPUT)] = -torch.inf
        last_B1 = logits_BV.argmax(dim=-1, keepdim=True)
        going_on = []
        for row, token in enumerate(last_B1[:, 0].tolist()):
            output = outputs[unfinished[row]]
            if token != EOS_ID:
                output.append(token)
                if len(output) < max_lengths[unfinished[row]]:
                    going_on.append(row)
        if 0 < len(going_on) < len(unfinished):
            rows_B = torch.tensor(going_on, device=src_BS.device)
            last_B1, cache = last_B1[rows_B], cache.select(rows_B)
        unfinished = [unfinished[row] for row in going_on]
    return outputs
