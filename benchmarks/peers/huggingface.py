"""Trains transformers' MarianMTModel in a plain loop; prints target tokens per second as JSON.

python huggingface.py FOLDER tiny|base SECONDS [bf16], where torch and transformers are installed;
FOLDER is what `training_speed.py` lays out. Batches are sorted by length and hold at most 4,096
padded target tokens, as ours; AdamW, label smoothing and clipping too.
"""

import json
import random
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import MarianConfig, MarianMTModel

WARM_UPDATES = {"tiny": 10, "base": 2}
SHAPES = {"tiny": (128, 256, 4, 4, 0.3), "base": (512, 2048, 8, 6, 0.1)}
PAD, EOS, IGNORE_INDEX = 0, 3, -100

folder, shape, seconds = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
use_bf16 = "bf16" in sys.argv
torch.set_num_threads(2)
torch.manual_seed(1)
random.seed(1)
vocabulary = {p: i for i, p in enumerate((folder / "vocab").read_text().split("\n"))}
src, tgt = (
    [[vocabulary[p] for p in line.split(" ")] + [EOS] for line in path.read_text().splitlines()]
    for path in (folder / "train.src", folder / "train.tgt")
)
d_model, d_ff, heads, layers, dropout = SHAPES[shape]
model = MarianMTModel(
    MarianConfig(
        vocab_size=len(vocabulary),
        decoder_vocab_size=len(vocabulary),
        max_position_embeddings=512,
        d_model=d_model,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=d_ff,
        decoder_ffn_dim=d_ff,
        dropout=dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        share_encoder_decoder_embeddings=True,
    )
).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.98), weight_decay=0.0)


def batches():
    order = list(range(len(src)))
    random.shuffle(order)
    order.sort(key=lambda i: (len(tgt[i]), len(src[i])))
    batch, found = [], []
    for i in order:
        if batch and (len(batch) + 1) * len(tgt[i]) > 4096:
            found.append(batch)
            batch = []
        batch.append(i)
    random.shuffle(found)
    return found


def padded(rows, padding):
    longest = max(map(len, rows))
    return torch.tensor([row + [padding] * (longest - len(row)) for row in rows])


def update(batch):
    src_ids, labels = (
        padded([src[i] for i in batch], PAD),
        padded([tgt[i] for i in batch], IGNORE_INDEX),
    )
    tgt_in = padded([[PAD, *tgt[i][:-1]] for i in batch], PAD)
    with torch.autocast("cpu", torch.bfloat16, enabled=use_bf16):
        logits = model(
            input_ids=src_ids, attention_mask=(src_ids != PAD).long(), decoder_input_ids=tgt_in
        ).logits
        loss = cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, label_smoothing=0.1
        )
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return sum(len(tgt[i]) for i in batch)


done, tokens, started = 0, 0, 0.0
while not (started and time.perf_counter() - started > seconds):
    for batch in batches():
        found = update(batch)
        done += 1
        if done == WARM_UPDATES[shape]:
            started = time.perf_counter()
        elif started:
            tokens += found
            if time.perf_counter() - started > seconds:
                break
print(json.dumps({"tokens_per_second": tokens / (time.perf_counter() - started)}))
