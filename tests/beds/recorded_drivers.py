"""What real drivers export (libvcuda/src/driver/names) and what their cuGetProcAddress answers (tests/data/drivers).

Belongs here: reading these records, writing the answers, and stand-ins, which are libraries with a recorded driver's
exports and answers. tests/compatibility asks the drivers' own packages. Names and numbers are facts; nothing else of a
driver is kept. Does not belong here: the simulated driver, which does work.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from checkout import BUILD, CHECKOUT, DATA

from vgpu.config import inventory
from vgpu.node.driver import library_copies

RECORDS = DATA / "drivers"
NAMES = CHECKOUT / "libvcuda/src/driver/names"
PROC_ADDRESS = RECORDS / "proc_address.txt"
#: The releases, and the version of each that was recorded.
RELEASES = {"470": "470.256.02", "535": "535.261.03", "550": "550.163.01", "580": "580.142", "615": "615.71.09"}
LIBRARIES = {"libcuda": "libcuda.so.1", "libnvidia-ml": "libnvidia-ml.so.1"}
LISTS = {"libcuda": "vcuda.json", "libnvidia-ml": "vcuda_nvml.json"}
#: The versions of CUDA that were released.
CUDA = (*range(11000, 11090, 10), *range(12000, 12070, 10), 12080, 12090, *range(13000, 13060, 10))
FLAGS = ("0", "1", "2")
#: The answers for a function, for a name without one, and for one that comes with a later version: without and with
#: cuGetProcAddress_v2, which the oldest release lacks.
FIRST_FORM = ("x/0", "x/500,u", "x/500,u")
BOTH_FORMS = ("0,0", "0,1,-/500,u", "0,2,-/500,u")

Answers = dict[tuple[str, str], list[str]]  #: (name, flags) -> "version:answer", where it changes: ask_proc_address.c


def hooked(library: str) -> set[str]:
    """The functions for which the built libvcuda has wrappers."""
    return set(json.loads((BUILD / "lib/vcuda" / LISTS[library]).read_text())["hooked"])


def passed_on(library: str) -> set[str]:
    """The names that the built libvcuda exports besides."""
    return set(json.loads((BUILD / "lib/vcuda" / LISTS[library]).read_text())["known"])


def libvcuda(release: str, driver: Path, target: Path) -> Path:
    """A directory with libvcuda as a node has it for a release's driver, whose libraries are in `driver`."""
    found = [inventory.Library(str(driver / name), name, name, "compute") for name in LIBRARIES.values()]
    notes: list[str] = []
    copies = library_copies.make(
        str(BUILD / "lib/vcuda"), str(target / "state"), found, RELEASES[release], notes.append
    )
    assert len(copies) == len(LIBRARIES) and not notes, notes
    for copy in copies:
        shutil.copy(copy.path or BUILD / "lib/vcuda" / copy.name, target / copy.name)
    return target


# ---- exports


def symbols(path: Path) -> tuple[set[str], set[str]]:
    """(functions, data) that a library exports."""
    command = ["nm", "-D", "--defined-only", "--format=posix", str(path)]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for line in listed.splitlines():
        name, kind, *_ = line.split()
        if kind != "A":
            found[kind in "TWi"].add(name.partition("@")[0])
    return found[True], found[False]


def rows(library: str) -> list[list[str]]:
    """The rows of the list of names, whose first line says what is in them."""
    return [row.split() for row in (NAMES / f"{library}.txt").read_text(encoding="ascii").splitlines()[1:]]


def exports(library: str, release: str, kind: str = "function") -> set[str]:
    """The names that a release's library exports: functions, or what is data (`kind` object)."""
    found = set()
    for name, since, *rest in rows(library):
        came = since != "none" and int(since) <= int(release)
        gone = "until" in rest and int(rest[1]) <= int(release)
        if came and not gone and ("object" in rest) == (kind == "object"):
            found.add(name)
    return found


def functions(library: str) -> set[str]:
    """The functions of all releases, and of headers that are newer, for which libvcuda exports jumps."""
    return {row[0] for row in rows(library) if re.match("(cu|nvml)[A-Z]", row[0]) and row[-1] != "object"}


# ---- answers


def asked_names() -> list[str]:
    """All functions of the driver API in any recorded release, with and without version and stream variant."""
    names = {name for release in RELEASES for name in exports("libcuda", release) if re.match(r"cu[A-Z]", name)}
    bare = {re.sub(r"_v\d+$", "", re.sub(r"_pt[sd][sz]$", "", name)) for name in names}
    return [*sorted(names | bare), "cuNoSuchFunction"]


def parsed(output: str) -> Answers:
    """The answers in what ask_proc_address printed."""
    lines = (line.split() for line in output.splitlines())
    return {(name, flags): answers for name, flags, *answers in lines}


def answers(release: str) -> Answers:
    """The answers of a release's cuGetProcAddress, by the record: from a version on a function, if it exports that."""
    known, exported = recorded(), exports("libcuda", release)
    end = [word for words, _ in _paragraphs(PROC_ADDRESS) if words[:2] == ["end", release] for word in words[2:]]
    return {
        (name, flags): [*_answers(release, _found(known.get(name, []), exported, flags == "2")), *end]
        for name, flags in itertools.product(asked_names(), FLAGS)
    }


