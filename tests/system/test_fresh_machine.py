"""The commands on machines on which nobody has installed anything: each supported system, from a clone.

Belongs here: what the commands install there, that they remove and upgrade nothing, the packages that they build and
what these do, and Docker's own packages beside them. A machine is an overlay over a debootstrapped root. `make test`
has one system; the others are long, two at the same time. A row of docs/decisions/tested-systems.md is one run; its
figures are what the test prints (pytest -rP).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import installed_node
import podman_bed
import pytest
from fresh_machine import SAMPLE, SUPPORTED, TOO_OLD, Result, run

pytestmark = pytest.mark.root

BEGIN = """
set -e
packages() { dpkg-query -W -f '${Package} ${Version} ${Installed-Size}\\n' | sort; }
timed() { start=$(date +%s); "$@"; echo "## $* took $(($(date +%s) - start)) s"; }
compare() {
	packages >/root/after
	comm -13 /root/before /root/after | awk '{s += $3} END {print "## adds", NR, "packages,", int(s / 1024), "MB"}'
	echo "## gone or upgraded: $(comm -23 /root/before /root/after | wc -l)"
}
"""
DEMO = """
packages >/root/before
timed make demo
compare
packages >/root/before
echo "## warnings of $(cc --version | head -n 1): $(grep -c warning: build/build.log || :)"
echo "## virtual environment $(du -sm .venv | cut -f 1) MB"
"""
DRAWN = ["share", *(f"{second} s" for second in range(1, 9)), "mean"]  #: the lines of what two containers had
#: The venv has only what the programs import.
DEB = """
timed make deb
compare
"""
#: Without --long a sample of the unit tests: make test runs all of them on its own Python.
QUICK = """
timed env PYTEST_ADDOPTS="$sample" make test-quick
compare
times >/root/times
echo "## CPU of all this $(tail -n 1 /root/times)"
"""
#: The packages that were built here: used, upgraded under a running share, removed and purged.
PACKAGES = """
.venv/bin/python tests/beds/installed_node.py /root/installed build/vgpu_*.deb build/vgpu-device-plugin_*.deb
export VGPU_SIM_DIR=/root/installed/node/sim VGPU_SIM_DEVICE_NODES=0
echo "@@@@"
sh tests/beds/installed_steps.sh /root/installed/node/driver /root/installed/bundles
"""
#: podman with limits that this kernel accepts, and storage that works in an overlay.
PODMAN = f"""
export CONTAINERS_CONF=/root/containers.conf CONTAINERS_STORAGE_CONF=/root/storage.conf
cat >$CONTAINERS_CONF <<'END'
{podman_bed.CONFIG.format(runtime="runc", hooks="/nonexistent")}
END
printf '[storage]\\ndriver = "vfs"\\nrunroot = "/run/storage"\\ngraphroot = "/root/storage"\\n' >/root/storage.conf
"""
#: Every command that `make simulated-node` prints, typed in its order. containerd and vgpud go on until the removal.
SIMULATED_NODE = """
node=build/node
trap 'make simulated-node-remove' EXIT
packages >/root/before
timed make simulated-node >/root/use
cat /root/use
compare
sed -n 's/^    //p' /root/use >/root/commands
until_there() { for try in $(seq 3000); do [ ! -S $1 ] || return 0; sleep 0.1; done; return 1; }
while read -r command; do
	echo "@@@@ $command"
	case $command in
	*/vgpud) $command </dev/null >/root/vgpud.log 2>&1 & until_there $node/run/vgpud.sock ;;
	containerd*) sh -c "$command" && until_there $node/containerd/containerd.sock ;;
	*) sh -c "$command" </dev/null ;;
	esac
done </root/commands
[ ! -e $node ]
"""
#: Stand-ins for Docker's packages, with their relations. containerd.io has a runc of its own: here $runc, or none.
DOCKER = """
mkdir -p /root/docker/containerd.io/usr/bin /root/docker/docker-ce
cd /root/docker
if [ -n "$runc" ]; then
	apt-get update -q
	apt-get download -q runc
	dpkg -x runc_*.deb runc
	cp "$runc" containerd.io/usr/bin/runc
