"""The command line of vgpu-scheduler-extender.

Belongs here: its options, gpu-admission's among them, and the file that `--config` names. What the process does is
vgpu.plugin.scheduler.main's, which is loaded only to run it.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import sys
from typing import Any

from vgpu.config.errors import VgpuError
from vgpu.config.request import parse_size

PROGRAM = "vgpu-scheduler-extender"
#: gpu-admission's options for klog: accepted, without an effect. The log goes to stderr.
WITHOUT_EFFECT = (
    "--alsologtostderr", "--log-backtrace-at", "--log-dir", "--log-flush-frequency", "--logtostderr", "--pprofAddress",
    "--stderrthreshold", "--vmodule", "-v", "--v", "--incluster-mode",
)  # fmt: skip
EXTRA = "pip install '.[scheduler]'"


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Choose nodes and cards for kube-scheduler, and keep quotas.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--address", default="127.0.0.1:3456", metavar="HOST:PORT", help="where to listen (default: %(default)s)")
    add("--kubeconfig", default="", metavar="PATH", help="the kubeconfig; without it, the pod's service account")
    add("--master", default="", metavar="URL", help="the API server; overrides the one in the kubeconfig")
    add("--config", default="", metavar="PATH", help="gpu-admission's JSON file: the quotas' ConfigMap and labels")
    add("--bind", action="store_true", help="the scheduler calls the bind verb: decide then, not at filter")
    add("--policy", choices=("binpack", "spread"), default="binpack", help="how nodes are chosen")
    add("--tls-cert-file", default="", metavar="PATH", help="the server's certificate")
    add("--tls-private-key-file", default="", metavar="PATH", help="its key")
    add("--client-ca-file", default="", metavar="PATH", help="the authority of the callers' certificates")
    add("--client-names", default="", metavar="NAMES", help="common names that may call, joined by commas")
    add("--leader-elect", action="store_true", help="only one replica decides")
    add("--lease", default="kube-system/vgpu-scheduler-extender", metavar="NAMESPACE/NAME", help="the election's Lease")
    add("--assume-seconds", type=float, default=300.0, metavar="SECONDS",
        help="how long a decision counts that nobody binds (default: %(default)s)")  # fmt: skip
    add("--max-body-mib", type=int, default=256, metavar="MIB", help="the longest body (default: %(default)s)")
    add("--resource", action="append", default=[], metavar="CORES:MEMORY:UNIT",
        help="further resources of shares, as nvidia.com/vcuda-core:nvidia.com/vcuda-memory:1Mi")  # fmt: skip
    add("--gpu-name", default="nvidia.com/gpu", metavar="NAME", help="the resource of vGPUs (default: %(default)s)")
    add("--version", nargs="?", const="true", default="", choices=("true", "false", "raw"), metavar="true",
        help="print the version and exit")  # fmt: skip
    for name in WITHOUT_EFFECT:
        add(name, nargs="?", default=None, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def settings_of(options: argparse.Namespace) -> Any:
    """main.Settings from the command line; VgpuError for what cannot be."""
    from vgpu.plugin.scheduler import demand, quota  # noqa: PLC0415 - --version needs no library
    from vgpu.plugin.scheduler.main import Settings  # noqa: PLC0415
    from vgpu.plugin.scheduler.options import Options  # noqa: PLC0415

    host, port = _address(options.address)
    names = tuple(_names(text) for text in options.resource)
    kept = tuple(one for one in demand.DEFAULT_NAMES if one.cores not in [new[0] for new in names])
    file = _file(options.config) if options.config else {}
    tls = _tls(options, host)
    return Settings(
        host, port, options.kubeconfig, tls, options.leader_elect, _pair("--lease", options.lease),
        (file.get("QuotaConfigMapNamespace") or "kube-system", file.get("QuotaConfigMapName") or "gpuquota"),
        options.assume_seconds, options.max_body_mib << 20,
        Options(
            options.bind, options.policy, (*kept, *(demand.Names(*one) for one in names)), options.gpu_name,
            file.get("GPUModelLabel") or quota.MODEL_LABEL, file.get("GPUPoolLabel") or quota.POOL_LABEL,
        ),
        options.master,
    )  # fmt: skip


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise VgpuError("--address", expected="HOST:PORT", found=text)
    return host or "0.0.0.0", int(port)  # noqa: S104 - refused below without certificates


def _tls(options: argparse.Namespace, host: str) -> Any:
    from vgpu.plugin.scheduler.server import Tls  # noqa: PLC0415

    files = (options.tls_cert_file, options.tls_private_key_file, options.client_ca_file)
    if all(files):
        return Tls(*files, names=tuple(name for name in options.client_names.split(",") if name))
    if any(files):
        expected = "--tls-cert-file, --tls-private-key-file and --client-ca-file together"
        raise VgpuError("certificates", expected=expected, found=", ".join(filter(None, files)))
    if not _is_loopback(host):
        do = "give --tls-cert-file, --tls-private-key-file and --client-ca-file, or listen at 127.0.0.1"
        raise VgpuError("--address", expected="127.0.0.1 where callers show no certificate", found=host, do=do)
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names(text: str) -> tuple[str, str, int]:
    parts = text.split(":")
    if len(parts) != 3 or not all(parts):
        raise VgpuError("--resource", expected="CORES:MEMORY:UNIT", found=text)
    return parts[0], parts[1], parse_size(parts[2], "--resource")


def _pair(option: str, text: str) -> tuple[str, str]:
    namespace, slash, name = text.partition("/")
    if not slash or not namespace or not name:
        raise VgpuError(option, expected="NAMESPACE/NAME", found=text)
    return namespace, name


def _file(path: str) -> dict[str, str]:
    """gpu-admission's configuration file."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise VgpuError(path, expected="a JSON object", found=str(error)) from None
    if not isinstance(found, dict):
        raise VgpuError(path, expected="a JSON object", found=type(found).__name__)
    wrong = [key for key, value in found.items() if key != "SkipBindTime" and not isinstance(value, str)]
    if wrong:
        raise VgpuError(f"{path}: {wrong[0]}", expected="a text", found=str(found[wrong[0]]))
    return found


def main() -> None:
    """The console script."""
    options = parsed(sys.argv[1:])
    if options.version not in ("", "false"):
        from importlib import metadata  # noqa: PLC0415

        print(f"{PROGRAM} {metadata.version('vgpu')}")
        return
    try:
        from vgpu.plugin.scheduler import main as process  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", "vgpu"):
            raise
        sys.exit(f"{PROGRAM}: {error}; in a checkout, run: {EXTRA}")
    try:
        sys.exit(process.run(settings_of(options)))
    except VgpuError as error:
        sys.exit(f"{PROGRAM}: {error}")


if __name__ == "__main__":
    main()
