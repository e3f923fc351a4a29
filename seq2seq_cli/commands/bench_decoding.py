"""`seq2seq bench translate`: measures the speed and memory of translation."""

import itertools
import statistics
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.types import DeviceName
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.decoding.translator import Translator, input_of
from seq2seq_cli.errors import UserError
from seq2seq_cli.machine import peak_memory, retain_freed_pages
from seq2seq_cli.model.device import choose_device
from seq2seq_cli.processes import call_in_new_process
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import read_pairs
from seq2seq_cli.text.io import lines_to_translate

_WARM_UP = 64  # lines


class DecodingSpeed(NamedTuple):
    """The measurements of one precision."""

    precision: str
    engine: str  # "C" or "PyTorch"
    load_seconds: float
    sentences_per_second: float
    tokens_per_second: float  # output tokens, EOS included
    p50_ms: float  # latency of one sentence at a time
    p95_ms: float
    memory_mb: float  # peak resident memory of the process


_COLUMNS = {
    "precision": ("precision", ""),
    "engine": ("engine", ""),
    "sentences/s": ("sentences_per_second", ",.1f"),
    "tokens/s": ("tokens_per_second", ",.0f"),
    "p50 ms": ("p50_ms", ".1f"),
    "p95 ms": ("p95_ms", ".1f"),
    "load s": ("load_seconds", ".1f"),
    "memory MB": ("memory_mb", ",.0f"),
}


def measure_decoding(
    run_dir: Path,
    precisions: Sequence[str] | None,
    overrides: Sequence[str],
    device: DeviceName,
    source: Path | None,
    num_lines: int,
) -> list[DecodingSpeed]:
    """Translate a file or the validation text in each precision (None: all), in new processes."""
    is_cpu = choose_device(device).type == "cpu"
    precisions = precisions or (["fp32", "bf16", "int8"] if is_cpu else ["fp32", "bf16"])
    run = RunFolder(run_dir)
    run.weights()  # reports errors before processes are started
    for precision in precisions:
        load_config(run.config, [f"decoding.precision={precision}", *overrides])
    lines = _lines(run, source, num_lines)
    return [
        call_in_new_process(
            partial(
                _measure,
                run_dir,
                precision,
                (f"decoding.precision={precision}", *overrides),
                device,
                lines,
            )
        )
        for precision in precisions
    ]


def table(speeds: Sequence[DecodingSpeed]) -> str:
    """Return the output of `bench translate`."""
    rows = [list(_COLUMNS)]
    for speed in speeds:
        rows.append([format(getattr(speed, name), form) for name, form in _COLUMNS.values()])
    return "\n".join("".join(f"{cell:>13}" for cell in row) for row in rows)


def _measure(
    run_dir: Path,
    precision: str,
    overrides: Sequence[str],
    device: DeviceName,
    lines: Sequence[TranslationInput],
) -> DecodingSpeed:
    retain_freed_pages()
    started = time.perf_counter()
    translator = Translator.load(run_dir, device, overrides)
    load_seconds = time.perf_counter() - started
    translator.search(lines[:_WARM_UP])
    started = time.perf_counter()
    results = translator.search(lines)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(translations[0].tokens) + 1 for translations in results)
    latencies = []
    for line in lines[: _WARM_UP * 2]:
        started = time.perf_counter()
        translator.search([line])
        latencies.append(time.perf_counter() - started)
    latencies.sort()
    return DecodingSpeed(
        precision=precision,
        engine="C" if isinstance(translator.decoder, CpuDecoder) else "PyTorch",
        load_seconds=load_seconds,
        sentences_per_second=len(lines) / seconds,
        tokens_per_second=num_tokens / seconds,
        p50_ms=1_000 * statistics.median(latencies),
        p95_ms=1_000 * latencies[int(0.95 * (len(latencies) - 1))],
        memory_mb=peak_memory() / (1 << 20),
    )


def _lines(run: RunFolder, source: Path | None, num_lines: int) -> list[TranslationInput]:
    if source is not None:
        texts = itertools.islice(lines_to_translate(source), num_lines)
        lines = [TranslationInput(text) for text in texts]
    else:
        config = load_config(run.config)
        text = config.valid_text
        if text is None or not all(path.is_file() for path in text.files):
            raise UserError("the run's validation text does not exist: give --input")
        pairs = itertools.islice(read_pairs(text, config.data.on_bad_line), num_lines)
        lines = [input_of(pair) for pair in pairs if pair is not None]
    if not lines:
        raise UserError(f"{source or 'the validation text'} has no lines")
    return lines