def recorded() -> dict[str, list[tuple[int, str]]]:
    """name -> the versions from which on it is another function, and that function."""
    found = {}
    for words, names in _paragraphs(PROC_ADDRESS):
        forms = [word.partition(":") for word in words]
        for name in names:
            found[name] = [(int(version), form.replace("=", name)) for version, _, form in forms]
    return found


def _found(forms: list[tuple[int, str]], exported: set[str], of_threads: bool) -> list[tuple[int, str]]:
    """The forms that a release has; with flags 2 those for a default stream of each thread, where there are such."""
    variants = ("_ptsz", "_ptds", "") if of_threads else ("",)
    chosen = [
        (version, next((form + end for end in variants if form + end in exported), "")) for version, form in forms
    ]
    return [(version, form) for version, form in chosen if form]


def _answers(release: str, forms: list[tuple[int, str]]) -> list[str]:
    """What ask_proc_address prints for these."""
    sound, unknown, later = FIRST_FORM if release == min(RELEASES) else BOTH_FORMS
    begin = [] if forms and forms[0][0] == CUDA[0] else [f"{CUDA[0]}:{later if forms else unknown}"]
    return begin + [f"{version}:{sound},{form}" for version, form in forms]


def write_answers(found: dict[str, Answers]) -> None:
    """`found`: release -> answers. The newest one's are recorded; those of all have to follow from the record."""
    groups: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for name in asked_names():
        plain = re.findall(r"(\d+):0,0,(\w+)", " ".join(found[max(RELEASES)][name, "0"]))
        if plain:
            groups[tuple(f"{version}:{form.replace(name, '=')}" for version, form in plain)].add(name)
    for release, of_release in found.items():
        end = of_release["cuNoSuchFunction", "0"][1:]
        if end:
            groups[("end", release, *end)] = set()
    head = [line for line in PROC_ADDRESS.read_text().splitlines() if line.startswith("#")]
    lines = head + [line for key in sorted(groups) for line in (" ".join(key), *_wrapped(groups[key]))]
    PROC_ADDRESS.write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    for release, of_release in found.items():
        assert answers(release) == of_release, f"the answers of {release} do not follow from {PROC_ADDRESS}"


def _paragraphs(path: Path) -> list[tuple[list[str], list[str]]]:
    """(words of the heading, names). A line of names begins with a blank."""
    found: list[tuple[list[str], list[str]]] = []
    for line in path.read_text(encoding="ascii").splitlines():
        if line.startswith(" "):
            found[-1][1].extend(line.split())
        elif not line.startswith("#"):
            found.append((line.split(), []))
    return found


def _wrapped(names: Iterable[str]) -> list[str]:
    lines: list[str] = []
    for name in sorted(names):
        if not lines or len(lines[-1]) + len(name) > 118:
            lines.append("")
        lines[-1] += f" {name}"
    return lines


# ---- stand-ins


def stand_in(directory: Path, release: str, library: str) -> Path:
    """A library in `directory` with the release's exports; its functions do nothing, but cuGetProcAddress answers."""
    directory.mkdir(exist_ok=True)
    source = directory / f"{library}.c"
    answering = {"cuGetProcAddress", "cuGetProcAddress_v2"} if library == "libcuda" else set()
    names = sorted(exports(library, release))
    lines = [f"int {name}(void) {{ return 3; }}" for name in names if name not in answering]
    lines += [f"int {name}[4];" for name in sorted(exports(library, release, "object"))]
    if answering:
        lines += _answering(answers(release), "cuGetProcAddress_v2" in names)
    source.write_text("\n".join(lines) + "\n")
    target = directory / LIBRARIES[library]
    command = ["gcc", "-O0", "-w", "-shared", "-fPIC", f"-I{RECORDS}", f"-Wl,-soname,{target.name}", "-o", str(target)]
    subprocess.run([*command, str(source)], check=True)
    return target


def _answering(recorded: Answers, second_form: bool) -> list[str]:
    table = []
    for (name, flags), pattern in sorted(recorded.items()):
        for answer in pattern:
            version, _, forms = answer.partition(":")
            second, _, first = forms.partition("/")
            table.append(f'\t{{"{name}", {flags}, {version}, {_form(second)}, {_form(first, second)}}},')
    declared = sorted({word for row in table for word in re.findall(r"\(void \*\)(cu\w+)", row)})
    return [
        *(f"int {name}();" for name in declared if name.startswith("cuGetProcAddress")),
        '#include "replay.h"',
        "static const struct row rows[] = {",
        *table,
        "};",
        "REPLAY_FIRST",
        *(["REPLAY_SECOND"] if second_form else []),
    ]


def _form(form: str, other: str = "") -> str:
    """Result, status and function of one form as an initialiser; what is not said of one form is as for the other."""
    if form == "x":
        return "{500, 77, UNTOUCHED}"
    result, *status, function = (form or other).split(",")
    address = {"-": "0", "u": "UNTOUCHED"}.get(function, f"(void *){function}")
    return f"{{{result}, {status[0] if status else 77}, {address}}}"
