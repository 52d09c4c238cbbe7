"""The commands on machines on which nobody has installed anything: each supported system, from a clone.

Belongs here: what the commands install there, that they remove and upgrade nothing, the packages that they build and
what these do; and the same on machines with more than the release's pocket, with held packages, or with Docker's own. A
machine is an overlay over a debootstrapped root. `make test` has the demonstration on one system, with what this
checkout has compiled: what apt and pip install there, and that the programs run. All else is long, two machines at a
time.
A row of docs/decisions/tested-systems.md is one run; its figures are what the test prints (pytest -rP).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

import docs_commands
import installed_node
import podman_bed
import pytest
from checkout import CHECKOUT
from fresh_machine import SAMPLE, SUPPORTED, TOO_OLD, Result, run

pytestmark = pytest.mark.root

BEGIN = """
set -e
packages() { dpkg-query -W -f '${Package} ${Version} ${Installed-Size}\\n' | sort; }
timed() { start=$(date +%s); "$@"; echo "## $* took $(($(date +%s) - start)) s"; }
compiled=
compare() {
	packages >/root/after
	comm -13 /root/before /root/after | awk '{s += $3} END {print "## adds", NR, "packages,", int(s / 1024), "MB"}'
	echo "## gone or upgraded: $(comm -23 /root/before /root/after | wc -l)"
}
"""
#: What this checkout has compiled serves, unless it needs a newer C library than that machine's. The gate has the
#: checkout's own path.
THIS_BUILD = f"""
[ -e {CHECKOUT} ] || {{ mkdir -p {CHECKOUT.parent}; ln -s /root/vgpu {CHECKOUT}; }}
ldd build/lib/sim/libcuda.so.* 2>&1 | grep 'not found' || compiled='-o build'
"""
DEMO = """
packages >/root/before
timed make $compiled demo
compare
"""
COMPILED = """
packages >/root/before
if grep warning: build/build.log; then exit 1; fi
echo "## no warnings of $(cc --version | head -n 1)"
echo "## virtual environment $(du -sm .venv | cut -f 1) MB"
"""
DRAWN = ["share", *(f"{second} s" for second in range(1, 9)), "mean"]  #: the lines of what two containers had
#: The venv has only what the programs import.
DEB = """
timed make deb
compare
"""
SAMPLE_OF_TESTS = "'-k claims'"  #: of the unit tests, which make test runs on its own Python
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
#: What a page's reader has already: podman, and an image, which is a root file system here.
READER = """
packaging/setup/packages node
PYTHONPATH=tests/beds python3 -c 'import pathlib, trees; trees.make("debian", pathlib.Path("/root/rootfs"))'
set -x
"""
#: All pockets of a suite, by its mirrors, as on any machine that is not made today.
SOURCES = """
case $suite in
jammy | noble) mirror=http://archive.ubuntu.com/ubuntu security=$mirror components="main universe" ;;
*) mirror=http://deb.debian.org/debian security=$mirror-security components=main ;;
esac
echo "deb $mirror $suite $components" >/etc/apt/sources.list
if [ $suite != sid ]; then # which has no other
	echo "deb $mirror $suite-updates $components" >>/etc/apt/sources.list
	echo "deb $security $suite-security $components" >>/etc/apt/sources.list
fi
certificates=/etc/ssl/certs/ca-certificates.crt
cp $certificates /root/certificates
apt() { # an upgrade of ca-certificates leaves out those of the machine on which the test runs
	DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"
	cp /root/certificates $certificates
}
apt update
"""
UPGRADED = "apt dist-upgrade\n"
#: Nobody has upgraded these, or they are held. Their pocket has libc6-dev and others in the same version still.
HELD = """
apt-mark hold libc6 $(dpkg-query -W -f '${db:Status-Status} ${Package}\\n' 'libssl*' | sed -n 's/^installed //p')
apt upgrade
dpkg-query -W -f '## ${db:Status-Want} ${Package} ${Version}\\n' libc6 libc-bin
"""
#: A repository that stands in for Docker's, which cannot be reached: packages with Docker's relations, and nothing in
#: them but the runc of containerd.io. Where $runc is empty, that is left out.
DOCKER = """
mkdir -p /root/docker/containerd.io/usr/bin /root/docker/docker-ce
cd /root/docker
if [ -n "$runc" ]; then
	apt-get download -q runc
	dpkg -x runc_*.deb runc
	for file in runc/usr/sbin/runc runc/usr/bin/runc; do [ ! -e $file ] || cp $file containerd.io/usr/bin/runc; done
