"""`run.py GROUP`: measure one group of benchmarks, print its table, write build/bench/<group>.json.

A group is a module beside this one with a function that returns its results; `GROUPS` lists them. The exit status is 0
if the figures were obtained, even if one misses its bar: the table marks it, and the JSON has both values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "beds"), str(HERE.parent / "doubles")]

import cores  # noqa: E402 - found by the line above
import crowds  # noqa: E402
import exporter  # noqa: E402
import extender  # noqa: E402
import extender_trace  # noqa: E402
import hook  # noqa: E402
import plugin  # noqa: E402
import vcuda  # noqa: E402
from checkout import BUILD  # noqa: E402
from conformance import suite  # noqa: E402
from results import BenchError, Result, table, write  # noqa: E402

Groups = dict[str, Callable[[], "list[Result]"]]

GROUPS: Groups = {
    "conformance": suite.measure, "cores": cores.measure, "exporter": exporter.measure,
    "extender": extender.measure, "extender-trace": extender_trace.measure, "hook": hook.measure,
    "plugin": plugin.measure, "tenants": crowds.measure, "vcuda": vcuda.measure,
}  # fmt: skip


def main(arguments: list[str], groups: Groups = GROUPS, directory: Path = BUILD / "bench") -> int:
    """Measure the group that `arguments` name; return the exit status."""
    if len(arguments) != 1 or arguments[0] not in groups:
        print(f"usage: run.py {'|'.join(groups)}", file=sys.stderr)
        return 2
    (name,) = arguments
    try:
        results = groups[name]()
    except BenchError as error:
        print(f"bench {name}: {error}", file=sys.stderr)
        return 1
    path = directory / f"{name}.json"
    write(path, results)
    print(table(results))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
