"""How context changes a word's vector: the same word in two sentences.

The German word "bank" is a bench or a bank, and only the verb tells which: "er sitzt auf der bank"
(he sits on the bench), "er spart auf der bank" (he saves at the bank). An embedding is one vector
for both. In each encoder layer, self-attention adds to it what the other words contribute (Vaswani
et al. 2017, section 3.2). A small encoder learns to name the English word for every German one.
Then the cosine of the vectors of "bank" in two sentences is measured before the first layer and
after each of them, as Ethayarajh (2019) did with large models.

    python examples/words_in_context.py

B sentences, S positions, D d_model, V English vocabulary.
"""

from itertools import product

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from seq2seq_cli.config.schema import ModelConfig
from seq2seq_cli.model.layers import EncoderLayer
from seq2seq_cli.model.packing import Padded
from seq2seq_cli.model.positions import sinusoidal_positions

PERSONS = {"er": "he", "sie": "she", "paul": "paul", "anna": "anna"}
ON_A_BENCH = {"sitzt": "sits", "schläft": "sleeps", "liest": "reads", "wartet": "waits"}
AT_A_BANK = {"spart": "saves", "zahlt": "pays", "arbeitet": "works", "wechselt": "exchanges"}
TIMES = {"heute": "today", "oft": "often", "jetzt": "now", "wieder": "again"}

Pair = tuple[list[str], list[str]]


def write_pairs(verbs: dict[str, str], place: str) -> list[Pair]:
    """Return German sentences, and the English word for each of their words."""
    return [
        (
            [person, verb, "auf", "der", "bank", time],
            [PERSONS[person], verbs[verb], *place.split(), TIMES[time]],
        )
        for person, verb, time in product(PERSONS, verbs, TIMES)
    ]


def to_ids(pairs: list[Pair], side: int, vocabulary: list[str]) -> Tensor:
    return torch.tensor([[vocabulary.index(word) for word in pair[side]] for pair in pairs])


class WordByWord(nn.Module):
    """An encoder with a linear layer that names the English word at every position."""

    def __init__(self, config: ModelConfig, german: int, english: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(german, config.d_model)
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers.encoder))
        self.projection = nn.Linear(config.d_model, english)

    # The states are the subject of this example, so they are what `states` returns, one tensor for
    # the input and one for each layer. All sentences have the same length: no mask is needed.
    def states(self, ids_BS: Tensor) -> list[Tensor]:
        """Return the vectors of all words before the first layer and after each, BSD."""
        layout = Padded(torch.ones_like(ids_BS, dtype=torch.bool))
        x_BSD = self.embedding(ids_BS)
        states = [x_BSD + sinusoidal_positions(0, ids_BS.size(1), x_BSD.size(-1))]
        for layer in self.layers:
            states.append(layer(states[-1], layout, None))
        return states

    def forward(self, ids_BS: Tensor) -> Tensor:
        """Return logits_BSV."""
        logits_BSV: Tensor = self.projection(self.states(ids_BS)[-1])
        return logits_BSV


def train(model: WordByWord, ids_BS: Tensor, labels_BS: Tensor, updates: int) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in range(updates):
        loss = F.cross_entropy(model(ids_BS).flatten(0, 1), labels_BS.flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def mean_cosine(a_BD: Tensor, b_BD: Tensor) -> float:
    """Return the mean cosine of every vector of `a_BD` with every vector of `b_BD`."""
    return (F.normalize(a_BD, dim=-1) @ F.normalize(b_BD, dim=-1).mT).mean().item()


@torch.no_grad()
def similarities(model: WordByWord, a_BS: Tensor, b_BS: Tensor, position: int) -> list[float]:
    """Return the mean cosine at a position, before the first layer and after each."""
    both = zip(model.states(a_BS), model.states(b_BS), strict=True)
    return [mean_cosine(a_BSD[:, position], b_BSD[:, position]) for a_BSD, b_BSD in both]


def show_similarities(model: WordByWord, bench_BS: Tensor, bank_BS: Tensor) -> None:
    print(f"{'':28}   input  layer 1  layer 2")
    for name, a_BS, b_BS, position in (
        ("bank: both mean a bench", bench_BS, bench_BS, 4),
        ("bank: both mean a bank", bank_BS, bank_BS, 4),
        ("bank: one of each", bench_BS, bank_BS, 4),
        ("der: beside one of each", bench_BS, bank_BS, 3),
    ):
        cosines = similarities(model, a_BS, b_BS, position)
        print(f"  {name:26}", *(f"{cosine:8.3f}" for cosine in cosines))


def main() -> None:
    torch.set_num_threads(1)  # tensors as small as these get slower with more
    torch.manual_seed(0)
    bench, bank = write_pairs(ON_A_BENCH, "on the bench"), write_pairs(AT_A_BANK, "at the bank")
    german, english = (
        sorted({word for pair in bench + bank for word in pair[side]}) for side in (0, 1)
    )
    bench_BS, bank_BS = to_ids(bench, 0, german), to_ids(bank, 0, german)
    config = ModelConfig.model_validate(
        {"d_model": 32, "heads": 4, "layers": 2, "d_ff": 64, "dropout": 0.0}
    )
    model = WordByWord(config, len(german), len(english))
    print("before training: cosine of the vectors of one word in two sentences")
    show_similarities(model, bench_BS, bank_BS)

    ids_BS, labels_BS = torch.cat([bench_BS, bank_BS]), to_ids(bench + bank, 1, english)
    train(model, ids_BS, labels_BS, updates=60)
    share = (model(ids_BS).argmax(dim=-1) == labels_BS).float().mean().item()
    print(f"\nafter training: {share:.1%} of the words are named correctly")
    show_similarities(model, bench_BS, bank_BS)


if __name__ == "__main__":
    main()
