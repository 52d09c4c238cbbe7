"""`make repository`: docs/repository.md, typed by who publishes and by who uses it, with apt, dnf and zypper.

Belongs here: two versions of the packages installed from the repository, and faults planted into copies of it. The
machine is Debian 12 with dnf and zypper, whose rpm knows stand-ins for the packages of a distribution with rpm. So this
shows what these programs accept and refuse, and that the scriptlets run; not what another version of them does. `make
test` has apt and dnf, and two faults of each; zypper, the other faults and other systems with apt are long.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import fresh_machine
import last_version
import pytest
import roots
import rpm_packages
from checkout import CHECKOUT

pytestmark = pytest.mark.root

PAGE = CHECKOUT / "docs/repository.md"
SCRIPT = CHECKOUT / "tests/beds/repository_root.sh"
TIMEOUT = 1800
TOOLS = ("apt", "dnf", "zypper")
KEYS = {
    "apt": "/etc/apt/keyrings/vgpu.asc",
    "dnf": "/etc/pki/rpm-gpg/RPM-GPG-KEY-vgpu",
    "zypper": "/etc/pki/rpm-gpg/RPM-GPG-KEY-vgpu",
}
#: Installs the package again with nothing that was fetched before.
AGAIN = {
    "apt": "rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb; apt-get update && "
    "apt-get install -y --reinstall vgpu",
    "dnf": "rm -rf /var/cache/dnf; dnf reinstall -y vgpu",
    "zypper": "zypper clean --all; zypper -n install --force vgpu",
}
FORGET = "rm $key; rpm -e --allmatches gpg-pubkey >/root/log || :"
EXPIRED = "cp -r /srv/expired/. .; cp vgpu.asc $key"
#: Changes a byte of the file whose name it reads.
DAMAGE = "{ read -r file; printf X | dd bs=1 seek=%d conv=notrunc status=none of=$file; }"
#: What is planted into a copy of the repository, by the row of the page's table: for apt, for dnf and zypper.
FAULTS = {
    "another package": (
        f"ls deb/pool/vgpu_*-1_* | {DAMAGE % 90000}",
        f"ls rpm/vgpu-[0-9]*-1.* | {DAMAGE % 90000}",
    ),
    "an unsigned package": (
        "",
        "cp /root/checkout/build/vgpu-[0-9]*.rpm rpm; createrepo_c -q --no-database rpm; "
        "gpg --yes --armor --detach-sign rpm/repodata/repomd.xml",
    ),
    "another index": (
        f"for file in $(find deb -path '*binary*' -type f); do echo $file | {DAMAGE % 50}; done",
        f"sed -n 's|.*\\(repodata/.*-primary.*\\)\"..$|rpm/\\1|p' rpm/repodata/repomd.xml | {DAMAGE % 50}",
    ),
    "another text under the signature": (
        "sed -i s/^Label:.*/Label:other/ deb/dists/stable/*Release",
        "sed -i 's/<revision>/&1/' rpm/repodata/repomd.xml",
    ),
    "no signature": (
        "rm deb/dists/stable/InRelease deb/dists/stable/Release.gpg",
        "rm rpm/repodata/repomd.xml.asc",
    ),
    "a signature by another key": ("cp -r /srv/other/. .", "cp -r /srv/other/. ."),
    "no key on the machine": ("rm $key", FORGET),
    "an expired key": (EXPIRED, f"{FORGET}; {EXPIRED}"),
}  # fmt: skip
SAMPLE = {"apt": ("another package", "another index"), "dnf": ("another package", "another text under the signature")}
#: What `make repository` refuses, and what it says.
REFUSED = {
    "": "expected KEY=<the name of the gpg key that signs>, found none",
    "KEY=nobody@example.org": "KEY=nobody@example.org: expected the name of a secret key, found none in /root/.gnupg",
    "KEY=packages@example.org PACKAGES=/root/nothing.deb": "/root/nothing.deb: expected a package, found none",
    "KEY=packages@example.org PACKAGES=/root/refused/deb/*.deb": "that /srv/refused/deb/pool has by this name",
    "KEY=packages@example.org PACKAGES=/root/refused/rpm/*.rpm": "that /srv/refused/rpm has by this name",
    "KEY=packages@example.org INTO=/srv/damaged PACKAGES=": "/srv/damaged/deb: expected the packages that ",
    "KEY=packages@example.org INTO=/srv/foreign PACKAGES=": "expected a signature by ",
    "KEY=packages@example.org INTO=/srv/empty PACKAGES=": "expected packages, found none",
    "GNUPGHOME=/root/locked KEY=packages@example.org PACKAGES=": "signing failed: Bad passphrase",
    "GNUPGHOME=/root/expired KEY=packages@example.org": "expected a key that is valid, found one that expired on 2020-",
}
#: Folders that a publisher must not sign, and packages with a published version's name.
TO_REFUSE = f"""
cp -a /srv/vgpu /srv/refused; cp -a /srv/vgpu /srv/damaged; cp -a /srv/vgpu /srv/foreign
ls /srv/damaged/deb/pool/vgpu_*-1_* | {DAMAGE % 90000}
cp /srv/other/rpm/*.rpm /srv/foreign/rpm
mkdir -p /root/refused/deb /root/refused/rpm
cp /srv/vgpu/deb/pool/vgpu-device-plugin_*-1_* /root/refused/deb/$(basename /srv/vgpu/deb/pool/vgpu_*-1_*)
cp /srv/vgpu/rpm/vgpu-device-plugin-*-1.* /root/refused/rpm/$(basename /srv/vgpu/rpm/vgpu-[0-9]*-1.*)
sed -i /faked/d /root/expired/gpg.conf
mkdir -m 700 /root/locked
cp -r /root/.gnupg/*.conf /root/.gnupg/*.kbx /root/.gnupg/private-keys-v1.d /root/locked
sed -i 's/^passphrase .*/passphrase wrong/' /root/locked/gpg.conf
"""
#: A package for another processor, which lies beside the others.
ARM64 = """
dpkg-deb -R $packages/now/vgpu_*_amd64.deb /root/arm64
sed -i 's/^Architecture: .*/Architecture: arm64/' /root/arm64/DEBIAN/control
dpkg-deb -Znone -b /root/arm64 $packages/now/
"""
#: A machine with dnf and zypper, and a web server.
MACHINE = """
: >/etc/apt/sources.list # the root has what the packages depend on
mkdir -p /etc/rpm /etc/yum.repos.d /etc/zypp/repos.d
echo '%_dbpath /var/lib/rpm' >/etc/rpm/macros # Debian has one for each user
rpm -i $packages/stand-ins.rpm
serve /nonexistent
python3 -m http.server --bind 127.0.0.1 --directory /srv/www 80 >/root/http.log 2>&1 </dev/null &
"""
#: HTTP tells a file's age in seconds, so apt does not see two indexes of one second as two.
NEXT_SECOND = "now=$(date +%s); until [ $(date +%s) -gt $now ]; do sleep 0.1; done"
FINGERPRINT = (
    "FINGERPRINT=$(gpg --list-secret-keys --with-colons | sed -n 's/^fpr:*\\([0-9A-F]*\\):$/\\1/p' | head -n 1)"
)
#: The second of the other publishers extends its key, by the page's commands.
EXTENDED = f"""
cp -a /srv/expired /srv/extended
( export GNUPGHOME=/root/expired; {FINGERPRINT}
%s)
"""
#: Two other publishers of the same packages; the key of one has expired since.
OTHERS = """
for name in other expired; do
	mkdir -m 700 /root/$name; cp /root/.gnupg/*.conf /root/$name
	[ $name = other ] || echo faked-system-time 20200101T000000 >>/root/$name/gpg.conf
	export GNUPGHOME=/root/$name
	gpg --quick-generate-key "vgpu packages <packages@example.org>" ed25519 sign 1y
	sed -i s/20200101/20200102/ /root/$name/gpg.conf # each program begins at that time again, before the key was made
	make repository KEY=packages@example.org INTO=/srv/$name PACKAGES="/srv/vgpu/deb/pool/*.deb /srv/vgpu/rpm/*.rpm"
	unset GNUPGHOME
done
"""


def typed(heading: str) -> list[str]:
    """The blocks of commands below a heading of the page."""
    text = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def messages() -> dict[tuple[str, str], list[str]]:
    """(tool, fault) -> what the page says that the tool prints."""
    found = {}
    for fault in FAULTS:
        (row,) = re.findall(rf"^\| {re.escape(fault)} \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
        found.update({(tool, fault): re.findall("`(.*?)`", cell) for tool, cell in zip(TOOLS, row.split(" | "))})
    return {key: texts for key, texts in found.items() if texts}


def is_long(tool: str, fault: str = "") -> bool:
    return tool not in SAMPLE or (bool(fault) and fault not in SAMPLE[tool])


@pytest.fixture(scope="module")
def packages(debs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of two versions, and stand-ins for the packages of a distribution with rpm."""
    directory = tmp_path_factory.mktemp("packages")
    last_version.renumbered(debs, directory / "before", "~before")
    (directory / "now").mkdir()
    for deb in debs:
        shutil.copy(deb, directory / "now")
    for name, release in (("before", f"{rpm_packages.RELEASE}~before"), ("now", rpm_packages.RELEASE)):
        rpms = rpm_packages.pack(rpm_packages.TREES, directory / name, release)
    rpm_packages.pack_stand_ins(rpms, directory)
    return directory


@pytest.fixture(scope="module")
def printed(request: pytest.FixtureRequest, packages: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What the commands printed, by step. The repository of each version is beside the packages."""
    commands = list(steps(request.config.getoption("--long")))
    return run(["-n"], roots.made("repository", "bookworm"), packages, tmp_path_factory.mktemp("machine"), commands)


def run(options: list[str], root: Path, packages: Path, directory: Path, commands: list[str]) -> dict[str, str]:
    (directory / "commands").write_text("\n".join(commands) + "\n")
    (directory / "overlay").mkdir()
    command = ["unshare", "-m", "-p", "-f", "--kill-child", *options, "sh", SCRIPT, directory / "overlay", root]
    done = subprocess.run(
        [*command, CHECKOUT, packages, directory / "commands"],
        capture_output=True, text=True, check=False, timeout=TIMEOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    parts = re.split(r"^@@@@ (.*)\n", re.sub(r"^\+ .*\n", "", done.stdout, flags=re.MULTILINE), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2]))


def steps(long: bool) -> Iterator[str]:
    yield f"{MACHINE}\nsay key"
    yield from typed("Publish: the key")
    yield FINGERPRINT
    yield ARM64
    for version in ("before", "now"):
        yield NEXT_SECOND
        yield f"version={version}; say publish {version}"
        yield from typed("Publish: a version")
        yield f"cp -a /srv/vgpu /srv/{version}; cp -a /srv/vgpu $packages/repository-{version}"
    yield f"say others\n{OTHERS}\nsay refused\n{TO_REFUSE}"
    for arguments in REFUSED:
        yield f"say refused {arguments}; ! make repository INTO=/srv/refused {arguments}"
    yield "say after refusals; diff -r /srv/vgpu /srv/refused && echo same"
    extend = typed("Publish: before the key expires")[0]
    yield f"say extended\n{EXTENDED % extend.replace('/srv/vgpu', '/srv/extended')}"
    yield "export REPOSITORY=http://127.0.0.1"
    for tool in TOOLS:
        if long or not is_long(tool):
            yield from use(tool, [fault for fault in FAULTS if long or not is_long(tool, fault)])
    yield "say withdrawn; VERSION=$(dpkg-deb -f build/vgpu_*_amd64.deb Version)"
    yield from typed("Publish: withdraw a version")
    yield "ls /srv/vgpu/deb/pool /srv/vgpu/rpm; grep -h ^Version: /srv/vgpu/deb/dists/stable/main/*/Packages"
    yield "zcat $(ls -t /srv/vgpu/rpm/repodata/*primary* | head -n 1) | grep '<version'; say test key"
    yield "make repository TEST_KEY=yes INTO=/srv/tested; say end"


