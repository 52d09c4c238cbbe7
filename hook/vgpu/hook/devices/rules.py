"""Device rules: those that config.json asks for, and what each runtime makes of them. Pure.

Belongs here: `linux.resources.devices` of config.json, the defaults that runc and crun add, their ways of combining
rules, and the text of v1's devices.list. Not here: byte code (bpf_program) and the kernel (cgroup_v1, cgroup_v2).

How a request is decided, and how the deciders differ:
- A request carries one or more of read, write and mknod at once: open(O_RDWR) asks for `rw`, mknod for `m` only.
- An allowing rule covers a request only when it has all of its accesses. Two rules are never added up. That holds for
  v1's kernel code, for runc's programs and for crun's.
- A denying exception in a deny-list refuses any request that overlaps it in v1. In the programs of runc and crun it
  refuses only a request that it covers completely. A program here repeats the runtime's own, with this quirk.
"""

from __future__ import annotations

from vgpu.config.errors import VgpuError

MKNOD, READ, WRITE = 1, 2, 4  # BPF_DEVCG_ACC_*
_BITS = {"r": READ, "w": WRITE, "m": MKNOD}

OWN_CGROUP = "start the container with a cgroup of its own (podman: not --cgroups=disabled)"

ANY = -1
MAX_RULES = 1024
MAX_NUMBER = (1 << 31) - 1  # the immediate of a comparison in BPF; the kernel's own majors and minors are far smaller


class Rule:
    """`type` a (any), b or c; `major` and `minor` or ANY; `access` a subset of "rwm" in that order; `allow` or deny."""

    __slots__ = ("access", "allow", "major", "minor", "type")

    def __init__(self, type: str, major: int, minor: int, access: str, allow: bool = True) -> None:
        self.type = type
        self.major = major
        self.minor = minor
        self.access = access
        self.allow = allow

    def __str__(self) -> str:
        """The line that v1's devices.allow and devices.deny take."""
        major, minor = ("*" if number == ANY else str(number) for number in (self.major, self.minor))
        return f"{self.type} {major}:{minor} {self.access}"

    @property
    def mask(self) -> int:
        return mask_of(self.access)

    @property
    def everything(self) -> bool:
        return self.type == "a" and self.major == self.minor == ANY and self.access == "rwm"

    def covers(self, type: str, major: int, minor: int, mask: int) -> bool:
        """Whether this rule covers the whole request."""
        return (
            self.type in ("a", type)
            and mask & ~self.mask == 0
            and self.major in (ANY, major)
            and self.minor in (ANY, minor)
        )


class Filter:
    """Rules in order. The first rule that covers a request decides, or else `default`."""

    __slots__ = ("default", "rules")

    def __init__(self, rules: list[Rule], default: bool) -> None:
        self.rules = rules
        self.default = default

    def permits(self, type: str, major: int, minor: int, access: str) -> bool:
        mask = mask_of(access)
        for rule in self.rules:
            if rule.covers(type, major, minor, mask):
                return rule.allow
        return self.default

    def permit_all(self, opening: list[Rule]) -> bool:
        return all(self.permits(rule.type, rule.major, rule.minor, rule.access) for rule in opening)

    def opened(self, rules: list[Rule]) -> Filter:
        """This filter with `rules` before its own. It still permits everything that it permitted before."""
        return Filter(rules + self.rules, self.default)


class ContainerRules:
    """The rules in config.json, in order, and `paths`, the device nodes that it defines itself."""

    __slots__ = ("paths", "rules")

    def __init__(self, rules: list[Rule], paths: frozenset[str] = frozenset()) -> None:
        self.rules = rules
        self.paths = paths


def mask_of(access: str) -> int:
    mask = 0
    for letter in access:
        mask |= _BITS[letter]
    return mask


def access_of(mask: int) -> str:
    return "".join(letter for letter, bit in _BITS.items() if mask & bit)


def opening(devices: list[tuple[int, int]], access: str) -> list[Rule]:
    """The rules that open character `devices` (major, minor)."""
    return [Rule("c", major, minor, access) for major, minor in devices]


def listed(rules: list[Rule]) -> str:
    return ", ".join(map(str, rules))


def refuse_shared(directory: str) -> None:
    """Refuse a container that has no cgroup of its own: opening its runtime's would open the host's service."""
    raise VgpuError(
        f"{directory}: the container shares it with the runtime",
        expected="a device cgroup of the container's own, or one that is open", do=OWN_CGROUP,
    )  # fmt: skip


# Reading config.json


def from_config(config: dict[str, object], source: str = "config.json") -> ContainerRules:
    """The device rules of an OCI configuration; VgpuError for rules that every runtime refuses."""
    linux = _object(config.get("linux"), f"{source}: linux")
    resources = _object(linux.get("resources"), f"{source}: linux.resources")
    where = f"{source}: linux.resources.devices"
    items = _list(resources.get("devices"), where)
    nodes = _list(linux.get("devices"), f"{source}: linux.devices")
    paths = frozenset(path for path in (node.get("path") for node in nodes) if isinstance(path, str))
    return ContainerRules([_rule(item, f"{where}[{index}]") for index, item in enumerate(items)], paths)


def _object(value: object, where: str) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise VgpuError(where, expected="an object", found=type(value).__name__)
    return value


def _list(value: object, where: str) -> list[dict[str, object]]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise VgpuError(where, expected="a list", found=type(value).__name__)
    if len(value) > MAX_RULES:
        raise VgpuError(where, expected=f"at most {MAX_RULES} entries", found=len(value))
    return [_object(item or {}, f"{where}[{index}]") for index, item in enumerate(value)]


