"""The two commands on machines on which nobody has installed anything: each supported system, from a clone.

Belongs here: what the commands install there, that they remove and upgrade nothing, and Docker's own packages beside
them. A machine is an overlay over a debootstrapped root. A row of docs/decisions/tested-systems.md is one run; its
figures are what the test prints (pytest -rP).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from fresh_machine import SUPPORTED, TOO_OLD, run

pytestmark = [pytest.mark.root, pytest.mark.long]

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
echo "## warnings of $(cc --version | head -n 1): $(grep -c warning: build/build.log || :)"
echo "## virtual environment $(du -sm .venv | cut -f 1) MB"
"""
QUICK = """
timed make test-quick
compare
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


@pytest.mark.parametrize("suite", SUPPORTED)
def test_the_two_commands(suite: str, tmp_path: Path) -> None:
    done = run(suite, tmp_path, BEGIN + DEMO + QUICK)
    print(f"{suite}: {done.figures()}")
    assert done.status == 0, done.output[-3000:]
    assert re.search(r"^## warnings of .*: 0$", done.output, re.MULTILINE)
    assert "/tmp/fuse                refused (Operation not permitted)" in done.output
    assert "blue allocated 512 MiB again and again. 7 calls succeeded" in done.output
    assert done.output.count("## gone or upgraded: 0\n") == 2
    assert not re.search("clang|podman|debootstrap|mypy", done.output.split("## make demo took")[0])


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


def test_a_system_that_is_too_old(tmp_path: Path) -> None:
    done = run(TOO_OLD, tmp_path, "make demo; make test")
    assert done.status != 0
    refusal = r"make: needs Python 3\.9 or newer; Ubuntu 20\.04.* has 3\.8\. Use Debian 11 or newer, or Ubuntu 22\.04"
    assert len(re.findall(refusal, done.output)) == 2, done.output
    assert "installing" not in done.output
