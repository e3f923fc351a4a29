"""Our decoder and others', one after the other, on the same weights and sentences: ratios.

python benchmarks/decoding_speed.py RUN SRC [--rounds 3] [--lines 640] [--only NAME ...]
    [--engines ours ct2] [--eole COMMAND,MODEL]

RUN is a run folder; its weights are exported for CTranslate2 and Hugging Face. SRC is a text file.
Every translation is forced to 20 tokens, so that all make the same number of steps. Each
measurement is a process of its own, which reads SEQ2SEQ_CPU_ISA and CT2_FORCE_CPU_ISA. "2 x 1" are
two processes of one thread, "1 x 2" one with two.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from seq2seq_cli.machine import torch_environment

LENGTH = 20
FORCED = [
    "decoding.max_len_factor=0.0", f"decoding.max_len_extra={LENGTH}",
    "decoding.min_len_factor=0.0", f"decoding.min_len_extra={LENGTH}",
]  # fmt: skip
# name: (engine, number, processes or processes, threads of each, sentences at once, beam)
SYSTEMS = {
    "greedy, batches of 64": {
        "ours, int8, 2 x 1": ("ours", "int8", 2, 1, 64, 1),
        "ours, bf16, 2 x 1": ("ours", "bf16", 2, 1, 64, 1),
        "ours, fp32, 2 x 1": ("ours", "fp32", 2, 1, 64, 1),
        "ours, int8, 1 x 2": ("ours", "int8", 1, 2, 64, 1),
        "CTranslate2, int8, 2 x 1": ("ct2", "int8", 2, 1, 64, 1),
        "CTranslate2, fp32, 2 x 1": ("ct2", "float32", 2, 1, 64, 1),
        "Hugging Face, fp32, 1 x 2": ("hf", "fp32", 1, 2, 64, 1),
        "Eole, fp32, 1 x 2": ("eole", "fp32", 1, 2, 64, 1),
    },
    "beam 5, batches of 64": {
        "ours, int8, 2 x 1": ("ours", "int8", 2, 1, 64, 5),
        "ours, fp32, 2 x 1": ("ours", "fp32", 2, 1, 64, 5),
        "CTranslate2, int8, 2 x 1": ("ct2", "int8", 2, 1, 64, 5),
        "CTranslate2, fp32, 2 x 1": ("ct2", "float32", 2, 1, 64, 5),
        "Hugging Face, fp32, 1 x 2": ("hf", "fp32", 1, 2, 64, 5),
        "Eole, fp32, 1 x 2": ("eole", "fp32", 1, 2, 64, 5),
    },
    **{
        f"{search}, batches of 64, one thread": {
            "ours, int8, 1 x 1": ("ours", "int8", 1, 1, 64, beam),
            "CTranslate2, int8, 1 x 1": ("ct2", "int8", 1, 1, 64, beam),
            "ours, fp32, 1 x 1": ("ours", "fp32", 1, 1, 64, beam),
            "CTranslate2, fp32, 1 x 1": ("ct2", "float32", 1, 1, 64, beam),
        }
        for search, beam in (("greedy", 1), ("beam 5", 5))
    },
    "greedy, one sentence at a time": {
        "ours, int8, 1 x 1": ("ours", "int8", 1, 1, 1, 1),
        "ours, int8, 1 x 2": ("ours", "int8", 1, 2, 1, 1),
        "ours, fp32, 1 x 1": ("ours", "fp32", 1, 1, 1, 1),
        "CTranslate2, int8, 1 x 1": ("ct2", "int8", 1, 1, 1, 1),
        "CTranslate2, int8, 1 x 2": ("ct2", "int8", 1, 2, 1, 1),
        "CTranslate2, fp32, 1 x 1": ("ct2", "float32", 1, 1, 1, 1),
    },
    "beam 5, one sentence at a time": {
        "ours, int8, 1 x 1": ("ours", "int8", 1, 1, 1, 5),
        "ours, fp32, 1 x 1": ("ours", "fp32", 1, 1, 1, 5),
        "CTranslate2, int8, 1 x 1": ("ct2", "int8", 1, 1, 1, 5),
        "CTranslate2, fp32, 1 x 1": ("ct2", "float32", 1, 1, 1, 5),
    },
    "greedy, batches of 64, fp32 and bf16": {
        "ours, fp32, 2 x 1": ("ours", "fp32", 2, 1, 64, 1),
        "ours, bf16, 2 x 1": ("ours", "bf16", 2, 1, 64, 1),
        "CTranslate2, fp32, 2 x 1": ("ct2", "float32", 2, 1, 64, 1),
        "ours, fp32, 1 x 2": ("ours", "fp32", 1, 2, 64, 1),
        "ours, bf16, 1 x 2": ("ours", "bf16", 1, 2, 64, 1),
        "CTranslate2, fp32, 1 x 2": ("ct2", "float32", 1, 2, 64, 1),
    },
    "beam 5, batches of 64, fp32 and bf16": {
        "ours, fp32, 2 x 1": ("ours", "fp32", 2, 1, 64, 5),
        "ours, bf16, 2 x 1": ("ours", "bf16", 2, 1, 64, 5),
        "CTranslate2, fp32, 2 x 1": ("ct2", "float32", 2, 1, 64, 5),
        "ours, fp32, 1 x 2": ("ours", "fp32", 1, 2, 64, 5),
        "ours, bf16, 1 x 2": ("ours", "bf16", 1, 2, 64, 5),
        "CTranslate2, fp32, 1 x 2": ("ct2", "float32", 1, 2, 64, 5),
    },
    "greedy, one sentence at a time, fp32 and bf16": {
        "ours, fp32, 1 x 1": ("ours", "fp32", 1, 1, 1, 1),
        "ours, bf16, 1 x 1": ("ours", "bf16", 1, 1, 1, 1),
        "CTranslate2, fp32, 1 x 1": ("ct2", "float32", 1, 1, 1, 1),
        "ours, fp32, 1 x 2": ("ours", "fp32", 1, 2, 1, 1),
        "ours, bf16, 1 x 2": ("ours", "bf16", 1, 2, 1, 1),
        "CTranslate2, fp32, 1 x 2": ("ct2", "float32", 1, 2, 1, 1),
    },
}  # fmt: skip

_translator = None  # of a process


def load(run: str, number: str, beam: int, threads: int) -> None:
    global _translator
    from seq2seq_cli.decoding.translator import Translator
    from seq2seq_cli.machine import retain_freed_pages, set_num_threads

    set_num_threads(threads)
    retain_freed_pages()
    options = [f"decoding.precision={number}", f"decoding.beam_size={beam}", *FORCED]
    _translator = Translator.load(run, "cpu", [*options, "decoding.tokens_per_batch=1000000"])


def translate(batch: list[list[int]]) -> int:
    from seq2seq_cli.decoding.requests import Request

    assert _translator is not None
    requests = [Request([*ids, 3], max_length=LENGTH, min_length=LENGTH) for ids in batch]
    config, tokenizer = _translator.config.decoding, _translator.tokenizers.tgt
    found = _translator.backend.search(requests, config, tokenizer)
    return sum(len(hypotheses[0].ids) for hypotheses in found)


def measure_ours(run, lines, number, processes, threads, size, beam) -> tuple[float, list[float]]:
    from seq2seq_cli.run_folder import RunFolder
    from seq2seq_cli.tokenizers.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(RunFolder(Path(run)).tokenizer_paths(True)[0])
    ids = sorted(tokenizer.to_ids_batch(lines), key=len)
    batches = [ids[start : start + size] for start in range(0, len(ids), size)]
    if size == 1:
        load(run, number, beam, threads)
        return latencies([lambda batch=batch: translate(batch) for batch in batches])
    with ProcessPoolExecutor(
        processes, get_context("spawn"), load, (run, number, beam, threads)
    ) as pool:
        list(pool.map(translate, batches[: 2 * processes] * 2))  # also starts them all
        started = time.perf_counter()
        num_tokens = sum(pool.map(translate, batches))
        return num_tokens / (time.perf_counter() - started), []


def measure_ct2(run, lines, number, processes, threads, size, beam) -> tuple[float, list[float]]:
    import ctranslate2
    import sentencepiece

    tokenizer = sentencepiece.SentencePieceProcessor(f"{run}/tokenizer.model")
    pieces = sorted(tokenizer.encode(lines, out_type=str), key=len)
    translator = ctranslate2.Translator(
        run, compute_type=number, inter_threads=processes, intra_threads=threads
    )
    options = {"beam_size": beam, "max_decoding_length": LENGTH, "min_decoding_length": LENGTH}
    if size == 1:
        return latencies([lambda p=p: translator.translate_batch([p], **options) for p in pieces])
    options |= {"max_batch_size": size, "batch_type": "examples"}
    translator.translate_batch(pieces[: 4 * size], **options)
    started = time.perf_counter()
    found = translator.translate_batch(pieces, **options)
    seconds = time.perf_counter() - started
    return sum(len(one.hypotheses[0]) for one in found) / seconds, []


def measure_hf(run, lines, number, processes, threads, size, beam) -> tuple[float, list[float]]:
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(run)
    model = AutoModelForSeq2SeqLM.from_pretrained(run).eval()
    lines = sorted(lines, key=len)[: 4 * size]  # it is slow
    batches = [
        tokenizer(lines[start : start + size], return_tensors="pt", padding=True)
        for start in range(0, len(lines), size)
    ]
    options = {"min_new_tokens": LENGTH, "max_new_tokens": LENGTH, "num_beams": beam}
    with torch.inference_mode():
        model.generate(**batches[0], **options)
        started = time.perf_counter()
        for batch in batches:
            model.generate(**batch, **options)
    return LENGTH * len(lines) / (time.perf_counter() - started), []


def measure_eole(run, lines, number, processes, threads, size, beam) -> tuple[float, list[float]]:
    """`run`: its command, its model of the same shape and our tokenizer; without its loading."""
    import sentencepiece

    command, model, tokenizer = run.split(",")
    pieces = sentencepiece.SentencePieceProcessor(tokenizer).encode(lines, out_type=str)
    with tempfile.TemporaryDirectory() as folder:
        source, output = f"{folder}/source", f"{folder}/output"
        rows = [" ".join(one) for one in sorted(pieces, key=len)]
        Path(source).write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
        options = {"model_path": model, "src": source, "output": output, "beam_size": beam}
        options |= {"batch_size": size, "batch_type": "sents", "min_length": LENGTH}
        options |= {"max_length": LENGTH, "compute_dtype": number}
        flags = [part for name, value in options.items() for part in (f"-{name}", str(value))]
        log = subprocess.run(
            [command, "predict", *flags, "-report_time"],
            capture_output=True, text=True, check=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )  # fmt: skip
    said = log.stdout + log.stderr
    seconds = sum(map(float, re.findall(r"(?:Step 0 time|all) \(s\): ([0-9.]+)", said)))
    (words,) = re.findall(r"pred_words_total: ([0-9.]+)", said)
    return float(words) / seconds, []


def latencies(calls) -> tuple[float, list[float]]:
    """Tokens per second at the median latency, and the latencies in ms."""
    times = []
    for call in calls[:10] + calls[:100]:
        started = time.perf_counter()
        call()
        times.append(1_000 * (time.perf_counter() - started))
    times = sorted(times[10:])
    return 1_000 * LENGTH / statistics.median(times), times


MEASURES = {"ours": measure_ours, "ct2": measure_ct2, "hf": measure_hf, "eole": measure_eole}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run")
    parser.add_argument("source", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lines", type=int, default=640)
    parser.add_argument("--only", nargs="*", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument(
        "--eole", help="COMMAND,MODEL: also measure Eole with this model of its own"
    )
    parser.add_argument("--engines", nargs="*", choices=MEASURES, default=list(MEASURES))
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    given = parser.parse_args()
    lines = given.source.read_text(encoding="utf-8").splitlines()[: given.lines]
    if given.measure:
        engine, *settings = json.loads(given.measure)
        rate, times = MEASURES[engine](given.run, lines, *settings)
        print(json.dumps([rate, times and times[len(times) * 95 // 100]]))
        return
    with tempfile.TemporaryDirectory() as folder:
        runs = {"ours": given.run}
        if given.eole:
            runs["eole"] = f"{given.eole},{given.run}/tokenizer.model"
        formats = {"ct2": "ctranslate2", "hf": "huggingface"}
        for name, file_format in formats.items():
            if name not in given.engines:
                continue
            runs[name] = f"{folder}/{name}"
            command = ["export", given.run, "--format", file_format, "--output", runs[name]]
            subprocess.run([sys.executable, "-m", "seq2seq_cli", *command], check=True)
        for title in given.only:
            compare(title, given, runs)


def compare(title: str, given: argparse.Namespace, runs: dict[str, str]) -> None:
    systems = {name: setting for name, setting in SYSTEMS[title].items() if setting[0] in runs}
    found: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(given.rounds):
        for name, settings in systems.items():
            command = [sys.executable, __file__, runs[settings[0]], str(given.source)]
            is_ours = settings[0] == "ours"  # others have their own settings
            environment = torch_environment() if is_ours else dict(os.environ)
            output = subprocess.run(
                [*command, "--lines", str(given.lines), "--measure", json.dumps(settings)],
                stdout=subprocess.PIPE, text=True, check=True, env=environment,
            ).stdout  # fmt: skip
            found[name].append(json.loads(output.splitlines()[-1])[0])
            print(f"{title}: {name}: {found[name][-1]:,.0f}", file=sys.stderr, flush=True)
    first = next(iter(found))
    ours = found[first]
    heads = (title, "tokens/s, median (min to max)", f"{first}, in the same round")
    print(f"\n| {' | '.join(heads)} |\n|---|---|---|")
    for name, rates in found.items():
        ratios = [mine / rate for mine, rate in zip(ours, rates, strict=True)]
        print(
            f"| {name} | {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) "
            f"| {statistics.median(ratios):.2f}× ({min(ratios):.2f} to {max(ratios):.2f}) |"
        )


if __name__ == "__main__":
    main()
