"""Debian's SELinux policy, compiled with a module, without a kernel that has SELinux: what it allows and labels.

Belongs here: making the policy and asking it by Debian's own tools. Debian compiles no module for containers into its
policy, so the reference policy's own is compiled from its sources and added. Does not belong here: which accesses have
to be allowed (test_selinux.py).
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import roots
import suites

SUITE = "bookworm"
MODULES = "usr/share/selinux/default"
CONTAINER = "policy/modules/services/container"
PRIORITY = "100"
#: A rule, which names types or attributes. One under a boolean has more behind it, and does not count.
_RULE = re.compile(r"^allow \S+ (\S+):(\S+) (?:\{ (.*) \}|(\S+));$", re.MULTILINE)

Question = tuple[str, str, str]  #: source, target, class


class Policy:
    """A policy with the module `cil` in it, kept by the module's content."""

    def __init__(self, cil: Path) -> None:
        base = _base()
        directory = roots.CACHE / f"selinux-with-{roots.key(str(base), cil.name, cil.read_bytes())}"
        with roots.making(directory) as place:
            if place:
                shutil.copytree(base, place, symlinks=True)
                _run("semodule", "-p", place, "-s", "default", "-n", "-X", "200", "-i", cil)
        self.contexts = directory / "etc/selinux/default/contexts/files/file_contexts"
        (self.policy,) = (directory / "etc/selinux/default/policy").iterdir()

    def allowed(self, questions: Iterable[Question]) -> dict[Question, set[str]]:
        """The permissions that the policy gives without any boolean."""
        found: dict[Question, set[str]] = {question: set() for question in questions}
        targets = {target: self._names[target] for _, target, _ in found}
        for source in {source for source, _, _ in found}:
            kinds = ",".join(sorted({kind for one, _, kind in found if one == source}))
            for rule in _RULE.finditer(_run("sesearch", "-A", "-s", source, "-c", kinds, self.policy)):
                for (one, target, kind), permissions in found.items():
                    if (one, kind) == (source, rule[2]) and rule[1] in targets[target]:
                        permissions.update((rule[3] or rule[4]).split())
        return found

    @functools.cached_property
    def _names(self) -> dict[str, set[str]]:
        """Each type's name, aliases and attributes, by its name."""
        lines = _run("seinfo", self.policy, "-x", "-t").split("   type ")[1:]
        names = [re.findall(r"[\w.-]+", line.replace(" alias", "")) for line in lines]
        return {name: {name, *others} for name, *others in names}

    def types_of(self, paths: Iterable[str], kind: str) -> dict[str, str]:
        """The types that files of this kind have on the host, by their paths."""
        asked = sorted(paths)
        if not asked:
            return {}
        mode = {"file": "file", "dir": "dir", "chr_file": "char", "lnk_file": "symlink"}[kind]
        labels = _run("matchpathcon", "-n", "-m", mode, "-f", self.contexts, *asked).split()
        return {path: label.split(":")[2] for path, label in zip(asked, labels)}


def _base() -> Path:
    """The policy with all modules of Debian and the reference policy's module for containers."""
    packages = [suites.unpack(SUITE, f"selinux-policy-{name}") for name in ("default", "dev", "src")]
    entry = roots.CACHE / f"selinux-{roots.key(*map(str, packages))}"
    with roots.making(entry) as place:
        if place:
            default, headers, sources = packages
            build = place / "build"
            build.mkdir(parents=True)
            for module in (default / MODULES).glob("*.pp.bz2"):
                (build / module.stem).write_bytes(_output("bzip2", "-dc", module))
            archive = next(sources.glob("usr/src/*.tar.*"))
            _run("tar", "-xf", archive, "-C", build, "--strip-components=1", "--wildcards", f"*/{CONTAINER}.[tf][ec]")
            for suffix in ("te", "fc"):
                (build / f"{CONTAINER}.{suffix}").rename(build / f"container.{suffix}")
            share = headers / "usr/share/selinux"
            makefile = share / "devel/Makefile"
            _run("make", "-C", build, "-f", makefile, f"SHAREDIR={share}", "NAME=default", "TYPE=mcs", "container.pp")
            for tree in ("etc", "var"):
                shutil.copytree(default / tree, place / tree, symlinks=True)
            modules = [part for module in sorted(build.glob("*.pp")) for part in ("-i", module)]
            _run("semodule", "-p", place, "-s", "default", "-n", "-X", PRIORITY, *modules)
            shutil.rmtree(build)
    return entry


def _run(*command: str | Path) -> str:
    return _output(*command).decode()


def _output(*command: str | Path) -> bytes:
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr.decode()}"
    return done.stdout
