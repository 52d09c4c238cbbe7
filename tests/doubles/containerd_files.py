"""Random configuration files of containerd: all settings of a handler, in all forms that TOML has for them.

The names of the settings are those of `containerd config default`, as tests/data/runtimes has them.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

import tomlkit
from foreign_toml import random_document

SECTIONS = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}
RUNC = "io.containerd.runc.v2"
PROGRAMS = {
    "runc": "",
    "crun": "/usr/bin/crun",
    "nvidia": "/usr/bin/nvidia-container-runtime",
    "my.handler": "/opt/runc",
}
OTHER = "kata"  #: a handler of another kind
WORDS = ("a", "/opt/with space", 'a "quoted" word', "back\\slash", "naïve", "no # comment", "[x]", "'")
PATTERNS = ("io.katacontainers.*", "cdi.k8s.io/*", "vgpu.io/*", "a.b/c?")

Settings = dict[str, Any]


@dataclass
class Files:
    """The main file and those that it imports, by their paths beside it.

    `odd`: of containerd 1.x, a form to which no line can be added, or an import that hides the main file's lines.
    """

    text: str = ""
    imported: dict[str, str] = field(default_factory=dict)
    odd: bool = False


class Maker:
    """Files of one containerd. `known` are a handler's settings with empty values, `spec` is a base specification."""

    def __init__(self, rng: random.Random, version: int, merges: bool, known: Settings, spec: str) -> None:
        self.rng, self.version, self.merges, self.known, self.spec = rng, version, merges, known, spec

    def make(self) -> Files:
        rng, made = self.rng, Files()
        names = rng.sample([*PROGRAMS, OTHER], rng.randrange(5))
        handlers = {name: self._handler(name) for name in names}
        own = self.merges or "runc" in names or not names  # whether runc, which is the default unnamed, is there
        default = "missing" if rng.random() < 0.05 else rng.choice([*names, *names, *([None] if own else [])])
        lines = self._containerd(default) + "".join(
            self._table(("runtimes", name), handlers[name]) for name in handlers
        )
        if handlers and rng.random() < 0.05:
            inline = ", ".join(f"{_key(rng, name)} = {_inline(rng, table)}" for name, table in handlers.items())
            lines, made.odd = self._containerd(default, f"runtimes = {{{inline}}}\n"), not self.merges
        if not self.merges and rng.random() < 0.05:
            lines += self._table(("default_runtime",), self._handler("crun"))
        head = f"version = {self.version}\n" if self.version > 1 or rng.random() < 0.5 else ""
        foreign = random_document(rng).replace("imports", "other")
        made.text = self._imports(made, names) + head + foreign.rstrip("\n") + "\n" + lines
        if self.version > 2 and rng.random() < 0.5:
            platform = {"platform": "linux/amd64", "snapshotter": "nydus"}
            made.text += self._table(
                (rng.choice([*PROGRAMS]),), platform, "io.containerd.cri.v1.images", "runtime_platforms"
            )
        if rng.random() < 0.2:
            made.text = made.text.rstrip("\n")
        made.odd |= not self.merges and tomlkit.dumps(tomlkit.parse(made.text)) != made.text
        return made

    def _imports(self, made: Files, names: list[str]) -> str:
        """The line with the imports, and its files: settings of handlers of 2.x, other tables for 1.x."""
        rng = self.rng
        if rng.random() < 0.5:
            return rng.choice(("", "imports = []\n", "# none\n"))
        folder = rng.choice(("conf.d", "other"))
        for number in range(rng.randrange(3)):
            hidden = not self.merges and rng.random() < 0.1
            text = f"version = {self.version}\n# {rng.choice(WORDS)}\n"
            if self.merges or hidden:
                name = rng.choice([*names, "runc"])
                text += self._containerd(rng.choice([None, name])) + self._table(
                    ("runtimes", name), self._handler(name)
                )
            else:
                text += f"[plugins.'io.containerd.x.v1.{number}']\na = 1\n"
            made.odd |= hidden
            made.imported[f"{folder}/{number}.toml"] = text
        pattern = rng.choice([f"{folder}/*.toml"] if self.merges else sorted(made.imported) or [f"{folder}/*.toml"])
        return f"imports = [{_text(rng, pattern)}]{rng.choice(('', ' # mine'))}\n"

    def _handler(self, name: str) -> Settings:
        """A handler with a random choice of the settings."""
        table = self._some(self.known)
        table["runtime_type"] = RUNC if name != OTHER else "io.containerd.kata.v2"
        program = PROGRAMS.get(name, "")
        options = {**self._some(self.known["options"]), **({"BinaryName": program} if program else {})}
        options = {key: value for key, value in options.items() if key != "BinaryName" or program}
        return {**table, **({"options": options} if options else {})}

    def _some(self, known: Settings) -> Settings:
        chosen = [key for key, value in known.items() if not isinstance(value, dict) and self.rng.random() < 0.5]
        self.rng.shuffle(chosen)
        return {key: self._value(key, known[key]) for key in chosen}

    def _value(self, key: str, empty: object) -> object:
        rng = self.rng
        if key == "base_runtime_spec":
            return self.spec
        if isinstance(empty, bool):
            return rng.random() < 0.8
        if isinstance(empty, int):
            return rng.randrange(1 << 16)
        return rng.sample(PATTERNS, rng.randrange(4)) if isinstance(empty, list) else rng.choice(WORDS)

    # Text

    def _containerd(self, default: str | None, more: str = "") -> str:
        named = f"default_runtime_name = {_text(self.rng, default)}\n" if default else ""
        if not named and not more and self.rng.random() < 0.5:
            return ""
        return self._header(("containerd",)) + named + more

    def _header(self, keys: tuple[str, ...], plugin: str = "") -> str:
        name = plugin or SECTIONS[self.version]
        path = ".".join(["plugins", _key(self.rng, name), *(_key(self.rng, key) for key in keys)])
        return f"{self.rng.choice(('', '  ', chr(9)))}[{path}]{self.rng.choice(('', '  # why'))}\n"

    def _table(self, keys: tuple[str, ...], table: Settings, plugin: str = "", above: str = "containerd") -> str:
        """A handler: its options in a table of their own, inline, or by dotted keys."""
        rng, keys = self.rng, (above, *keys)
        options = table.get("options", {})
        lines = [f"{_key(rng, key)} = {_literal(rng, value)}" for key, value in table.items() if key != "options"]
        form = rng.choice(("table", "table", "inline", "dotted")) if options else ""
        if form == "inline":
            lines.append(f"options = {_inline(rng, options)}")
        if form == "dotted":
            lines += [f"options.{_key(rng, key)} = {_literal(rng, value)}" for key, value in options.items()]
        text = self._header(keys, plugin) + "".join(f"  {line}{rng.choice(('', '', ' # c'))}\n" for line in lines)
        if form == "table":
            text += self._header((*keys, "options"), plugin)
            text += "".join(f"{_key(rng, key)}={_literal(rng, value)}\n" for key, value in options.items())
        return text + rng.choice(("", "\n", "# between\n"))


def _key(rng: random.Random, key: str) -> str:
    return rng.choice(([] if "." in key else [key, key]) + [f'"{key}"', f"'{key}'"])


def _text(rng: random.Random, text: str) -> str:
    plain = [f"'{text}'"] if "'" not in text else []
    return rng.choice([json.dumps(text, ensure_ascii=False), *plain])


def _literal(rng: random.Random, value: object) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_literal(rng, one) for one in value) + "]"
    return _text(rng, value) if isinstance(value, str) else json.dumps(value)


def _inline(rng: random.Random, table: Settings) -> str:
    items = [(key, _inline(rng, one) if isinstance(one, dict) else _literal(rng, one)) for key, one in table.items()]
    return "{" + ", ".join(f"{_key(rng, key)} = {text}" for key, text in items) + "}"
