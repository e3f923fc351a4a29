"""Hashed embeddings of n-grams of source tokens (Pagnoni et al. 2024, "Byte Latent Transformer").

B sentences, S source positions, N n-grams that end at a position, D d_model.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.packing import BatchLayout
from seq2seq_cli.native import fused

# Of the polynomial hash, as in native/transformer.c: add_ngrams. Products fit into 63 bits.
_BASE, _MODULUS = 1_000_003, 2**31 - 1
_START = 1  # the value of what stands before the first token; a token's value is its id + 2


class NgramEmbedding(nn.Module):
    """Sums the embeddings of the n-grams that end at each token (section 3.2.1, equations 3 to 5).

    The shortest have two tokens; the first token follows a start symbol. N-grams with the same hash
    share an embedding. In training, each n-gram is left out with the probability `dropout`.
    """

    def __init__(self, longest: int, buckets: int, d_model: int, dropout: float) -> None:
        super().__init__()
        self.longest = longest
        self.embedding = nn.Embedding(
            buckets, d_model, padding_idx=0, _weight=torch.empty(buckets, d_model)
        )
        self.dropout = Dropout(dropout)

    def forward(self, ids_BS: Tensor, layout: BatchLayout, cut_BS: Tensor | None = None) -> Tensor:
        """Return the sums, BSD, in the layout; n-grams with a token that is cut off add nothing."""
        no_cut_BS = torch.zeros_like(ids_BS, dtype=torch.bool)
        rows = self._rows(ids_BS, no_cut_BS if cut_BS is None else cut_BS)
        rows_BSN = torch.stack([layout.pack_ids(rows_BS, 0) for rows_BS in rows], -1)
        rows_RN = rows_BSN.flatten(0, 1)
        kept_RN = None
        if self.training and self.dropout.p > 0:
            weight = self.embedding.weight
            kept_RN = fused.drop(weight.new_ones(rows_RN.shape), self.dropout, layout.places_R)
        sums_RD = F.embedding_bag(
            rows_RN, self.embedding.weight, mode="sum", per_sample_weights=kept_RN, padding_idx=0
        )
        return sums_RD.view(*rows_BSN.shape[:2], -1)

    def _rows(self, ids_BS: Tensor, is_cut_BS: Tensor) -> list[Tensor]:
        """Return the row of every n-gram that ends at a token, BS for each n; 0: there is none."""
        values_BS = ids_BS + 2
        index_S = torch.arange(ids_BS.size(1), device=ids_BS.device)
        hashes_BS, has_cut_BS, rows = values_BS, is_cut_BS, []
        for n in range(2, self.longest + 1):
            # Its hash follows from the shorter one that ends at the token before.
            before_BS = F.pad(hashes_BS[:, :-1], (1, 0), value=_START)
            hashes_BS = (before_BS * _BASE + values_BS) % _MODULUS
            has_cut_BS = F.pad(has_cut_BS[:, :-1], (1, 0)) | is_cut_BS
            row_BS = 1 + hashes_BS % (self.embedding.num_embeddings - 1)
            rows.append(row_BS.masked_fill((index_S < n - 2) | has_cut_BS, 0))
        return rows
