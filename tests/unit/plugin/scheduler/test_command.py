"""The command line: gpu-admission's options, and what must not be listened at."""

from __future__ import annotations

import json

import pytest

from vgpu.config.errors import VgpuError
from vgpu.plugin.scheduler import quota
from vgpu.plugin.scheduler.command import parsed, settings_of


def test_gpu_admissions_options_keep_working(tmp_path) -> None:
    config = tmp_path / "config.json"
    values = {"QuotaConfigMapName": "q", "QuotaConfigMapNamespace": "n", "GPUModelLabel": "m", "SkipBindTime": True}
    config.write_text(json.dumps(values))
    options = ["--address=127.0.0.1:3456", "--v=4", "--logtostderr=true", "--pprofAddress=127.0.0.1:3457"]
    found = settings_of(parsed([*options, "--kubeconfig", "k", "--config", str(config)]))
    assert (found.host, found.port, found.kubeconfig) == ("127.0.0.1", 3456, "k")
    assert found.quota_map == ("n", "q")
    assert (found.options.model_label, found.options.pool_label) == ("m", quota.POOL_LABEL)


def test_the_version_and_the_servers_address_are_asked_for_as_of_gpu_admission() -> None:
    assert settings_of(parsed(["--master=http://10.0.0.1:8080"])).master == "http://10.0.0.1:8080"
    shown = [parsed(arguments).version for arguments in (["--version"], ["--version=true"], ["--version=false"], [])]
    assert shown == ["true", "true", "false", ""]


@pytest.mark.parametrize("address", ["0.0.0.0:1", ":1", "10.0.0.1:1", "[::]:1", "host:1"])
def test_without_certificates_it_listens_at_this_host_alone(address: str) -> None:
    with pytest.raises(VgpuError, match=r"127\.0\.0\.1"):
        settings_of(parsed([f"--address={address}"]))


def test_a_certificate_needs_an_authority_of_callers() -> None:
    with pytest.raises(VgpuError, match="together"):
        settings_of(parsed(["--tls-cert-file=a", "--tls-private-key-file=b"]))


@pytest.mark.parametrize(
    "options", [["--address=x"], ["--address=1:x"], ["--lease=x"], ["--resource=a:b"], ["--config=/none"]]
)
def test_what_cannot_be_is_refused(options: list[str]) -> None:
    with pytest.raises(VgpuError):
        settings_of(parsed(options))


@pytest.mark.parametrize("text", ["[]", "{", '{"QuotaConfigMapName": 5}'])
def test_a_configuration_that_is_none_is_refused(text: str, tmp_path) -> None:
    (tmp_path / "c").write_text(text)
    with pytest.raises(VgpuError):
        settings_of(parsed([f"--config={tmp_path}/c"]))


def test_further_resources() -> None:
    found = settings_of(parsed(["--resource=nvidia.com/vcuda-core:nvidia.com/vcuda-memory:256Mi"]))
    assert [(one.cores, one.unit >> 20) for one in found.options.names] == [
        ("tencent.com/vcuda-core", 256), ("nvidia.com/vcuda-core", 256),
    ]  # fmt: skip
