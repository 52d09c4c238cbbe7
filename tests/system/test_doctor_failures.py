"""Twenty failures of a node: `vgpuctl doctor` names each and says what to do, and is content after that was done.

A remedy that is a command is typed as it stands; the others are sentences for people. Eight failures are of a card,
three of the driver, four of the ledger and its disk, three of a registration, two of the API.

vgpud and the device plugin run on a simulated node, whose run directory is a file system of its own; vgpud looks at
the cards more often than usual. Programs of NVIDIA's and Kubernetes' are stand-ins: what the real one would do to the
card, the driver or the API server, `mend` does.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import nodes
import pytest
from checkout import BUILD
from daemons import Daemon, wait_for
from fake_apiserver import FakeApiServer
from plugin_process import Plugin

from vgpu.config import inventory, paths
from vgpu.node.ctl import doctor
from vgpu.node.doctor.findings import OK, CheckContext, Finding
from vgpu.node.runtimes import cdi_spec
from vgpu.node.runtimes.registration import Wish

pytestmark = pytest.mark.root

#: vgpud with other intervals: look, apart, hang, quiet, first, last of health_monitor.Pace.
VGPUD = """
import sys
from vgpu.node.cards.health_monitor import Pace
Pace.__init__.__defaults__ = (0.5, 0.5, 600.0, 1.0, 0.2, 1.0)
from vgpu.node.daemon.main import run
run(sys.argv[1])
"""
PATIENCE = 600.0  #: seconds after which a state counts as one that never comes
NO_KUBELET = "kubelet.sock"  #: what the plugin warns of on a node that has none
STAND_INS = ("nvidia-smi", "nvidia-modprobe", "modprobe", "kubectl", "dmesg", "systemctl")
HOOKS_D = "usr/share/containers/oci/hooks.d/vgpu.json"
HOOK_FILE = '{{"version": "1.0.0", "hook": {{"path": "{}"}}, "when": {{}}, "stages": ["prestart"]}}'
T4, A100 = 1, 3


class Bed:
    """The node with both programs; `root` is the tree of its runtimes' files."""

    def __init__(self, directory: Path) -> None:
        self.root, self.bin = directory / "root", directory / "bin"
        self.uvm_number = 0
        self.api = FakeApiServer()
        self.api.put_node("n")
        run = directory / "node/run"
        run.mkdir(parents=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "vgpu-test", run], check=True)
        self.node = nodes.SimulatedNode(directory / "node", "mixed", **{
            "metrics.listen": "", "plugin.http": "", "plugin.socket_dir": str(directory), "kubernetes.api": "always",
            "kubernetes.kubeconfig": self.api.kubeconfig(directory / "kubeconfig"), "plugin.cdi": True,
        })  # fmt: skip
        self.node.take_inventory()
        self.cards = inventory.read(self.node.settings.run_dir).cards
        self._make_programs()
        register(self)
        self.write("usr/bin/vgpu-hook", "")
        self.write("bin/vgpu-hook", "")
        self.daemon, self.plugin = Daemon(self.node), Plugin(self.node)
        self.daemon.launch([sys.executable, "-c", VGPUD, self.node.config], self.node.environment())
        self.daemon.ready()
        self.plugin.start(NODE_NAME="n")
        self.is_well()

    def _make_programs(self) -> None:
        self.bin.mkdir()
        for name in STAND_INS:
            (self.bin / name).write_text("#!/bin/sh\n")
        ctl = shlex.join(self.node.vgpuctl_command())
        (self.bin / "vgpuctl").write_text(
            f'#!/bin/sh\ncase $1 in\ndoctor) {ctl} "$@" --hook {self.node.hook} >&2 || true ;;\n'
            f'cdi) {ctl} "$@" --directory {self.root}/etc/cdi --programs {BUILD}/bin ;;\n*) {ctl} "$@" ;;\nesac\n'
        )
        for path in self.bin.iterdir():
            path.chmod(0o755)

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    @property
    def sim(self) -> str:
        return str(self.node.sim)

    def findings(self) -> list[Finding]:
        """What the doctor names of the checks that the failures are of: causes, and nothing that follows from one."""
        hook = str(BUILD / "bin/vgpu-hook")
        context = CheckContext(str(self.node.config), self.node.settings, str(self.root), "/proc", hook, real=False)
        found = [item for item in doctor.diagnose(context) if item.status != OK and not item.cause]
        checks = {one.check for one in FAILURES.values()}
        return [item for item in found if item.check in checks and NO_KUBELET not in item.found]

    def is_well(self) -> None:
        wait_for(lambda: not self.findings(), PATIENCE, lambda: f"{self.findings()} {self.daemon.text()[-2000:]}", 0.5)

    def named(self, failure: Failure) -> Finding:
        def seen() -> Finding | None:
            return next(
                (one for one in self.findings() if one.check == failure.check and re.search(failure.found, one.found)),
                None,
            )

        return wait_for(seen, PATIENCE, lambda: f"{self.findings()} {self.plugin.text()[-2000:]}", 0.5)  # type: ignore[no-any-return]

    def type(self, command: str) -> None:
        path = f"{self.bin}:{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-euc", command], env={**self.node.environment(), "PATH": path}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def end(self) -> None:
        self.plugin.kill()
        self.daemon.kill()
        with suppress(OSError):
            self.api.close()
        subprocess.run(["umount", "-l", self.node.settings.run_dir], check=True)


