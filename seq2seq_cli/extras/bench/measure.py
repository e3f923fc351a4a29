"""`seq2seq bench`: measures speed and memory of training and translation, and the utilization."""

import itertools
import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from seq2seq_cli.commands.dry_run import dry_run, peak_memory_mb, timed_update
from seq2seq_cli.config.loader import load_config
from seq2seq_cli.config.schema import Config
from seq2seq_cli.config.types import DeviceName
from seq2seq_cli.console import counted, table
from seq2seq_cli.data.batches import Batch
from seq2seq_cli.decoding.backends import NativeBackend
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder
from seq2seq_cli.decoding.engines.native_model import unsupported
from seq2seq_cli.decoding.translation import TranslationInput
from seq2seq_cli.decoding.translator import Translator, input_of
from seq2seq_cli.errors import UserError
from seq2seq_cli.evaluation import located
from seq2seq_cli.extras.inspect.costs import update_flops
from seq2seq_cli.machine import peak_memory, retain_freed_pages
from seq2seq_cli.model.device import choose_device, has_fast_bf16
from seq2seq_cli.native import library as native
from seq2seq_cli.processes import call_in_new_process
from seq2seq_cli.run_folder import RunFolder
from seq2seq_cli.text.corpus import read_pairs
from seq2seq_cli.text.io import lines_to_translate
from seq2seq_cli.training.parallel.strategy import seconds_now
from seq2seq_cli.training.run import Run

_CEILING_SECONDS = 1.0
_CEILING_SIZES = {"cpu": 2_048, "cuda": 8_192}
_WARM_UP = 64  # lines


@dataclass(frozen=True)
class TrainingSpeed:
    """Measurements of the updates after warm-up: totals of all processes, times of the main one."""

    precision: str
    processes: int
    threads: int  # of each process
    updates: int
    tokens_per_second: float  # target tokens, padding excluded
    tokens_per_update: float
    padding: float  # fraction of the positions of both sides
    ms_per_update: float
    ms_data: float
    ms_forward: float  # includes the loss, and the gradient of the output layer computed with it
    ms_backward: float  # includes gradient clipping, waiting and communication
    ms_waiting: float | None  # for the slowest process, on average; None if the model is sharded
    ms_communication: float | None  # summing the gradients of all processes after that
    ms_optimizer: float
    peak_memory_mb: float  # of all processes; resident, or allocated on their GPUs
    gflops: float  # GFLOP/s of products with weight matrices; without attention and embeddings
    ceiling_fp32_gflops: float  # GFLOP/s of square matrix products on all cores
    ceiling_bf16_gflops: float
    share_of_ceiling: float  # utilization: the fraction of the ceiling in the training precision

    def table(self) -> str:
        """Return the output of `bench train`."""
        parts = [
            ("  data", self.ms_data),
            ("  forward and loss", self.ms_forward),
            ("  backward, clipping", self.ms_backward),
            ("  optimizer", self.ms_optimizer),
        ]
        if self.processes > 1 and self.ms_waiting is not None and self.ms_communication is not None:
            parts.insert(3, ("    waiting for others", self.ms_waiting))
            parts.insert(4, ("    communication", self.ms_communication))
        rows = [
            ("target tokens/s", f"{self.tokens_per_second:,.0f}"),
            ("tokens per update", f"{self.tokens_per_update:,.0f} ({self.padding:.1%} padding)"),
            ("time per update", f"{self.ms_per_update:,.1f} ms"),
            *((name, f"{ms:,.1f} ms ({ms / self.ms_per_update:.0%})") for name, ms in parts),
            ("peak memory", f"{self.peak_memory_mb:,.0f} MB"),
            ("matrix products", f"{_rounded(self.gflops)} GFLOP/s"),
            (
                "  ceiling",
                f"{_rounded(self.ceiling_fp32_gflops)} GFLOP/s in fp32, "
                f"{_rounded(self.ceiling_bf16_gflops)} in bf16",
            ),
            ("  utilization", f"{self.share_of_ceiling:.1%}, training in {self.precision}"),
            ("processes", f"{self.processes}, each with {counted(self.threads, 'thread')}"),
        ]
        return "\n".join(f"{label:<20} {text}" for label, text in rows)