fi
package() {
	mkdir -p $1/DEBIAN
	printf 'Package: %s\\nVersion: %s\\nArchitecture: amd64\\n' $1 $2 >$1/DEBIAN/control
	printf 'Maintainer: test <test@test>\\nDescription: stand-in\\n' >>$1/DEBIAN/control
	cat >>$1/DEBIAN/control
	dpkg-deb -b $1 $1.deb
	dpkg-deb -f $1.deb >>Packages
	printf 'Filename: ./%s\\nSize: %s\\n' $1.deb $(stat -c %s $1.deb) >>Packages
	printf 'SHA256: %s\\n\\n' $(sha256sum $1.deb | cut -d ' ' -f 1) >>Packages
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
echo "deb [trusted=yes] file:/root/docker ./" >/etc/apt/sources.list.d/docker.list
apt update
apt install docker-ce
cd /root/vgpu
"""
#: state -> what makes it of a machine whose only pocket is the release's.
STATES = {
    "all pockets": SOURCES + UPGRADED,
    "held": SOURCES + HELD,
    "docker": f"{SOURCES}runc=yes{DOCKER}",
    "docker without runc": f"{SOURCES}runc={DOCKER}",
}
#: What `make test` installs before anything else.
FOR_TESTS = """
timed packaging/setup/packages test
compare
dpkg-query -W -f '## ${Package} ${db:Status-Status}\\n' docker-ce containerd.io
"""


@pytest.fixture(scope="module")
def machines(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Future[Result]]]:
    """(suite, state) -> the machine of each row that is tested. Two at a time do their steps, since one often waits."""

    def steps(suite: str, state: str) -> str:
        if state == "release":
            return f"sample={BEGIN}{DEMO}{COMPILED}{DEB}{QUICK}{PACKAGES}"
        then = FOR_TESTS if state == "docker without runc" else QUICK
        return f"suite={suite}\nsample={SAMPLE_OF_TESTS}{BEGIN}{STATES[state]}{DEMO}{COMPILED}{then}"

    wanted = [_row(item) for item in request.session.items if "machines" in getattr(item, "fixturenames", ())]
    with ThreadPoolExecutor(2) as pool:
        yield {
            (suite, state): pool.submit(run, suite, tmp_path_factory.mktemp(suite), steps(suite, state))
            for suite, state in wanted
        }


def _row(item: pytest.Item) -> tuple[str, str]:
    assert isinstance(item, pytest.Function)
    return str(item.callspec.params["suite"]), str(item.callspec.params.get("state", "release"))


def check_demo(output: str) -> None:
    """The demonstration has shown what it is for, and its packages are all that changed."""
    assert "/tmp/fuse                refused (Operation not permitted)" in output
    assert "blue allocated 512 MiB again and again. 7 calls succeeded" in output
    assert re.findall(r"^   (.*?) +\d+\.\d +\d+\.\d   [#= ]+$", output, re.MULTILINE) == DRAWN
    assert "released their shares: 0 claims are left." in output
    assert "## gone or upgraded: 0\n" in output
    assert not re.search("clang|podman|debootstrap|mypy", output.split(" demo took", 1)[0])


def test_the_demonstration(tmp_path: Path) -> None:
    done = run(SAMPLE, tmp_path, BEGIN + THIS_BUILD + DEMO, compiled=True)
    print(done.figures())
    assert done.status == 0, done.output[-3000:]
    check_demo(done.output)


@pytest.mark.long
@pytest.mark.parametrize("suite", SUPPORTED)
def test_the_commands_and_their_packages(suite: str, machines: dict[tuple[str, str], Future[Result]]) -> None:
    done = machines[suite, "release"].result()
    output, _, packages = done.output.partition("@@@@\n")
    print(f"{suite}: {done._replace(output=output).figures()}")
    assert done.status == 0, done.output[-3000:]
    check_demo(output)
    assert output.count("## gone or upgraded: 0\n") == 3
    assert output.count("## adds 0 packages") == 2  # make deb and make test-quick need what make demo needs
    installed_node.check(installed_node.by_heading(packages))


@pytest.mark.long
@pytest.mark.parametrize(
    ("suite", "state"),
    [
        *((suite, state) for state in ("all pockets", "held", "docker") for suite in SUPPORTED),
        ("noble", "docker without runc"),
    ],
)
def test_the_commands_where_the_machine_has(
    suite: str, state: str, machines: dict[tuple[str, str], Future[Result]]
) -> None:
    """Docker's containerd.io brings a runc. Where it did not, the distribution's would lie beside it, unpacked."""
    done = machines[suite, state].result()
    print(f"{suite}, {state}: status {done.status}; {done.figures()}\n{done.output[-600:]}")
    assert done.status == 0, done.output[-3000:]
    check_demo(done.output)
    assert done.output.count("## gone or upgraded: 0\n") == 2
    assert ("unpacked runc" in done.output) == (state == "docker without runc")


@pytest.mark.long
def test_a_system_that_is_too_old(tmp_path: Path) -> None:
    done = run(TOO_OLD, tmp_path, "make demo; make test")
    assert done.status != 0
    refusal = r"make: needs Python 3\.9 or newer; Ubuntu 20\.04.* has 3\.8\. Use Debian 11 or newer, or Ubuntu 22\.04"
    assert len(re.findall(refusal, done.output)) == 2, done.output
    assert "installing" not in done.output


@pytest.mark.long
def test_a_simulated_node(tmp_path: Path) -> None:
    done = run(SAMPLE, tmp_path, BEGIN + PODMAN + SIMULATED_NODE)
    print(done.figures())
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


@pytest.mark.long
def test_the_page_for_podman_without_a_gpu(tmp_path: Path) -> None:
    """The page as it stands, with all that make does in it. test_docs_commands types all pages without a compiler."""
    blocks = takewhile(lambda block: "runtime docker" not in block.text, docs_commands.blocks(docs_commands.START))
    typed = "".join(block.text for block in blocks if block.kind == "sh")
    image = f"{docs_commands.mounts()['podman']} --rootfs /root/rootfs"
    done = run(
        SAMPLE, tmp_path, BEGIN + PODMAN + READER + typed.replace("IMAGE", image) + "make simulated-cards-remove"
    )
    assert done.status == 0, done.output[-3000:]
    assert re.search(r"0MiB / +8192MiB", done.output)
    assert "cores 30 -> 50, core limit 30 -> 50" in done.output