fi
package() {
	mkdir -p $1/DEBIAN
	printf 'Package: %s\\nVersion: %s\\nArchitecture: amd64\\n' $1 $2 >$1/DEBIAN/control
	printf 'Maintainer: test <test@test>\\nDescription: stand-in\\n' >>$1/DEBIAN/control
	cat >>$1/DEBIAN/control
	dpkg-deb -b $1 $1.deb
}
package containerd.io 1.7.27-1 <<END
Provides: containerd, runc
Conflicts: containerd, runc
Replaces: containerd, runc
END
package docker-ce 5:28.3.2-1 <<END
Depends: containerd.io (>= 1.7.27)
Conflicts: docker (<< 1.5~), docker-engine, docker.io, lxc-docker, lxc-docker-virtual-package
Replaces: docker-engine
END
dpkg -i containerd.io.deb docker-ce.deb
cd /root/vgpu
"""
#: What `make test` installs before anything else.
FOR_TESTS = """
timed packaging/setup/packages test
compare
dpkg-query -W -f '## ${Package} ${db:Status-Status}\\n' docker-ce containerd.io
"""


@pytest.fixture(scope="module")
def machines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Result]]]:
    """The machine of each suite that is tested. Two at a time do their steps, since one often waits."""
    wanted = {str(item.callspec.params["suite"]) for item in request.session.items if _takes_machines(item)}
    with ThreadPoolExecutor(2) as pool:
        sample = "" if request.config.getoption("--long") else "sample='-k claims'"
        steps = f"sample=\n{sample}{BEGIN}{DEMO}{DEB}{QUICK}{PACKAGES}"
        yield {suite: pool.submit(run, suite, tmp_path_factory.mktemp(suite), steps) for suite in sorted(wanted)}


def _takes_machines(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and item.originalname == "test_the_commands_and_their_packages"


@pytest.mark.parametrize(
    "suite", [pytest.param(suite, marks=[] if suite in SAMPLE else [pytest.mark.long]) for suite in SUPPORTED]
)
def test_the_commands_and_their_packages(suite: str, machines: dict[str, Future[Result]]) -> None:
    done = machines[suite].result()
    output, _, packages = done.output.partition("@@@@\n")
    print(f"{suite}: {done._replace(output=output).figures()}")
    assert done.status == 0, done.output[-3000:]
    assert re.search(r"^## warnings of .*: 0$", output, re.MULTILINE)
    assert "/tmp/fuse                refused (Operation not permitted)" in output
    assert "blue allocated 512 MiB again and again. 7 calls succeeded" in output
    assert re.findall(r"^   (.*?) +\d+\.\d +\d+\.\d   [#= ]+$", output, re.MULTILINE) == DRAWN
    assert output.count("## gone or upgraded: 0\n") == 3
    assert output.count("## adds 0 packages") == 2  # make deb and make test-quick need what make demo needs
    assert not re.search("clang|podman|debootstrap|mypy", output.split("## make demo took")[0])
    installed_node.check(installed_node.by_heading(packages))


@pytest.mark.long
@pytest.mark.parametrize(("suite", "runc"), [("bookworm", "runc/usr/sbin/runc"), ("noble", "")])
def test_docker_ce_stays(suite: str, runc: str, tmp_path: Path) -> None:
    """Docker's containerd.io brings a runc. Where it did not, Debian's would lie beside it, unpacked."""
    done = run(suite, tmp_path, f"{BEGIN}runc={runc}{DOCKER}{DEMO}{FOR_TESTS}")
    print(f"{suite}: {done.figures()}")
    assert done.status == 0, done.output[-3000:]
    assert "## docker-ce installed" in done.output
    assert "## containerd.io installed" in done.output
    assert ("unpacked runc" in done.output) == (not runc)
    assert done.output.count("## gone or upgraded: 0\n") == 2


@pytest.mark.long
def test_a_system_that_is_too_old(tmp_path: Path) -> None:
    done = run(TOO_OLD, tmp_path, "make demo; make test")
    assert done.status != 0
    refusal = r"make: needs Python 3\.9 or newer; Ubuntu 20\.04.* has 3\.8\. Use Debian 11 or newer, or Ubuntu 22\.04"
    assert len(re.findall(refusal, done.output)) == 2, done.output
    assert "installing" not in done.output


@pytest.mark.long
@pytest.mark.parametrize("suite", SAMPLE)
def test_a_simulated_node(suite: str, tmp_path: Path) -> None:
    done = run(suite, tmp_path, BEGIN + PODMAN + SIMULATED_NODE)
    print(f"{suite}: {done.figures()}")
    assert done.status == 0, done.output[-3000:]
    assert "## gone or upgraded: 0\n" in done.output
    said, *typed = done.output.split("@@@@ ")
    assert "To remove the node:\n\n    make -C /root/vgpu simulated-node-remove\n" in said
    assert len(typed) == said.count("\n    ")
    host, inventory, seen, limit, _, status, *others = typed
    assert host.count("0MiB /  40960MiB") == 2
    assert inventory.count("NVIDIA A100-PCIE-40GB") == 2
    assert "0MiB /   2048MiB" in seen
    assert "refused 2" in limit
    assert re.search(r"30 +2 GiB +39.4 GiB", status)
    assert any(text.startswith("ctr ") and "0MiB /   2048MiB" in text for text in others)
