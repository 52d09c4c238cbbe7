"""containerd: a handler with the shim, the shim as the default handler, or hooks in a base specification.

Belongs here: config.toml of the versions 1 to 4, and the templates of k3s, RKE2 and MicroK8s. containerd 1.x replaces
its default list of handlers by the file's, so a file that adds a handler must name runc too: without it the CRI plugin
does not start, and kubelet is without a runtime. containerd 2.x merges files deeply, if all are of one version; there
the part of vgpu is a file of its own.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import tomlkit

from vgpu.config.errors import VgpuError, shown
from vgpu.node.runtimes import base_spec, nested_values, programs, registered_files, toml_text
from vgpu.node.runtimes.programs import MissingProgram
from vgpu.node.runtimes.registered_files import OWN, TOML, Assignment, Draft, Record
from vgpu.node.runtimes.registration import BASE_SPEC, DEFAULT, HANDLER, Registration, Wish, wrapper

CONFIG = "/etc/containerd/config.toml"
K3S = ("/var/lib/rancher/k3s/agent/etc/containerd", "/var/lib/rancher/rke2/agent/etc/containerd")
MICROK8S = "/var/snap/microk8s/current/args/containerd-template.toml"
#: The table of the CRI plugin's runtimes by the version of the file.
SECTIONS = {
    1: ("plugins", "cri"),
    2: ("plugins", "io.containerd.grpc.v1.cri"),
    3: ("plugins", "io.containerd.cri.v1.runtime"),
    4: ("plugins", "io.containerd.cri.v1.runtime"),
}
NEWEST = 3  #: of a file without a version, to containerd 2.x
#: containerd 2.x: by handler, for which platform and into which snapshotter an image is pulled.
PLATFORMS = ("plugins", "io.containerd.cri.v1.images", "runtime_platforms")
RUNC = "io.containerd.runc.v2"
PATTERNS = ["vgpu.io/*"]
BASE = '{{ template "base" . }}\n'
Tables = dict[str, Any]


@dataclass(frozen=True)
class Cri:
    """The CRI plugin's handlers, as containerd itself understands its files, or as a file says.

    `unnamed` is containerd 1.x' deprecated table `default_runtime`, which it takes instead of the default handler.
    """

    default: str = "runc"
    handlers: Mapping[str, Tables] = field(default_factory=lambda: {"runc": {"runtime_type": RUNC}})
    imports: tuple[str, ...] = ()
    platforms: Mapping[str, Tables] = field(default_factory=dict)
    unnamed: Tables = field(default_factory=dict)


def registration(wish: Wish, record: Record) -> Registration:
    """What containerd needs. The files are read, and nothing is written."""
    path = wish.config or place()
    if path.endswith(".tmpl"):
        return _template(wish, path, record)
    daemon, path = restart(path), registered_files.followed(path)
    text = record.original(path)
    major = daemon_major()
    document = toml_text.parse(text or "", path)
    _require_cri(document, path)
    version = _version(document, text, path, major)
    before = _effective(path, text, document, version, major, bool(record.files))
    deep = version >= 3 or (major is not None and major >= 2)
    return _Plan(wish, path, daemon, text, document, version, before, deep).registration()


def place() -> str:
    """The file to edit on this node; VgpuError if there are several."""
    found = [CONFIG] if os.path.exists(CONFIG) else []
    for directory in K3S:
        if os.path.isdir(directory):
            rendered = registered_files.read(f"{directory}/config.toml") or ""
            newer = re.search(r"^version\s*=\s*[34]", rendered, re.MULTILINE)
            found.append(f"{directory}/config-v3.toml.tmpl" if newer else f"{directory}/config.toml.tmpl")
    found += [MICROK8S] if os.path.exists(MICROK8S) else []
    if len(found) > 1:
        raise VgpuError("containerd's configuration", expected="one", found=", ".join(found), do="choose by --config")
    return found[0] if found else CONFIG


def daemon_major() -> int | None:
    """The major version of the installed containerd."""
    try:
        done = programs.run(["containerd", "--version"])
    except MissingProgram:
        return None
    found = re.search(r"\sv?(\d+)\.\d+", done.stdout)
    return int(found[1]) if found else None


def _require_cri(document: Tables, path: str) -> None:
    """Docker's package of containerd disables the plugin. Its containers are Docker's."""
    if {"cri", "io.containerd.grpc.v1.cri"} & set(document.get("disabled_plugins", ())):
        do = "for Docker use --runtime docker; for Kubernetes take cri out of disabled_plugins"
        raise VgpuError(f"{path}: disabled_plugins", expected="the CRI plugin not among them", found="cri", do=do)


def _version(document: Tables, text: str | None, path: str, major: int | None) -> int:
    if text is None:
        if major is None:
            do = "install containerd, or name its file by --config"
            raise VgpuError(path, expected="containerd's configuration, or containerd in PATH", found="neither", do=do)
        return 3 if major >= 2 else 2
    new = major is not None and major >= 2
    version = document.get("version", NEWEST if new and not _has_old_tables(document) else 1)
    if version not in SECTIONS:
        raise VgpuError(f"{path}: version", expected="1, 2, 3 or 4", found=version)
    if version > 2 and major == 1:
        raise VgpuError(f"{path}: version", expected="1 or 2, which this containerd reads", found=version)
    if version == 1 and new:
        do = "containerd config migrate prints the file in a version that this containerd reads"
        raise VgpuError(f"{path}: version", expected="2, 3 or 4", found="1, or none", do=do)
    return int(version)


def _has_old_tables(document: Tables) -> bool:
    """Whether containerd 2.x would overlook tables of a file without a version: it takes it for one of its newest."""
    plugins = document.get("plugins") or {}
    return "cri" in plugins or "containerd" in (plugins.get(SECTIONS[2][1]) or {})


def _effective(path: str, text: str | None, document: Tables, version: int, major: int | None, again: bool) -> Cri:
    """The handlers without this program's part: by containerd, or where it is not installed, by the file alone."""
    if major is None or (text is not None and "${" in text):
        return of_document(document, SECTIONS[version])
    if text is None:
        return _of_dump(_output("containerd", "config", "default"))
    if not again:
        return _of_dump(_output("containerd", "--config", path, "config", "dump"))
    patterns = document.get("imports")
    if patterns is None and major >= 2:  # which may have imports of its own
        patterns = _of_dump(_output("containerd", "config", "default")).imports
    imports = [file for one in patterns or () for file in sorted(glob.glob(_absolute(one, path))) if file != _own(path)]
    with tempfile.NamedTemporaryFile("w", suffix=".toml", encoding="utf-8") as file:
        file.write(tomlkit.dumps({**document, "imports": imports}))
        file.flush()
        found = _of_dump(_output("containerd", "--config", file.name, "config", "dump"))
    return replace(found, imports=tuple(patterns or ()))


