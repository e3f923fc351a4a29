"""The native library under AddressSanitizer and UndefinedBehaviorSanitizer, on random models.

    PYTHONPATH=tests python -m faults.sanitize --models 60 --seed 1

With all kernels and precisions that the processor has: sizes that fill no register, any number of
heads, widths, sentences and threads; hypotheses that are reordered and sentences that leave at
random. What is read or written beyond an array, or computed without a meaning, ends the process;
the logits must be the logits of a twin in PyTorch that rounds in the same way, searches must find
what the general search finds, and gradients must be the gradients without the kernels of training.
"""

import argparse
import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import torch
from commands import ROOT
from compiling import (
    COMPILER,
    EMULATION_FLAGS,
    EMULATION_PATCHES,
    SANITIZERS,
    compile_library,
    copy_sources,
)
from random_searches import Stepwise, assert_same, random_config, random_requests
from rounded_models import rounded
from small_models import build
from torch.nn.utils.rnn import pad_sequence

from seq2seq_cli.decoding.engines.base import Ensemble, PlainDecoder, PlainDecodingState
from seq2seq_cli.decoding.engines.cpu_decoder import CpuDecoder, CpuDecodingState
from seq2seq_cli.decoding.search import native_search
from seq2seq_cli.decoding.search.search import search
from seq2seq_cli.model.dropout import Dropout
from seq2seq_cli.model.packing import Packed
from seq2seq_cli.native import fused
from seq2seq_cli.native import library as native
from seq2seq_cli.native.sources import LIBRARY_NAME
from seq2seq_cli.tokenizers.tokenizer import BOS_ID, EOS_ID, PAD_ID

EMULATED = "with the instructions of newer processors emulated"
SLOWER = 6  # times, about: it gets fewer models
THREADED = {
    "LOOP_THRESHOLD = 1 << 19": "LOOP_THRESHOLD = 1",
    "PASS_THRESHOLD = 40 << 20": "PASS_THRESHOLD = 1",
    "MANY_LOGITS = 1 << 20": "MANY_LOGITS = 1",
}
# Name: what is put in place of what, and options of the compiler.
BUILDS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "as it is installed": ({}, ()),
    "with threads in every loop": (THREADED, ()),
}
if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
    BUILDS[EMULATED] = (EMULATION_PATCHES, EMULATION_FLAGS)
KERNELS = ("amx", "avx512", "avxvnni", "avx2", "i8mm", "dotprod", "neon", "plain")
# Of the logits' norm: a number between two that can be rounded to may become the other.
WORST = {"fp32": 3e-5, "bf16": 0.03, "int8": 0.1}
WORST_GRADIENT = {"fp32": 1e-3, "bf16": 0.2}  # of its norm
NARROWEST = 8  # d_model: LayerNorm of fewer numbers magnifies rounding


def random_options(random: Random) -> tuple[int, dict[str, Any]]:
    """A vocabulary size, and options of a model."""
    heads = random.choice((1, 1, 2, 3, 4, 8, 16))
    size = random.choice((1, 2, 5, 8, 15, 16, 17, 32, 33, 64))
    d_model = min(heads * size, 512)
    d_model -= d_model % (2 * heads)  # positions have pairs of sines and cosines
    d_model = d_model or 2 * heads
    vocabulary = random.choice((4, 5, 12, 63, 64, 65, 300))
    can_rotate = d_model // heads % 2 == 0 and random.random() < 0.5
    return vocabulary, {
        "d_model": d_model,
        "heads": heads,
        "d_ff": random.choice((1, 3, 16, 30, 64, 100, 256)),
        "layers": {"encoder": random.randint(1, 3), "decoder": random.randint(1, 3)},
        "norm": random.choice(("pre", "post")),
        "activation": random.choice(("relu", "gelu", "silu")),
        "attention_bias": random.random() < 0.5,
        "ngrams": random.choice((1, 3, 16)),
        "ngram_buckets": random.choice((2, 30)),
        "positions": "rotary" if can_rotate else "sinusoidal",
    }


def random_model(random: Random, precision: str) -> tuple[PlainDecoder, CpuDecoder, int]:
    """The reference model in PyTorch, the decoder in C, and their vocabulary size."""
    vocabulary, options = random_options(random)
    model = build(random.randrange(10**6), vocabulary, **options)
    return PlainDecoder(rounded(model, precision)), CpuDecoder(model, precision), vocabulary


def walk(random: Random, precision: str) -> None:
    """Decode with random choices and compare the logits of both at each step."""
    twin, decoder, vocabulary = random_model(random, precision)
    sentences = random.choice((1, 1, 2, 5, 16, 17, 40, 130))
    lengths = [random.randint(1, random.choice((3, 20, 70))) for _ in range(sentences)]
    src = torch.full((sentences, max(lengths)), PAD_ID)
    for row, length in enumerate(lengths):
        src[row, :length] = torch.randint(4, 12, (length,))
        src[row, length - 1] = EOS_ID
    both = twin.start(src), decoder.start(src)
    last = torch.full((sentences, 1), BOS_ID)
    for _ in range(random.randint(1, 40 if sentences < 40 else 5)):
        torch.set_num_threads(random.randint(1, 3))
        step(*both, last, precision)
        if random.random() < 0.3:
            origin = torch.randint(0, last.size(1), (len(last), random.randint(1, 9)))
            last = reordered(both, last, origin)
        if random.random() < 0.1:
            rows = torch.tensor(random.sample(range(len(last)), random.randint(1, len(last))))
            for states in both:
                states.keep(rows)
            last = last[rows]
        last = torch.randint(0, vocabulary, last.shape)
        last[last == PAD_ID] = EOS_ID  # the model looks at no padding


