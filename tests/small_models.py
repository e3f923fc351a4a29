"""Random models small enough for exhaustive search, random sentences, and search modes."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from seq2seq_cli import Translator
from seq2seq_cli.config.decoding import DecodingConfig
from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.decoding.engines.base import Decoder
from seq2seq_cli.decoding.requests import Request
from seq2seq_cli.model.attention import MultiHeadAttention
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID, Tokenizer, Tokenizers

GREEDY = DecodingConfig()
MODES = {
    "greedy": GREEDY,
    "beam": DecodingConfig(beam_size=4, n_best=4),
    "gnmt": DecodingConfig(beam_size=3, n_best=2, length_penalty_formula="gnmt"),
    "groups": DecodingConfig(beam_size=4, n_best=4, diversity_groups=2),
    "sampling": DecodingConfig(sampling=True, n_best=3, temperature=0.8, top_k=6, top_p=0.9),
    "rules": DecodingConfig(beam_size=3, no_repeat_ngram_size=2, repetition_penalty=1.3),
}


def build(seed: int, vocabulary: int = 12, num_features: int = 0, **options) -> Transformer:
    """A random model whose sentences end at different lengths."""
    torch.manual_seed(seed)
    shape = {"d_model": 16, "heads": 2, "layers": 2, "d_ff": 32, "dropout": 0.0}
    config = ModelConfig(**(shape | {"tie_embeddings": False} | options))
    model = Transformer(config, 12, vocabulary, False, PAD_ID, num_features).eval()
    with torch.no_grad():
        model.projection.weight.mul_(3)
        for name, parameter in model.named_parameters():
            if name.endswith("inverse_temperature_H"):  # learned: different for each head
                parameter.uniform_(0.5, 2)
            if name == "src_ngrams.embedding.weight":  # learned, from zeros on
                parameter[1:].normal_(std=0.3)
            if name == "projection.bias":
                parameter.normal_()
    return model


def translator(tokenizer: Tokenizer, seed: int, engine: str = "auto", **decoding) -> Translator:
    """A translator with a random model, whose translations have about ten tokens."""
    config = Config.model_validate(
        {
            "data": {"train": {"src": "a", "tgt": "b"}},
            "model": {"d_model": 16, "heads": 2, "layers": 1, "d_ff": 32, "dropout": 0.0},
            "decoding": {"engine": engine, "max_len_extra": 12, **decoding},
        },
        strict=None,
    )
    torch.manual_seed(seed)
    model = Transformer(config.model, len(tokenizer), len(tokenizer), True, PAD_ID).eval()
    with torch.no_grad():
        model.projection.weight.mul_(2)
    return Translator(model, Tokenizers(tokenizer, tokenizer), config)


def pytorch_attention(d_model: int, heads: int) -> tuple[MultiHeadAttention, nn.Module]:
    """The package's attention and PyTorch's, with the same weights."""
    ours = MultiHeadAttention(d_model, heads, bias=True, dropout=0.0)
    theirs = nn.MultiheadAttention(d_model, heads, batch_first=True)
    parts = (ours.query, ours.key, ours.value)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    return ours, theirs


def random_sources(count: int) -> list[list[int]]:
    lengths = torch.randint(1, 9, (count,)).tolist()
    return [[*torch.randint(4, 12, (length,)).tolist(), EOS_ID] for length in lengths]


def make_requests(sources: list[list[int]], **constraints) -> list[Request]:
    return [
        Request(src, max_length=2 * len(src) + 5, number=number, **constraints)
        for number, src in enumerate(sources)
    ]


def stepwise_logits(plain: Decoder, other: Decoder) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the logits of both decoders at each step, while hypotheses are reordered and dropped.

    The models have 70 tokens; what `other` adds to them is checked to be impossible.
    """
    src = torch.tensor([[5, 6, 7, EOS_ID], [8, EOS_ID, PAD_ID, PAD_ID], [9, 4, EOS_ID, PAD_ID]])
    both = [decoder.start(src) for decoder in (plain, other)]
    last = torch.full((3, 1), BOS_ID)
    for step in range(90):  # beyond the room that buffers have at first
        with torch.inference_mode():
            expected, actual = (states.logits(last) for states in both)
        yield expected, actual[..., :70]
        assert (actual[..., 70:] == -torch.inf).all()
        last = expected[..., 4:].argmax(dim=-1) + 4
        if step == 2:
            origin = torch.zeros(len(last), 3, dtype=torch.int64)
        elif step % 3 == 0 and step > 2:
            origin = torch.randint(0, 3, (len(last), 3))
        else:
            continue
        for states in both:
            states.reorder(origin)
        last = last.gather(1, origin)
        last[:, 1] = 5 + step % 7
        if step == 12:
            for states in both:
                states.keep(torch.tensor([2, 0]))
            last = last[[2, 0]]