def use(tool: str, faults: list[str]) -> Iterator[str]:
    """Install, upgrade, meet the faults with the key that they need, and remove."""
    install, upgrade, remove = typed(f"Use: {tool}")
    installed = "dpkg-query -W" if tool == "apt" else "rpm -q"
    for name, version, commands in (("install", "before", install), ("upgrade", "now", upgrade)):
        yield f"say {tool} {name}; serve /srv/{version}\n{commands}\n{installed} vgpu vgpu-device-plugin"
    yield f"key={KEYS[tool]}; cp $key /root/key"
    for fault in faults:
        plant = FAULTS[fault][tool != "apt"]
        if plant:
            yield f"say {tool}: {fault}; rm -rf /srv/fault; cp -a /srv/now /srv/fault; serve /srv/fault; cd /srv/fault"
            yield f"cp /root/key $key\n{plant}\n({AGAIN[tool]}) </dev/null && say not refused || echo refused"
    if "an expired key" in faults:
        yield f"say {tool}: the key is extended; cp -r /srv/extended/. .; curl -fsSo $key $REPOSITORY/vgpu.asc"
        yield f"{'rpm --import $key; ' if tool == 'zypper' else ''}({AGAIN[tool]}) </dev/null && echo accepted"
    yield f"say {tool} remove; cd /root/checkout; serve /srv/now; cp /root/key $key\n{remove}"