class Failure(NamedTuple):
    """`found` and `do` are parts of the finding of `check`, as regular expressions. The group of `do` is typed.

    `mend` does what the typed program, or a person, does to what is simulated.
    """

    check: str
    found: str
    do: str
    provoke: Callable[[Bed], object]
    mend: Callable[[Bed], object] = lambda _: None


def lost(bed: Bed) -> None:
    nodes.simctl().set_lost(bed.sim, A100)


def back(bed: Bed) -> None:
    nodes.simctl().set_lost(bed.sim, A100, False)


def reset(bed: Bed) -> None:
    """While it is reset, a card answers nobody."""
    lost(bed)
    wait_for(lambda: any("lost" in item.found for item in bed.findings()), PATIENCE, "vgpud saw no reset", 0.5)
    back(bed)


def xid(number: int) -> Callable[[Bed], None]:
    """NVML reports an Xid to those who wait for events then, and vgpud does not at every moment."""

    def provoke(bed: Bed) -> None:
        def seen() -> bool:
            nodes.simctl().inject_event(bed.sim, A100, "xid", number)
            return any(f"Xid {number}" in item.found for item in bed.findings())

        wait_for(seen, PATIENCE, "vgpud saw no Xid", 0.5)

    return provoke


def node_of_card(bed: Bed) -> None:
    Path(bed.cards[A100].device.path).unlink()


def uvm(bed: Bed) -> Path:
    return bed.node.driver / "dev/nvidia-uvm"


def version_file(bed: Bed) -> Path:
    return Path(bed.node.settings.text("driver.proc_root"), "driver/nvidia/version")


def unload(bed: Bed) -> None:
    nodes.simctl().set_driver(bed.sim, "unloaded")
    version_file(bed).rename(bed.root / "version")


def load(bed: Bed) -> None:
    nodes.simctl().set_driver(bed.sim, "loaded")
    if (bed.root / "version").exists():
        shutil.move(bed.root / "version", version_file(bed))


def remove_uvm(bed: Bed) -> None:
    bed.uvm_number = uvm(bed).stat().st_rdev
    uvm(bed).unlink()


def remake_uvm(bed: Bed) -> None:
    os.mknod(uvm(bed), stat.S_IFCHR | 0o666, bed.uvm_number)


def fill(bed: Bed) -> None:
    with suppress(OSError), (bed.node.run_dir / "filler").open("wb", buffering=0) as stream:
        while stream.write(b"x" * 512):
            pass


def damage_claim(bed: Bed) -> None:
    directory = Path(paths.container(bed.node.settings.run_dir, "c1"))
    directory.mkdir(parents=True)
    (directory / paths.CLAIM).write_text("{")
    for path in (directory / paths.CLAIM, directory):
        os.utime(path, (1, 1))


