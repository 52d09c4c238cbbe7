"""The exporter as a process and in a thread: paths, forms, one on a node, garbage in requests."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import round_records
from daemons import wait_for
from prometheus_client.parser import text_string_to_metric_families

from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.plugin.exporter.server import Exporter

ANY = "127.0.0.1:0"
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


def test_requests_that_are_none_leave_the_server_and_its_descriptors_alone(exporter: Exporter) -> None:
    host, port = exporter.address.split(":")
    fetched(exporter.address, "/metrics")
    before = psutil.Process().num_fds()
    too_long = b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"
    for data in (b"\0" * 4000, b"GET /metrics\r\n\r\n", too_long, b""):
        for _ in range(10):
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.sendall(data)
    assert containers(exporter.address) == 4
    wait_for(lambda: psutil.Process().num_fds() <= before + 2)


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


def test_the_command_serves_until_sigterm(run_dir: str, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    record = Settings({"paths.run": run_dir}).record()
    config.write_text(json.dumps(record), encoding="ascii")
    command = [sys.executable, "-c", PROGRAM, "--config", str(config), "--listen", ANY]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            assert "listens" in line
            address = line.split("address=")[1].split()[0].strip('"')
            assert containers(address) == 4
        finally:
            process.terminate()
        assert process.wait(60) == 0
