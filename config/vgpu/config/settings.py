"""The node's settings as the hook reads them: the compiled form of /etc/vgpu/config.yaml.

Belongs here: the class, its defaults and the reading of the compiled JSON. Not here: YAML, the schema and the admin's
errors, which are the compiler's (`vgpu.config.compiler`). The compiler is the only writer, so this module checks the
file only as far as a half-written or foreign one would do harm.
"""

from __future__ import annotations

import os

from vgpu.config import records
from vgpu.config.errors import VgpuError, shown
from vgpu.config.fields import Fields

VERSION = 1
RELEASE = "0.1.0"  #: this version of vgpu, as in pyproject.toml; the hook's process has no package metadata
AUTO = "auto"  #: of driver.root: the host's own driver, else that of a driver container
COMPILED_PATH = "/var/lib/vgpu/config.json"
SOURCE_PATH = "/etc/vgpu/config.yaml"

#: Every setting with the value that an empty config.yaml gives. Keys are `section.name`, types are fixed by the value.
DEFAULTS: dict[str, object] = {
    "paths.state": "/var/lib/vgpu",
    "paths.run": "/run/vgpu",
    "paths.libvcuda": "/usr/lib/vgpu/vcuda",
    "driver.root": AUTO,  # or a path; see vgpu.node.driver.discover
    "driver.dev_root": "",  # empty: <driver.root>/dev when it holds nvidiactl, else /dev
    "driver.proc_root": "/proc",
    "driver.library_dirs": [],  # searched after the loader's cache, relative to driver.root
    "driver.capabilities": ["compute", "utility"],  # a container gets no others
    "driver.extra_libraries": [],  # file name globs, mounted besides those of the capabilities
    "driver.exclude_libraries": [],  # file name globs, never mounted
    "driver.share_excludes": True,  # shares get no OpenCL, MPS, graphics: they bypass the limits
    "driver.share_capabilities": ["compute", "utility"],  # with share_excludes; may name video besides
    "driver.compat_libraries": "mask",  # CUDA forward compatibility libraries in an image of a share: mask or refuse
    "devices.permissions": "rw",  # of the device cgroup rules
    "standalone.enabled": True,  # requests by annotation outside Kubernetes, from the host's root
    "standalone.requests": "key",  # key: vgpu.io/request-<key> alone; annotations: vgpu.io/cores, ... of anybody
    "standalone.key": "/etc/vgpu/standalone.key",  # see vgpu.config.standalone
    "placement.policy": "binpack",
    "scaling.cores": 1.0,
    "scaling.memory": 1.0,
    "scaling.virtual_memory": False,  # with scaling.memory above 1: on a full card allocations become managed memory
    "limits.enforcement": "report",  # of a container that goes past its memory limit: report it, or kill its init
    "resources.mode": "vcuda",  # vcuda: advertise core_name and memory_name; gpu: advertise gpu_name
    "resources.core_name": "tencent.com/vcuda-core",
    "resources.core_unit": 1,  # percent of a card per unit
    "resources.memory_name": "tencent.com/vcuda-memory",
    "resources.memory_unit": 256 << 20,  # bytes per unit
    "resources.gpu_name": "nvidia.com/gpu",
    "resources.split_count": 2,  # gpu: units of one card; 1: whole cards
    "resources.mig_strategy": "single",  # single: an instance is a card like others; mixed: nvidia.com/mig-<profile>
    "plugin.fail_on_init_error": True,  # without a card the device plugin ends; False: it waits for one
    "plugin.socket_dir": "/var/lib/kubelet/device-plugins",
    "plugin.pod_resources_socket": "/var/lib/kubelet/pod-resources/kubelet.sock",
    "plugin.grant_grace": 60,  # seconds without the grant's pod in kubelet's list, before the grant ends
    "plugin.ignored_xids": ["catalog", "45", "109"],  # faults of a program, not of the card
    "plugin.cdi": False,  # Allocate's answers name the CDI device of vgpu.config.cdi_device
    "plugin.http": "127.0.0.1:5679",  # of /healthz and /readyz; empty: none
    "metrics.listen": "127.0.0.1:5678",  # of the exporter; empty: none
    "metrics.group": 0,  # the id of the group that may read vgpud's record; 0: root alone
    "metrics.compat": [],  # whose metrics the exporter has besides: gpu-manager, hami, gpu-fractioning
    "kubernetes.api": "auto",  # auto: with a service account or a configured kubeconfig; never; always
    "kubernetes.kubeconfig": "",  # empty: the pod's service account, else the usual places
    "kubernetes.dialects": ["all"],  # the placement annotations that are read
    "kubernetes.register": ["vgpu"],  # the forms in which the node's annotations list its cards
    "kubernetes.missing_memory": "refuse",  # a share without memory: refuse, or proportional to its cores
    "kubernetes.dra": False,  # offer the cards by Dynamic Resource Allocation, and not by the device plugin's API
    "kubernetes.dra_parts": False,  # offer halves, quarters and eighths of cards there, too
    "kubernetes.dra_taint": "NoSchedule",  # the effect of an ill card's taint: NoSchedule, or NoExecute
    "kubernetes.cdi_dir": "/var/run/cdi",  # where the CDI files of prepared claims are written
    "kubernetes.scheduler_amounts": "spec",  # spec: annotated amounts count up to the pod's limits; trust
}

