"""Train with random combinations of options, and compare what has to be equal.

    PYTHONPATH=tests python -m faults.combinations [--cases 100] [--seed 1] [--only 17]

A run that is stopped twice must end with the bits of the undisturbed one, and two processes with
its losses within rounding. Both engines must find the same translations, and so must the model
after an export and an import. Every case is a process of its own.
"""

import argparse
import json
import multiprocessing
import os
import random
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import redirect_stderr
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from bare_runs import stop_at
from commands import logged_points
from faults.victims import call
from number_task import number_pairs, write_config

from seq2seq_cli.commands.diff import differing_results
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import UserError
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.training.loop import train

FORMATS = ("huggingface", "ctranslate2", "marian")
KINDS = ("bpe", "unigram", "char", "word")
# By section and option: the chance that it is given, and its values.
OPTIONS: dict[str, dict[str, tuple[float, list[Any]]]] = {
    "data": {
        "direction": (0.2, ["reverse", "both"]),
        "max_length": (0.1, [5, 10]),
        "on_bad_line": (0.1, ["skip"]),
        "sampling_temperature": (0.1, [1.0, 5.0]),
    },
    "tokenizer": {
        "kind": (0.9, [*KINDS, {"src": "char", "tgt": "word"}, {"src": "bpe", "tgt": "unigram"}]),
        "shared": (0.3, [True, False]),
        "vocab_size": (0.5, ["auto", 320, 350, {"src": 330, "tgt": "auto"}]),
        "graphemes": (0.1, [True]),
        "split_digits": (0.1, [True]),
        "normalization": (0.2, ["nfkc_cf", "nfd", {"src": "nfkc_cf", "tgt": "identity"}]),
    },
    "model": {
        "d_model": (1, [16, 32]),
        "heads": (1, [1, 2, 4]),
        "layers": (1, [1, 2, {"encoder": 2, "decoder": 1}]),
        "d_ff": (1, [16, 24, 64]),
        "dropout": (1, [0.0, 0.1, 0.3]),
        "attention_dropout": (0.3, [0.1]),
        "activation_dropout": (0.3, [0.1]),
        "activation": (0.4, ["gelu", "silu", "relu"]),
        "positions": (0.4, ["rotary", "sinusoidal"]),
        "position_base": (0.1, [100.0, 1e5]),
        "position_offset": (0.1, [1, 2]),
        "rotary_cross_attention": (0.1, [True]),
        "feature_positions": (0.1, [False]),
        "attention_scale": (0.2, ["none", "temperature"]),
        "norm": (0.5, ["pre", "post"]),
        "norm_epsilon": (0.1, [1e-6, 1e-3]),
        "attention_bias": (0.2, [False]),
        "embedding_scale": (0.2, [False]),
        "tie_embeddings": (0.3, [False]),
        "output_bias": (0.2, [True]),
        "source_eos": (0.2, [False]),
        "ngrams": (0.25, [2, 6]),
        "ngram_buckets": (0.1, [16, 500]),
        "ngram_dropout": (0.1, [0.0, 0.5]),
    },
    "training": {
        "max_steps": (1, [6, 9]),
        "warmup_steps": (1, [0, 2]),
        "log_every": (1, [1, 2, 50]),
        "lr": (1, [1e-3, 1e-2]),
        "processes": (1, [1]),
        "device": (1, ["cpu"]),
        "tokens_per_batch": (0.9, [64, 200, 600]),
        "pairs_per_batch": (0.2, [1, 5, 16]),
        "gradient_accumulation": (0.2, [2, 3]),
        "optimizer": (0.6, ["adam", "adamw", "schedule_free_adamw", "muon"]),
        "schedule": (0.3, ["inverse_sqrt", "cosine", "linear", "constant"]),
        "weight_decay": (0.4, [0.1]),
        "max_grad_norm": (0.2, [None, 0.1]),
        "label_smoothing": (0.3, [0.0, 0.3]),
        "ema_decay": (0.2, [0.9, 0.99]),
        "subword_sampling": (0.1, [0.1, {"src": 0.2}]),
        "consistency": (0.2, [{"kind": "r_drop"}, {"kind": "simcut", "weight": 2.0}]),
        "seed": (0.5, [3, 7]),
        "activation_checkpointing": (0.1, [True]),
        "on_nonfinite": (0.1, ["skip"]),
        "save_every": (0.5, [1, 2, 3, None]),
        "keep_last": (0.3, [1, 3]),
        "keep_every": (0.1, [2]),
        "average_checkpoints": (0.1, [2, 3]),
        "freeze": (0.05, [["encoder"], ["embeddings"], ["decoder", "projection"]]),
    },
    "validation": {
        "every": (1, [1, 2, 3]),
        "unit": (1, ["steps", "steps", "epochs"]),
        "decode": (0.1, [False]),
        "metric": (0.3, ["loss", "bleu", "chrf", "exact_match", "ter"]),
        "metrics": (0.1, [["ter"], ["cer"]]),
        "lowercase": (0.1, [True]),
        "merge_references": (0.1, [True]),
        "patience": (0.2, [1, 2]),
        "keep_best": (0.3, [2, 3]),
    },
    "decoding": {
        "beam_size": (0.4, [1, 2, 4]),
        "length_penalty": (0.3, [0.0, 1.0]),
        "length_penalty_formula": (0.1, ["gnmt"]),
        "no_repeat_ngram_size": (0.1, [2]),
        "min_len_extra": (0.1, [1]),
        "replace_unk": (0.1, [True]),
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int)
    given = parser.parse_args()
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    numbers = range(given.cases) if given.only is None else [given.only]
    found: Counter[str] = Counter()
    for number in numbers:
        receiver, sender = context.Pipe(duplex=False)
        with tempfile.TemporaryDirectory(prefix="seq2seq-combination-") as folder:
            seed = f"{given.seed}/{number}"
            process = context.Process(target=report, args=(seed, Path(folder), sender))
            process.start()
            sender.close()
            try:
                problem = receiver.recv()
            except EOFError:
                problem = "the process died"
            process.join()
            found["different" if problem else "equal"] += 1
            if problem:
                print(f"case {number}: {problem}", flush=True)
                print((Path(folder) / "numbers.yaml").read_text(), flush=True)
    print(*(f"{count} {name}" for name, count in sorted(found.items())), sep=", ")
    sys.exit(found["different"] > 0)


def report(seed: str, folder: Path, answer: Connection) -> None:
    """Send what differs, an empty text if nothing does."""
    os.environ |= {"SEQ2SEQ_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    os.fsync = os.fstat  # only a power failure shows what was not flushed
    try:
        with (folder / "stderr").open("w") as file, redirect_stderr(file):
            compare(random.Random(seed), folder)
        answer.send("")
    except BaseException:
        answer.send(traceback.format_exc()[-3_000:])
    answer.close()
    os._exit(0)  # without waiting for what libraries have started


def compare(chance: random.Random, folder: Path) -> None:
    """Draw a config and raise AssertionError if a comparison fails."""
    config, run = trained_run(chance, folder)
    last = max(RunFolder(run).all_checkpoints())
    resolved = load_config(RunFolder(run).config)  # with `auto` resolved
    stopped = folder / "stopped"
    for step in sorted(chance.randint(1, last) for _ in range(2)):
        train(resolved, stopped, hooks=stop_at(step))
    train(resolved, stopped)
    differences = differing_results(run, stopped)
    assert not differences, f"stopped twice: {[*map(str, differences)][:5]}"
    has_features = any(corpus.features for corpus in config.data.train)
    if not drops_in_pytorch(config, has_features):
        compare_processes(resolved, run, folder)
    lines = [src for src, _ in number_pairs(12, seed=9)] + ["", "one two", "x 3"]
    source = folder / "in"
    source.write_text(
        "".join(f"{line}\tX;A\n" if line and has_features else f"{line}\n" for line in lines)
    )
    plain = translations(run, source, "decoding.engine=plain")
    assert_same(plain, translations(run, source))
    limits = ["beam_size=1", "max_len_factor=0", "max_len_extra=20", "no_repeat_ngram_size=0"]
    greedy = [f"decoding.{option}" for option in (*limits, "min_len_extra=0", "length_penalty=1")]
    for name in FORMATS if config.data.max_length > 20 else ():  # an imported model has no limit
        exported, imported = folder / name, folder / f"imported-{name}"
        result = call("export", run, "--format", name, "--output", exported)
        assert result.exit_code in (0, 2), result.stderr
        if result.exit_code == 0:
            result = call("import", exported, imported)
            assert result.exit_code == 0, f"{name}: {result.stderr}"
            assert_same(translations(run, source, *greedy), translations(imported, source, *greedy))


def trained_run(chance: random.Random, folder: Path) -> tuple[Config, Path]:
    """Draw configs until one can be trained with; return it and the finished run."""
    run = folder / "run"
    while True:
        path = write_config(folder, draw_config(chance, folder))
        try:
            config = load_config(path)
            train(config, run)
        except UserError as error:
            print(error, file=sys.stderr)
            assert not run.exists() or not any(run.iterdir()), "a refused run has left files"
        else:
            return config, run


def draw_config(chance: random.Random, folder: Path) -> dict[str, Any]:
    drawn: dict[str, Any] = {
        section: {
            name: chance.choice(values)
            for name, (share, values) in options.items()
            if chance.random() < share
        }
        for section, options in OPTIONS.items()
    }
    has_features = chance.random() < 0.2
    train_text = [draw_corpus(chance, folder, "train", has_features)]
    if chance.random() < 0.3:
        train_text.append(draw_corpus(chance, folder, "more", has_features))
        weight, tag = chance.choice([None, 0.3, 2]), chance.choice([None, "<more>"])
        train_text[1] |= {k: v for k, v in {"weight": weight, "tag": tag}.items() if v}
    drawn["data"]["train"] = train_text
    if chance.random() < 0.9:
        drawn["data"]["valid"] = draw_corpus(chance, folder, "valid", has_features)
    if chance.random() < 0.7:
        drawn["preset"] = "none"
    return drawn


def draw_corpus(
    chance: random.Random, folder: Path, name: str, has_features: bool
) -> dict[str, Any]:
    """Write number pairs in one of three formats; return the corpus of a config."""
    pairs = number_pairs(chance.choice([20, 80, 300]), chance.randrange(100))
    rows = [(src, f"X;{'AB'[n % 2]}", tgt) for n, (src, tgt) in enumerate(pairs)]
    kind = chance.choice(["files", "tsv", "jsonl"])
    if kind == "files":
        src, tgt = folder / f"{name}.src", folder / f"{name}.tgt"
        src.write_text("".join(f"{s}\t{f}\n" if has_features else f"{s}\n" for s, f, _ in rows))
        tgt.write_text("".join(f"{t}\n" for *_, t in rows))
        corpus, features = {"src": str(src), "tgt": str(tgt)}, 2
    elif kind == "tsv":
        path = folder / f"{name}.tsv"
        path.write_text("".join("\t".join(row) + "\n" for row in rows))
        corpus, features = {"pairs": str(path), "fields": [1, 3]}, 2
    else:
        path = folder / f"{name}.jsonl"
        path.write_text(
            "".join(json.dumps(dict(zip(("src", "f", "tgt"), r, strict=True))) + "\n" for r in rows)
        )
        corpus, features = {"pairs": str(path)}, "f"
    return corpus | ({"features": features} if has_features else {})


def drops_in_pytorch(config: Config, has_features: bool) -> bool:
    """Return True if attention drops other weights in each process, as C does not support it."""
    model = config.model
    is_rotated = has_features and not model.feature_positions and model.positions == "rotary"
    is_in_pytorch = model.attention_scale == "temperature" or is_rotated
    return is_in_pytorch and model.attention_dropout > 0


def compare_processes(config: Config, run: Path, folder: Path) -> None:
    train(config.updated(training={"processes": 2}), folder / "two")
    names = ("train/loss", "train/grad_norm", "valid/loss")
    for one, two in zip(logged_points(run), logged_points(folder / "two"), strict=True):
        for name in names:
            expected = one.get(name, 0.0)
            error = abs(two.get(name, 0.0) - expected)
            assert error <= 2e-3 * max(1, abs(expected)), f"two processes: {name} {one} {two}"


def translations(run: Path, source: Path, *options: str) -> list[dict[str, Any]]:
    sets = [part for option in options for part in ("--set", option)]
    how = ("--precision", "fp32", "--format", "jsonl", "--log-probs")
    result = call("translate", run, "--input", source, *how, *sets)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def assert_same(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    """Assert equal translations, or others with the same score, and equal log-probabilities."""
    for one, two in zip(expected, found, strict=True):
        name = "log_prob" if one["translation"] == two["translation"] else "score"
        assert abs((one.get(name) or 0.0) - (two.get(name) or 0.0)) < 2e-3, f"{one}\n{two}"


if __name__ == "__main__":
    main()
