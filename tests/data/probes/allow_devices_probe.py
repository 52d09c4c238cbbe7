"""The hook's device step alone, as a process of its own, for the moment or the place at which no hook runs.

Usage: python3 -I -S allow_devices_probe.py REPOSITORY REQUEST. A request is an object: pid, bundle, devices
[[major, minor, path], ...], and `run`, where /run lies: elsewhere there is no systemd. The answer is what was done, or
the error behind `error: `.
"""

from __future__ import annotations

import json
import sys

sys.path[:0] = [f"{sys.argv[1]}/config", f"{sys.argv[1]}/hook"]

from vgpu.config.errors import VgpuError  # noqa: E402 - the path is known only now
from vgpu.hook.devices import rules  # noqa: E402
from vgpu.hook.devices.allow import AllowDevices  # noqa: E402


def main() -> None:
    request = json.loads(sys.argv[2])
    with open(f"{request['bundle']}/config.json") as file:
        container_rules = rules.from_config(json.load(file))
    nodes = {(major, minor): path for major, minor, path in request["devices"]}
    try:
        done = AllowDevices(request["pid"], tuple(nodes), "rw", container_rules, nodes).execute(run=request["run"])
        print(done.text)
    except VgpuError as error:
        print(f"error: {error}")


main()
