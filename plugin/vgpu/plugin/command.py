"""The command line of vgpu-device-plugin.

Belongs here: its options. Does not belong here: what the plugin does (vgpu.plugin.main). That is loaded only to run it,
so --help and --version work without root, grpc and protobuf.
"""

from __future__ import annotations

import argparse
import sys

from vgpu.config import settings

PROGRAM = "vgpu-device-plugin"
LIBRARIES = ("grpc", "google")


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
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    return parser.parse_args(arguments)


def main() -> None:
    """The console script."""
    config_path = parsed(sys.argv[1:]).config
    try:
        from vgpu.plugin import main as process  # noqa: PLC0415 - see above
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in LIBRARIES:
            raise
        sys.exit(f"{PROGRAM}: {error}; run: apt-get install python3-grpcio python3-protobuf")
    process.run(config_path)