def damage_grant(bed: Bed) -> None:
    directory = Path(paths.grants(bed.node.settings.state_dir))
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{'a' * 32}.json").write_text("{")


def block_record(bed: Bed) -> None:
    path = Path(paths.round_record(bed.node.settings.run_dir))
    path.unlink()
    path.mkdir()


def unregister(bed: Bed) -> None:
    (bed.root / HOOKS_D).unlink()
    (bed.root / "etc/cdi/vgpu.json").unlink()


def register(bed: Bed) -> None:
    bed.write(HOOKS_D, HOOK_FILE.format("/bin/vgpu-hook"))
    bed.write("etc/cdi/vgpu.json", cdi_spec.text(Wish()))


def forbid(bed: Bed) -> None:
    bed.api.forbidden.append(("GET", "/pods"))
    bed.api.hang_up()


def answer_again(bed: Bed) -> None:
    port = bed.api.port
    bed.api = FakeApiServer(port)
    bed.api.put_node("n")


RESET = r"run: (nvidia-smi --gpu-reset -i [\w:.]+)"
FAILURES = {
    "a card is lost": Failure("card health", "card 3.*lost", RESET, lost, back),
    "it fell off the bus": Failure("card health", "Xid 79", RESET, xid(79), reset),
    "double bit error": Failure("card health", "Xid 48", RESET, xid(48), reset),
    "an Xid of no class": Failure("card health", "Xid 162", r"wait for 5 minutes", xid(162)),
    "uncorrected errors": Failure("card health", "uncorrect", r"wait for 5 minutes",
                                  lambda bed: nodes.simctl().inject_ecc(bed.sim, A100, 0, 1)),
    "no row to remap to": Failure("card health", "remapping .* has failed", "have the card replaced",
                                  lambda bed: nodes.simctl().set_remapped_rows(bed.sim, A100, failed=True),
                                  lambda bed: nodes.simctl().set_remapped_rows(bed.sim, A100)),
    "a page to retire": Failure("card health", "card 1.*page waits", RESET,
                                lambda bed: nodes.simctl().set_retired_pages(bed.sim, T4, 0, 1, pending=True),
                                lambda bed: nodes.simctl().set_retired_pages(bed.sim, T4, 0, 1)),
    "its device node is gone": Failure("card health", "device node .* is gone", r"run: (vgpuctl doctor --fix)",
                                       node_of_card),
    "no kernel module": Failure("driver", "no .*/driver/nvidia/version", r"install the driver, run (nvidia-smi)",
                                unload, load),
    "another kernel module": Failure("card health", "kernel module differ", r"run: (systemctl reboot)$",
                                     lambda bed: nodes.simctl().set_driver(bed.sim, "mismatched"), load),
    "no nvidia-uvm": Failure("uvm", "nvidia-uvm: No such file", r"run: (nvidia-modprobe -u.*)$",
                             remove_uvm, remake_uvm),
    "no room in /run": Failure("daemon", "/run.*no space.*make room there", r"run: (du .*)$", fill,
                               lambda bed: (bed.node.run_dir / "filler").unlink()),
    "a damaged claim": Failure("daemon", r"c1/claim.json.*if it is gone, remove", r"run: (rm -r \S+)$", damage_claim),
    "something in the place of a record": Failure("daemon", "round.json.*a directory.*remove it", r"run: (rm -r \S+)$",
                                                  block_record),
    "a damaged grant": Failure("device plugin", rf"{'a' * 32}.json.*JSON", r"run: (rm \S+)$", damage_grant),
    "no runtime calls the hook": Failure("registration", "no runtime is configured", "vgpuctl runtime configure",
                                         unregister, register),
    "the hook is gone": Failure("registration", "podman.*/opt/vgpu-hook is not a program", r"or run: rm /usr/share/\S+",
                                lambda bed: bed.write(HOOKS_D, HOOK_FILE.format("/opt/vgpu-hook")), register),
    "no CDI specification": Failure("CDI", "", "run (vgpuctl cdi generate)",
                                    lambda bed: (bed.root / "etc/cdi/vgpu.json").unlink(), register),
    "no API server": Failure("device plugin", "the API server is away", r"run: (kubectl .* get --raw /readyz)$",
                             lambda bed: bed.api.close(), answer_again),
    "no right to follow pods": Failure("device plugin", ": 403 ", r"run: (kubectl .* auth can-i --list)$",
                                       forbid, lambda bed: bed.api.forbidden.clear()),
}  # fmt: skip


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    made = Bed(tmp_path_factory.mktemp("doctor"))
    yield made
    made.end()


@pytest.mark.sample(6)
@pytest.mark.parametrize("name", FAILURES)
def test_the_doctor_names_a_failure_and_its_remedy_mends_it(bed: Bed, name: str) -> None:
    failure = FAILURES[name]
    failure.provoke(bed)
    finding = bed.named(failure)
    remedy = re.search(failure.do, finding.do)
    assert remedy, finding
    if remedy.groups():
        bed.type(remedy[1])
    failure.mend(bed)
    bed.is_well()
