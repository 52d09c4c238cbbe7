"""vgpu-scheduler-extender as a process of its own, its certificates, and requests to it.

Belongs here: starting, asking and ending it. The API server that it follows is the test's.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from daemons import Process, wait_for

PATIENCE = 60.0
LISTENS = re.compile(r"listens address=([\d.]+):(\d+)")


class ExtenderProcess(Process):
    """One replica; `url` is where it listens."""

    def __init__(self, kubeconfig: str, log: Path, *options: str, context: ssl.SSLContext | None = None) -> None:
        super().__init__(log)
        self.context = context
        log.unlink(missing_ok=True)
        command = [sys.executable, "-m", "vgpu.plugin.scheduler.command", "--kubeconfig", kubeconfig]
        self.launch([*command, "--address=127.0.0.1:0", *options])
        wait_for(lambda: LISTENS.search(self.text()) or not self.alive, PATIENCE, self.text)
        found = LISTENS.search(self.text())
        assert found, f"it does not listen: {self.text()}"
        self.url = f"{'https' if context else 'http'}://{found[1]}:{found[2]}"

    def __enter__(self) -> ExtenderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """SIGTERM. Its exit status stays in `process`."""
        process = self.process
        self.stop()
        self.process = process

    def ask(self, path: str, body: Any = None, context: ssl.SSLContext | None = None) -> tuple[int, Any]:
        """(status, answer): a GET, or a POST where there is a body. The answer is JSON or text."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.url + path, data=data), timeout=60, context=context or self.context
            ) as answer:
                return answer.status, _read(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _read(error.read())

    def ready(self, passed: bool = True, patience: float = PATIENCE) -> ExtenderProcess:
        """Wait until it is ready, or is not."""
        what = f"ready: {not passed}"
        wait_for(lambda: (self.ask("/readyz")[0] == 200) is passed, patience, lambda: f"{what}: {self.text()}")
        return self


def _read(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode()


class Certificates:
    """An authority, a certificate of the server and one of a client, below `directory`."""

    def __init__(self, directory: Path, client: str = "system:kube-scheduler") -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.authority = self._authority("ca")
        self.server = self._signed("server", "vgpu-scheduler-extender", "ca")
        self.client = self._signed("client", client, "ca")

    def options(self) -> list[str]:
        certificate, key = self.server
        return [f"--tls-cert-file={certificate}", f"--tls-private-key-file={key}", f"--client-ca-file={self.authority}"]

    def context(self, client: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """A client's context, with a certificate or without."""
        found = ssl.create_default_context(cafile=str(self.authority))
        if client is not None:
            found.load_cert_chain(*map(str, client))
        return found

    def stranger(self) -> tuple[Path, Path]:
        """A certificate of another authority."""
        self._authority("other")
        return self._signed("stranger", "system:kube-scheduler", "other")

    def _authority(self, name: str) -> Path:
        self._openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
            "-keyout", f"{name}.key", "-out", f"{name}.crt",
        )  # fmt: skip
        return self.directory / f"{name}.crt"

    def _signed(self, name: str, subject: str, by: str) -> tuple[Path, Path]:
        (self.directory / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        self._openssl(
            "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={subject}", "-keyout", f"{name}.key",
            "-out", f"{name}.csr",
        )  # fmt: skip
        self._openssl(
            "x509", "-req", "-days", "2", "-in", f"{name}.csr", "-CA", f"{by}.crt", "-CAkey", f"{by}.key",
            "-CAcreateserial", "-extfile", "names", "-out", f"{name}.crt",
        )  # fmt: skip
        return self.directory / f"{name}.crt", self.directory / f"{name}.key"

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, capture_output=True, check=True)
