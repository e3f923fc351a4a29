"""Notices a machine that vanishes without closing its connections, as when its power fails.

The others would wait for it in a collective, for half an hour or for days. So a process of each
machine has a connection to the main process over which nothing is ever sent, and the kernels ask
each other whether they are still there (TCP keepalive), however busy their processes are. A process
that loses the other machine ends, and so do those that the main process tells; their agents then
start all again that are left. An agent that has lost the rendezvous cannot: it hangs, and when the
network is back it would close the rendezvous for all. It is killed. Strangers who connect are no
machines: they lack the secret that the main process tells the others together with its address.
"""

import errno
import ipaddress
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

logger = logging.getLogger(__name__)

_SECONDS_BETWEEN_QUESTIONS = 10
_QUESTIONS = 5  # without an answer, after which a machine is lost
SECONDS = _SECONDS_BETWEEN_QUESTIONS * (1 + _QUESTIONS)
_KEEPALIVE = {
    "TCP_KEEPIDLE": _SECONDS_BETWEEN_QUESTIONS,  # Linux only
    "TCP_KEEPINTVL": _SECONDS_BETWEEN_QUESTIONS,
    "TCP_KEEPCNT": _QUESTIONS,
}
_UNNOTICED = (
    "if a machine vanishes without closing its connections, nobody will notice for half an hour or "
    "longer"
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
_UNREACHABLE = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


@contextmanager
def watched_machines(
    tell_others: Callable[[object], object], agent: int | None = None
) -> Iterator[None]:
    """End this process if a machine vanishes while the block runs, and its agent if that hangs.

    The environment is that of a process of `torchrun`, and `agent` the process that has started it.
    `tell_others` returns in all processes what the main one gives it.
    """
    num_machines = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    if num_machines == 1:
        yield
        return
    is_first = os.environ["LOCAL_RANK"] == "0"  # of its machine
    is_main = is_first and os.environ["GROUP_RANK"] == "0"
    listener, own = _listener() if is_main else (None, None)
    secret = secrets.token_hex(_SECRET_BYTES // 2)
    told: Any = tell_others(own and (*own, secret))
    connections: list[socket.socket] = []
    if listener is not None:
        _start(_watch_machines, listener, secret, num_machines - 1, connections, agent)
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
    try:
        given = both if socket.has_dualstack_ipv6() else {}
        listener = socket.create_server(("", 0), **given)  # type: ignore[arg-type]
        return listener, (_own_address(), listener.getsockname()[1])
    except OSError as error:
        logger.warning(f"{error}: {_UNNOTICED}")
        return None, None


def _own_address() -> str:
    """Return the address of this machine in the network of the others; nothing is sent for that."""
    main = os.environ["MASTER_ADDR"]
    found = socket.getaddrinfo(main, int(os.environ["MASTER_PORT"]), type=socket.SOCK_DGRAM)
    family, kind, *_, address = found[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        own = str(probe.getsockname()[0])
    return main if ipaddress.ip_address(own).is_loopback else own


def _watch_machines(
    listener: socket.socket,
    secret: str,
    count: int,
    connections: list[socket.socket],
    agent: int | None,
) -> None:
    """Accept the connections of so many machines, and start to watch each."""
    deadline = time.monotonic() + SECONDS
    try:
        while len(connections) < count:
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            connection, _ = listener.accept()
            _start(_admit, connection, secret, connections, agent)
    except TimeoutError:
        if (missing := count - len(connections)) > 0:
            logger.warning(
                f"{missing} of {count} machines do not reach port {listener.getsockname()[1]} of "
                f"this one: {_UNNOTICED}"
            )
    except OSError:  # the block has ended
        return


def _admit(
    connection: socket.socket, secret: str, connections: list[socket.socket], agent: int | None
) -> None:
    """Watch the other end if it has the secret."""
    connection.settimeout(SECONDS)
    with suppress(OSError):
        given = connection.makefile("rb").read(_SECRET_BYTES)
        if secrets.compare_digest(given, secret.encode()):
            connections.append(connection)
            _watch(connection, connections, agent)
            return
    connection.close()


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
    connection: socket.socket, told: Sequence[socket.socket] | None, agent: int | None
) -> None:
    """Wait until the other process closes the connection.

    If its machine is lost, or the main process tells of one that is, end this process. The main
    process has `told` the others before.
    """
    lost = ""
    try:
        host = str(connection.getpeername()[0]).removeprefix("::ffff:")
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
        while not lost and (message := connection.recv(100)):
            if told is None:  # nobody tells the main process anything
                lost = message.decode()
    except OSError as error:
        if error.errno in _UNREACHABLE:
            lost = host
    if not lost:  # the process has ended, as its agent notices
        return
    logger.error(
        f"machine {lost} has not answered for {SECONDS} seconds; this process ends, so that "
        "training goes on from the last checkpoint without that machine"
    )
    for other in told or ():
        with suppress(OSError):
            other.send(lost.encode())
    if agent is not None:
        given = map(str, (agent, os.getpid(), _SECONDS_TO_NOTICE))
        subprocess.Popen([sys.executable, "-I", "-c", _GUARD, *given], start_new_session=True)
    os._exit(1)
