"""The hook's input: the runtime's state JSON on stdin, the bundle's config.json, and the command line.

Belongs here: bounded reading, and the few fields that matter, with checks of their types. Not here: what they mean. A
tenant may have written anything in config.json and in the annotations.
"""

from __future__ import annotations

import os

from vgpu.config import records
from vgpu.config.errors import VgpuError, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from vgpu.config.settings import Settings

MAX_STATE = 1 << 20
MAX_CONFIG = 16 << 20
MAX_ANNOTATIONS = 4096
PROGRAM = "vgpu-hook"
PREPARED = "--prepared"  #: the option of a hook that a CDI device of a prepared claim adds
STATE = "state JSON on stdin"
_DO = "check the runtime's hook configuration"


class CommandLine:
    """What the administrator wrote into the hook's command line, where no image and no tenant can write.

    `annotations` are the request of every container outside Kubernetes that brings none of its own. `standalone` is any
    (all annotations count), key, or "" for what the settings say. `prepared` is a result of a prepared claim, or "".
    """

    __slots__ = ("annotations", "prepared", "standalone")

    def __init__(self, annotations: dict[str, str] | None = None, standalone: str = "") -> None:
        self.annotations = annotations or {}
        self.standalone = standalone
        self.prepared = ""

    def allows_any(self, settings: Settings) -> bool:
        """Whether plain annotations are a request."""
        return (self.standalone or settings.text("standalone.requests")) in ("any", "annotations")


class Container:
    """One container as in its bundle. `rootfs` is absolute; `config` is the whole config.json. `prepared` are the
    results of prepared claims that the arguments of its hooks name: each CDI device adds a hook, and the first to run
    sets up all.
    """

    __slots__ = ("annotations", "bundle", "config", "env", "id", "pid", "prepared", "rootfs")

    def __init__(
        self,
        id: str,
        pid: int,
        bundle: str,
        annotations: dict[str, str],
        env: dict[str, str],
        rootfs: str,
        config: dict[str, object],
    ) -> None:
        self.id = id
        self.pid = pid
        self.bundle = bundle
        self.annotations = annotations
        self.env = env
        self.rootfs = rootfs
        self.config = config
        self.prepared = prepared_of(config)


def read_state(stdin: int) -> dict[str, object]:
    """The state JSON; VgpuError for any other input."""
    return records.decode_object(records.read_fd(stdin, STATE, MAX_STATE), STATE, _DO)


def read(state: dict[str, object]) -> Container:
    """The container of `state`, with its bundle's config.json."""
    bundle = _typed(state, "bundle", STATE)
    if not bundle.startswith("/"):
        raise VgpuError(STATE, expected="bundle, an absolute path", found=bundle, do=_DO)
    path = f"{bundle}/config.json"
    try:
        data = records.read_bounded(path, MAX_CONFIG)
    except OSError as error:
        expected = "the bundle's configuration"
        raise VgpuError(path, expected=expected, found=error.strerror, do=_DO) from None
    except VgpuError as error:
        raise VgpuError(path, expected=error.expected, found=error.found, do=_DO) from None
    config = records.decode_object(data, path, _DO)
    annotations = _annotations(config, path)
    annotations.update(_annotations(state, STATE))
    root = config.get("root")
    rootfs = _typed(root, "path", f"{path}: root") if isinstance(root, dict) else "rootfs"
    pid = state.get("pid", 0)
    if type(pid) is not int or pid < 0:
        raise VgpuError(STATE, expected="a pid", found=pid, do=_DO)
    return Container(
        _typed(state, "id", STATE), pid, bundle, annotations, _environment(config, path),
        os.path.join(bundle, rootfs), config,
    )  # fmt: skip


def prepared_of(config: dict[str, object]) -> list[str]:
    """The results that the start hooks of vgpu name, each once."""
    hooks = config.get("hooks")
    stages = [hooks.get(stage) for stage in ("prestart", "createRuntime")] if isinstance(hooks, dict) else []
    found: dict[str, None] = {}
    for entry in [one for stage in stages if isinstance(stage, list) for one in stage if isinstance(one, dict)]:
        path, words = entry.get("path"), entry.get("args")
        if isinstance(path, str) and path.rpartition("/")[2] == PROGRAM and isinstance(words, list):
            found.update((str(value), None) for word, value in zip(words, words[1:]) if word == PREPARED)
    return list(found)


def _typed(record: dict[str, object], name: str, source: str) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not value or not value.isprintable():  # no file's name has NUL or lone surrogates
        raise VgpuError(source, expected=f"{name}, one line of text", found=value, do=_DO)
    return value


def _annotations(record: dict[str, object], source: str) -> dict[str, str]:
    value = record.get("annotations")
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > MAX_ANNOTATIONS:
        raise VgpuError(f"{source}: annotations", expected=f"an object of at most {MAX_ANNOTATIONS}", do=_DO)
    for key, text in value.items():
        if not isinstance(text, str):
            raise VgpuError(f"{source}: annotation {shown(key)}", expected="a text", found=text, do="put it in quotes")
    return dict(value)


def _environment(config: dict[str, object], source: str) -> dict[str, str]:
    process = config.get("process")
    env = process.get("env") if isinstance(process, dict) else None
    if env is None:
        return {}
    if not isinstance(env, list) or not all(isinstance(item, str) for item in env):
        raise VgpuError(f"{source}: process.env", expected="a list of texts", do=_DO)
    pairs = (item.partition("=") for item in env)
    return {name: value for name, _, value in pairs}
