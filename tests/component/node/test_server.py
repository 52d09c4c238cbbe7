"""Workers and clients of the event loop, without a daemon."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from pathlib import Path

import pytest
from daemons import wait_for

from vgpu.config.errors import VgpuError
from vgpu.node.daemon import client, server, worker
from vgpu.node.daemon.server import Server
from vgpu.node.daemon.worker import Worker


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def served(tmp_path: Path, clock: Clock) -> Server:
    made = Server(str(tmp_path / "vgpud.sock"), selectors.DefaultSelector(), lambda asked: {"asked": asked}, clock)
    yield made  # type: ignore[misc]
    made.close()
    made.selector.close()


def run_loop(served: Server, rounds: int = 20) -> None:
    for _ in range(rounds):
        for key, mask in served.selector.select(0.01):
            key.data(mask)


def connect(served: Server) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(served.path)
    run_loop(served, 2)
    return connection


def test_one_answer_for_each_line(served: Server) -> None:
    with connect(served) as connection:
        connection.sendall(b'{"ask": "a"}\n{"ask": "b"}\n{"as')
        run_loop(served)
        assert connection.recv(4096) == b'{"asked":"a"}\n{"asked":"b"}\n'
        connection.sendall(b'k": "c"}\n')
        run_loop(served)
        assert connection.recv(4096) == b'{"asked":"c"}\n'


def test_a_line_without_an_end_is_refused(served: Server) -> None:
    with connect(served) as connection:
        connection.sendall(b"x" * 2 * server.MAX_LINE)
        run_loop(served)
        assert b"at most 4096 bytes" in connection.recv(4096)
        with pytest.raises((ConnectionResetError, AssertionError)):
            assert connection.recv(4096) != b""


def test_silent_clients_go_and_others_stay(served: Server, clock: Clock) -> None:
    with connect(served) as silent, connect(served) as busy:
        clock.now = server.PATIENCE - 1
        busy.sendall(b'{"ask": "a"}\n')
        run_loop(served)
        clock.now = server.PATIENCE
        served.tick()
        assert silent.recv(1) == b""
        assert busy.recv(4096) == b'{"asked":"a"}\n'
        busy.sendall(b'{"ask": "b"}\n')
        run_loop(served)
        assert busy.recv(4096) == b'{"asked":"b"}\n'


def test_the_client_that_was_idle_longest_is_disconnected(served: Server, clock: Clock) -> None:
    clients = []
    for number in range(server.MAX_CLIENTS + 1):
        clock.now = number / 100
        clients.append(connect(served))
    assert clients[0].recv(1) == b""
    clients[1].sendall(b'{"ask": "a"}\n')
    run_loop(served)
    assert clients[1].recv(4096) == b'{"asked":"a"}\n'
    for connection in clients:
        connection.close()


def test_a_dead_daemons_socket_is_replaced(tmp_path: Path, clock: Clock) -> None:
    path = str(tmp_path / "vgpud.sock")
    left = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left.bind(path)
    left.close()
    with pytest.raises(VgpuError, match="start it"):
        client.ask(str(tmp_path), "health")
    with selectors.DefaultSelector() as selector:
        Server(path, selector, lambda asked: {}, clock).close()
    assert not os.path.exists(path)


def test_a_path_too_long_says_so(tmp_path: Path, clock: Clock) -> None:
    with selectors.DefaultSelector() as selector, pytest.raises(VgpuError, match=r"paths\.run"):
        Server(str(tmp_path / ("x" * 200)), selector, lambda asked: {}, clock)


def refuse() -> dict[str, object]:
    raise VgpuError("driver", expected="one", found="none")


def descriptors() -> dict[str, object]:
    return {"open": sorted(os.listdir("/proc/self/fd"), key=int)}


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (refuse, "driver: expected one, found none"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "without an answer"),
        (lambda: {"large": "x" * worker.MAX_RESULT}, "found more"),
        (lambda: os._exit(0), "without an answer"),
        (lambda: time.sleep(600), "hangs"),
    ],
)
def test_how_a_worker_can_end(work: worker.Work, error: str) -> None:
    with pytest.raises(VgpuError, match=error):
        worker.run(work, 1.0 if error == "hangs" else 60.0)


def test_a_worker_answers_and_has_none_of_the_parents_files() -> None:
    with open("/dev/null", "rb") as first, open("/dev/null", "rb") as second:
        assert {first.fileno(), second.fileno()}
        found = worker.run(descriptors, 60)["open"]
    assert isinstance(found, list)
    assert len(found) <= 5  # standard ones, the pipe, and the directory being read


def test_a_stopped_worker_is_waited_for() -> None:
    ended = []
    with selectors.DefaultSelector() as selector:
        running = Worker(lambda: time.sleep(60) or {}, 100.0, selector, lambda: ended.append(1))  # type: ignore[func-returns-value]
        running.stop()
        assert running.done
        assert ended == [1]
        wait_for(running.gone)
        assert not selector.get_map()
