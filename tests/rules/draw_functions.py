"""`draw_functions.py COMMIT [COUNT]`: functions of that commit, drawn by a seed that is the commit's full hash.

For docs/decisions/ten-functions.md: whether a function's file and folder say that it belongs there is judged on
functions that nobody chose. Python and C of the product count; tests, generated code and the driver's own names do not.
"""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = next(parent for parent in Path(__file__).resolve().parents if (parent / "pyproject.toml").exists())
PARTS = ("config", "hook", "plugin", "libvcuda", "packaging")
DEFINITION = re.compile(r"^(?!typedef|else|return)[A-Za-z_][\w\s*]*?\b([a-z]\w*)\([^;{]*\)\s*\n\{", re.MULTILINE)
DRIVERS_OWN = re.compile(r"(cu[A-Z]|nvml[A-Z])")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout


def functions_in(name: str, text: str) -> list[str]:
    """The names of the functions that a file defines, in their order."""
    if name.endswith(".py"):
        return [node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    return [found for found in DEFINITION.findall(text) if not DRIVERS_OWN.match(found)]


def functions(commit: str) -> list[str]:
    """`file: function` of all of the commit, in git's order of files."""
    names = git("ls-tree", "-r", "--name-only", commit, *PARTS).splitlines()
    sources = [name for name in names if name.endswith((".py", ".c")) and "_pb2" not in name]
    return [f"{name}: {found}" for name in sources for found in functions_in(name, git("show", f"{commit}:{name}"))]


def main(arguments: list[str]) -> int:
    commit = git("rev-parse", arguments[0]).strip()
    count = int(arguments[1]) if len(arguments) > 1 else 10
    found = functions(commit)
    print(f"{count} of {len(found)} functions of {commit}:")
    print("\n".join(random.Random(commit).sample(found, count)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
