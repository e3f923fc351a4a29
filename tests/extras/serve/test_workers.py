"""Workers that die or are left: nothing is lost, and only a fork is killed."""

import asyncio
import contextlib
import multiprocessing
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from seq2seq_cli.extras.serve.messages import WITH_PYTORCH, SearchOptions, SentenceInput
from seq2seq_cli.extras.serve.monitoring import Monitoring
from seq2seq_cli.extras.serve.responses import RequestError
from seq2seq_cli.extras.serve.scheduler import Scheduler, SentenceToTranslate, Submission
from seq2seq_cli.extras.serve.service import TranslationService
from seq2seq_cli.extras.serve.workers import ModelProcess, WorkerDiedError, WorkerGroup

# Translates into capitals; for "wait" it waits until its standard input is closed.
WORKER = """
import json, os, socket, sys
with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rw") as lines:
    print(json.dumps({"pid": os.getpid()}), file=lines, flush=True)
    for line in lines:
        texts = [text for text, _ in json.loads(line)[2]]
        if "wait" in texts:
            sys.stdin.read()
        print(json.dumps([[[[text.upper()]] for text in texts], 1, 0, 0.1]), file=lines, flush=True)
"""

# Loads no models; its first fork fails.
MODELS = """
import os, socket, sys
from seq2seq_cli.extras.serve.model_process import load_models

def fail_to_fork(fork=os.fork):
    os.fork = fork
    raise BlockingIOError

os.fork = fail_to_fork
load_models([], socket.socket(fileno=int(sys.argv[1])))
"""


@dataclass
class Started:
    """A group of workers, with their processes and what gives them batches."""

    group: WorkerGroup
    scheduler: Scheduler
    monitoring: Monitoring
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    requests: list[bytes] = field(default_factory=list)  # for workers

    def submit(self, text: str, *, with_constraints: bool = False) -> Submission:
        options = SearchOptions(with_constraints=with_constraints)
        sentence = SentenceToTranslate(0, SentenceInput(text), options)
        return self.scheduler.submit([sentence])

    async def translate(self, text: str) -> str:
        (result,) = self.submit(text).results
        return (await result)[0].text


@asynccontextmanager
async def workers(count: int, *, can_fork: bool = True) -> AsyncIterator[Started]:
    """Start a group; in place of the process with the models this one starts the workers."""
    ours, theirs = socket.socketpair()
    scheduler, monitoring = Scheduler(100, 0.0, 100, workers=count), Monitoring()
    models = ModelProcess(ours, can_fork, pid=0)
    group = WorkerGroup(models, scheduler, monitoring, count, lambda: None)
    started = Started(group, scheduler, monitoring)

    def start_worker() -> None:
        request, (connection,), _, _ = socket.recv_fds(theirs, 1, 1)
        started.requests.append(request)
        with socket.socket(fileno=connection):
            command = [sys.executable, "-I", "-S", "-c", WORKER, str(connection)]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[connection])
            started.processes.append(process)

    asyncio.get_running_loop().add_reader(theirs, start_worker)
    try:
        await until(lambda: len(group.workers) == scheduler.workers)
        yield started
    finally:
        asyncio.get_running_loop().remove_reader(theirs)
        theirs.close()
        await group.stop()
        for process in started.processes:
            with process:
                process.kill()


async def until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        await asyncio.sleep(0.001)


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


def test_workers_that_die_while_idle_are_replaced():
    """Without a request, and without costing the next one a try."""

    async def test():
        async with workers(6) as started:
            first = set(started.group.workers)
            for process in started.processes:
                process.kill()
            await until(lambda: started.group.workers.isdisjoint(first))
            await until(lambda: len(started.group.workers) == 6)
            assert started.monitoring.registry.get_sample_value("seq2seq_worker_deaths_total") == 6
            assert await started.translate("one") == "ONE"

    run(test)


def test_a_sentence_outlives_more_idle_workers_than_it_has_tries():
    async def test():
        async with workers(6) as started:
            for process in started.processes:
                process.kill()
                process.wait()
            assert await started.translate("one") == "ONE"

    run(test)


def test_a_fork_is_killed_when_its_requests_are_canceled_and_the_worker_of_a_gpu_is_not():
    async def test():
        async with workers(16, can_fork=False) as gpu, workers(1) as cpu:
            assert gpu.scheduler.workers == 1
            for started in (gpu, cpu):  # in this order, so that the other would be killed first
                submission = started.submit("wait")
                await until(lambda: started.scheduler.num_waiting == 0)  # noqa: B023
                submission.close()
            await asyncio.to_thread(cpu.processes[0].wait)
            (process,) = gpu.processes
            assert process.poll() is None
            process.stdin.close()
            assert await gpu.translate("one") == "ONE"
            assert await cpu.translate("one") == "ONE"
            assert len(gpu.processes) == 1

    run(test)


@pytest.mark.parametrize("with_constraints", [False, True])
def test_a_worker_that_was_killed_with_constraints_is_replaced_by_one_with_pytorch(
    with_constraints: bool,
):
    """Importing it may take longer than a request, so that it would never be imported."""

    async def test():
        async with workers(1) as started:
            submission = started.submit("wait", with_constraints=with_constraints)
            await until(lambda: started.scheduler.num_waiting == 0)
            submission.close()
            await until(lambda: len(started.requests) == 2)
            assert (started.requests[1] == WITH_PYTORCH) == with_constraints

    run(test)


def test_what_workers_of_other_languages_did_not_finish_fails():
    async def test():
        async with workers(1) as started:
            (result,) = started.submit("wait").results
            await until(lambda: started.scheduler.num_waiting == 0)
            started.group.retire("other languages")
            started.processes[0].kill()
            with pytest.raises(RequestError, match="other languages"):
                await result
            assert started.scheduler.num_waiting == 0

    run(test)


def test_models_that_cannot_be_forked_for_a_while_stay():
    async def test():
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-c", MODELS, str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()]), ours:
            theirs.close()
            models = ModelProcess(ours, can_fork=True, pid=0)
            with pytest.raises(WorkerDiedError):
                await models.new_worker()
            worker = await models.new_worker()
            worker.writer.close()

    run(test)


def test_a_process_with_models_that_hangs_is_given_up():
    async def test():
        ours, theirs = socket.socketpair()
        with ours, theirs, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
            models = ModelProcess(ours, can_fork=True, pid=process.pid, seconds_to_start=0.01)
            with pytest.raises(WorkerDiedError, match="does not answer"):
                await models.new_worker()
            assert process.wait(timeout=30) == -signal.SIGKILL

    run(test)


@pytest.mark.parametrize(
    "shortage",
    [EOFError(), BlockingIOError(), MemoryError(), RuntimeError("can't start new thread")],
)
def test_models_are_loaded_again_after_a_shortage(shortage, monkeypatch, caplog):
    def fail(*_: object) -> None:
        raise shortage

    monkeypatch.setattr(multiprocessing, "get_context", fail)

    async def test():
        service = TranslationService([], workers=1, queue_limit=1, cache_bytes=0)
        service._must_reload.set()
        keeper = asyncio.create_task(service._keep_up_to_date())
        await until(lambda: keeper.done() or "were not loaded again" in caplog.text)
        keeper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeper

    run(test)
