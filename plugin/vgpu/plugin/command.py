"""The command line of vgpu-device-plugin.

Belongs here: its options. Does not belong here: what the plugin does (vgpu.plugin.main). That is loaded only to run it,
so --help and --version work without root, grpc and protobuf.
"""

from __future__ import annotations

import argparse
import sys

from vgpu.config import settings
from vgpu.config.prepared import HOOK

PROGRAM = "vgpu-device-plugin"
LIBRARIES = ("grpc", "google")
#: The oldest grpcio that knows Python 3.10. With an older one, as in Ubuntu 22.04, a server hangs for ever.
OLDEST_GRPC, SINCE_PYTHON = (1, 42), (3, 10)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib import metadata  # noqa: PLC0415 - only this option needs it

        print(f"{PROGRAM} {metadata.version('vgpu')}")
        parser.exit()


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description="Advertise this node's cards to kubelet and grant shares of them."
    )
    parser.add_argument("--config", default=settings.COMPILED_PATH, metavar="PATH",
                        help="the compiled settings (JSON) of this node (default: %(default)s)")  # fmt: skip
    parser.add_argument("--hook", default=HOOK, metavar="PATH",
                        help="the hook's program on the host, for CDI files (default: %(default)s)")  # fmt: skip
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    return parser.parse_args(arguments)


def _refuse_old_grpc() -> None:
    import grpc  # noqa: PLC0415 - see above

    if sys.version_info >= SINCE_PYTHON and tuple(map(int, grpc.__version__.split(".")[:2])) < OLDEST_GRPC:
        sys.exit(
            f"{PROGRAM}: grpcio: expected 1.42 or newer for this Python, found {grpc.__version__}, which hangs; "
            "use the DaemonSet, or run: apt-get install python3-pip && pip3 install 'grpcio>=1.42'"
        )


def main() -> None:
    """The console script."""
    arguments = parsed(sys.argv[1:])
    try:
        from vgpu.plugin import main as process  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in LIBRARIES:
            raise
        sys.exit(f"{PROGRAM}: {error}; run: apt-get install python3-grpcio python3-protobuf")
    _refuse_old_grpc()
    process.run(arguments.config, arguments.hook)