def reordered(
    both: tuple[PlainDecodingState, CpuDecodingState], last: torch.Tensor, origin: torch.Tensor
):
    for states in both:
        states.reorder(origin)
    return last.gather(1, origin)


def step(
    twin: PlainDecodingState,
    states: CpuDecodingState,
    last: torch.Tensor,
    precision: str,
) -> None:
    with torch.inference_mode():
        expected, logits = twin.logits(last), states.logits(last)
        size = expected.size(-1)
        assert (logits[..., :size] - expected).norm() <= WORST[precision] * expected.norm()
        assert (logits[..., size:] == -torch.inf).all()


def search_and_score(random: Random, precision: str) -> None:
    """Search as the general search does, and score what was found."""
    _, decoder, _ = random_model(random, precision)
    config, text_of = random_config(random)
    requests, threads = random_requests(random), random.randint(1, 3)
    members = random.choice((1, 1, 3))
    models, decoders = [decoder.native_model] * members, [Stepwise(decoder)] * members
    found = native_search.search(models, requests, config, text_of, threads)
    general = Ensemble(decoders) if members > 1 else decoders[0]
    assert_same(found, search(general, requests, config, text_of=text_of))
    pairs = [
        (request.src[:-1], best.ids) for request, (best, *_) in zip(requests, found, strict=True)
    ]
    scores = native_search.score(
        models, pairs, 4096, with_attention=random.random() < 0.5, threads=threads
    )
    if config.width > 1 and config.alpha == 0:
        for (log_probs, _), (best, *_) in zip(scores, found, strict=True):
            assert abs(sum(log_probs) - best.score) <= 1e-3 * (1 + abs(best.score))


def differentiate(random: Random, precision: str) -> None:
    """Compare gradients of a packed batch in training with the gradients in evaluation mode."""
    vocabulary, options = random_options(random)
    while options["d_model"] < NARROWEST:
        vocabulary, options = random_options(random)
    model = build(random.randrange(10**6), vocabulary, **options)
    sentences = random.choice((1, 2, 5, 17))
    src, tgt = (
        pad_sequence(
            [torch.randint(1, size, (random.randint(1, 70),)) for _ in range(sentences)], True
        )
        for size in (12, vocabulary)
    )
    torch.set_num_threads(random.randint(1, 3))

    def gradients(training: bool, dropout: float = 0.0) -> torch.Tensor:
        model.train(training).zero_grad()
        for module in model.modules():
            if isinstance(module, Dropout):
                module.p = dropout
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            layout_of = functools.partial(Packed, numbers_B=torch.arange(len(src)))
            states, layout = model.forward_hidden(src, tgt, layout_of)
            logits = model.projection(states)[0, : layout.num_tokens].float()
        labels = torch.randint(0, vocabulary, (len(logits),))
        p, _, _ = fused.softmax(logits.detach().clone(), labels, in_place=True)
        assert (p - logits.detach().softmax(-1)).abs().max() < 1e-5
        (logits * weights[: len(logits)]).sum().backward()
        return torch.cat([x.grad.flatten() for x in model.parameters() if x.grad is not None])

    weights = torch.randn(sentences * 70, vocabulary)
    found, expected = gradients(training=True), gradients(training=False)
    assert (found - expected).norm() <= WORST_GRADIENT[precision] * (expected.norm() + 1e-3)
    assert gradients(training=True, dropout=0.3).isfinite().all()


def run_here(models: int, seed: int) -> None:
    """Run in a process that loads the instrumented library."""
    assert not Path(native.__file__).is_relative_to(ROOT)
    for kernels in KERNELS:
        for precision in sorted(native.choose_kernels(kernels)):
            for number in range(models):
                random = Random(f"{seed}/{number}")
                torch.manual_seed(random.randrange(10**6))
                try:
                    walk(random, precision)
                    search_and_score(random, precision)
                    if precision in WORST_GRADIENT:
                        differentiate(random, precision)
                except AssertionError:
                    print(f"{kernels}, {precision}, seed {seed}, model {number}", flush=True)
                    raise
            print(f"  {kernels}, {precision}: {models} models", flush=True)


def run_build(name: str, models: int, seed: int) -> int:
    print(f"{name}:", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "seq2seq_cli")
        shutil.copytree(ROOT / package.name, package, ignore=shutil.ignore_patterns("*.so"))
        sources, (replaced, options) = package / "native", BUILDS[name]
        copy_sources(sources, replaced)
        compile_library(sources, sources / LIBRARY_NAME, *SANITIZERS, *options)
        environment = os.environ | {
            "LD_PRELOAD": f"{runtime('libasan.so')} {runtime('libubsan.so')}",
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT / 'tests'}",
        }
        models = -(-models // SLOWER) if name == EMULATED else models
        command = ["--models", str(models), "--seed", str(seed), "--here"]
        return subprocess.run(
            [sys.executable, "-m", "faults.sanitize", *command], cwd=folder, env=environment
        ).returncode


def runtime(name: str) -> str:
    """The path of the compiler's runtime library of a sanitizer."""
    assert COMPILER is not None
    command = [COMPILER, f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models",
        type=int,
        default=60,
        help="of each precision and build; fewer where instructions are emulated",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        run_here(given.models, given.seed)
        return
    failed = [name for name in BUILDS if run_build(name, given.models, given.seed)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")
    print("no report, and every logit as it should be")


if __name__ == "__main__":
    main()
