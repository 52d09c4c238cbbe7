"""runc for a cgroup v2 without controllers, as on a hybrid machine whose controllers belong to v1.

containerd gives every container a cpu weight, which runc cannot set there. This program removes cpu, memory and pids
from the config.json of the bundle that `--bundle` names, and executes runc. Device rules need no controller and stay.
"""

import json
import os
import shutil
import sys

RUNC = shutil.which("runc", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin") or "/usr/sbin/runc"


def strip(path: str) -> None:
    with open(path, encoding="utf-8") as stream:
        config = json.load(stream)
    resources = config["linux"].get("resources", {})
    config["linux"]["resources"] = {key: value for key, value in resources.items() if key == "devices"}
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(config, stream)


if __name__ == "__main__":
    if "create" in sys.argv:
        strip(sys.argv[sys.argv.index("--bundle") + 1] + "/config.json")
    os.execv(RUNC, [RUNC, *sys.argv[1:]])
