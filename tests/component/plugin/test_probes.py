"""Probes over real HTTP."""

from __future__ import annotations

import http.client
import socket

import pytest

from vgpu.config.errors import VgpuError
from vgpu.plugin.probes import Probes


@pytest.fixture(params=["127.0.0.1:0", "[::1]:0"])
def probes(request):
    host = request.param.rpartition(":")[0].strip("[]")
    made = Probes(request.param, {"/healthz": lambda: (True, "ok"), "/readyz": lambda: (False, "not yet")})
    yield host, made
    made.close()


def get(host: str, port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=120)
    connection.request("GET", path)
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


def test_answers(probes) -> None:
    host, made = probes
    assert get(host, made.port, "/healthz") == (200, "ok\n")
    assert get(host, made.port, "/healthz?verbose") == (200, "ok\n")
    assert get(host, made.port, "/readyz") == (503, "not yet\n")
    assert get(host, made.port, "/etc/passwd") == (404, "not found\n")


def test_bad_clients_are_survived(probes, capfd) -> None:
    host, made = probes
    for data in (b"", b"\r\n\r\n", b"GET\r\n", b"\xff" * 100_000, b"POST / HTTP/1.1\r\n\r\n"):
        with socket.create_connection((host, made.port), timeout=120) as client:
            client.sendall(data)
    assert get(host, made.port, "/healthz") == (200, "ok\n")
    assert capfd.readouterr() == ("", "")


def test_an_address_in_use_is_reported(probes) -> None:
    host, made = probes
    address = f"[{host}]:{made.port}" if ":" in host else f"{host}:{made.port}"
    with pytest.raises(
        VgpuError, match=r"plugin\.http .*: expected an address to listen at, found Address already in use"
    ):
        Probes(address, {})


def test_close_frees_the_address() -> None:
    made = Probes("127.0.0.1:0", {"/healthz": lambda: (True, "ok")})
    port = made.port
    made.close()
    again = Probes(f"127.0.0.1:{port}", {"/healthz": lambda: (True, "again")})
    assert get("127.0.0.1", port, "/healthz") == (200, "again\n")
    again.close()


def test_a_host_that_does_not_exist() -> None:
    with pytest.raises(VgpuError, match=r"plugin\.http"):
        Probes("192.0.2.1:1", {})