def check_versions(printed: dict[str, str], tool: str) -> None:
    for step, version in (("install", "0.1.0-1~before"), ("upgrade", "0.1.0-1")):
        lines = [line.replace("\t", "-") for line in printed[f"{tool} {step}"].splitlines()[-2:]]
        assert [re.sub(r"\.(x86_64|noarch)$", "", line) for line in lines] == [
            f"vgpu-{version}",
            f"vgpu-device-plugin-{version}",
        ]


@pytest.mark.parametrize(
    "tool", [pytest.param(tool, marks=[pytest.mark.long] if is_long(tool) else []) for tool in TOOLS]
)
def test_a_user_installs_and_upgrades(printed: dict[str, str], tool: str) -> None:
    check_versions(printed, tool)


@pytest.mark.long
@pytest.mark.parametrize("suite", [suite for suite in fresh_machine.SUPPORTED if suite != "bookworm"])
def test_a_fresh_machine_installs_and_upgrades(
    suite: str, printed: dict[str, str], packages: Path, tmp_path: Path
) -> None:
    """By a file: address, with what the page installs from the distribution."""
    copy = "for version in before now; do cp -a $packages/repository-$version /srv/$version; done"
    commands = [copy, "export REPOSITORY=file:///srv/www", *use("apt", [])]
    assert printed
    check_versions(run([], roots.made("fresh", suite), packages, tmp_path, commands), "apt")


