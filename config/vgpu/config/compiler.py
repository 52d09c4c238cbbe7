"""The compiler of /etc/vgpu/config.yaml: it turns the admin's YAML into the settings that the hook reads.

Belongs here: YAML, its schema (schema.json) and the errors for the admin, each with file, line and key. Not here:
writing the result, which is `compiled`'s. The hook's process loads none of it; only this module imports PyYAML and
jsonschema.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import yaml

from vgpu.config import records
from vgpu.config.errors import VgpuError
from vgpu.config.request import MIG_RESOURCE, parse_size
from vgpu.config.settings import AUTO, DEFAULTS, Settings

MAX_SOURCE = 1 << 20
MAX_VALUES = 20_000
MAX_DEPTH = 16
MAX_ERRORS = 50
MIB = 1 << 20

SECTIONS: dict[str, list[str]] = {}
for _name in DEFAULTS:
    SECTIONS.setdefault(_name.partition(".")[0], []).append(_name.partition(".")[2])

Path = tuple[str, ...]  #: the path of a value: keys, and list indexes as `[0]`
#: Names of labels -> those of them, or more, that the node has; VgpuError if that is not known.
Labels = Callable[[list[str]], dict[str, str]]


class ConfigErrors(VgpuError):
    """All errors in a source, one line each, in the order of its lines."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines[:MAX_ERRORS]
        if len(lines) > MAX_ERRORS:
            self.lines.append(f"and {len(lines) - MAX_ERRORS} more errors")
        super().__init__("\n".join(self.lines))

    def line(self) -> str:
        return self.what


@dataclass(frozen=True)
class Origin:
    """The origin of a value: `kind` is default, file, profile or node; `line` is the file's line, 0 for a default."""

    kind: str
    line: int = 0


