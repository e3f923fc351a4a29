"""Trains transformers' MarianMTModel in a plain loop with the literature's recipe, and scores it.

python huggingface_recipe.py FOLDER [--target BLEU] [--minutes M] [--updates N] [options]

where torch, transformers, sentencepiece and sacrebleu are installed. FOLDER has train.src,
train.tgt, valid.src and valid.tgt as raw text, and tokenizer.model (SentencePiece), as
`time_to_quality.py` lays them out. The recipe is that of Wu et al. 2021: post-norm, tied
embeddings, Adam, inverse square root after warm-up, label smoothing 0.1. Prints a JSON line at each
validation (greedy search, whose time counts), and ends at the target, or when the updates or
minutes are used up. With --test SRC TGT the last line has the score of that text, and --output FILE
keeps its translations.
"""

import argparse
import json
import random
import time
from pathlib import Path

import sacrebleu
import sentencepiece
import torch
from torch.nn.functional import cross_entropy
from transformers import MarianConfig, MarianMTModel

PAD, EOS, IGNORE_INDEX = 0, 3, -100

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("folder", type=Path)
parser.add_argument("--d-model", type=int, default=128)
parser.add_argument("--d-ff", type=int, default=256)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--dropout", type=float, default=0.3)
parser.add_argument("--lr", type=float, default=5e-3)
parser.add_argument("--warmup", type=int, default=2000)
parser.add_argument("--clip", type=float, default=25.0)
parser.add_argument("--tokens", type=int, default=8192, help="padded target tokens of a batch")
parser.add_argument("--every", type=int, default=250, help="updates between two validations")
parser.add_argument("--updates", type=int, default=8000)
parser.add_argument("--minutes", type=float, default=float("inf"))
parser.add_argument("--target", type=float, default=float("inf"))
parser.add_argument("--test", nargs=2, type=Path, metavar=("SRC", "TGT"))
parser.add_argument("--beam-size", type=int, default=1, help="of the test, not of validations")
parser.add_argument("--output", type=Path, help="for the translations of the test")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--threads", type=int, default=2)
given = parser.parse_args()

started = time.perf_counter()
torch.set_num_threads(given.threads)
torch.manual_seed(given.seed)
random.seed(given.seed)
tokenizer = sentencepiece.SentencePieceProcessor(str(given.folder / "tokenizer.model"))


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


src, tgt = (
    [[*ids, EOS] for ids in tokenizer.encode(lines(given.folder / f"train.{side}"))]
    for side in ("src", "tgt")
)
valid = tuple(lines(given.folder / f"valid.{side}") for side in ("src", "tgt"))
model = MarianMTModel(
    MarianConfig(
        vocab_size=len(tokenizer),
        decoder_vocab_size=len(tokenizer),
        max_position_embeddings=512,
        d_model=given.d_model,
        encoder_layers=given.layers,
        decoder_layers=given.layers,
        encoder_attention_heads=given.heads,
        decoder_attention_heads=given.heads,
        encoder_ffn_dim=given.d_ff,
        decoder_ffn_dim=given.d_ff,
        dropout=given.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        init_std=given.d_model**-0.5,
        pad_token_id=PAD,
        eos_token_id=EOS,
        decoder_start_token_id=PAD,
        forced_eos_token_id=None,
        share_encoder_decoder_embeddings=True,
    )
)
for name, parameter in model.named_parameters():  # matrices as fairseq initialises them
    if parameter.dim() == 2 and "embed" not in name and "shared" not in name:
        torch.nn.init.xavier_uniform_(parameter)
optimizer = torch.optim.Adam(model.parameters(), lr=given.lr, betas=(0.9, 0.98), eps=1e-9)
schedule = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda n: min((n + 1) / given.warmup, (given.warmup / (n + 1)) ** 0.5)
)


def batches() -> list[list[int]]:
    order = list(range(len(src)))
    random.shuffle(order)
    order.sort(key=lambda i: max(len(src[i]), len(tgt[i])))
    found, batch = [], []
    for i in order:
        if batch and (len(batch) + 1) * max(len(src[i]), len(tgt[i])) > given.tokens:
            found.append(batch)
            batch = []
        batch.append(i)
    random.shuffle(found)
    return [*found, batch]


def padded(rows: list[list[int]], padding: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [padding] * (longest - len(row)) for row in rows])


def update(batch: list[int]) -> None:
    src_ids = padded([src[i] for i in batch], PAD)
    labels = padded([tgt[i] for i in batch], IGNORE_INDEX)
    tgt_in = padded([[PAD, *tgt[i][:-1]] for i in batch], PAD)
    with torch.autocast("cpu", torch.bfloat16, enabled=given.bf16):
        logits = model(
            input_ids=src_ids, attention_mask=(src_ids != PAD).long(), decoder_input_ids=tgt_in
        ).logits
        loss = cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, label_smoothing=0.1
        )
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), given.clip)
    optimizer.step()
    schedule.step()


@torch.inference_mode()
def translate(sources: list[str], beam_size: int = 1) -> list[str]:
    model.eval()
    ids = [[*row, EOS] for row in tokenizer.encode(sources)]
    hypotheses = [""] * len(ids)
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for start in range(0, len(order), 100):
        chosen = order[start : start + 100]
        src_ids = padded([ids[i] for i in chosen], PAD)
        found = model.generate(
            src_ids,
            attention_mask=(src_ids != PAD).long(),
            max_new_tokens=2 * src_ids.size(1) + 20,
            num_beams=beam_size,
            do_sample=False,
        )
        for i, row in zip(chosen, found.tolist(), strict=True):
            end = row.index(EOS) if EOS in row else len(row)
            hypotheses[i] = tokenizer.decode([token for token in row[1:end] if token != PAD])
    model.train()
    return hypotheses


def validate(done: int) -> float:
    sources, references = valid
    score = sacrebleu.corpus_bleu(translate(sources), [references]).score
    minutes = (time.perf_counter() - started) / 60
    print(json.dumps({"update": done, "minutes": round(minutes, 3), "bleu": score}), flush=True)
    return score


def train() -> None:
    model.train()
    done = 0
    while True:
        for batch in batches():
            update(batch)
            done += 1
            is_over = done == given.updates or time.perf_counter() - started > 60 * given.minutes
            if (done % given.every == 0 or is_over) and validate(done) >= given.target:
                return
            if is_over:
                return


train()
if given.test:
    sources, references = map(lines, given.test)
    hypotheses = translate(sources, given.beam_size)
    score = sacrebleu.corpus_bleu(hypotheses, [references]).score
    if given.output:
        given.output.write_text("".join(f"{line}\n" for line in hypotheses), encoding="utf-8")
    print(json.dumps({"test_bleu": score, "beam_size": given.beam_size}))
