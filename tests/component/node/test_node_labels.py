"""The profile of a node in a pod: vgpuctl reads the node's labels from the API server."""

from __future__ import annotations

import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_apiserver import TOKEN, FakeApiServer

from vgpu.config import settings
from vgpu.config.errors import VgpuError
from vgpu.node.ctl import node_labels

POOLS = "profiles:\n- {name: t4, node_labels: {pool: a}, scaling: {cores: 3}}\n"
APPLIES = "profile t4 applies to this node, n"


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApiServer]:
    """A pod with a service account, and the API server with a certificate of its own."""
    monkeypatch.setattr(node_labels, "SERVICE_ACCOUNT", str(tmp_path))
    (tmp_path / "token").write_text(TOKEN)
    certificate, key = tmp_path / "ca.crt", tmp_path / "key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=k", "-addext",
         "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], capture_output=True, check=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with FakeApiServer(tls=context) as server:
        server.put_node("n")
        server.label_node("n", pool="a")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        yield server


def vgpuctl(directory: Path, *arguments: str) -> tuple[int, str]:
    """`vgpuctl config` in that pod: (its exit status, stderr)."""
    place = (
        f"from vgpu.node.ctl import main, node_labels; node_labels.SERVICE_ACCOUNT = {str(directory)!r}; main.main()"
    )
    command = [sys.executable, "-c", place, "--config", directory / "config.json", "config", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


def test_the_profile_in_a_pod(pod: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "n")
    source = tmp_path / "config.yaml"
    source.write_text(POOLS)
    status, said = vgpuctl(tmp_path, "apply", str(source))
    assert status == 0 and APPLIES in said
    assert settings.read(str(tmp_path / "config.json"))["scaling.cores"] == 3.0
    assert pod.requests == [("GET", "/api/v1/nodes/n")]
    pod.forbidden.append(("GET", "nodes"))
    line = "labels of node n at the API server: expected the node, found 403"
    status, said = vgpuctl(tmp_path, "apply", str(source))
    assert status == 1 and line in said and "the last good settings stay in force" in said
    assert f"not checked: which profile applies to this node: {line}" in vgpuctl(tmp_path, "check", str(source))[1]
    assert APPLIES in vgpuctl(tmp_path, "apply", str(source), "--label", "pool=a")[1]
    source.write_text("scaling: {cores: 2}")
    before = len(pod.requests)
    assert vgpuctl(tmp_path, "apply", str(source))[0] == 0
    assert len(pod.requests) == before, "without profiles nobody asks"


@pytest.mark.parametrize("fault", ["garbage", "close", "html", "empty", "500"])
def test_an_api_server_that_fails(pod: FakeApiServer, fault: str) -> None:
    pod.break_next(fault)
    with pytest.raises(
        VgpuError, match=r"^labels of node n at the API server: expected the node, found .+; allow the "
    ):
        node_labels.read("n", [])


def test_a_server_that_is_not_the_clusters(pod: FakeApiServer, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text(ssl.DER_cert_to_PEM_cert(b"another"))
    with pytest.raises(VgpuError, match="labels of node n at the API server: expected the node, found "):
        node_labels.read("n", [])
    assert pod.requests == []
