"""Copies of libcuda and NVML in an image, where the loader of the container's programs would find one (ld.so(8)).

Belongs here: by the environment and the first program that config.json has, and by the image's own configuration, which
copies there are, and which ones have to stay. Not here: what the plan makes of them, and other facts of the image
(inspect). It only reads. It asks for names and lists no large folder, so what it costs does not grow with the image.
"""

from __future__ import annotations

import errno
import os
import stat

from vgpu.config.errors import VgpuError, escaped
from vgpu.config.limits import LIMITED, NVIDIA_DIR, PRIVATE_DIR, REAL_DIR
from vgpu.hook.formats import elf, ldcache
from vgpu.hook.linux import syscalls
from vgpu.hook.linux.rootfs import Rootfs

MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
OPENED = tuple(f"{stem}.so{end}" for stem in LIMITED for end in (".1", ""))  # the names by which programs open them
MAX_FOLDERS = 64  #: of LD_LIBRARY_PATH and DT_RUNPATH together
MAX_PRELOADED = 16
MAX_GUESSED = 128  # folders that follow from PATH, and of Python packages
MAX_SEARCHED = 512  # folders in all, with those in them for kinds of processors
MAX_ENTRIES = 256  # of a folder that is listed for versions, such as libcuda.so.550.54.15
MAX_REST = 2000  # characters
MAX_CONF = 1 << 14  # bytes of a file of ldconfig
MAX_FOUND = 64  # copies that these folders have; each costs a mount
MAX_UNCOVERED = 16  # lines, of MAX_LINE characters
MAX_LINE = 4096
MAX_WORDS = 4  # of the command, that may be programs
MAX_SCRIPTS = 3  # a script whose interpreter is a script
MAX_STUB = 192 << 10  # CUDA's stubs of libcuda, which reach no card, have some 50 KiB; the least driver's, 1 MiB
NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
SYSTEM = ("/proc", "/sys", "/dev")
#: Folders that glibc searches in each folder: all but the first until 2.36, also nested.
SUBFOLDERS = ("glibc-hwcaps", "tls", "haswell", "xeon_phi", "avx512_1", "x86_64", "aarch64")
#: What is read of the environment.
VARIABLES = (
    "PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "CONDA_PREFIX", "VIRTUAL_ENV", "NUMBA_CUDA_DRIVER", "TRITON_LIBCUDA_PATH",
)  # fmt: skip
PREFIXES = ("/opt/conda", "/usr/local")  # where images have a Python that is not in PATH
ROOTS = ("", "/usr")
GUESSED = ("/run/opengl-driver/lib",)  # Nix's programs have it in DT_RUNPATH
MAX_ENVIRONMENTS = 8  # prefixes that may have conda's `envs`
PYTHONS = tuple(f"python3.{minor}" for minor in range(6, 16))

MAX_LISTING = 20_000
MAX_PATH = 1 << 16  # of a text file of the loader
#: Directories of loaders' defaults, or where images put libraries. A copy there can shadow libvcuda's names.
SEARCHED = ("/usr/lib64", "/usr/lib", "/lib64", "/lib", "/usr/local/lib", "/usr/local/lib64", "/usr/local/cuda/lib64")


class Process:
    """What a container's first program starts with, by config.json: `env`, `cwd` and `args`."""

    __slots__ = ("args", "cwd", "env")

    def __init__(self, env: dict[str, str] | None = None, cwd: str = "/", args: tuple[str, ...] = ()) -> None:
        self.env = env or {}
        self.cwd = cwd
        self.args = args


def process_of(config: dict[str, object], env: dict[str, str]) -> Process:
    """The process of a config.json whose environment is `env`. What is not as it should be, is left out."""
    process = config.get("process")
    cwd, args = (process.get("cwd"), process.get("args")) if isinstance(process, dict) else (None, None)
    words = [word for word in args if _is_name(word)] if isinstance(args, list) else []
    known = {name: env[name] for name in VARIABLES if _is_name(env.get(name))}
    return Process(known, str(cwd) if _is_name(cwd) and str(cwd).startswith("/") else "/", tuple(words))


def _is_name(value: object) -> bool:
    """Whether the system calls take `value` as a part of a path: JSON may have NUL and lone surrogates."""
    try:
        return isinstance(value, str) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


