"""Run the hook, and write which modules it has loaded at its end: loaded_hook.py FILE ROOTS [ARGUMENT ...]

FILE gets the modules of vgpu in the first line, without packages, and all others that the interpreter had not loaded
before in the second. ROOTS are the folders of sources, separated by colons. No module of Python's library is imported.
"""

import posix
import sys

file, roots = sys.argv[1:3]
before = {*sys.modules}
sys.path[:0] = roots.split(":")
from vgpu.hook import main  # noqa: E402 - the path is known only now


def written(status: int) -> None:
    found = {name: module for name, module in sys.modules.items() if name not in before}
    ours = sorted(name for name in found if name.startswith("vgpu.") and not hasattr(found[name], "__path__"))
    others = sorted(name for name in found if name.partition(".")[0] != "vgpu")
    with open(file, "w", encoding="ascii") as stream:
        stream.write(f"{' '.join(ours)}\n{' '.join(others)}\n")
    posix._exit(status)


main.os._exit = written  # `entry` calls it in the hook's own process, and not in its child
main.entry(sys.argv[3:])
