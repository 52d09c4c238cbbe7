"""`make demo`: two containers share one card; the output explains each step to a reader who is new to vgpu.

Near the end both work at once, and a drawing shows what each has of the card beside its share.
If the machine has an NVIDIA driver, the containers use it. Otherwise they use the simulated driver of libvcuda/sim, and
the output says so. runc, the hook and the limiter are the real ones in both cases. Assertions about the same behaviour
are in tests/system.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "beds"))

import bundles
import nodes
import trees
from checkout import DATA

from vgpu.config import standalone
from vgpu.config.request import REQUEST
from vgpu.node.driver import nvml

PROBE = DATA / "cuda/cudaprobe.c"
SHARES = {"red": 30, "blue": 70}  #: percent of the card, which they share without a rest
SECONDS = 8
WIDTH = 50  #: columns of the card's whole time
MIB = 1 << 20
OUT_OF_MEMORY = "2"
PATIENCE = 60.0


def say(text: str = "") -> None:
    print(text, flush=True)


def step(title: str) -> None:
    say()
    say(f"== {title}")


class Tenant:
    """One container of the demonstration: its bundle, its life in runc, and its program's output."""

    def __init__(self, demo: Demo, name: str, script: str, request: str) -> None:
        self.name = name
        annotations = {REQUEST + demo.key: request} if request else {}
        bundle = bundles.Bundle(demo.directory / name, demo.rootfs, annotations).hooks(demo.node).simulated(demo.node)
        bundle.bind(demo.shared, "/run/demo", "rw")
        self.bundle = bundle.command("sh", "-c", script)
        bundle.config["process"]["env"].append(f"VGPU_SIM_GROUP={SHARES.get(name, 0)}")  # by which its work is found
        self.runtime = demo.runtime
        self.container = ""
        self.error = ""

    def start(self) -> bool:
        self.container, created = self.runtime.create(self.bundle, self.name)
        self.error = created.stderr
        return created.returncode == 0 and self.runtime.call("start", self.container).returncode == 0

    def output(self) -> dict[str, str]:
        """The program's `key value` lines so far; if a key occurs twice, the later line counts."""
        lines = (self.bundle.path / "output").read_text().splitlines()
        return dict(line.split(" ", 1) for line in lines if " " in line)

    def wait(self, key: str) -> str:
        """The value of `key`, once the program has printed it."""
        end = time.monotonic() + PATIENCE
        while key not in self.output():
            if time.monotonic() > end:
                raise SystemExit(f"{self.name} did not print {key}:\n{(self.bundle.path / 'output').read_text()}")
            time.sleep(0.02)
        return self.output()[key]


