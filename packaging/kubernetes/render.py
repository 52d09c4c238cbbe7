"""Renders the chart for each way of running, and what is made of its values: packaging/kubernetes/render.py [FOLDER].

Belongs here: <way>/objects.yaml, which is `helm template` with <way>/values.yaml, for `kubectl apply -k`; the last
definition of the values' schema, which is the schema of the settings; the table of docs/chart.md. HELM names the
program, else the one in PATH. Files go to FOLDER, below their own paths, if there is one. `make manifests` runs it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parents[1]
CHART, NAMESPACE = HERE / "chart", "vgpu-system"
LOOKAHEAD = r"(?!.*/\\.\\.?(/|$))"
BEGIN, END = "<!-- table of values: begin -->\n", "<!-- table of values: end -->\n"


def rendered(values: Path) -> str:
    """The objects of a way of running, with the templates' comments."""
    command = [os.environ.get("HELM", "helm"), "template", "vgpu", CHART, "--namespace", NAMESPACE, "--values", values]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return "# Written by `make manifests` from ../chart with values.yaml.\n" + text


def schema() -> str:
    """values.schema.json with the settings' schema in it. Its $id keeps the references within it its own.

    Helm's expressions have no lookahead: that a path has no `.` and `..` is left to the node.
    """
    settings = (TOP / "config/vgpu/config/schema.json").read_text().replace(LOOKAHEAD, "").rstrip()
    settings = settings.replace("{\n", '{\n  "$id": "settings.json",\n', 1).replace("\n", "\n    ")
    head, mark, _ = (CHART / "values.schema.json").read_text().rpartition('\n    "settings": ')
    return f"{head}{mark}{settings}\n  }}\n}}\n"


def table() -> str:
    """docs/chart.md with a row for each value: its comment in values.yaml is its meaning."""
    page = (TOP / "docs/chart.md").read_text()
    head, _, rest = page.partition(BEGIN)
    rows = [f"| `{key}` | {default} | {meaning} |\n" for key, default, meaning in values()]
    return f"{head}{BEGIN}| value | default | meaning |\n|---|---|---|\n{''.join(rows)}{END}{rest.partition(END)[2]}"


def values() -> list[tuple[str, str, str]]:
    """(value, default, meaning) of each comment `# --` in values.yaml."""
    found, above, meaning, open_ = [], [], "", False
    for line in (CHART / "values.yaml").read_text().splitlines():
        indent, text = len(line) - len(line.lstrip()), line.strip()
        if text.startswith("# --"):
            meaning, open_ = text[4:].strip(), True
        elif text.startswith("#") and open_:
            meaning += f" {text[1:].strip()}"
        elif re.match(r"\w+:", text) and (indent <= 2 * len(above)):
            key, _, default = text.partition(":")
            above[indent // 2 :] = [key]
            if meaning:
                found.append((".".join(above), f"`{default.strip()}`" if default.strip() else "see there", meaning))
            meaning, open_ = "", False
    return found


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TOP
    put(target, CHART / "values.schema.json", schema())
    put(target, TOP / "docs/chart.md", table())
    for source in sorted(HERE.glob("*/values.yaml")):
        if source.parent != CHART:
            put(target, source.with_name("objects.yaml"), rendered(source))


def put(target: Path, path: Path, text: str) -> None:
    place = target / path.relative_to(TOP)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)


if __name__ == "__main__":
    main()
