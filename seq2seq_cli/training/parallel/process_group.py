"""Joins the processes that train together, each of which then has its training strategy."""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from seq2seq_cli import plugins
from seq2seq_cli.config.schema import Config
from seq2seq_cli.errors import Interrupted, UserError
from seq2seq_cli.machine import PARENT
from seq2seq_cli.model.device import choose_device
from seq2seq_cli.training.parallel.strategy import DataParallel, SingleProcess

RUN_ID = "seq2seq-cli.launcher"  # of processes that `launcher.py` started
WHAT_NOW = "the same command resumes from the last checkpoint"

_LONGEST_WAIT = timedelta(days=7)  # for a validation; the launcher notices a process that died
_LONGEST_UPDATE = timedelta(minutes=30)  # or saving, or the rendezvous
_SECONDS_OF_A_LOCK = 120.0  # at most, of a machine that is gone: 90 is the lease time of NFS
_SECONDS_TO_BE_ENDED = 10.0  # by the launcher, after another process has failed
_SECONDS_FOR_MAIN = 1.0  # to end for the same reason, and be the one that reports it


def is_started_by_torchrun() -> bool:
    """Return True if this is a process of `torchrun`, which may start it again on any machine."""
    return os.environ.get("TORCHELASTIC_RUN_ID", RUN_ID) != RUN_ID


def is_started_by_launcher() -> bool:
    """Return True if this process is one of several that were started to train together."""
    return "TORCHELASTIC_RUN_ID" in os.environ or distributed.is_initialized()


@contextmanager
def process_group(config: Config) -> Iterator[SingleProcess]:
    """Join the processes that train together; alone unless a launcher has started this one.

    A process group of the caller is used as it is. Of processes that fail together the main one
    reports the reason; one that lost its connection waits for the launcher, which knows more.
    """
    if distributed.is_initialized():
        group = distributed.new_group(backend="gloo", timeout=_LONGEST_WAIT)
        try:
            yield _strategy(config, group, threads=1)
        finally:
            distributed.destroy_process_group(group)
        return
    if not is_started_by_launcher():
        yield SingleProcess()
        return
    machines = plugins.load("elastic", "machines") if is_started_by_torchrun() else None
    if machines is not None:
        machines.stop_with_agent()
    parallel = _join_launched_group(config)
    with ExitStack() as stack:
        try:
            if machines is not None:
                stack.enter_context(machines.watched_machines(parallel.broadcast, PARENT))
            yield parallel
        except Interrupted as stop:
            if parallel.is_main:
                raise
            time.sleep(_SECONDS_FOR_MAIN)
            raise SystemExit(stop.exit_status) from None
        except UserError:
            if not parallel.is_main:
                time.sleep(_SECONDS_FOR_MAIN)
            raise
        except RuntimeError as error:
            if not (isinstance(error, distributed.DistError) or "gloo" in str(error)):
                raise
            time.sleep(_SECONDS_TO_BE_ENDED)
            raise UserError(f"lost another process ({error}); {WHAT_NOW}") from None
        finally:
            distributed.destroy_process_group()


def _join_launched_group(config: Config) -> SingleProcess:
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    check_gpus(config, local_size)
    backend = "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
        backend = "cpu:gloo,cuda:nccl"
    longest = _LONGEST_UPDATE if is_started_by_torchrun() else _LONGEST_WAIT
    store, rank, world_size = next(rendezvous("env://", timeout=longest))
    if is_started_by_torchrun() and os.environ.get("GROUP_WORLD_SIZE") == "1":
        # Of one machine, torchrun 2.13 keeps the addresses of processes that it starts again; for
        # several, docs/machines.md sets TORCH_DISABLE_SHARE_RDZV_TCP_STORE.
        store = distributed.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)  # type: ignore[attr-defined]
    distributed.init_process_group(
        backend, store=store, rank=rank, world_size=world_size, timeout=longest
    )
    group = distributed.new_group(backend="gloo", timeout=_LONGEST_WAIT)
    parallel = _strategy(config, group, torch.get_num_threads() * local_size)
    if not parallel.is_main:
        logging.getLogger("seq2seq_cli").setLevel(logging.ERROR)
    return parallel


def _strategy(config: Config, group: distributed.ProcessGroup, threads: int) -> SingleProcess:
    """Return what the main process's config asks for."""
    parallel = SingleProcess()
    if distributed.get_world_size() > 1:
        shards = [config.training.shard]
        distributed.broadcast_object_list(shards, src=0, group=group)
        is_sharded = shards == ["full"]
        kind = plugins.load("shard", "fully_shard").FullyShard if is_sharded else DataParallel
        parallel = kind(group, threads)
    if os.environ.get("TORCHELASTIC_RUN_ID") != RUN_ID:
        parallel.lock_seconds = _SECONDS_OF_A_LOCK
    return parallel


def check_gpus(config: Config, num_processes: int) -> None:
    """Raises UserError if so many processes of this machine want a GPU each and there are fewer."""
    num_gpus = torch.cuda.device_count()
    if choose_device(config.training.device).type == "cuda" and num_processes > num_gpus:
        raise UserError(f"{num_processes} processes, but this machine has {num_gpus} GPUs")