def _rounded(gflops: float) -> str:
    return f"{gflops:,.0f}" if gflops >= 10 else f"{gflops:.3g}"


def measure_training(config: Config, warmup: int, updates: int) -> TrainingSpeed | None:
    """Train briefly in a temporary folder and measure; UserError as for `train`.

    Returns None in all processes of torchrun but the main one.
    """
    return dry_run(partial(_measure_training, warmup, updates), config)


def _measure_training(warmup: int, updates: int, run: Run) -> TrainingSpeed:
    parallel = run.parallel
    for _ in range(warmup):
        timed_update(run)
    parallel.waiting_and_communication()  # of the warm-up
    tokens = src_tokens = positions = 0
    parts = _Parts(run)
    for _ in range(updates):
        for batch in parts.update():
            tokens += batch.num_tokens
            src_tokens += batch.num_src_tokens
            positions += batch.num_positions
    ms = {name: 1000 * seconds / updates for name, seconds in parts.seconds.items()}
    seconds = sum(ms.values()) / 1000 * updates
    lost = parallel.waiting_and_communication()
    memory = parallel.all_reduce_sum(peak_memory_mb(run.device))
    with parallel.all_threads():
        devices = parallel.world_size if run.device.type == "cuda" else 1
        ceilings = [
            devices * _ceiling_gflops(run.device, dtype) if parallel.is_main else 0.0
            for dtype in (torch.float32, torch.bfloat16)
        ]
    parallel.barrier()
    by_token = update_flops(run.model)
    flops = float(by_token["src"] * src_tokens + by_token["tgt"] * tokens)
    gflops = run.config.training.passes * flops / seconds / 1e9
    return TrainingSpeed(
        precision="bf16" if run.use_bf16 else "fp32",
        processes=parallel.world_size,
        threads=torch.get_num_threads(),
        updates=updates,
        tokens_per_second=tokens / seconds,
        tokens_per_update=tokens / updates,
        padding=1 - (tokens + src_tokens) / positions,
        ms_per_update=sum(ms.values()),
        **{f"ms_{name}": part for name, part in ms.items()},
        ms_waiting=None if lost is None else 1000 * lost[0] / updates,
        ms_communication=None if lost is None else 1000 * lost[1] / updates,
        peak_memory_mb=memory,
        gflops=gflops,
        ceiling_fp32_gflops=ceilings[0],
        ceiling_bf16_gflops=ceilings[1],
        share_of_ceiling=gflops / (ceilings[run.use_bf16] or math.inf),
    )