def _own(path: str) -> str:
    """The file of vgpu's own, for a containerd that merges files."""
    return os.path.join(os.path.dirname(path), "conf.d", "99-vgpu.toml")


def _absolute(pattern: str, path: str) -> str:
    """containerd looks for a relative import beside the file that names it."""
    return os.path.join(os.path.dirname(path), pattern)


def _output(*command: str, do: str = "repair the file") -> str:
    done = programs.run(command)
    if done.returncode:
        raise VgpuError(" ".join(command), expected="the configuration", found=shown(_last(done.stderr)), do=do)
    return done.stdout


def _last(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "no message")


def _of_dump(text: str) -> Cri:
    return of_document(toml_text.parse(text, "containerd config dump"))


def of_document(document: Tables, section: tuple[str, ...] = ()) -> Cri:
    """What a file says, in its own version; `config dump` prints the newest version that the daemon knows."""
    known = (one for one in (SECTIONS[3], SECTIONS[2]) if nested_values.look_up(document, (*one, "containerd")))
    section = section or next(known, SECTIONS[2])
    table = nested_values.look_up(document, (*section, "containerd")) or {}
    handlers = table.get("runtimes") or Cri().handlers
    unnamed = table.get("default_runtime") or {}
    return Cri(
        table.get("default_runtime_name") or "runc", handlers, tuple(document.get("imports", ())),
        nested_values.look_up(document, PLATFORMS) or {}, unnamed if unnamed.get("runtime_type") else {},
    )  # fmt: skip


