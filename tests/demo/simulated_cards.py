"""`make simulated-cards`: cards in the place of a GPU, for the vgpu that is installed here, and their removal.

Belongs here: cards and driver, the lines in this node's settings, and what the units of vgpud and the device plugin
need besides. simulated_node.py makes a node of this checkout's programs, which changes nothing of the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT / "libvcuda/sim/tools"))

import simctl  # noqa: E402 - found by the line above

BUILD = os.environ.get("VGPU_BUILD", str(CHECKOUT / "build"))
PROFILE = str(CHECKOUT / f"libvcuda/sim/profiles/{os.environ.get('PROFILE', 'a100x2')}.yaml")
CARDS = Path("/run/vgpu-sim")  #: where the simulated driver looks for its cards, on the host and in a container
DRIVER = Path("/var/lib/vgpu-simulated-driver")
SETTINGS = Path("/etc/vgpu/config.yaml")
MARK = "# make simulated-cards-remove takes these two lines out."
LINES = f"{MARK}\ndriver: {{root: {DRIVER}, dev_root: {DRIVER}/dev, proc_root: {DRIVER}/proc}}\n"
DROP_INS = [
    Path(f"/etc/systemd/system/{unit}.service.d/simulated-cards.conf") for unit in ("vgpud", "vgpu-device-plugin")
]
DROP_IN = f"[Service]\nEnvironment=VGPU_SIM_DEVICE_NODES=0\nReadWritePaths=-{CARDS} -{DRIVER}/dev\n"
USE = f"""\
{{count}} simulated cards are in {CARDS}. The host's programs see them after: export VGPU_SIM_DEVICE_NODES=0
A container has them if its image is preceded by a mount:
podman, docker: --volume {CARDS}:{CARDS} IMAGE
ctr: --mount type=bind,src={CARDS},dst={CARDS},options=rbind:rw IMAGE
"""


class CardsError(Exception):
    """The cards cannot be made or removed."""


def make() -> None:
    """Make what is missing of them; after a reboot the cards."""
    if not shutil.which("vgpuctl"):
        raise CardsError("vgpu is not installed: make deb && apt-get install -y ./build/vgpu_*.deb")
    if not (CARDS / "cards").exists():
        simctl.make_state(str(CARDS), PROFILE)
    shutil.rmtree(DRIVER, ignore_errors=True)
    simctl.make_root(str(DRIVER), PROFILE, BUILD)
    before = SETTINGS.read_text() if SETTINGS.exists() else ""
    if MARK not in before:
        SETTINGS.write_text(before + LINES)
    applied = subprocess.run(["vgpuctl", "config", "apply"], capture_output=True, text=True, check=False)
    if applied.returncode != 0:
        SETTINGS.write_text(before)
        raise CardsError(f"{SETTINGS} does not take the lines of the simulated cards: {applied.stderr.strip()}")
    for path in DROP_INS:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(DROP_IN)
    _restart()
    print(USE.format(count=len(simctl.read_state(str(CARDS))["cards"])), end="")


def remove() -> None:
    """Take them away; nothing is done while a container holds a share."""
    claims = sorted(path.parent.name for path in Path("/run/vgpu/containers").glob("[!.]*/claim.json"))
    if claims:
        raise CardsError(f"containers still have a share: {', '.join(claims)}. Remove them first")
    if SETTINGS.exists():
        SETTINGS.write_text(SETTINGS.read_text().replace(LINES, ""))
        if shutil.which("vgpuctl"):
            subprocess.run(["vgpuctl", "config", "apply"], stdout=subprocess.DEVNULL, check=True)
    for path in DROP_INS:
        path.unlink(missing_ok=True)
    _restart()
    for directory in (CARDS, DRIVER):
        shutil.rmtree(directory, ignore_errors=True)
    print("The simulated cards are removed.")


def _restart() -> None:
    """Have the units that run start with the drop-ins, or without them."""
    if Path("/run/systemd/system").is_dir():
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        subprocess.run(["systemctl", "try-restart", *(path.parent.stem for path in DROP_INS)], check=True)


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("simulated-cards: run as root")
    try:
        (remove if sys.argv[1] == "remove" else make)()
    except (CardsError, OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"simulated-cards: {error}")


if __name__ == "__main__":
    main()
