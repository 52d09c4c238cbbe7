"""The code at the start of the hook's byte code file. It makes Python import every module of vgpu from that file.

Belongs here: the finder and loader. compile_hook.py writes the file. The gate's start program executes this code with
`table`, a pair: name -> (source path, whether it is a package, the number of its group or None without code), and the
groups, each the marshal data of name -> code. A module of vgpu that the table lacks does not exist, so the hook never
imports a source of another version. A package without code is there from the start, because the import system would
take as long for it as for a module.
"""

import marshal
import sys
from _frozen_importlib import ModuleSpec

entries, groups = globals()["table"]
codes = {}  # of the groups that are unpacked, without those of modules that are loaded


class Finder:
    """Finder and loader of the modules in the table. All methods are static, because a process has one table."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in entries:
            origin, is_package, _ = entries[name]
            return ModuleSpec(name, Finder, origin=origin, is_package=is_package)
        if name.startswith("vgpu."):
            raise ModuleNotFoundError(f"No module named {name!r} in the hook's byte code", name=name)
        return None

    @staticmethod
    def create_module(spec):
        """Return None, so that the import system makes the module."""

    @staticmethod
    def exec_module(module):
        name = module.__name__
        origin, _, group = entries[name]
        if group is None:
            return
        if name not in codes:
            codes.update(marshal.loads(groups[group]))  # noqa: S302 - the gate has verified them
        module.__file__ = origin
        exec(codes.pop(name), module.__dict__)  # noqa: S102 - every loader of modules does this


def make_package(name):
    package = sys.modules[name] = type(sys)(name)
    package.__path__ = []
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


for name in sorted(entries):  # a package comes before what is in it
    if entries[name][1:] == (True, None):
        make_package(name)
sys.meta_path.insert(0, Finder)