@dataclass(frozen=True)
class _Plan:
    """The edits of one file. `deep`: containerd merges files, so the part of vgpu may be a file of its own."""

    wish: Wish
    path: str
    restart: tuple[str, ...]
    text: str | None
    document: Tables
    version: int
    before: Cri
    deep: bool

    @property
    def runtimes(self) -> tuple[str, ...]:
        return (*SECTIONS[self.version], "containerd", "runtimes")

    def registration(self) -> Registration:
        if self.wish.mode == BASE_SPEC:
            wanted, files = self._base_spec()
        else:
            wanted, files = self._handler()
        drafts = self._own_file(wanted) if self._has_own_file() else (self._in_place(wanted),)
        notes = (runtime_class(self.wish.name),) if self.wish.mode == HANDLER else ()
        return Registration((*files, *drafts), self._applies(), self.restart, notes, lambda: self._verify(wanted))

    def _applies(self) -> str:
        name = self.wish.name
        return {
            HANDLER: f"containers of pods whose RuntimeClass has the handler {name}; all others stay as they are",
            DEFAULT: f"every container of a pod that names no RuntimeClass: the default handler is {name}",
            BASE_SPEC: f"every container of the handler {self.before.default}, but no sandbox",
        }[self.wish.mode]

    # What is to be set: nested tables below the handlers' table, and the default handler

    def _handler(self) -> tuple[Tables, tuple[Draft, ...]]:
        name = self.wish.name
        if name in self.before.handlers:
            do = "remove it, or choose another name by --handler"
            raise VgpuError(f"{self.path}: handler {name}", expected="none yet", found="one of another origin", do=do)
        source = self._source()[1]
        options = dict(source.get("options") or {})
        program, files = wrapper(self.wish, "containerd", self._program(options))
        options = {**_set_values(options), "BinaryName": program}
        return {name: {**_set_values(source), **_with_patterns(source), "options": options}}, files

    def _source(self) -> tuple[str, Tables]:
        """The handler whose settings, such as SystemdCgroup, the new one has: the default one, with its name.

        Beside a default handler of another kind than runc's, a new handler has those of the handler runc.
        """
        found = self._default()
        if found.get("runtime_type") == RUNC:
            return self.before.default, found
        if self.wish.mode == DEFAULT:
            what = f"{self.path}: handler {self.before.default}: runtime_type"
            expected = f"{RUNC}, in front of whose runtime the shim stands"
            raise VgpuError(what, expected=expected, found=found.get("runtime_type"), do="use --mode handler")
        runc = self.before.handlers.get("runc", {})
        return "runc", runc if runc.get("runtime_type") == RUNC else {"runtime_type": RUNC}

    def _default(self) -> Tables:
        """The default handler."""
        name, unnamed = self.before.default, self.before.unnamed
        if unnamed and self.wish.mode != HANDLER:
            do = "make it a table of runtimes, and name that by default_runtime_name"
            raise VgpuError(f"{self.path}: default_runtime", expected="none: containerd takes it instead of the "
                            "default handler", found=unnamed, do=do)  # fmt: skip
        if unnamed:
            return unnamed
        if "${" in name and self.wish.mode != BASE_SPEC:  # MicroK8s decides when it starts: runc's, or NVIDIA's
            return {**self.before.handlers.get("runc", {}), "runtime_type": RUNC}
        if name not in self.before.handlers:
            raise VgpuError(f"{self.path}: default_runtime_name", expected=f"one of {', '.join(self.before.handlers)}",
                            found=name, do="name one of those, or for a template use another mode")  # fmt: skip
        return self.before.handlers[name]

    def _program(self, options: Tables) -> str:
        """The runtime behind the shim, or "" for the one that the shim finds. NVIDIA's is left out."""
        runc = self.before.handlers.get("runc", {}).get("options") or {}
        binaries = [str(one.get("BinaryName") or "") for one in (options, runc)]
        return next((one for one in binaries if "nvidia" not in one and "vgpu-runtime" not in one), "")

    def _base_spec(self) -> tuple[Tables, tuple[Draft, ...]]:
        name, handler = self.before.default, self._default()
        named = str(handler.get("base_runtime_spec") or "")
        base = registered_files.read(named) if named else base_spec.default()
        if base is None:
            raise VgpuError(
                named, expected="the base specification that containerd's configuration names", found="no file"
            )
        file = os.path.join(os.path.dirname(self.path), "vgpu-base.json")
        spec = base_spec.make(base, self.wish, named or "ctr oci spec")
        return {name: {"base_runtime_spec": file, **_with_patterns(handler)}}, (Draft(file, spec, OWN),)

    # Where it is set

    def _has_own_file(self) -> bool:
        return self.deep and self.text is not None and "${" not in self.text

    def _own_file(self, wanted: Tables) -> tuple[Draft, ...]:
        """A file of vgpu's own, and the line that imports it, where no line does yet."""
        own = _own(self.path)
        content = f"version = {self.version}\n\n{self._tables(wanted)}"
        drafts = [Draft(own, toml_text.append("", content), TOML)]
        imports = list(self.before.imports)
        if not any(fnmatch.fnmatch(own, _absolute(pattern, self.path)) for pattern in imports):
            there = list(self.document.get("imports", []))
            value = [*there, os.path.join(os.path.dirname(own), "*.toml")]
            text = toml_text.assign(self.text or "", ("imports",), value, self.path)
            set_imports = Assignment(("imports",), value, there if "imports" in self.document else None)
            drafts.insert(0, Draft(self.path, text, TOML, assigned=(set_imports,)))
        return tuple(drafts)

    def _in_place(self, wanted: Tables) -> Draft:
        """Keys in tables that exist, and a block of new tables at the end of the file."""
        text, assigned = self.text or "", []
        content = "" if self.text is not None else f"version = {self.version}\n\n"
        handlers = nested_values.look_up(self.document, self.runtimes) or {}
        if self.wish.mode == DEFAULT and "containerd" in (
            nested_values.look_up(self.document, SECTIONS[self.version]) or {}
        ):
            text, one = self._assigned(text, (*self.runtimes[:-1], "default_runtime_name"), self.wish.name)
            assigned.append(one)
        new = {} if self.deep else {name: _set_values(table) for name, table in self.before.handlers.items()}
        for name, table in wanted.items():
            if name not in handlers:
                new[name] = {**new.get(name, {}), **table}
                continue
            for key, value in table.items():
                text, one = self._assigned(text, (*self.runtimes, name, key), value)
                assigned.append(one)
        new = {name: table for name, table in new.items() if name not in handlers}
        if new or (self.wish.mode == DEFAULT and not assigned):
            text = toml_text.append(text, content + self._tables(new, default=not assigned))
        return Draft(self.path, text, TOML, assigned=tuple(assigned))

    def _assigned(self, text: str, keys: tuple[str, ...], value: object) -> tuple[str, Assignment]:
        before = nested_values.look_up(self.document, keys)
        return toml_text.assign(text, keys, value, self.path), Assignment(keys, value, before)

    def _tables(self, handlers: Tables, default: bool = True) -> str:
        top = {"default_runtime_name": self.wish.name} if self.wish.mode == DEFAULT and default else {}
        text = toml_text.tables(self.runtimes[:-1], top) + "\n" if top else ""
        tables = [toml_text.tables((*self.runtimes, name), table) for name, table in handlers.items()]
        if self._platform():
            tables.append(toml_text.tables((*PLATFORMS, self.wish.name), self._platform()))
        return text + "\n".join(tables)

    def _platform(self) -> Tables:
        """What is set for the images of the handler that the new one has its settings from."""
        return {} if self.wish.mode == BASE_SPEC else _set_values(self.before.platforms.get(self._source()[0], {}))

    # Whether containerd agrees

    def _verify(self, wanted: Tables) -> None:
        """containerd reads the written files, and finds every handler of before, unchanged, and the new one, whole."""
        if daemon_major() is None or "${" in (self.text or ""):
            return
        do = "the files are as before; the file has a form that no line can be added to"
        after = _of_dump(_output("containerd", "--config", self.path, "config", "dump", do=do))
        changed = self.before.default if self.wish.mode == BASE_SPEC else self.wish.name
        for name, table in self.before.handlers.items():
            if name != changed and _set_values(after.handlers.get(name, {})) != _set_values(table):
                raise self._refused(f"handler {name} as before", after.handlers.get(name))
        default = self.wish.name if self.wish.mode == DEFAULT else self.before.default
        if after.default != default or default not in after.handlers:
            raise self._refused(f"the default handler {default}", after.default)
        if not calls_vgpu(after.handlers.get(changed, {})):
            raise self._refused(f"handler {changed} with vgpu's program", after.handlers.get(changed))
        expected = {**wanted[changed], "runtime_platforms": self._platform()}
        found = {**after.handlers[changed], "runtime_platforms": after.platforms.get(changed, {})}
        for setting in _missing(expected, found):
            raise self._refused(f"handler {changed} with {setting} of {self.before.default}", "another value")

    def _refused(self, expected: str, found: object) -> VgpuError:
        do = "the files are as before; look for another file that sets the same tables"
        return VgpuError(f"containerd --config {self.path} config dump", expected=expected, found=found, do=do)