class Demo:
    """What all steps use. Everything is in a temporary directory, which is removed at the end."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.real = Path("/proc/driver/nvidia/version").exists()
        settings = {"standalone.requests": "key"}
        place = directory / "node"
        self.node = nodes.Node(place, **settings) if self.real else nodes.SimulatedNode(place, "t4x1", **settings)
        self.key = standalone.new_key()
        standalone.write_key(self.node.settings.text("standalone.key"), self.key)
        self.shared = directory / "shared"
        self.shared.mkdir()
        self.card = ""  #: the UUID of the card that they share
        self.rootfs = trees.make("debian", directory / "rootfs", self.programs())
        (self.rootfs / "run/demo").mkdir()
        (self.rootfs / "sys/fs/cgroup").mkdir(parents=True)  # runc 1.0.0-rc93 (Debian 11) wants it for exec
        self.program = "runc" if shutil.which("runc") else "crun"
        self.runtime = bundles.Runtime(directory / "runc", self.program)
        self.runtime.prefix = "demo"

    def programs(self) -> dict[str, Path]:
        probe = self.directory / "cudaprobe"
        subprocess.run(["cc", "-O2", "-o", probe, PROBE, "-ldl"], check=True)
        return {"cudaprobe": probe, "cores_load": bundles.load_generator(self.directory)}

    def signal(self, name: str) -> None:
        """Create the file that the containers' programs wait for."""
        (self.shared / name).touch()

    def vgpuctl(self, *arguments: str) -> str:
        done = self.node.vgpuctl(*arguments, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return done.stdout


def mib(text: str) -> str:
    return f"{int(text) // MIB} MiB"


def show_card(demo: Demo) -> None:
    step("1. The node")
    demo.vgpuctl("inventory", "refresh")
    table = demo.vgpuctl("inventory", "show").split("\n\n")[1]
    say("`vgpuctl inventory refresh` reads the driver and its cards once. Starting a container does not need to:")
    say(table if not demo.real else table.splitlines()[2])


def share(demo: Demo) -> tuple[Tenant, Tenant]:
    step("2. Two containers share one card")
    say("Each container is an ordinary runc bundle with the vgpu hook. An annotation, whose name has this node's key,")
    say("states its share of the card; an image, which does not know the key, cannot ask for one:")
    red, blue = f"cores={SHARES['red']},memory=2Gi", f"cores={SHARES['blue']},memory=4Gi"
    work = "cores_load kernel=fixed:5000000 wait=0 grid=1 block=32 end=600000000000"
    red_script = f"cudaprobe info; cudaprobe hold 1500 /run/demo/go; cudaprobe hold 1500 /run/demo/work; {work}"
    blue_script = f"cudaprobe info; cudaprobe alloc 512 100; cudaprobe hold 1024 /run/demo/work; {work}"
    tenants = Tenant(demo, "red", red_script, red), Tenant(demo, "blue", blue_script, blue)
    for tenant, asked in zip(tenants, (red, blue)):
        say(f"   {tenant.name}: {REQUEST}<key>: {asked}")
    if not tenants[0].start() or not tenants[1].start():
        raise SystemExit(tenants[0].error + tenants[1].error)
    demo.card = demo.node.claim(tenants[0].container).cards[0].uuid
    say("Both containers run. The usual CUDA and NVML calls return the container's own limit as the size of the card:")
    for tenant in tenants:
        tenant.wait("card0.nvml_total")
        seen = tenant.output()
        totals = f"cuDeviceTotalMem {mib(seen['card0.total'])}, cuMemGetInfo {mib(seen['card0.info_total'])}"
        say(f"   {tenant.name}: {totals}, NVML {mib(seen['card0.nvml_total'])}, card {seen['card0.uuid'][:8]}...")
    return tenants


def run_into_limit(demo: Demo, red: Tenant, blue: Tenant) -> None:
    step("3. One container reaches its memory limit, the other is not affected")
    held, result = blue.wait("held"), blue.wait("refused")
    if result != OUT_OF_MEMORY:
        raise SystemExit(f"blue got {result} and not CUDA_ERROR_OUT_OF_MEMORY: its limit did not hold")
    say(f"blue allocated 512 MiB again and again. {held} calls succeeded, the next got CUDA_ERROR_OUT_OF_MEMORY.")
    demo.signal("go")
    say("red held 1500 MiB the whole time. It now writes to this memory and reads it back:")
    say(f"   memory {red.wait('memory')}")


def devices(demo: Demo, red: Tenant) -> None:
    step("4. A container can open its own devices only")
    say("red opens its NVIDIA device nodes, and a node for another device that it makes itself (/tmp/fuse):")
    nodes_of_card = "for n in /dev/nvidia*; do cudaprobe open $n; done"
    foreign = "mknod /tmp/fuse c 10 229; cudaprobe open /tmp/fuse; rm /tmp/fuse"
    done = red.runtime.call("exec", red.container, "sh", "-c", f"{nodes_of_card}; {foreign}")
    if done.returncode != 0:
        raise SystemExit(f"{demo.program} exec: {done.stderr}")
    for line in done.stdout.splitlines():
        path, result = line.split(" ", 1)
        say(f"   {path:24} {explained(result)}")


def explained(result: str) -> str:
    if result == "No such device or address":
        return "allowed (no kernel driver answers, because the driver is simulated)"
    return {"opened": "allowed", "Operation not permitted": "refused (Operation not permitted)"}.get(result, result)


def refusals(demo: Demo) -> None:
    step("5. Containers that get no card")
    green = Tenant(demo, "green", "true", f"cores=10,memory=1Gi,use-gpuuuid={demo.card}")
    if green.start():
        raise SystemExit("green started, though the card has no cores left")
    line = next(one["error"] for one in reversed(demo.node.log()) if one["error"])
    say("green requests 10 percent of the card's cores, but none are free. The hook refuses it:")
    say(f"   vgpu-hook: {line}")
    grey = Tenant(demo, "grey", "ls /dev | grep -c nvidia; true", "")
    grey.bundle.config["process"]["env"].append("NVIDIA_VISIBLE_DEVICES=all")
    done = grey.runtime.run(grey.bundle, "grey")
    say("grey has no vgpu annotations, only NVIDIA_VISIBLE_DEVICES=all in its environment.")
    say(f"   NVIDIA device nodes that it sees: {done.stdout.strip()}")


def table(demo: Demo) -> None:
    step("6. `vgpuctl status` lists the containers and their shares")
    say(demo.vgpuctl("status").rstrip())


def used(demo: Demo) -> dict[int, int]:
    """The ledger of the simulated card: ns of its time by share. A real card has none."""
    cards = [] if demo.real else demo.node.read_cards()
    return {process["group"]: process["busy_ns"] for card in cards for process in card["processes"]}


def had(demo: Demo, tenants: tuple[Tenant, ...]) -> list[float]:
    """What each container has of the card in the next second, in percent."""
    began, before = time.time(), used(demo)
    time.sleep(1)
    after, length = used(demo), time.time() - began
    if not demo.real:
        return [(after.get(share, 0) - before.get(share, 0)) / length / 1e7 for share in SHARES.values()]
    samples = nvml.utilization("libnvidia-ml.so.1", int(began * 1e6), say).get(demo.card, [])
    rows = json.loads(demo.vgpuctl("ps", "--output", "json"))["containers"]
    pids = {row["container"]: row["processes"] for row in rows}
    return [fmean([use for pid, use, _ in samples if pid in pids[one.container]] or [0]) for one in tenants]


def draw(label: str, percent: list[float], marks: str) -> None:
    """A line with the first container's part from the left, the second's from the right, and what is idle between."""
    left, right = (mark * round(one * WIDTH / 100) for mark, one in zip(marks, percent))
    say(f"   {label:5} {percent[0]:7.1f} {percent[1]:6.1f}   {left}{' ' * (WIDTH - len(left) - len(right))}{right}")


def work(demo: Demo, tenants: tuple[Tenant, ...]) -> None:
    step("7. Both containers work at once")
    demo.signal("work")
    source = "NVML" if demo.real else "the simulated card's own account"
    say("Each launches kernels without end, and would keep the whole card busy if it were alone.")
    say(f"What each has of the card's time, second by second, in percent, by {source}:")
    if not any(all(had(demo, tenants)) for _ in range(int(PATIENCE))):
        raise SystemExit(f"not both containers had something of the card within {PATIENCE:g} s")
    marks = "█░" if sys.stdout.isatty() and sys.stdout.encoding.lower() == "utf-8" else "#="
    say(f"             red   blue   {marks[0]} red, {marks[1]} blue, blank: idle")
    draw("share", list(SHARES.values()), marks)
    found = []
    for second in range(1, SECONDS + 1):
        found.append(had(demo, tenants))
        draw(f"{second} s", found[-1], marks)
    draw("mean", [fmean(one) for one in zip(*found)], marks)


def end(demo: Demo, tenants: tuple[Tenant, ...]) -> None:
    step("8. The containers end")
    until = time.monotonic() + PATIENCE
    for tenant in tenants:
        deleted = demo.runtime.delete(tenant.container)
        while deleted.returncode and time.monotonic() < until:  # runc gives a process 10 s to die
            deleted = demo.runtime.delete(tenant.container)
        if deleted.returncode:
            raise SystemExit(f"{tenant.name} could not be deleted: {deleted.stderr}")
    left = len(demo.node.held())
    say(f"Both containers are deleted. Their poststop hooks released their shares: {left} claims are left.")


def play(demo: Demo) -> None:
    driver = "the NVIDIA driver of this machine" if demo.real else "a simulated driver (this machine has no GPU)"
    say("With vgpu, several containers share one NVIDIA card.")
    say(f"This demonstration uses {driver}, and the real {demo.program}, vgpu hook and vgpu limiter.")
    say("It changes nothing outside a temporary directory, which it removes at the end.")
    show_card(demo)
    red, blue = share(demo)
    run_into_limit(demo, red, blue)
    devices(demo, red)
    refusals(demo)
    table(demo)
    work(demo, (red, blue))
    end(demo, (red, blue))


def main() -> None:
    if os.geteuid() != 0:
        sys.exit("demo: run as root: it starts containers")
    if sys.stdout.isatty():  # vgpuctl writes to a pipe of this program, and cannot see the terminal
        os.environ.setdefault("COLUMNS", str(shutil.get_terminal_size().columns))
    directory = Path(tempfile.mkdtemp(prefix="vgpu-demo-"))
    directory.chmod(0o755)
    demo = None
    try:
        demo = Demo(directory)
        play(demo)
    finally:
        if demo:
            demo.runtime.cleanup()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
