"""vgpu-scheduler-extender as a process of its own, its certificates, and requests to it.

Belongs here: starting, asking and ending it. The API server that it follows is the test's.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PATIENCE = 60.0
LISTENS = re.compile(r"listens address=([\d.]+):(\d+)")


class ExtenderProcess:
    """One replica with its log at `log`; `url` is where it listens."""

    def __init__(self, kubeconfig: str, log: Path, *options: str, context: ssl.SSLContext | None = None) -> None:
        self.log = log
        self.context = context
        command = [sys.executable, "-m", "vgpu.plugin.scheduler.command", "--kubeconfig", kubeconfig]
        with log.open("wb") as file:
            self.process = subprocess.Popen([*command, "--address=127.0.0.1:0", *options], stdout=file, stderr=file)
        self.url = self._listening()

    def __enter__(self) -> ExtenderProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _listening(self) -> str:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and self.process.poll() is None:
            found = LISTENS.search(self.text())
            if found:
                return f"{'https' if self.context else 'http'}://{found[1]}:{found[2]}"
            time.sleep(0.05)
        raise AssertionError(f"it does not listen: {self.text()}")

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(120)
        finally:
            self.process.kill()
            self.process.wait()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

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
        end = time.monotonic() + patience
        while time.monotonic() < end:
            if (self.ask("/readyz")[0] == 200) is passed:
                return self
            time.sleep(0.05)
        raise AssertionError(f"ready: {not passed}: {self.ask('/readyz')}: {self.text()}")


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
