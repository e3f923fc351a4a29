"""What launched processes do in tests; they import this file, which needs no pytest."""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from bare_runs import SGD, bare_run, random_batch
from safetensors.torch import save_file

from seq2seq_cli.config.schema import Config, ModelConfig
from seq2seq_cli.data.batches import number_pairs
from seq2seq_cli.errors import UserError
from seq2seq_cli.model.transformer import Transformer
from seq2seq_cli.native import library as native
from seq2seq_cli.processes import unblock_signals
from seq2seq_cli.training.losses.cross_entropy import BatchLoss
from seq2seq_cli.training.parallel.process_group import process_group
from seq2seq_cli.training.step import train_step


def one_update(config: Config, folder: Path) -> tuple[float, float]:
    """One update of plain SGD, so that the weights show the gradient.

    A process may go without a sentence.
    """
    with process_group(config) as parallel:
        torch.manual_seed(5)
        dropout = 0.3 if native.has_training_kernels() else 0.0
        shape = ModelConfig(d_model=16, heads=2, layers=1, d_ff=32, dropout=dropout)
        batch_loss = BatchLoss(Transformer(shape, 30, 30, True, 0), 0.1, use_bf16=False)
        optimizer = SGD(batch_loss.parameters(), lr=0.1)
        batches = [random_batch(7, seed=1), random_batch(1, seed=2), random_batch(4, seed=3)]
        run = bare_run(batch_loss, optimizer, config.training, parallel)
        update = train_step(run, number_pairs(batches))
        path = folder / f"{parallel.world_size}-{parallel.rank}.safetensors"
        save_file({n: p.detach().clone() for n, p in batch_loss.named_parameters()}, path)
        assert parallel.all_reduce_max(float(parallel.rank)) == parallel.world_size - 1
        assert parallel.broadcast(10.0 + parallel.rank) == 10.0
    return update.loss, update.grad_norm


class DiesWhenSent:
    """A function that ends the process it is sent to before that one can connect."""

    def __call__(self) -> None: ...

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (7,)


class SignalsWhenSent:
    """A function that raises a signal in the first process when it is sent to the others."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __call__(self) -> None: ...

    def __reduce__(self) -> tuple[Any, ...]:
        signal.raise_signal(self.number)
        return SignalsWhenSent, (self.number,)


def wait_forever() -> None:
    threading.Event().wait()  # as in a validation of hours, without a collective


def signal_and_wait(pid: int, number: signal.Signals) -> None:
    """Send a process a signal, and wait until it passes it on."""
    os.kill(pid, number)
    wait_forever()


def signal_and_finish(pid: int, number: signal.Signals) -> None:
    """Send a process a signal, and do not mind that it passes it on."""
    signal.signal(number, signal.SIG_IGN)
    os.kill(pid, number)


def fail_in_the_other(config: Config, action: Callable[[], None]) -> None:
    """The main process waits outside of collectives while the other one fails."""
    with process_group(config) as parallel:
        parallel.barrier()
        wait_forever() if parallel.is_main else action()


def refuse(config: Config) -> None:
    with process_group(config) as parallel:
        parallel.barrier()
        if not parallel.is_main:
            raise UserError("the ids are gone")
        parallel.barrier()


def fail(config: Config) -> None:
    with process_group(config) as parallel:
        if parallel.is_main:
            raise RuntimeError("a bug of the main process")
        parallel.barrier()


def refuse_in_main(config: Config) -> None:
    with process_group(config) as parallel:
        if parallel.is_main:
            raise UserError("the ids are gone")
        parallel.barrier()


def run_script(module: str, arguments: list[str], output: Path) -> None:
    """Run a script in this process, a fork of one that has made its imports; write what it says."""
    unblock_signals()
    with output.open("wb") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = [module, *arguments]
    importlib.import_module(module).main()
