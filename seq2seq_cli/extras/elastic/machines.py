"""Elastic training: processes that `torchrun` may start again, on a changing set of machines.

If the agent, the process of torchrun that started this one, is gone, this process saves and stops.

A machine may also vanish without closing its connections, as when its power fails. The others would
wait for it in a collective, for half an hour or for days. So a process of each machine has a
connection to the main process over which nothing is ever sent, and the kernels probe each other
(TCP keepalive), however busy their processes are. A process that loses the other machine ends, and
so do those that the main process tells; their agents then restart all that are left. An agent that
has lost the rendezvous cannot: it hangs, and when the network is back it would close the rendezvous
for all. It is killed. Connections without the secret that the main process sends to the others,
together with its address, are ignored.
"""

import errno
import ipaddress
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from seq2seq_cli.errors import UserError
from seq2seq_cli.machine import PARENT

logger = logging.getLogger(__name__)

SECONDS = 60  # without an answer, after which a machine is lost

_SECONDS_TO_SAVE = 60.0  # after the agent is gone
_SECONDS_BETWEEN_POLLS = 0.5  # of the agent
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 5}  # the first: Linux only
_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)
_UNNOTICED = (
    "if a machine vanishes without closing its connections, this is not detected for half an hour "
    "or longer"
)
# Kills the agent unless it has noticed within these seconds that its process has ended. The agents
# of PyTorch 2.13 wait without limit for a rendezvous that does not answer.
_GUARD = """
import os, signal, sys, time
agent, process, seconds = map(int, sys.argv[1:])
for _ in range(seconds):
    time.sleep(1)
    try:
        with open(f"/proc/{process}/stat") as file:
            parent = int(file.read().rpartition(")")[2].split()[1])
    except OSError:
        sys.exit()
    if parent != agent:
        sys.exit()
os.kill(agent, signal.SIGTERM)
os.kill(agent, signal.SIGKILL)
"""
_SECONDS_TO_NOTICE = 15
_SECRET_BYTES = 32


def stop_with_agent() -> None:
    """Save and stop when the agent of this process of torchrun ends; UserError if it has ended."""
    if _is_adopted():
        raise UserError("the torchrun that started this process has ended")
    _start(_wait_for_agent)


def _is_adopted() -> bool:
    """Return True if torchrun died and this process was re-parented before it could notice.

    The agent is a program in Python, or has started a script that has started this process.
    """
    parent = Path(f"/proc/{PARENT}")
    try:
        program = (parent / "exe").readlink()
        if program.name.startswith("python") or program == Path("/proc/self/exe").readlink():
            return False
        return b"TORCHELASTIC_RUN_ID=" not in (parent / "environ").read_bytes()
    except OSError:  # of another user
        return PARENT == 1


def _wait_for_agent() -> None:
    """Wait until the agent is gone; then stop all processes as SIGTERM does, which saves the run.

    Without it, the processes would train on and keep the run folder locked.
    """
    while os.getppid() == PARENT:
        time.sleep(_SECONDS_BETWEEN_POLLS)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_SECONDS_TO_SAVE)
    os._exit(128 + signal.SIGTERM)


@contextmanager
def watched_machines(
    broadcast: Callable[[object], object], agent: int | None = None
) -> Iterator[None]:
    """End this process if a machine vanishes while the block runs, and its agent if that hangs.

    `torchrun` has set the environment, and `agent` is the process that has started this one.
    """
    num_machines = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    if num_machines == 1:
        yield
        return
    is_first = os.environ["LOCAL_RANK"] == "0"  # of its machine
    is_main = is_first and os.environ["GROUP_RANK"] == "0"
    listener, own = _listener() if is_main else (None, None)
    secret = secrets.token_hex(_SECRET_BYTES // 2)
    told: Any = broadcast(own and (*own, secret))
    connections: list[socket.socket] = []
    if listener is not None:
        _start(_accept_machines, listener, secret, num_machines - 1, connections, agent)
    elif is_first and told is not None:
        host, port, secret = told
        _start(_watch_main, (host, port), secret, connections, agent)
    try:
        yield
    finally:
        for each in (*connections, *([listener] if listener else ())):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # so that their threads end
            each.close()


def _start(work: Callable[..., None], *given: object) -> None:
    threading.Thread(target=work, args=given, daemon=True).start()


def _listener() -> tuple[socket.socket, tuple[str, int]] | tuple[None, None]:
    """Return a socket that the other machines connect to, and its address."""
    both = {"family": socket.AF_INET6, "dualstack_ipv6": True}
    main = os.environ["MASTER_ADDR"]
    try:
        given = both if socket.has_dualstack_ipv6() else {}
        listener = socket.create_server(("", 0), **given)  # type: ignore[arg-type]
        # The address of this machine in the network of the others; nothing is sent to find it.
        found = socket.getaddrinfo(main, int(os.environ["MASTER_PORT"]), type=socket.SOCK_DGRAM)
        family, kind, *_, address = found[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            own = str(probe.getsockname()[0])
    except OSError as error:
        logger.warning(f"{error}: {_UNNOTICED}")
        return None, None
    host = main if ipaddress.ip_address(own).is_loopback else own
    return listener, (host, listener.getsockname()[1])


def _accept_machines(
    listener: socket.socket,
    secret: str,
    count: int,
    connections: list[socket.socket],
    agent: int | None,
) -> None:
    """Accept the connections of so many machines that know the secret, and watch each."""

    def admit(connection: socket.socket) -> None:
        connection.settimeout(SECONDS)
        with suppress(OSError):
            given = connection.makefile("rb").read(_SECRET_BYTES)
            if secrets.compare_digest(given, secret.encode()):
                connections.append(connection)
                _watch(connection, connections, agent)
                return
        connection.close()

    deadline = time.monotonic() + SECONDS
    try:
        while len(connections) < count:
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            connection, _ = listener.accept()
            _start(admit, connection)
    except TimeoutError:
        if (missing := count - len(connections)) > 0:
            logger.warning(
                f"{missing} of {count} machines do not reach port {listener.getsockname()[1]} of "
                f"this one: {_UNNOTICED}"
            )
    except OSError:  # the block has ended
        return


def _watch_main(
    address: tuple[str, int], secret: str, connections: list[socket.socket], agent: int | None
) -> None:
    try:
        connection = socket.create_connection(address, timeout=SECONDS)
        connection.sendall(secret.encode())
    except OSError:  # which the main process reports
        return
    connections.append(connection)
    _watch(connection, None, agent)


def _watch(
    connection: socket.socket, others: Sequence[socket.socket] | None, agent: int | None
) -> None:
    """Wait until the other process closes the connection.

    If its machine is lost, or the main process tells of one that is, end this process. The main
    process tells the `others` before; in theirs it is None.
    """
    lost = ""
    try:
        host = str(connection.getpeername()[0]).removeprefix("::ffff:")
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        while not lost and (message := connection.recv(100)):
            if others is None:  # the main process ignores messages
                lost = message.decode()
    except OSError as error:
        if error.errno in _UNREACHABLE:
            lost = host
    if not lost:  # the process has ended, as its agent notices
        return
    logger.error(
        f"machine {lost} has not answered for {SECONDS} seconds; this process ends, so that "
        "training continues from the last checkpoint without that machine"
    )
    for other in others or ():
        with suppress(OSError):
            other.send(lost.encode())
    if agent is not None:
        given = map(str, (agent, os.getpid(), _SECONDS_TO_NOTICE))
        subprocess.Popen([sys.executable, "-I", "-c", _GUARD, *given], start_new_session=True)
    os._exit(1)