def calls_vgpu(handler: Tables) -> bool:
    """Whether a handler names the shim, a script that calls it, or a base specification with the hook."""
    if "vgpu-runtime" in str((handler.get("options") or {}).get("BinaryName") or ""):
        return True
    text = registered_files.read(str(handler["base_runtime_spec"])) if handler.get("base_runtime_spec") else ""
    return "vgpu-hook" in (text or "") and "vgpu.io/*" in (handler.get("container_annotations") or [])


def _with_patterns(handler: Tables) -> Tables:
    """The annotations that the handler passes on, and vgpu's."""
    there = {kind: list(handler.get(kind) or []) for kind in ("pod_annotations", "container_annotations")}
    return {kind: [*found, *(one for one in PATTERNS if one not in found)] for kind, found in there.items()}


def _set_values(table: Mapping[str, Any]) -> Tables:
    """The values that are set: `config dump` prints all keys, and most are empty."""
    kept = {key: _set_values(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    return {key: value for key, value in kept.items() if value not in ("", 0, False, [], {}, None)}


def _missing(wanted: Tables, found: Tables) -> Iterator[str]:
    """The settings of `wanted` that `found` has not, or with another value."""
    for key, value in wanted.items():
        if isinstance(value, Mapping):
            yield from (f"{key}.{below}" for below in _missing(dict(value), found.get(key) or {}))
        elif found.get(key) != value:
            yield key


def runtime_class(name: str) -> str:
    """The object that the cluster needs for the handler."""
    return (
        "pods ask for it by runtimeClassName, and the cluster needs once:\n"
        f"  apiVersion: node.k8s.io/v1\n  kind: RuntimeClass\n  metadata:\n    name: {name}\n  handler: {name}"
    )


def restart(path: str) -> tuple[str, ...]:
    """The command that makes the daemon read its files."""
    if path.startswith(K3S):
        unit = "k3s" if path.startswith(K3S[0]) else "rke2"
        agents = glob.glob(f"/etc/systemd/system/{unit}-agent.service")
        unit += "-agent" if agents else "" if unit == "k3s" else "-server"
        return ("systemctl", "restart", unit)
    if path == MICROK8S:
        return ("systemctl", "restart", "snap.microk8s.daemon-containerd")
    return ("systemctl", "restart", "containerd")


# k3s and RKE2


def _template(wish: Wish, path: str, record: Record) -> Registration:
    """A template of k3s' file: the base template, which names runc, and the handler after it."""
    if wish.mode != HANDLER:
        do = f"k3s has --default-runtime {wish.name}" if wish.mode == DEFAULT else "use --mode handler"
        raise VgpuError(f"{path}: --mode {wish.mode}", expected="handler, in a template", found=wish.mode, do=do)
    text = record.original(path)
    real = os.path.join(path.partition("/agent/")[0], "data/current/bin/runc")
    program, files = wrapper(wish, "containerd", real if os.path.exists(real) else "")
    section = SECTIONS[3 if "-v3" in os.path.basename(path) else 2]
    keys = (*section, "containerd", "runtimes", wish.name)
    patterns = {f"{kind}_annotations": PATTERNS for kind in ("pod", "container")}
    table = toml_text.tables(keys, {"runtime_type": RUNC, **patterns, "options": {"BinaryName": program}})
    table = table.rstrip() + "\nSystemdCgroup = {{ .SystemdCgroup }}\n"
    draft = Draft(path, toml_text.append(BASE if text is None else text, table), TOML)
    applies = f"containers of pods whose RuntimeClass has the handler {wish.name}; all others stay as they are"
    return Registration((*files, draft), applies, restart(path), (runtime_class(wish.name),))