class _Parts:
    """The seconds of all updates, by part, as hooks on the code that trains tell them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.seconds = dict.fromkeys(("data", "forward", "backward", "optimizer"), 0.0)
        self._last = 0.0
        run.loss.register_forward_pre_hook(lambda *_: self._note("backward"))
        run.loss.register_forward_hook(lambda *_: self._note("forward"))
        run.optimizer.register_step_pre_hook(lambda *_: self._note("backward"))

    def update(self) -> Sequence[Batch]:
        """Make the next update, and return its batches."""
        run, self._last = self._run, seconds_now(self._run.device)
        batches = run.next_batches()
        self._note("data")
        timed_update(run, batches)
        self._note("optimizer")
        run.advance(batches)
        return batches

    def _note(self, name: str) -> None:
        """Add the time since the last note to this part."""
        now = seconds_now(self._run.device)
        self.seconds[name] += now - self._last
        self._last = now


def _ceiling_gflops(device: torch.device, dtype: torch.dtype) -> float:
    """Return the speed of the fastest of many products of square matrices."""
    size = _CEILING_SIZES[device.type]
    if dtype == torch.bfloat16 and not has_fast_bf16(device):
        size //= 8  # PyTorch computes large ones for minutes
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    best, begun = math.inf, time.perf_counter()
    while time.perf_counter() - begun < _CEILING_SECONDS:
        started = time.perf_counter()
        a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best / 1e9


class DecodingSpeed(NamedTuple):
    """The measurements of one precision."""

    precision: str
    engine: str  # C with its kernels, or PyTorch
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
    if any(override.startswith("decoding.precision") for override in overrides):
        raise UserError("bench translate measures each --precision: leave out decoding.precision")
    run = RunFolder(run_dir)
    run.weights()  # reports errors before processes are started
    if precisions is None:
        precisions = _fast_precisions(load_config(run.config, overrides), choose_device(device))
    for precision in precisions:
        load_config(run.config, [*overrides, f"decoding.precision={precision}"])
    if source is not None:
        texts = itertools.islice(lines_to_translate(source), num_lines)
        lines = [TranslationInput(text) for text in texts]
    else:
        config = load_config(run.config)
        text = located(config.valid_text, run_dir) if config.valid_text else None
        if text is None:
            raise UserError(f"{run_dir} has no validation text here: give --input")
        pairs = itertools.islice(read_pairs(text, config.data.on_bad_line), num_lines)
        lines = [input_of(pair) for pair in pairs if pair is not None]
    if not lines:
        raise UserError(f"{source or 'the validation text'} has no lines")
    return [
        call_in_new_process(
            partial(_measure_decoding, run_dir, precision, overrides, device, lines)
        )
        for precision in precisions
    ]


def _fast_precisions(config: Config, device: torch.device) -> list[str]:
    """Return the precisions that the device supports, and the engine."""
    if device.type != "cpu":
        return ["fp32", "bf16"]
    in_c = config.decoding.engine != "plain" and unsupported(config.model, "int8") is None
    is_fast = has_fast_bf16(device) or (in_c and "bf16" in native.precisions())
    return ["fp32", *["bf16"] * is_fast, *["int8"] * in_c]


def decoding_table(speeds: Sequence[DecodingSpeed]) -> str:
    """Return the output of `bench translate`."""
    rows = [list(_COLUMNS)]
    for speed in speeds:
        rows.append([format(getattr(speed, name), form) for name, form in _COLUMNS.values()])
    return table(rows)


def _measure_decoding(
    run_dir: Path,
    precision: str,
    overrides: Sequence[str],
    device: DeviceName,
    lines: Sequence[TranslationInput],
) -> DecodingSpeed:
    retain_freed_pages()
    started = time.perf_counter()
    settings = [*overrides, f"decoding.precision={precision}"]
    translator = Translator.load(run_dir, device, settings)
    load_seconds = time.perf_counter() - started
    translator.search(lines[:_WARM_UP], report=lambda issues: None)
    started = time.perf_counter()
    results = translator.search(lines)
    seconds = time.perf_counter() - started
    num_tokens = sum(len(translations[0].tokens) + 1 for translations in results)
    latencies = []
    for line in lines[: _WARM_UP * 2]:
        started = time.perf_counter()
        translator.search([line], report=lambda issues: None)
        latencies.append(time.perf_counter() - started)
    latencies.sort()
    return DecodingSpeed(
        precision=precision,
        engine=_engine_of(translator),
        load_seconds=load_seconds,
        sentences_per_second=len(lines) / seconds,
        tokens_per_second=num_tokens / seconds,
        p50_ms=1_000 * statistics.median(latencies),
        p95_ms=1_000 * latencies[math.ceil(0.95 * len(latencies)) - 1],
        memory_mb=peak_memory() / 1e6,
    )


def _engine_of(translator: Translator) -> str:
    backend = translator.backend
    in_c = isinstance(backend, NativeBackend) or isinstance(backend.decoder, CpuDecoder)
    return f"C, {native.kernels_name()}" if in_c else "PyTorch"