@dataclass(frozen=True)
class Compiled:
    """Settings, the origin of each, and notes for the admin about what is no error.

    `profile` is the name of the profile that applies, or "". `labels` has the node's labels that profiles select by,
    None for one that the node does not have.
    """

    settings: Settings
    origins: dict[str, Origin]
    notes: list[str]
    profile: str = ""
    labels: dict[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Newer:
    """The settings that vgpu `version`, a newer one, knows and this one does not, by their dotted names."""

    version: str = ""
    names: frozenset[str] = frozenset()

    def knows(self, at: Path, key: str) -> bool:
        """Whether `key` below `at` is such a setting, or a section of such settings only."""
        if at and at[-1] in SECTIONS:
            return f"{at[-1]}.{key}" in self.names
        return key not in SECTIONS and any(name.startswith(key + ".") for name in self.names)


@dataclass
class Source:
    """A file being compiled: its values, the line of each, and the errors so far."""

    path: str
    lines: dict[Path, int] = field(default_factory=dict)
    errors: list[tuple[int, str]] = field(default_factory=list)
    reported: set[Path] = field(default_factory=set)
    newer: Newer = Newer()
    ignored: list[str] = field(default_factory=list)  # the keys that only the newer version knows

    def wrong(self, at: Path, line: int, expected: str, found: object, do: str) -> None:
        if at and at in self.reported:
            return  # a value gets one error
        self.reported.add(at)
        key = _key(at)
        what = f"{self.path}:{line}" + (f": {key}" if key else "")
        self.errors.append((line, str(VgpuError(what, expected=expected, found=_found(found), do=do))))

    def finish(self) -> None:
        """Raise the errors that were collected."""
        if self.errors:
            raise ConfigErrors([text for _, text in sorted(dict.fromkeys(self.errors))])


def _key(at: Path) -> str:
    """`a.b[0]` of ("a", "b", "[0]")."""
    return "".join(part if part.startswith("[") else f".{part}" for part in at).lstrip(".")


def no_labels(names: list[str]) -> dict[str, str]:
    """A node without labels, for checks in which no profile has to apply."""
    del names
    return {}


def unknown_labels(names: list[str]) -> dict[str, str]:
    """VgpuError: nobody has said which labels the node has."""
    del names
    do = "name them with --label NAME=VALUE, or with --labels-from-api in a pod"
    raise VgpuError("profiles", expected="the node's labels, by which profiles are chosen", found="none", do=do)


def compile_source(path: str, node: str, labels: Labels = unknown_labels, newer: Newer | None = None) -> Compiled:
    """The settings that the file at `path` gives `node`; the defaults when there is no file.

    `labels` is called only if the file has profiles. Keys that `newer` knows are ignored, with a note. ConfigErrors (a
    VgpuError) has a line for each error.
    """
    data = _read(path)
    if data is None:
        origins = {name: Origin("default") for name in DEFAULTS}
        note = f"{path}: no such file; the defaults are used"
        return Compiled(Settings(node=node, source=path), origins, [note])
    source = Source(path, newer=newer or Newer())
    value = _parse(source, data)
    _check_schema(source, value)
    source.finish()
    profiles = _profiles(source, value)
    layers = _layers(source, value)
    _check_together(source, layers)
    source.finish()
    selecting = list(dict.fromkeys(key for profile in profiles for key in profile.selector))
    found = labels(selecting) if profiles else {}
    own = next((profile for profile in profiles if profile.matches(found)), None)
    chosen = [layer for layer in layers if _applies(layer[0], own, node)]
    _check_chosen(source, chosen)
    source.finish()
    notes = [*_choice(source, profiles, found, node), *_without_node(source, layers, node), *_ignored(source)]
    named = {key: found.get(key) for key in selecting}
    return Compiled(*_merge(source, chosen, node, own), notes, own.name if own else "", named)


def _read(path: str) -> bytes | None:
    try:
        return records.read_bounded(path, MAX_SOURCE)
    except FileNotFoundError as error:
        if os.path.lexists(path):
            found = f"a link to {os.readlink(path)}, which does not exist"
            raise VgpuError(path, expected="a file to read", found=found, do="repair the link") from error
        return None
    except OSError as error:
        raise VgpuError(path, expected="a file to read", found=error.strerror, do="check its type and mode") from error
    except VgpuError as error:
        raise VgpuError(path, expected=error.expected, found=error.found, do="is it the right file?") from None


# ---- YAML to values, each with its line


class _Loader(yaml.SafeLoader):
    """PyYAML's composer with bounds on levels and values: it recurses for each level and takes time for each value."""

    depth = 0
    count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        self.count += 1
        if self.depth > MAX_DEPTH or self.count > MAX_VALUES:
            event: Any = self.peek_event()  # type: ignore[no-untyped-call]  # types-PyYAML leaves it bare
            mark = event.start_mark
            raise yaml.MarkedYAMLError(problem=_too_much(self.depth), problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def _too_much(depth: int) -> str:
    return f"more than {MAX_DEPTH} levels" if depth > MAX_DEPTH else f"more than {MAX_VALUES} values"


def _parse(source: Source, data: bytes) -> Any:
    """The plain value in `data`; this fills in the lines and errors of `source`."""
    text = _decode(source, data)
    loader: Any = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        _malformed(source, error, len(text))
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        source.wrong((), line, "YAML", f"character {error.character:#x}", "remove it")
    except (ValueError, OverflowError) as error:  # chr() of an escape for no character
        source.wrong((), loader.line + 1, "YAML", str(error), "remove the escape")
    source.finish()
    return _Walk(source, loader).value(node, (), 0) if node is not None else None


def _decode(source: Source, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        source.wrong((), line, "UTF-8", f"byte {data[error.start]:#04x}", "save the file as UTF-8")
        source.finish()
        raise


def _malformed(source: Source, error: yaml.MarkedYAMLError, size: int) -> None:
    """PyYAML's error as one of ours. Its forms are such as `expected X, but found Y` and `found Y`."""
    mark, problem = error.problem_mark, error.problem or ""
    if mark is None or (mark.index >= size and error.context_mark is not None):
        mark = error.context_mark  # at the end of the file: show where the open part begins
    if problem.startswith("but "):
        problem = f"{error.context}, {problem}"
    expected, but, found = problem.partition(", but ")
    if not but:
        expected, found = "valid YAML", problem
    expected, found = expected.removeprefix("expected "), found.removeprefix("found ").removeprefix("got ")
    source.wrong((), mark.line + 1 if mark else 1, expected, found, _advice(problem))


def _advice(problem: str) -> str:
    if "\\t" in problem:
        return "indent with spaces"
    if "single document" in problem:
        return "keep one document, without a second ---"
    return "correct this line or the one above it"


class _Walk:
    """Turns composed nodes into plain values. It follows aliases, so it bounds depth and count again."""

    def __init__(self, source: Source, loader: Any) -> None:
        self.source = source
        self.loader = loader
        self.count = 0

    def value(self, node: Any, at: Path, depth: int) -> Any:
        self.count += 1
        if depth > MAX_DEPTH or self.count > MAX_VALUES:
            self.source.wrong((), _line(node), "a few settings", _too_much(depth), "write them without aliases")
            self.source.finish()
        self.source.lines.setdefault(at, _line(node))
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, at, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*at, f"[{index}]"), depth + 1) for index, item in enumerate(node.value)]
        return self.scalar(node, at)

    def mapping(self, node: Any, at: Path, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        own: dict[str, int] = {}
        for key_node, value_node, merged in self.pairs(node, depth):
            key = self.key(key_node, at)
            if key is None or (merged and key in values):
                continue
            if key in values:
                do = f"line {own[key]} has the first; keep one"
                self.source.wrong((*at, key), _line(key_node), "a key once", "it again", do)
                continue
            inside = (*at, key)
            own[key] = self.source.lines[inside] = _line(key_node)
            values[key] = self.value(value_node, inside, depth + 1)
        return values

    def pairs(self, node: Any, depth: int, merged: bool = False) -> Iterator[tuple[Any, Any, bool]]:
        """The mapping's own pairs, then those of its merge keys (`<<: *anchor`)."""
        merges: list[Any] = []
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                merges += value_node.value if isinstance(value_node, yaml.SequenceNode) else [value_node]
            else:
                yield key_node, value_node, merged
        for inner in merges:
            self.count += 1
            if not isinstance(inner, yaml.MappingNode) or depth > MAX_DEPTH or self.count > MAX_VALUES:
                self.source.wrong((), _line(inner), "an alias of a mapping after <<", "another value", "remove the <<")
                self.source.finish()
            yield from self.pairs(inner, depth + 1, True)

    def key(self, node: Any, at: Path) -> str | None:
        value = self.scalar(node, at) if isinstance(node, yaml.ScalarNode) else node
        if isinstance(value, str) and value:
            return value
        found = repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list or a mapping"
        self.source.wrong(at, _line(node), "text as a key", found, "put it in quotes if it is a name")
        return None

    def scalar(self, node: Any, at: Path) -> Any:
        kind = node.tag.rpartition(":")[2]
        if kind in ("null", "bool", "int", "float"):
            try:
                value = self.loader.construct_object(node)
            except (ValueError, IndexError):  # !!int x, too many digits, or !!int with nothing
                value = float("nan")
            if isinstance(value, float) and value - value != 0.0:
                self.source.wrong(at, _line(node), _KINDS[kind], node.value, "correct the value")
                return None
            return value
        if kind not in ("str", "timestamp") or not node.value.isprintable():
            found = f"tag {node.tag}" if node.value.isprintable() else node.value
            self.source.wrong(at, _line(node), "plain text on one line", found, "write the value without it")
        return node.value


_KINDS = {"null": "an empty value", "bool": "true or false", "int": "a whole number", "float": "a plain number"}


def _line(node: Any) -> int:
    return int(node.start_mark.line) + 1


# ---- the schema, and the rules that a schema cannot express


def _check_schema(source: Source, value: Any) -> None:
    from jsonschema import Draft7Validator  # noqa: PLC0415 - it is slow to load, and --help does without it

    with open(os.path.join(os.path.dirname(__file__), "schema.json"), encoding="utf-8") as file:
        validator = Draft7Validator(json.load(file))
    for error in validator.iter_errors(value):
        at = tuple(f"[{part}]" if isinstance(part, int) else part for part in error.absolute_path)
        if error.validator == "additionalProperties":
            _unknown(source, at, error)
            continue
        schema: Any = error.schema
        expected = "each item once" if error.validator == "uniqueItems" else schema["expected"]
        source.wrong(
            at, source.lines.get(at, 1), expected, error.instance, f"write for example: {_example(at, schema)}"
        )


def _example(at: Path, schema: dict[str, str]) -> str:
    """A correct line: a setting's default, or else the schema's example."""
    name = ".".join(at[-2:])
    if name in DEFAULTS:
        return f"{at[-1]}: {value_text(name, DEFAULTS[name])}"
    if not at or schema["example"].startswith(f"{at[-1]}:"):
        return schema["example"]
    return f"- {schema['example']}" if at[-1].startswith("[") else f"{at[-1]}: {schema['example']}"


def _unknown(source: Source, at: Path, error: Any) -> None:
    known = sorted(error.schema["properties"])
    for key in error.instance:
        if key not in known and source.newer.knows(at, key):
            source.ignored.append(_key((*at, key)))
        elif key not in known:
            line = source.lines.get((*at, key), 1)
            source.wrong((*at, key), line, "one of the keys " + ", ".join(known), key, _suggestion(key, known))


def _suggestion(key: str, known: list[str]) -> str:
    if key in DEFAULTS:
        return f"write {key.partition('.')[2]}: below {key.partition('.')[0]}:"
    near = difflib.get_close_matches(key.lower(), known, n=1)
    if near:
        return f"did you mean {near[0]}?"
    sections = [section for section, names in SECTIONS.items() if key in names]
    return f"write {key}: below {sections[0]}:" if sections else "remove it, or correct its name and indentation"


def _found(value: object) -> str:
    """A value about as the admin wrote it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        kind = "a mapping" if isinstance(value, dict) else "a list"
        return kind if value else f"an empty {kind[2:]}"
    return str(value) or '""'


#: (() or ("profiles", "[0]") or ("nodes", name), values by their dotted names)
Layer = tuple[Path, dict[str, object]]


@dataclass(frozen=True)
class Profile:
    """An entry of `profiles`: it is for nodes that have one of the values of each label in `selector`."""

    at: Path
    line: int
    name: str
    selector: dict[str, list[str]]

    def matches(self, labels: dict[str, str]) -> bool:
        return all(labels.get(key) in values for key, values in self.selector.items())


def _profiles(source: Source, value: Any) -> list[Profile]:
    found: list[Profile] = []
    for index, item in enumerate((value or {}).get("profiles") or []):
        at, name = ("profiles", f"[{index}]"), item["name"]
        where = (*at, "name")
        line = source.lines[where]
        first = next((profile for profile in found if profile.name == name), None)
        if first:
            do = f"line {first.line} has the first; rename one"
            source.wrong(where, line, "a name of its own for each profile", name, do)
        selector = {key: [of] if isinstance(of, str) else of for key, of in item["node_labels"].items()}
        found.append(Profile(at, line, name, selector))
    return found


def _choice(source: Source, profiles: list[Profile], labels: dict[str, str], node: str) -> list[str]:
    """The note about the profile that applies: the first that matches."""
    if not profiles:
        return []
    matching = [profile for profile in profiles if profile.matches(labels)]
    if not matching:
        names = ", ".join(profile.name for profile in profiles[:5])
        return [f"{source.path}: profiles: none of {names} matches this node, {node}"]
    own, later = matching[0], ", ".join(profile.name for profile in matching[1:])
    note = f"{source.path}:{own.line}: profile {own.name} applies to this node, {node}"
    return [note + (f"; it comes before {later}, which match too" if later else "")]


def _applies(at: Path, own: Profile | None, node: str) -> bool:
    """Whether the layer at `at` is the top level's, the node's or that of its profile."""
    return not at or (own is not None and at == own.at) or (at[0] == "nodes" and at[1].lower() == node.lower())


def _layers(source: Source, value: Any) -> list[Layer]:
    """The top level, the profiles and each node's overrides, as settings hold them, in the order of precedence."""
    value = value or {}
    nodes = value.get("nodes") or {}
    _check_nodes(source, nodes)
    profiles = enumerate(value.get("profiles") or [])
    parts: list[tuple[Path, dict[str, Any]]] = [((), value)]
    parts += [(("profiles", f"[{index}]"), sections) for index, sections in profiles]
    parts += [(("nodes", name), sections or {}) for name, sections in nodes.items()]
    return [(at, _flat(source, at, sections)) for at, sections in parts]


def _check_nodes(source: Source, nodes: dict[str, Any]) -> None:
    seen: dict[str, str] = {}
    for name in nodes:
        at = ("nodes", name)
        if len(name) > 253 or not all(part.replace("-", "").replace("_", "").isalnum() for part in name.split(".")):
            source.wrong(at, source.lines[at], "a node's name", name, "letters, digits, . and - as hostname prints it")
        if seen.setdefault(name.lower(), name) != name:
            do = "keep one; upper and lower case are the same"
            source.wrong(at, source.lines[at], "one entry for each node", seen[name.lower()], do)


def _flat(source: Source, at: Path, sections: dict[str, Any]) -> dict[str, object]:
    values = {}
    for section, keys in sections.items():
        for key, value in (keys or {}).items() if section in SECTIONS else ():
            name, where = f"{section}.{key}", (*at, section, key)
            if name not in DEFAULTS:  # a newer version's
                continue
            try:
                values[name] = _NORMAL.get(name, _plain)(name, value)
            except VgpuError as error:
                source.wrong(where, source.lines[where], error.expected, error.found, error.do or "correct it")
    return values


def _plain(name: str, value: Any) -> object:
    default = DEFAULTS[name]
    return type(default)(value) if isinstance(default, (int, float)) else value


def _path(name: str, value: Any) -> object:
    """An absolute path without empty parts and without a trailing slash; "" stays."""
    return "/" + "/".join(part for part in value.split("/") if part) if value else value


def _root(name: str, value: Any) -> object:
    return value if value == AUTO else _path(name, value)


def _paths(name: str, value: Any) -> object:
    return [_path(name, item) for item in value]


NEVER_EXCLUDED = ("libcuda.so.550.54.15", "libnvidia-ml.so.550.54.15")


def _exclusions(name: str, value: Any) -> object:
    for glob in value:
        for library in NEVER_EXCLUDED:
            if fnmatchcase(library, glob):
                stem = library.partition(".")[0]
                expected = f"patterns that leave {stem} to containers"
                raise VgpuError(name, expected=expected, found=glob, do="without it no container could use its card")
    return value


def _memory_unit(name: str, value: Any) -> object:
    size = parse_size(value, name) if isinstance(value, str) else int(value)
    if size % MIB or not size:
        raise VgpuError(name, expected="a multiple of 1Mi, as bytes or with a unit", found=value, do="write 256Mi")
    return size


def _numbers(name: str, value: Any) -> object:
    """Numbers as texts, whether they were quoted or not; `all` and `catalog` stay."""
    return [item if item in ("all", "catalog") else str(int(item)) for item in value]


def _address(name: str, value: Any) -> object:
    port = value.rpartition(":")[2]
    if value and not 0 < int(port) < 1 << 16:
        raise VgpuError(name, expected="a port from 1 to 65535", found=port)
    return value


_NORMAL: dict[str, Callable[[str, Any], object]] = {
    "paths.state": _path,
    "paths.run": _path,
    "paths.libvcuda": _path,
    "driver.root": _root,
    "driver.dev_root": _path,
    "driver.proc_root": _path,
    "driver.library_dirs": _paths,
    "standalone.key": _path,
    "driver.exclude_libraries": _exclusions,
    "resources.memory_unit": _memory_unit,
    "plugin.socket_dir": _path,
    "plugin.pod_resources_socket": _path,
    "plugin.ignored_xids": _numbers,
    "plugin.http": _address,
    "metrics.listen": _address,
    "kubernetes.kubeconfig": _path,
    "kubernetes.cdi_dir": _path,
}

_DIFFERENT = (
    ("paths.state", "paths.run"),
    ("resources.core_name", "resources.memory_name"),
    ("resources.core_name", "resources.gpu_name"),
    ("resources.memory_name", "resources.gpu_name"),
)


def _check_together(source: Source, layers: list[Layer]) -> None:
    """Refuse values that contradict each other, at the top level and for every profile and node."""
    for at, values in layers:
        _check_one(source, at, values, {**DEFAULTS, **layers[0][1], **values})


def _check_chosen(source: Source, chosen: list[Layer]) -> None:
    """Refuse values of this node's own section that contradict its profile's."""
    merged = dict(DEFAULTS)
    for at, values in chosen:
        merged.update(values)
        _check_one(source, at, values, merged)


def _check_one(source: Source, at: Path, values: dict[str, object], merged: dict[str, Any]) -> None:
    """Check the `values` of the layer at `at`. `merged` has these and the values under them."""
    for one, other in _DIFFERENT:
        mine = next((name for name in (other, one) if name in values), None)
        if merged[one] == merged[other] and mine:
            where = (*at, *mine.split("."))
            expected = f"another value than {one if mine == other else other} has"
            source.wrong(where, source.lines[where], expected, merged[mine], "change one of them")
    if merged["resources.mode"] == "gpu":
        _check_split(source, at, values, merged)
    _check_share(source, at, values, merged)
    _check_instances(source, at, values, merged)


def _check_instances(source: Source, at: Path, values: dict[str, object], merged: dict[str, Any]) -> None:
    """Check that no resource has a name that the instances of a MIG profile have."""
    names = ("resources.core_name", "resources.memory_name", "resources.gpu_name")
    taken = [
        name for name in names if merged[name].startswith(MIG_RESOURCE) and merged["resources.mig_strategy"] == "mixed"
    ]
    mine = next((name for name in (*taken, "resources.mig_strategy") if name in values), None)
    if taken and mine:
        where = (*at, *mine.split("."))
        expected = (
            f"no name {MIG_RESOURCE}... in {taken[0]} beside resources.mig_strategy: mixed, which offers these names"
        )
        source.wrong(where, source.lines[where], expected, merged[taken[0]], "change one of them")


def _check_share(source: Source, at: Path, values: dict[str, object], merged: dict[str, Any]) -> None:
    """Check that what shares may have besides the default is among what any container may have."""
    of_shares, of_all = "driver.share_capabilities", "driver.capabilities"
    extra = [name for name in merged[of_shares] if name not in (*merged[of_all], *DEFAULTS[of_shares])]  # type: ignore[misc]
    mine = next((name for name in (of_shares, of_all) if name in values), None)
    if extra and mine:
        where = (*at, *mine.split("."))
        expected = f"{extra[0]} in {of_all} too, because {of_shares} names it"
        found = ", ".join(merged[of_all])
        source.wrong(where, source.lines[where], expected, found, f"add {extra[0]} to {of_all}")


_OF_SPLIT = ("resources.split_count", "scaling.memory", "scaling.cores", "resources.mode")


def _check_split(source: Source, at: Path, values: dict[str, object], merged: dict[str, Any]) -> None:
    """Check one unit of a split card: it has at least 1 percent of the card and at most all of its memory."""
    count, cores, memory = (merged[name] for name in ("resources.split_count", "scaling.cores", "scaling.memory"))
    mine = next((name for name in _OF_SPLIT if name in values), None)
    if mine is None or count == 1:
        return
    where = (*at, *mine.split("."))
    if count > int(100 * cores + 1e-6):
        expected = "at least 1 core for each unit of a card: resources.split_count up to 100 times scaling.cores"
        source.wrong(where, source.lines[where], expected, f"{count} units of {100 * cores:g} cores", "split less")
    if memory > count:
        expected = "no unit larger than the card: scaling.memory up to resources.split_count"
        found = f"scaling.memory {memory:g}, {count} units"
        source.wrong(where, source.lines[where], expected, found, "split more or scale less")


def _merge(source: Source, chosen: list[Layer], node: str, own: Profile | None) -> tuple[Settings, dict[str, Origin]]:
    """Merge the layers: a node's value wins over its profile's, that over the file's, and that over the default."""
    values: dict[str, object] = {}
    origins = {name: Origin("default") for name in DEFAULTS}
    for at, layer in chosen:
        values.update(layer)
        origins.update((name, _origin(source, at, name, own)) for name in layer)
    return Settings(values, node, source.path), origins


def _origin(source: Source, at: Path, name: str, own: Profile | None) -> Origin:
    where = (*at, *name.split("."))
    line = source.lines[where]
    if own is not None and at == own.at:
        return Origin("profile", line)
    return Origin("node" if at else "file", line)


def _without_node(source: Source, layers: list[Layer], node: str) -> list[str]:
    names = [at[1] for at, _ in layers if at and at[0] == "nodes"]
    if not names or node.lower() in map(str.lower, names):
        return []
    return [f"{source.path}: nodes: has {', '.join(names[:5])}, but nothing for this node, {node}"]


def _ignored(source: Source) -> list[str]:
    if not source.ignored:
        return []
    keys = ", ".join(dict.fromkeys(source.ignored))
    return [f"{source.path}: settings of vgpu {source.newer.version}, which this version ignores: {keys}"]


# ---- settings as text


def value_text(name: str, value: object) -> str:
    """A setting's value as config.yaml writes it, on one line."""
    if name == "resources.memory_unit" and isinstance(value, int):
        return f"{value >> 30}Gi" if value % (1 << 30) == 0 else f"{value >> 20}Mi"
    if name == "plugin.ignored_xids" and isinstance(value, list):
        return f"[{', '.join(value)}]"  # held as texts, shown as numbers
    text: str = yaml.safe_dump(value, default_flow_style=True, width=1 << 20, allow_unicode=True)
    return text.partition("\n")[0]


def as_yaml(compiled: Compiled) -> str:
    """A config.yaml that gives these settings on any node, with a comment on the origin of each."""
    lines = []
    for section, keys in SECTIONS.items():
        lines.append(f"{section}:")
        for key in keys:
            name = f"{section}.{key}"
            lines.append(f"  {key}: {value_text(name, compiled.settings[name])}  # {origin_text(compiled, name)}")
    return "\n".join(lines) + "\n"


def origin_text(compiled: Compiled, name: str) -> str:
    origin = compiled.origins[name]
    if origin.kind == "default":
        return "default"
    where = f"{compiled.settings.source}:{origin.line}"
    of = {"node": f" (node {compiled.settings.node})", "profile": f" (profile {compiled.profile})"}
    return where + of.get(origin.kind, "")
