"""The command `vgpu-exporter`: metrics of a node. Without libraries until it runs.

Belongs here: the command line and the messages about it. The process is vgpu.plugin.exporter.main.
"""

from __future__ import annotations

import argparse
import sys

from vgpu.config.settings import COMPILED_PATH

PROGRAM = "vgpu-exporter"
UNAVAILABLE = 69  #: exit status when a library is missing (EX_UNAVAILABLE); the unit does not start it again
NEEDS = "install python3-aiohttp and python3-prometheus-client, or in a checkout: pip install '.[metrics]'"


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Shows the use of this node's cards to Prometheus and to people, from vgpud's last round.",
        epilog="Settings: metrics.listen and metrics.compat in /etc/vgpu/config.yaml.",
    )
    add = parser.add_argument
    add("--config", default=COMPILED_PATH, metavar="PATH", help="compiled settings (default: %(default)s)")
    add("--listen", default="", metavar="HOST:PORT", help="address instead of metrics.listen")
    add("--version", action="store_true", help="print the version and exit")
    return parser.parse_args(arguments)


def main() -> None:
    """The console script."""
    options = parsed(sys.argv[1:])
    if options.version:
        from importlib import metadata  # noqa: PLC0415 - --help needs no library

        print(f"{PROGRAM} {metadata.version('vgpu')}")
        return
    try:
        from vgpu.plugin.exporter import main as process  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", "vgpu"):
            raise
        print(f"{PROGRAM}: {error}; {NEEDS}", file=sys.stderr)
        sys.exit(UNAVAILABLE)
    process.run(options.config, options.listen)


if __name__ == "__main__":
    main()