#: What a record means that was compiled before there was the setting.
BEFORE: dict[str, object] = {"standalone.requests": "annotations"}

PATHS = "paths."  #: of the settings that name the places of records
#: The words of settings with which no start goes on that has another one.
WORDS: dict[str, tuple[object, ...]] = {"placement.policy": ("binpack", "spread")}

MAX_NAMES = 50  #: of settings in one note

_DO = "run: vgpuctl config apply"


class Settings:
    """Settings by their dotted name, `settings["driver.root"]`; `source` names the file for messages.

    `notes` has a line about what a newer version of vgpu has set and this one does not know, or is empty.
    """

    __slots__ = ("_values", "node", "notes", "source")

    def __init__(self, values: dict[str, object] | None = None, node: str = "", source: str = "defaults") -> None:
        self._values = dict(DEFAULTS)
        self._values.update(values or {})
        self.node = node
        self.source = source
        self.notes: list[str] = []

    def __getitem__(self, name: str) -> object:
        return self._values[name]

    def text(self, name: str) -> str:
        value = self._values[name]
        assert isinstance(value, str)
        return value

    def flag(self, name: str) -> bool:
        return bool(self._values[name])

    def number(self, name: str) -> float:
        value = self._values[name]
        assert isinstance(value, (int, float))
        return value

    def texts(self, name: str) -> list[str]:
        value = self._values[name]
        assert isinstance(value, list)
        return list(value)

    @property
    def state_dir(self) -> str:
        return self.text("paths.state")

    @property
    def run_dir(self) -> str:
        return self.text("paths.run")

    def record(self) -> dict[str, object]:
        """The record that the compiler writes."""
        return {"version": VERSION, "node": self.node, "source": self.source, "settings": dict(self._values)}


def from_record(record: dict[str, object], path: str) -> Settings:
    """Settings from a compiled record; VgpuError when this version cannot use it.

    A newer version of vgpu may have compiled it: after a way back, or while the node's parts are replaced one after the
    other. What it has set and this version does not know, or cannot use, is ignored: the default counts. But a path
    that this version cannot use is an error, because the node's parts would have their records in different places.
    """
    fields = Fields(record, path, _DO)
    newer = newer_compiler(record)
    if not newer:
        fields.version(VERSION)
    values = {**BEFORE, **fields.inner("settings").record}
    wrong = [name for name, value in values.items() if not _is_usable(name, value, bool(newer))]
    ignored = [name for name in wrong if newer and not name.startswith(PATHS)]
    for name in wrong:
        value = values.pop(name)
        if name not in ignored:
            raise VgpuError(f"{path}: setting {shown(name)}", expected=_expected(name), found=_found(value), do=_DO)
    made = Settings(values, fields.text("node"), path)
    if ignored:
        names = ", ".join(map(shown, ignored[:MAX_NAMES]))
        made.notes.append(f"{path}: settings of vgpu {newer}, which this version ignores: {names}")
    return made


def newer_compiler(record: dict[str, object]) -> str:
    """The version of vgpu that compiled `record`, if it is newer than this one; else ""."""
    found = record.get("compiled_by")
    return found if isinstance(found, str) and found.isprintable() and _numbers(found) > _numbers(RELEASE) else ""


def _numbers(version: str) -> list[int]:
    """[0, 2, 0] of 0.2.0~rc1: the leading number of each part of at most three."""
    found = []
    for part in version.split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        found.append(int(digits[:9] or 0))
    return found


def read(path: str = COMPILED_PATH) -> Settings:
    """The settings in force; VgpuError when there are none yet or the file is damaged."""
    try:
        record = records.read(path, _DO)
    except FileNotFoundError:
        raise VgpuError(path, expected="compiled settings", found="no file", do=_DO) from None
    return from_record(record, path)


def read_or_default(path: str) -> Settings:
    """The settings in force, or the defaults before any are compiled; VgpuError when the file is damaged."""
    try:
        return read(path)
    except VgpuError:
        if os.path.exists(path):
            raise
        return Settings()


def _is_usable(name: str, value: object, newer: bool) -> bool:
    """Of this version's own compiler the words are right: it has checked them."""
    if name not in DEFAULTS or not _same_type(value, DEFAULTS[name]):
        return False
    return not newer or value in WORDS.get(name, (value,))


def _same_type(value: object, default: object) -> bool:
    if isinstance(default, list):
        return isinstance(value, list) and all(isinstance(item, str) and item.isprintable() for item in value)
    if isinstance(default, str):
        return isinstance(value, str) and value.isprintable()
    if isinstance(default, float):
        return type(value) in (int, float)
    return type(value) is type(default)


def _found(value: object) -> object:
    return "nothing" if value is None else value


def _expected(name: str) -> str:
    if name not in DEFAULTS:
        return "a setting that this version knows"
    default = DEFAULTS[name]
    return "a list of texts" if isinstance(default, list) else _KINDS[type(default)]


_KINDS: dict[type, str] = {bool: "true or false", str: "text on one line", int: "a whole number", float: "a number"}
