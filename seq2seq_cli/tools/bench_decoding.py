"""How fast a run translates on this machine, and in how much memory."""

import itertools
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.types import DeviceName
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.decoding.translator import Translator
from seq2seq_cli.errors import UserError
from seq2seq_cli.machine import peak_memory
from seq2seq_cli.model.device import choose_device
from seq2seq_cli.model.malloc import retain_freed_pages
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import read_pairs
from seq2seq_cli.text.io import lines_to_translate

_WARM_UP = 64  # lines


class DecodingSpeed(NamedTuple):
    """Of one precision."""

    precision: str
    made_by: str  # "C" or "PyTorch"
    load_seconds: float
    sentences_per_second: float
    tokens_per_second: float  # of the output, EOS included
    p50_ms: float  # of one sentence at a time
    p95_ms: float
    memory_mb: float  # highest resident memory of the process


def measure_decoding(
    run_dir: Path,
    precisions: Sequence[str] | None,
    overrides: Sequence[str],
    device: DeviceName,
    source: Path | None,
    num_lines: int,
) -> list[DecodingSpeed]:
    """Each precision (None: all) in a process of its own; on a file, or on validation text."""
    is_cpu = choose_device(device).type == "cpu"
    precisions = precisions or (["fp32", "bf16", "int8"] if is_cpu else ["fp32", "bf16"])
    RunFolder(run_dir).weights()  # says what is wrong before processes are started
    for precision in precisions:
        load_config(RunFolder(run_dir).config, [f"decoding.precision={precision}", *overrides])
    lines = _lines(run_dir, source, num_lines)
    found = []
    for precision in precisions:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            arguments = (run_dir, precision, tuple(overrides), device, lines)
            found.append(pool.submit(_measure, *arguments).result())
    return found


def table(speeds: Sequence[DecodingSpeed]) -> str:
    """What `bench translate` prints."""
    head = (
        "precision",
        "made by",
        "sentences/s",
        "tokens/s",
        "p50 ms",
        "p95 ms",
        "load s",
        "memory MB",
    )
    rows = [
        (
            one.precision,
            one.made_by,
            f"{one.sentences_per_second:,.1f}",
            f"{one.tokens_per_second:,.0f}",
            f"{one.p50_ms:.1f}",
            f"{one.p95_ms:.1f}",
            f"{one.load_seconds:.1f}",
            f"{one.memory_mb:,.0f}",
        )
        for one in speeds
    ]
    return "\n".join("".join(f"{cell:>13}" for cell in row) for row in (head, *rows))


def _measure(
    run_dir: Path,
    precision: str,
    overrides: Sequence[str],
    device: DeviceName,
    lines: Sequence[str],
) -> DecodingSpeed:
    retain_freed_pages()
    started = time.perf_counter()
    translator = Translator.load(run_dir, device, [f"decoding.precision={precision}", *overrides])
    load_seconds = time.perf_counter() - started
    translator.translate(lines[:_WARM_UP])
    started = time.perf_counter()
    found = translator.search([TranslationInput(line) for line in lines])
    seconds = time.perf_counter() - started
    num_tokens = sum(len(translations[0].tokens) + 1 for translations in found)
    latencies = sorted(_seconds_of(translator, line) for line in lines[: _WARM_UP * 2])
    return DecodingSpeed(
        precision=precision,
        made_by="C" if isinstance(translator.decoder, CpuDecoder) else "PyTorch",
        load_seconds=load_seconds,
        sentences_per_second=len(lines) / seconds,
        tokens_per_second=num_tokens / seconds,
        p50_ms=1_000 * statistics.median(latencies),
        p95_ms=1_000 * latencies[int(0.95 * (len(latencies) - 1))],
        memory_mb=peak_memory() / (1 << 20),
    )


def _seconds_of(translator: Translator, line: str) -> float:
    started = time.perf_counter()
    translator.translate([line])
    return time.perf_counter() - started


def _lines(run_dir: Path, source: Path | None, num_lines: int) -> list[str]:
    if source is not None:
        found = list(itertools.islice(lines_to_translate(source), num_lines))
    else:
        config = load_config(RunFolder(run_dir).config)
        valid = config.data.valid
        if valid is None or not all(path.is_file() for path in valid.files):
            raise UserError("the run's validation text is not there: give --input")
        pairs = itertools.islice(read_pairs(valid, config.data.on_bad_line), num_lines)
        found = [pair.src for pair in pairs if pair is not None]
    if not found:
        raise UserError(f"{source} has no lines")
    return found


def report(speeds: Sequence[DecodingSpeed]) -> list[dict[str, Any]]:
    """What `bench translate --json` prints."""
    return [one._asdict() for one in speeds]