@pytest.mark.parametrize(
    ("tool", "fault"),
    [pytest.param(*key, marks=[pytest.mark.long] if is_long(*key) else []) for key in messages()],
)
def test_a_fault_is_refused(printed: dict[str, str], tool: str, fault: str) -> None:
    output = printed[f"{tool}: {fault}"]
    assert output.endswith("\nrefused\n"), output
    assert [text for text in messages()[tool, fault] if text not in output] == [], output


@pytest.mark.parametrize("arguments", REFUSED)
def test_the_publisher_is_refused(printed: dict[str, str], arguments: str) -> None:
    assert REFUSED[arguments] in printed[f"refused {arguments}".strip()]


def test_a_refusal_leaves_the_repository_as_it_was(printed: dict[str, str]) -> None:
    assert printed["after refusals"] == "same\n"


def test_packages_for_two_processors_lie_together(printed: dict[str, str], packages: Path) -> None:
    assert "5 packages for apt, 4 for dnf and zypper" in printed["publish now"]
    suite = packages / "repository-now/deb/dists/stable"
    assert "\nArchitectures: amd64 arm64\n" in (suite / "InRelease").read_text()
    for architecture in ("amd64", "arm64"):
        text = (suite / f"main/binary-{architecture}/Packages").read_text()
        listed = set(re.findall("^Filename: pool/(.*)$", text, re.MULTILINE))
        assert {f"vgpu_0.1.0-1_{architecture}.deb", "vgpu-device-plugin_0.1.0-1_all.deb"} <= listed
        assert not [name for name in listed if not name.endswith((f"_{architecture}.deb", "_all.deb"))]


def test_a_withdrawn_version_is_gone(printed: dict[str, str]) -> None:
    assert set(re.findall(r"0\.1\.0-1(?:~before)?", printed["withdrawn"])) == {"0.1.0-1~before"}


def test_a_key_for_tests_is_made_on_request(printed: dict[str, str]) -> None:
    assert "signs by a key for tests, in /root/checkout/build/repository-key" in printed["test key"]


@pytest.mark.long
@pytest.mark.parametrize("tool", TOOLS)
def test_users_fetch_an_extended_key(printed: dict[str, str], tool: str) -> None:
    assert printed[f"{tool}: the key is extended"].endswith("\naccepted\n")
