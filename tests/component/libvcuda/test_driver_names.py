"""In a container a name is found exactly when the node's driver has it: with the copies of libvcuda for its driver."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import recorded_drivers
from checkout import BUILD
from vcuda_boxes import SOURCES, Box, compile_c, need_root

from vgpu.config.inventory import Library, LimiterCopy
from vgpu.node.driver import library_copies
from vgpu.node.driver.hide_symbols import Image

VERSIONS = list(recorded_drivers.RELEASES.values())
STEMS = {soname: stem for stem, soname in recorded_drivers.LIBRARIES.items()}
API = re.compile(r"(cu|nvml)[A-Z]\w*")
LINKERS = [name for name in ("bfd", "gold", "lld", "mold") if shutil.which(f"ld.{name}")]


def drivers_names(version: str, soname: str) -> set[str]:
    release = version.partition(".")[0]
    kinds = (recorded_drivers.exports(STEMS[soname], release, kind) for kind in ("function", "object"))
    return set().union(*kinds)


def all_names(soname: str) -> set[str]:
    """All names of all drivers, and all that libvcuda exports."""
    packaged = BUILD / "lib/vcuda" / soname
    found = set(Image(packaged.read_bytes(), str(packaged)).exports())
    return found.union(*(drivers_names(version, soname) for version in VERSIONS))


def drivers_libraries(version: str) -> list[Library]:
    directory = BUILD / "lib/drivers" / version
    return [
        Library(f"{directory}/{stem}.so.{version}", f"{stem}.so.{version}", soname, "compute")
        for soname, stem in STEMS.items()
    ]


def copies(version: str, state: Path) -> dict[str, LimiterCopy]:
    notes: list[str] = []
    found = library_copies.make(str(BUILD / "lib/vcuda"), str(state), drivers_libraries(version), version, notes.append)
    assert notes == []
    return {copy.name: copy for copy in found}


class Node:
    """A box on a driver version, with the copies for it as the container's libraries."""

    def __init__(self, path: Path, version: str) -> None:
        self.path = path
        self.version = version
        real = path / "real"
        real.mkdir()
        for library in drivers_libraries(version):
            shutil.copy(library.path, real / library.soname)
        self.copies = copies(version, path / "state")
        self.libraries = path / "lib"
        self.libraries.mkdir()
        for soname, copy in self.copies.items():
            shutil.copy(copy.path or BUILD / "lib/vcuda" / soname, self.libraries / soname)
            (self.libraries / soname[:-2]).symlink_to(soname)
        self.box = Box(path / "box", real, Path("/bin/true"), {}, "")
        self.box.environment["LD_LIBRARY_PATH"] = str(self.libraries)

    def linked(self, soname: str) -> Path:
        program = self.path / f"linked-{soname}"
        options = ("-ldl", f"-L{self.libraries}", "-Wl,--no-as-needed", f"-l:{soname}")
        return compile_c(program, SOURCES / "names_client.c", *options, "-Wl,--allow-shlib-undefined")

    def found(self, program: Path, how: str, library: str, names: set[str], **environment: str) -> set[str]:
        command = self.box.command(str(program), how, library)
        done = subprocess.run(
            command, env={**self.box.environment, **environment}, input="\n".join(names), text=True,
            capture_output=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need_root()
    return compile_c(tmp_path_factory.mktemp("client") / "client", SOURCES / "names_client.c", "-ldl")


@pytest.mark.root
@pytest.mark.parametrize("version", VERSIONS)
def test_a_name_is_found_exactly_when_the_driver_has_it(client: Path, tmp_path: Path, version: str) -> None:
    node = Node(tmp_path, version)
    try:
        for soname in STEMS:
            names, expected = all_names(soname), drivers_names(version, soname)
            path = str(node.libraries / soname)
            linked = node.linked(soname)
            assert node.found(client, "handle", soname, names) == expected
            assert node.found(client, "global", soname, names) == expected
            assert node.found(client, "handle", path, names) == expected
            assert node.found(client, "handle", soname, names, LD_BIND_NOW="1") == expected
            assert node.found(linked, "default", "", names) == expected
            assert node.found(linked, "next", "", names, LD_BIND_NOW="1") == expected
    finally:
        node.box.close()


@pytest.mark.root
def test_the_packaged_library_has_names_that_an_older_driver_lacks(client: Path, tmp_path: Path) -> None:
    """What the copies are for: without them a program of current Numba chooses a function that 550 has not."""
    node = Node(tmp_path, "550.163.01")
    try:
        packaged = str(BUILD / "lib/vcuda/libcuda.so.1")
        names = {"cuEventElapsedTime", "cuEventElapsedTime_v2"}
        assert node.found(client, "handle", packaged, names) == names
        assert node.found(client, "handle", "libcuda.so.1", names) == {"cuEventElapsedTime"}
    finally:
        node.box.close()


@pytest.mark.sample(5)
@pytest.mark.parametrize("version", ["470.256.02", "580.142"])
@pytest.mark.parametrize("linker", LINKERS)
@pytest.mark.parametrize("soname", STEMS)
def test_a_name_links_exactly_when_the_driver_has_it(tmp_path: Path, version: str, linker: str, soname: str) -> None:
    """All functions of the driver together, and one that it lacks; a weak reference to that links, too."""
    have = sorted(filter(API.fullmatch, drivers_names(version, soname)))
    lacking = sorted(filter(API.fullmatch, all_names(soname) - set(have)))
    link = tmp_path / f"{STEMS[soname]}.so"
    link.symlink_to(copies(version, tmp_path / "state")[soname].path)

    def linked(names: list[str], attribute: str = "") -> str:
        declared = "".join(f"extern void {name}(void) {attribute};\n" for name in names)
        source = tmp_path / "all.c"
        source.write_text(f"{declared}void *t[] = {{{', '.join(names)}}};\nint main(void) {{ return !t[0]; }}\n")
        command = ["gcc", f"-fuse-ld={linker}", source, "-o", tmp_path / "all", f"-L{tmp_path}", f"-l{link.stem[3:]}"]
        command.append("-Wl,--allow-shlib-undefined")
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        return done.stderr if done.returncode else ""

    assert linked(have) == ""
    assert linked(lacking, "__attribute__((weak))") == ""
    refused = linked(lacking[:1])
    assert lacking[0] in refused and "undefined" in refused


def test_a_copy_differs_in_the_symbols_of_the_hidden_names_only(tmp_path: Path) -> None:
    """Code, build id, hash table and debuggers' symbols are those of the package: crash symbols fit the copy."""
    for soname, copy in copies("470.256.02", tmp_path).items():
        packaged, data = (BUILD / "lib/vcuda" / soname).read_bytes(), Path(copy.path).read_bytes()
        image = Image(packaged, soname)
        (table,) = [section for section in image.sections if section.kind == 11]
        end = table.offset + table.size
        assert data[: table.offset] == packaged[: table.offset] and data[end:] == packaged[end:]
        before, after = image.exports(), Image(data, soname).exports()
        assert len(before) - len(after) == copy.hidden > 50
        assert after.items() <= before.items()
        assert Image(data, soname).build_id() == copy.build_id
        addresses = [subprocess.run(["nm", path], check=True, capture_output=True).stdout for path in
                     (BUILD / "lib/vcuda" / soname, copy.path)]  # fmt: skip
        assert addresses[0] == addresses[1]


def test_musl_does_not_find_a_hidden_name(tmp_path: Path) -> None:
    """musl's loader, on a library of its own: libvcuda itself needs glibc or its replacement there."""
    if not shutil.which("musl-gcc"):
        pytest.skip("needs musl-gcc (Debian: musl-tools)")
    source = tmp_path / "library.c"
    source.write_text("int kept(void) { return 1; }\nint hidden(void) { return 2; }\nint both(void) { return 3; }\n")
    library = tmp_path / "library.so"
    subprocess.run(["musl-gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    library.write_bytes(Image(library.read_bytes(), "library").hide({"hidden"}))
    client = tmp_path / "client"
    subprocess.run(["musl-gcc", "-o", client, SOURCES / "names_client.c"], check=True)
    for how in ("handle", "global"):
        done = subprocess.run(
            [client, how, library], input="kept hidden both", check=True, capture_output=True, text=True
        )
        assert done.stdout.split() == ["kept", "both"]


def test_cugetprocaddress_offers_what_the_driver_offers(tmp_path: Path) -> None:
    """It asks the driver, with a copy as before: every name that the copy hides is one that it does not offer."""
    version = "550.163.01"
    hidden = all_names("libcuda.so.1") - drivers_names(version, "libcuda.so.1")
    driver = ctypes.CDLL(drivers_libraries(version)[0].path)
    offered = ctypes.c_void_p()
    for name in sorted(hidden):
        driver.cuGetProcAddress(name.encode(), ctypes.byref(offered), 12040, ctypes.c_uint64(0))
        assert offered.value is None, name
    assert copies(version, tmp_path)["libcuda.so.1"].hidden >= len(hidden) - 40


def test_two_makers_leave_one_file_and_the_mapped_one_stays(tmp_path: Path) -> None:
    """The second one keeps the file. A damaged file is replaced: a process keeps the inode that it has mapped."""
    path = Path(copies("550.163.01", tmp_path)["libcuda.so.1"].path)
    first = path.stat()
    assert Path(copies("550.163.01", tmp_path)["libcuda.so.1"].path) == path and path.stat().st_ino == first.st_ino
    with path.open("rb") as mapped:
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        os.utime(path)
        copies("550.163.01", tmp_path)
        assert path.read_bytes() == content and path.stat().st_ino != os.fstat(mapped.fileno()).st_ino
    assert sorted(item.name for item in path.parent.iterdir()) == sorted(STEMS)
    assert path.stat().st_mode & 0o777 == 0o644
