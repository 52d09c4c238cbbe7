"""Mutated documents, with a fixed seed: the sanitized gate never crashes, and agrees with Python's json."""

from __future__ import annotations

import json
import pathlib
import random
import subprocess
from typing import Any

import pytest

SEED = 20240607
TOKENS = [
    b'"vgpu.io/cores":', b'"vgpu.io/request-0f":', b'"vgpu.io/x":', b'"VGPU_GRANT_CORES=1"', b'"annotations":{',
    b'"bundle":"/tmp"', b'"sandbox"', b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0076", b"\\ud83d\\ude00",
    b"\\udc00", b"\0", b"\xff", b"null", b"true", b"-1e999", b"9" * 400, b"[" * 600,
]  # fmt: skip


class Pairs(list):  # type: ignore[type-arg]
    """An object that keeps its repeated keys."""


def documents(bundle: pathlib.Path) -> tuple[list[bytes], list[bytes]]:
    kubernetes = {"io.kubernetes.cri.container-type": "container", "vgpu.io/grant-cores": "0f", "a": 'q"\\/\n'}
    base = {"ociVersion": "1.0.2", "id": "c", "pid": 4711, "bundle": str(bundle)}
    states: list[Any] = [
        base,
        {**base, "annotations": kubernetes},
        {**base, "annotations": {**kubernetes, "io.kubernetes.cri.container-type": "sandbox"}},
        {**base, "annotations": {"vgpu.io/policy": "", "io.kubernetes.cri.container-type": "sandbox"}},
    ]
    configs: list[Any] = [
        {"process": {"args": ["sh"], "env": ["PATH=/bin", "VGPU_GRANT_CORES=f"]}, "linux": {"x": [1, -2.5e3, None]}},
        {"annotations": {"x": "vgpu.io/"}, "process": {"env": []}, "hooks": {"prestart": [{"path": "/x", "env": []}]}},
        {"annotations": kubernetes, "root": {"path": "rootfs", "readonly": True}},
    ]
    return [json.dumps(s).encode() for s in states], [json.dumps(c, indent=1).encode() for c in configs]


def mutate(rng: random.Random, document: bytes) -> bytes:
    out = bytearray(document)
    for _ in range(rng.choice([0, 1, 1, 2, 5])):
        at = rng.randrange(len(out) + 1)
        end = min(len(out), at + rng.randrange(1, 20))
        action = rng.randrange(5)
        if action == 0:
            out[at:end] = b""
        elif action == 1:
            out[at:at] = rng.choice(TOKENS)
        elif action == 2:
            out[at:end] = rng.randbytes(end - at)
        elif action == 3:
            out[at:at] = out[at:end]
        else:
            del out[at:]
    return bytes(out)


def refuse_constant(name: str) -> None:
    raise json.JSONDecodeError(name, name, 0)


def load(document: bytes) -> Any:
    """The document; None if it is not JSON; ... where Python and the gate may differ, by design."""
    if document.count(b"[") + document.count(b"{") > 400:
        return ...
    try:
        return json.loads(document.decode(), object_pairs_hook=Pairs, parse_constant=refuse_constant)
    except UnicodeDecodeError:
        return ...
    except json.JSONDecodeError:
        return None


def members(value: Any, key: str) -> list[Any]:
    return [v for k, v in value if k == key] if isinstance(value, Pairs) else []


AMOUNTS = ("vgpu.io/cores", "vgpu.io/memory", "vgpu.io/gpus")


def marks(document: Any) -> tuple[bool, bool, bool]:
    """(a marker, an amount, a sandbox)"""
    pairs = [pair for found in members(document, "annotations") if isinstance(found, Pairs) for pair in found]
    types = ("io.kubernetes.cri.container-type", "io.kubernetes.cri-o.ContainerType")
    amount = any(k in AMOUNTS or k.startswith(("vgpu.io/grant-", "vgpu.io/request-")) for k, _ in pairs)
    sandbox = any(k in types and v == "sandbox" for k, v in pairs)
    return any(k.startswith("vgpu.io/") for k, _ in pairs), amount, sandbox


def env_marked(config: Any) -> bool:
    lists = [e for p in members(config, "process") for e in members(p, "env") if type(e) is list]
    return any(isinstance(entry, str) and entry.startswith("VGPU_GRANT_") for env in lists for entry in env)


def raw(document: bytes) -> bool:
    return any(text in document for text in (b"vgpu.io/", b"vgpu.io\\/", b"VGPU_GRANT_"))


def expected(state: bytes, config: bytes, bundle: pathlib.Path) -> str:
    """The verdict that the gate has to return; "" where this model does not decide."""
    of_state, of_config = load(state), load(config)
    if of_state is ... or of_config is ...:
        return ""
    whole = isinstance(of_config, Pairs)
    config_marked = (marks(of_config)[0] or env_marked(of_config)) if whole else raw(config)
    sandbox = whole and marks(of_config)[2]
    amount = whole and (marks(of_config)[1] or env_marked(of_config))
    bundles = members(of_state, "bundle")
    if not bundles or not isinstance(bundles[-1], str) or not bundles[-1].startswith("/"):
        return "refuse" if not (sandbox and not amount) and (raw(state) or config_marked) else "leave"
    if bundles[-1] != str(bundle):
        return ""
    marked, state_amount, state_sandbox = marks(of_state)
    if (state_sandbox or sandbox) and not (state_amount or amount):
        return "leave"
    if marked or (whole and config_marked):
        return "run"
    return "refuse" if config_marked else "leave"


def answer(gate: Any, bundle: pathlib.Path, state: bytes, config: bytes) -> str:
    (bundle / "config.json").write_bytes(config)
    command = [str(gate.bin / "vgpu-hook"), "prestart"]
    result = subprocess.run(command, input=state, cwd=bundle, capture_output=True, timeout=120, check=False)
    assert result.returncode in (0, 1, 9), result
    assert result.stderr.count(b"\n") == (result.returncode == 1), result
    assert result.returncode != 1 or result.stderr.startswith(b"vgpu-hook: "), result
    return {0: "leave", 1: "refuse", 9: "run"}[result.returncode]


def fuzz(gate: Any, bundle: pathlib.Path, rounds: int) -> None:
    gate.interpreter.write_text("#!/bin/sh\nexit 9\n")
    rng = random.Random(SEED)
    states, configs = documents(bundle)
    judged = 0
    for number in range(rounds):
        state, config = mutate(rng, rng.choice(states)), mutate(rng, rng.choice(configs))
        should = expected(state, config, bundle)
        judged += bool(should)
        assert answer(gate, bundle, state, config) in ({should} if should else {"leave", "run", "refuse"}), (
            number,
            state,
            config,
        )
    assert judged > rounds // 3


def test_fuzz_sampled(sanitized_gate: Any, bundle: pathlib.Path) -> None:
    sanitized_gate.install()
    fuzz(sanitized_gate, bundle, 300)


@pytest.mark.long
def test_fuzz_in_full(sanitized_gate: Any, bundle: pathlib.Path) -> None:
    sanitized_gate.install()
    fuzz(sanitized_gate, bundle, 20_000)
