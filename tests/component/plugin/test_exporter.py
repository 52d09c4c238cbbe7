"""The exporter as a process and in a thread: paths, forms, one on a node, garbage in requests."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock, patch

import psutil
import pytest
import round_records
from daemons import wait_for
from floods import Flood
from prometheus_client.parser import text_string_to_metric_families

from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.node.service.log import Log
from vgpu.plugin.exporter.connections import ALL, HEAD, PATIENCE, Connection, Connections, MinuteLog
from vgpu.plugin.exporter.server import Exporter

ANY = "127.0.0.1:0"
SEED = 32
PROGRAM = "from vgpu.plugin.exporter.command import main; main()"


def fetched(address: str, path: str, accept: str = "*/*") -> tuple[str, str]:
    """(type, body) of an answer."""
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def containers(address: str) -> int:
    body = fetched(address, "/metrics")[1]
    return body.count("\nvgpu_container_info{")


@pytest.fixture
def run_dir(tmp_path: Path) -> str:
    round_records.write(str(tmp_path), round_records.record(cards=2, containers=4))
    return str(tmp_path)


@pytest.fixture
def exporter(run_dir: str) -> Iterator[Exporter]:
    found = Exporter(Settings({"paths.run": run_dir, "metrics.compat": ["gpu-manager"]}), ANY)
    yield found
    found.close()


def test_the_paths_and_their_forms(exporter: Exporter) -> None:
    for path in ("/metrics", "/metric"):
        kind, body = fetched(exporter.address, path)
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        names = {family.name for family in text_string_to_metric_families(body)}
        assert {"vgpu_container_memory_limit_bytes", "container_gpu_memory_total"} <= names
    kind, body = fetched(exporter.address, "/usage")
    assert kind.startswith("application/json")
    assert len(json.loads(body)["usage"]) == 4
    kind, body = fetched(exporter.address, "/usage", "text/html,application/xhtml+xml")
    assert kind.startswith("text/html")
    assert body.startswith("<!doctype html>")
    assert json.loads(fetched(exporter.address, "/version")[1])["version"]
    assert fetched(exporter.address, "/healthz")[1] == "ok\n"
    with pytest.raises(urllib.error.HTTPError, match="404"):
        fetched(exporter.address, "/etc/passwd")


def test_scrapes_follow_the_rounds(exporter: Exporter, run_dir: str) -> None:
    assert containers(exporter.address) == 4
    round_records.write(run_dir, round_records.record(containers=1))
    wait_for(lambda: containers(exporter.address) == 1)


def test_a_node_has_one_exporter_and_the_next_one_takes_over(exporter: Exporter, run_dir: str) -> None:
    settings = Settings({"paths.run": run_dir})
    with pytest.raises(VgpuError, match="another one, which is running"):
        Exporter(settings, ANY)
    exporter.close()
    other = Exporter(settings, ANY)
    assert containers(other.address) == 4
    other.close()


def test_an_address_that_is_taken_is_an_error_and_frees_the_lock(run_dir: str) -> None:
    settings = Settings({"paths.run": run_dir})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(VgpuError, match="in use"):
            Exporter(settings, f"127.0.0.1:{taken.getsockname()[1]}")
    Exporter(settings, ANY).close()


@pytest.fixture
def command(run_dir: str, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, Path]]:
    """vgpu-exporter as a process, its address, and its log."""
    config, log = tmp_path / "config.json", tmp_path / "log"
    config.write_text(json.dumps(Settings({"paths.run": run_dir}).record()), encoding="ascii")
    arguments = [sys.executable, "-c", PROGRAM, "--config", str(config), "--listen", ANY]
    with log.open("w") as stream, subprocess.Popen(arguments, stderr=stream, text=True) as process:
        try:
            line = wait_for(lambda: "listens" in log.read_text() and log.read_text())
            yield process, line.split("address=")[1].split()[0].strip('"'), log
        finally:
            process.kill()


def test_the_command_serves_until_sigterm(command: tuple[subprocess.Popen[str], str, Path]) -> None:
    process, address, _ = command
    assert containers(address) == 4
    process.terminate()
    assert process.wait(60) == 0


def test_many_connections_take_neither_descriptors_nor_the_scrapes_of_others(
    command: tuple[subprocess.Popen[str], str, Path],
) -> None:
    """400 from 20 addresses, held and opened again; the scrapes come from another address, as Prometheus does."""
    process, address, log = command
    assert containers(address) == 4
    idle = psutil.Process(process.pid).num_fds()
    flood = Flood(address, 400, 20, SEED)
    try:
        for _ in range(5):
            flood.tick()
            assert containers(address) == 4
            assert psutil.Process(process.pid).num_fds() <= idle + ALL
        assert flood.opened > 400 + ALL, "closed connections come again"
    finally:
        flood.close()
    wait_for(lambda: psutil.Process(process.pid).num_fds() <= idle + 2, what="all are closed")
    assert len(log.read_text().splitlines()) <= 2 + 5, f"one line a minute: {log.read_text()}"


@pytest.fixture
def connections() -> Iterator[Connections]:
    """Connections whose clock and timers a test moves: no loop runs."""
    loop = asyncio.new_event_loop()
    made = Connections(loop, MinuteLog(Log(io.StringIO(), levels=False)))
    made._server = Mock
    yield made
    loop.close()


def connected(made: Connections, address: str, since: float) -> Connection | None:
    """The connection of `address`, None when it was closed at once."""
    before = set(made.open.values())
    accepted = Mock()
    with patch.multiple(made.loop, time=lambda: since, create_task=Mock()), patch.object(made, "_connect", Mock()):
        made._admit(accepted, address)
    found = set(made.open.values()) - before
    assert accepted.close.called == (not found)
    return found.pop() if found else None


def test_room_is_made_by_the_addresses_that_have_the_most(connections: Connections) -> None:
    few = connected(connections, "10.0.0.1", 0.0)
    old = connected(connections, "10.0.1.0", 1.0)
    for number in range(7):
        assert connected(connections, "10.0.1.0", 2.0 + number)
    assert connected(connections, "10.0.1.0", 9.0) is None, "eight of one address"
    for number in range(ALL - len(connections.open)):
        assert connected(connections, f"10.0.{2 + number // 7}.0", 3.0)
    assert len(connections.open) == ALL
    assert connected(connections, "10.0.1.0", 9.0) is None, "as many as any other has"
    assert connected(connections, "10.9.9.9", 10.0)
    assert len(connections.open) == ALL
    assert old not in connections.open.values(), "of the address with the most, the oldest"
    assert few in connections.open.values(), "an older one of an address that has one"


def test_a_head_has_five_seconds_and_a_slow_request_no_more() -> None:
    loop = Mock()
    loop.time.return_value = 0.0
    connection = Connection(Connections(loop, Mock()), "10.0.0.1", Mock())
    connection.connection_made(Mock(spec=asyncio.Transport))
    for _ in range(3):
        connection.data_received(b"G")
    assert connection.begun()
    connection.finished()
    for _ in range(3):
        connection.data_received(b"G")
    assert connection.begun()
    connection.finished()
    assert not connection.begun(), "sent beside the last one"
    limits = [call.args[0] for call in loop.call_later.call_args_list]
    answered = [PATIENCE, PATIENCE]
    assert limits == [HEAD, HEAD, *answered, HEAD, *answered], "each byte of a slow head gives no further time"


def test_the_log_has_one_line_a_minute() -> None:
    stream, now = io.StringIO(), [0.0]
    minute = MinuteLog(Log(stream, levels=False), lambda: now[0])
    for _ in range(1000):
        minute.as_logger().error("Error handling request\n%s", "x" * 1000)
    assert stream.getvalue().count("\n") == 1
    now[0] = 60.0
    minute.note("again")
    assert stream.getvalue().splitlines()[1].endswith("again (999 lines before it were left out)")
    assert len(stream.getvalue()) < 600