def _rule(item: dict[str, object], where: str) -> Rule:
    kind, allow, access = item.get("type") or "a", item.get("allow") or False, item.get("access") or ""
    if kind not in ("a", "b", "c"):
        raise VgpuError(f"{where}.type", expected="a, b or c", found=kind)
    if not isinstance(allow, bool):
        raise VgpuError(f"{where}.allow", expected="true or false", found=allow)
    if not isinstance(access, str) or not set(access) <= set("rwm"):
        raise VgpuError(f"{where}.access", expected="a combination of r, w and m", found=access)
    major, minor = (_number(item.get(name), f"{where}.{name}") for name in ("major", "minor"))
    return Rule(str(kind), major, minor, access_of(mask_of(access)), allow)


def _number(value: object, where: str) -> int:
    if value is None:
        return ANY
    if not isinstance(value, int) or isinstance(value, bool) or not ANY <= value <= MAX_NUMBER:
        raise VgpuError(where, expected=f"a device number, or {ANY} for any", found=value)
    return value


# The runtimes' filters

_MKNOD_ALL = [("", Rule("c", ANY, ANY, "m")), ("", Rule("b", ANY, ANY, "m"))]
_NODES = [
    ("/dev/null", Rule("c", 1, 3, "rwm")),
    ("/dev/random", Rule("c", 1, 8, "rwm")),
    ("/dev/full", Rule("c", 1, 7, "rwm")),
    ("/dev/tty", Rule("c", 5, 0, "rwm")),
    ("/dev/zero", Rule("c", 1, 5, "rwm")),
    ("/dev/urandom", Rule("c", 1, 9, "rwm")),
]
_CONSOLE = [("", Rule("c", 5, 1, "rwm"))]  # crun only; runc binds a pty of 136:* over /dev/console
_TERMINALS = [("", Rule("c", 136, ANY, "rwm")), ("", Rule("c", 5, 2, "rwm"))]
_TUN = [("", Rule("c", 10, 200, "rwm"))]  # runc but for 1.2.0 to 1.2.3, crun from 1.20 on; crun 1.8 lacks it
_BLANK = [("", Rule("c", 0, 0, ""))]  # crun 1.28 has the entry of zeros that ends its table as a last rule


def runc(container_rules: ContainerRules, tun: bool = True) -> Filter:
    """The filter of runc since 1.0: config.json's rules, then runc's defaults, all through an emulation of v1.

    A default is left out when config.json defines a node with its path; config.json then has to permit it. VgpuError
    for a rule that v1 cannot express; runc starts no container with such a configuration.
    """
    defaults = _MKNOD_ALL + _NODES + _TERMINALS + (_TUN if tun else [])
    rules = container_rules.rules + [rule for path, rule in defaults if path not in container_rules.paths]
    allow_list, exceptions = True, dict[tuple[int, int, str], int]()
    for rule in rules:
        if rule.type == "a":
            allow_list, exceptions = not rule.allow, {}
        elif rule.allow == allow_list:
            key = (rule.major, rule.minor, rule.type)
            exceptions[key] = exceptions.get(key, 0) | rule.mask
        else:
            _remove(exceptions, rule)
    ordered = sorted((key, mask) for key, mask in exceptions.items() if mask)
    return Filter([Rule(key[2], key[0], key[1], access_of(mask), allow_list) for key, mask in ordered], not allow_list)


def _remove(exceptions: dict[tuple[int, int, str], int], rule: Rule) -> None:
    """Remove `rule` from the exceptions. v1 silently ignores a hole in a wildcard, so runc refuses it."""
    own = (rule.major, rule.minor, rule.type)
    wider = {(ANY, rule.minor, rule.type), (rule.major, ANY, rule.type), (ANY, ANY, rule.type)} - {own}
    for key in wider:
        if exceptions.get(key, 0) & rule.mask:
            wide = Rule(key[2], key[0], key[1], access_of(exceptions[key]))
            raise VgpuError(f"device rule {rule}", expected="no wildcard rule that covers it", found=str(wide))
    exceptions[own] = exceptions.get(own, 0) & ~rule.mask


def crun(container_rules: ContainerRules, tun: bool = True, blank: bool = False) -> Filter:
    """The filter of crun on v2: config.json's rules, then its defaults; the last rule that covers a request decides."""
    table = _MKNOD_ALL + _NODES + _CONSOLE + _TERMINALS + (_TUN if tun else []) + (_BLANK if blank else [])
    defaults = [rule for _, rule in table]
    ordered: list[Rule] = []
    for rule in reversed(container_rules.rules + defaults):
        if rule.everything:
            return Filter(ordered, rule.allow)
        ordered.append(rule)
    return Filter(ordered, False)


# v1's devices.list


def parse_list(text: str) -> Filter:
    """The state of a v1 device cgroup. `a *:* rwm` stands for a deny-list. The kernel does not list its denials."""
    rules = []
    for line in text.split("\n"):
        kind, _, rest = line.partition(" ")
        numbers, _, access = rest.partition(" ")
        major, _, minor = numbers.partition(":")
        if kind == "a":
            return Filter([], True)
        if kind in ("b", "c"):
            rules.append(Rule(kind, _listed(major, line), _listed(minor, line), access_of(mask_of(access))))
    return Filter(rules, False)


def _listed(text: str, line: str) -> int:
    if text == "*":
        return ANY
    if not text.isdigit():
        raise VgpuError("devices.list", expected="lines such as c 1:3 rwm", found=line)
    return int(text)