class LibrarySearch:
    """The search for copies of LIMITED libraries where the loader of `root`, which is for `machine`, would find one.

    `found`: path without links -> library. `uncovered`: a line for each that has to stay. `listed` are the folders, by
    paths without links, whose regular files are covered by their names. `names` are links in these, `inner` (folder,
    name) folders in these.
    """

    def __init__(self, root: Rootfs, machine: str) -> None:
        self.root = root
        self.machine = machine
        self.found: dict[str, str] = {}
        self.uncovered: list[str] = []
        self.listed: set[str] = set()
        self.names: list[str] = []
        self.inner: list[tuple[str, str]] = []
        self._seen: set[str] = set()
        self._paths: set[str] = set()
        self._opened = OPENED
        self._origins: list[str] = []  # folders of programs
        self._own = self.place(NVIDIA_DIR)  # a tmpfs covers it as a whole

    def place(self, path: str) -> str:
        """The path without links of a folder, "" when there is none."""
        try:
            return self.root.place(self.root.held(path))
        except OSError:
            return ""

    def driver_files(self, directory: str, stems: frozenset[str], links: bool = True) -> list[str]:
        """The regular files in a folder that are libraries with these names up to `.so`. It notes the folder's links
        with names that programs open, and the folders in it."""
        found, entries = [], listed(self.root, directory)
        for name, regular in entries:
            if regular and stem_of(name) in stems:
                found.append(name)
            elif links and name in OPENED:
                self.names.append(f"{directory}/{name}")
            elif name in SUBFOLDERS:
                self.inner.append((directory, name))
        if len(entries) == MAX_LISTING:
            self.names += [f"{directory}/{name}" for name in OPENED]
        return found

    def look(self, process: Process, library_dir: str, cache: bytes | None, musl_path: bytes | None) -> None:
        """Search for what the process's programs would load. `library_dir` is the loader's first folder, `cache` the
        loader's cache, `musl_path` the content of musl's search path file; None: the loader is glibc's.
        """
        env, cwd = process.env, process.cwd
        searched = self._programs(process)
        preloaded = [item for item in env.get("LD_PRELOAD", "").replace(":", " ").split(" ") if item]
        preloaded += (_text(self.root, "/etc/ld.so.preload").replace(":", " ")).split()
        self._opened = (*OPENED, *(item for item in preloaded[:MAX_PRELOADED] if "/" not in item))
        for item in preloaded[:MAX_PRELOADED]:
            for path in self._expanded(item, cwd) if "/" in item else ():
                self._take(path, preloaded=True)
        if env.get("NUMBA_CUDA_DRIVER", "").strip("0"):
            self._take(_absolute(env["NUMBA_CUDA_DRIVER"], cwd), preloaded=True)
        text = env.get("LD_LIBRARY_PATH", "")
        folders = list(dict.fromkeys([*(text.replace(";", ":").split(":") if text else ()), *searched]))
        for folder in folders[:MAX_FOLDERS]:
            for path in self._expanded(folder, cwd):
                self._folder(path, versions=True)
        self._too_many("folders to search", folders, MAX_FOLDERS)
        self._too_many("preloaded libraries", preloaded, MAX_PRELOADED)
        self._of_the_image(library_dir, cache, musl_path)
        for path in self._guessed(process)[:MAX_GUESSED]:
            self._folder(path)

    def _names_in(self, folder: str) -> list[tuple[str, bool]]:
        """As `listed`; [] where an error ends it, as a volume's file system may answer."""
        try:
            return listed(self.root, folder)
        except OSError:
            return []

    def _too_many(self, what: str, items: list[str], limit: int) -> None:
        if len(items) > limit:
            more = f"one of {len(items)} {what}, of which vgpu looks at {limit}"
            rest = " ".join(items[limit + 1 :])[:MAX_REST]
            self._leave(f"{items[limit]}: {more}: a copy of libcuda has no limit there, nor in: {rest or 'none'}")

    def _leave(self, line: str) -> None:
        if len(self.uncovered) < MAX_UNCOVERED:
            self.uncovered.append(escaped(line)[:MAX_LINE])

    def _of_the_image(self, library_dir: str, cache: bytes | None, musl_path: bytes | None) -> None:
        """Where the loader looks without any environment."""
        for path in self.names:
            self._take(path)
        for folder, name in self.inner:
            self._inside(folder, name)
        for folder in self._configured(musl_path)[:MAX_FOLDERS]:
            if folder.startswith("/"):
                self._folder(folder, versions=True)
        for path in _in_cache(cache):
            self._take(path)
        extra = self._opened[len(OPENED) :]
        for folder in (library_dir, *SEARCHED) if extra else ():
            for name in extra:
                self._take(f"{folder}/{name}", preloaded=True)

    def _configured(self, musl_path: bytes | None) -> list[str]:
        """The folders of musl's search path, or of ldconfig's: it may run in the container."""
        if musl_path is not None:
            return os.fsdecode(musl_path.replace(b"\0", b"")).replace(":", "\n").split("\n")
        names = sorted(name for name, _ in self._names_in("/etc/ld.so.conf.d") if name.endswith(".conf"))
        files = ["/etc/ld.so.conf", *(f"/etc/ld.so.conf.d/{name}" for name in names[:MAX_FOLDERS])]
        lines = "\n".join(_text(self.root, file, MAX_CONF) for file in files).split("\n")
        return [line.strip() for line in lines]

    def _guessed(self, process: Process) -> list[str]:
        """Library folders beside those of PATH, of conda and of Python's packages, and beside the program: programs
        there have them in DT_RPATH or DT_RUNPATH, or set them for themselves."""
        path = [_absolute(item, process.cwd) for item in process.env.get("PATH", "").split(":")[:MAX_FOLDERS]]
        tops = [item.rpartition("/")[0] for item in (*path, *self._origins) if item.endswith(("/bin", "/sbin", "abin"))]
        tops += [process.env.get(name, "") for name in ("CONDA_PREFIX", "VIRTUAL_ENV")]
        tops = [*PREFIXES, *(top for top in tops if top not in ROOTS)]
        for top in list(dict.fromkeys(tops))[:MAX_ENVIRONMENTS]:
            tops += [f"{top}/envs/{name}" for name, _ in self._names_in(f"{top}/envs")[:MAX_FOLDERS]]
        folders = [process.env.get("TRITON_LIBCUDA_PATH", ""), *GUESSED]
        folders += [f"{origin}{below}" for origin in self._origins for below in ("", "/lib", "/_internal")]
        for top in dict.fromkeys([*tops, *ROOTS]):
            if not top or top.startswith("/"):
                folders += [f"{top}/lib", f"{top}/lib64", *self._packages(f"{top}/lib")]
        return [folder for folder in folders if folder.startswith("/")]

    def _packages(self, library: str) -> list[str]:
        """The library folders of NVIDIA's and PyTorch's packages below a prefix's `lib`."""
        try:
            fd = self.root.open(library, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            return []
        try:
            present = [name for name in ("python3", *PYTHONS) if _has(fd, name)]
        finally:
            os.close(fd)
        found = []
        for name in present:
            for kind in ("site-packages", "dist-packages"):
                packages = f"{library}/{name}/{kind}"
                below = self._names_in(f"{packages}/nvidia")[:MAX_FOLDERS]
                found += [f"{packages}/nvidia/{package}/lib" for package, regular in below if not regular]
                found.append(f"{packages}/torch/lib")
        return found

    def _programs(self, process: Process) -> list[str]:
        """DT_RUNPATH's folders of the programs that the command names, and of scripts' interpreters."""
        found: list[str] = []
        words = [word for word in " ".join(process.args).split() if word[0] not in "-(\"'$" and "=" not in word]
        for word in words[:MAX_WORDS]:
            name = word
            for _ in range(MAX_SCRIPTS):
                name, searched = self._program(name, process)
                found += searched
                if not name:
                    break
        return found

    def _program(self, name: str, process: Process) -> tuple[str, list[str]]:
        """(a script's interpreter or "", the folders of an ELF file's DT_RUNPATH)."""
        folders = ("",) if "/" in name else process.env.get("PATH", "").split(":")[:MAX_FOLDERS]
        for folder in folders:
            path = _absolute(f"{folder}/{name}" if folder else name, process.cwd)
            try:
                fd = self.root.regular(path)
            except OSError:
                continue
            try:
                return self._head(fd)
            finally:
                os.close(fd)
        return "", []

    def _head(self, fd: int) -> tuple[str, list[str]]:
        try:
            head = os.pread(fd, 256, 0)
        except OSError:
            return "", []
        if head[:2] == b"#!":
            words = os.fsdecode(head[2:].split(b"\n")[0].split(b"\0")[0]).split()
            if words and words[0].endswith("/env"):
                words = [word for word in words[1:] if word[0] != "-" and "=" not in word]
            return (words[0] if words else ""), []
        try:
            program = elf.read_fd(fd, "program")
        except VgpuError:
            return "", []
        origin = self.root.place(fd).rpartition("/")[0] or "/"
        self._origins.append(origin)
        return "", [_with(item, "ORIGIN", origin) for item in program.searched.split(":")] if program.searched else []

    def _expanded(self, text: str, cwd: str) -> list[str]:
        """The absolute paths that `text` may mean: dynamic string tokens, and relative to `cwd`."""
        found = [text]
        if "$" in text:
            machine = self.machine
            tokens = {
                "ORIGIN": self._origins[:MAX_WORDS], "PLATFORM": [machine, *SUBFOLDERS[2:4]],
                "LIB": [f"lib/{MULTIARCH.get(machine, machine)}", "lib64", "lib"],
            }  # fmt: skip
            for token, values in tokens.items():
                if "$" + token in text or "${" + token in text:
                    found = [_with(item, token, value) for item in found for value in values]
        return [_absolute(item, cwd) for item in found]

    def _folder(self, path: str, versions: bool = False) -> None:
        """Take what programs open by name in a folder; with `versions` also libcuda.so.550.54, for which ldconfig, run
        in the container, makes a link."""
        path = _plain(path)
        if path in self._paths or _within(path, NVIDIA_DIR) or len(self._paths) > MAX_SEARCHED:
            return
        self._paths.add(path)
        if len(self._paths) > MAX_SEARCHED:
            self._leave(f"{path}: not searched for copies of libcuda: {MAX_SEARCHED} folders were")
            return
        if _within(path, REAL_DIR):
            self._leave(f"{path}: it has the driver's own library, and the environment names it: no limit holds there")
            return
        try:
            fd = self.root.open(path, os.O_PATH | os.O_DIRECTORY)
        except OSError as error:
            if error.errno not in NOT_THERE:
                self._leave(f"{path}: it cannot be searched for copies of libcuda: {error.strerror}")
            return
        try:
            place = self.root.place(fd)
            if place in self._seen or place in self.listed:
                return
            self._seen.add(place)
            present = self._present(fd) if versions else None
            if present is None:
                present = [name for name in (*self._opened, *SUBFOLDERS) if _has(fd, name)]
        finally:
            os.close(fd)
        for name in present:
            if name in SUBFOLDERS:
                self._inside(path, name)
            else:
                self._take(f"{path}/{name}", preloaded=name in self._opened[len(OPENED) :])

    def _present(self, folder: int) -> list[str] | None:
        """The names in a folder that matter; None when it has more than MAX_ENTRIES, or cannot be listed."""
        found, count = [], 0
        try:
            fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
        except OSError:
            return None
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    name, count = entry.name, count + 1
                    if name in self._opened or name in SUBFOLDERS or stem_of(name) in LIMITED:
                        found.append(name)
                    if count > MAX_ENTRIES:
                        return None
        except OSError:
            return None
        finally:
            os.close(fd)
        return found

    def _inside(self, folder: str, name: str) -> None:
        """Search a subfolder for a kind of processor."""
        path = f"{folder}/{name}"
        if name == SUBFOLDERS[0]:
            for level, regular in self._names_in(path)[:MAX_FOLDERS]:
                if not regular:
                    self._folder(f"{path}/{level}")
        else:
            self._folder(path)

    def _take(self, path: str, preloaded: bool = False) -> None:
        """Cover the file to which `path` leads. A `preloaded` one may have any name."""
        try:
            fd = self.root.open(path, os.O_PATH)
        except OSError as error:
            if error.errno not in NOT_THERE:  # else it leads nowhere, or to what the plan makes
                self._leave(f"{path}: {error.strerror}, so nothing covers it")
            return
        try:
            status = os.fstat(fd)
            stem = self._library(path, fd, preloaded) if stat.S_ISREG(status.st_mode) else ""
            if stem:
                self._cover(path, fd, status, stem)
        finally:
            os.close(fd)

    def _library(self, path: str, fd: int, preloaded: bool) -> str:
        """The library that the file is, up to `.so`, "" for none."""
        name = path.rpartition("/")[2]
        if stem_of(name) in LIMITED:
            return stem_of(name)
        if not preloaded:
            return ""
        try:
            opened = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            stem = stem_of(elf.read_fd(opened, path).soname)
        except VgpuError:
            stem = stem_of(self.root.place(fd).rpartition("/")[2])
        finally:
            os.close(opened)
        return stem if stem in LIMITED else ""

    def _cover(self, path: str, fd: int, status: os.stat_result, stem: str) -> None:
        place = self.root.place(fd)
        folder, _, name = place.rpartition("/")
        reason = self._why_not(place, folder, name, fd, status)
        if reason:
            self._leave(f"{path}: a copy of {stem} without limits, which stays: {reason}")
        elif not self._is_covered(place, folder, name, status):
            self.found[place] = stem

    def _is_covered(self, place: str, folder: str, name: str, status: os.stat_result) -> bool:
        """Whether the file is the plan's already, or one of CUDA's stubs for the linker."""
        if place in self.found or _within(place, NVIDIA_DIR) or (self._own and _within(place, self._own)):
            return True
        if folder.endswith("/stubs") and status.st_size < MAX_STUB:
            return True
        return stem_of(name) in LIMITED and folder in self.listed

    def _why_not(self, place: str, folder: str, name: str, fd: int, status: os.stat_result) -> str:
        """Why nothing can be mounted on the file, or ""."""
        if any(_within(place, top) for top in (*SYSTEM, PRIVATE_DIR)):
            return f"it leads to {place}, where vgpu mounts nothing"
        try:
            now = os.stat(name, dir_fd=self.root.held(folder), follow_symlinks=False)
        except OSError:
            now = None
        if not place or now is None or (now.st_dev, now.st_ino) != (status.st_dev, status.st_ino):
            return "its place in the root file system is not known"
        table = self.root.table
        if table and table.any_shared and table.propagates(mount := syscalls.mount_id(fd)):
            return f"the volume at {table.place(mount)} has shared propagation, so it would be covered on the host too"
        return f"there are more than {MAX_FOUND}" if place not in self.found and len(self.found) >= MAX_FOUND else ""


def _in_cache(cache: bytes | None) -> list[str]:
    """The paths of LIMITED libraries in the loader's cache. ldconfig, run in the container, may put them first."""
    if cache is None or not any(os.fsencode(stem) + b".so" in cache for stem in LIMITED):
        return []
    try:
        entries = ldcache.parse(cache).entries
    except VgpuError:
        return []  # the loader ignores it, too
    paths = [os.fsdecode(entry.path) for entry in entries if stem_of(os.fsdecode(entry.name)) in LIMITED]
    return [path for path in paths if path.startswith("/")][:MAX_FOUND]


def _text(root: Rootfs, path: str, limit: int = MAX_PATH) -> str:
    """The beginning of a text file, "" when it cannot be read."""
    try:
        fd = root.regular(path)
    except OSError:
        return ""
    try:
        return os.fsdecode(os.read(fd, limit).replace(b"\0", b""))
    except OSError:
        return ""
    finally:
        os.close(fd)


def _has(directory: int, name: str) -> bool:
    """Whether the name is there. After any other error it may be: then whoever opens it has the error again."""
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def _with(text: str, token: str, value: str) -> str:
    return text.replace("${" + token + "}", value).replace("$" + token, value)


def _absolute(path: str, cwd: str) -> str:
    return path if path.startswith("/") else f"{cwd}/{path}"


def _plain(path: str) -> str:
    """`path` without empty parts and `.`: `..` stays, because it may follow a link."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def _within(path: str, top: str) -> bool:
    return path == top or path.startswith(top + "/")


def stem_of(name: str) -> str:
    """`libcuda` of `libcuda.so.550.54` and of `libcuda.so`, which programs open too; "" for any other name."""
    stem, found, version = name.partition(".so")
    return stem if found and (not version or (version[0] == "." and version[1:2].isdigit())) else ""


def listed(root: Rootfs, directory: str) -> list[tuple[str, bool]]:
    """(name, is a regular file) of at most MAX_LISTING entries; [] when there is no such directory."""
    try:
        fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root.held(directory))
    except OSError:
        return []
    try:
        found = []
        with os.scandir(fd) as entries:
            for entry in entries:
                found.append((entry.name, entry.is_file(follow_symlinks=False)))
                if len(found) == MAX_LISTING:
                    break
        return found
    finally:
        os.close(fd)
