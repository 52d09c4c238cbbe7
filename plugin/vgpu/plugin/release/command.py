"""The command line of vgpu-release, which the containers of the DaemonSet vgpu-node run.

Belongs here: its verbs, their order, and what they print: one line for each thing done or wrong. Does not belong here:
the steps themselves.
"""

from __future__ import annotations

import argparse
import os
import sys

from vgpu.config import settings as compiled
from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import cdi_spec
from vgpu.plugin.release import capabilities, cdi, install, node_object, remove

PROGRAM = "vgpu-release"
OF_A_RELEASE = ("vgpud", "vgpuctl")  #: the others are programs of the image
#: Environment variables of the DaemonSet's containers: what --host and --directory say for people who enter them.
HOST, DIRECTORY = "VGPU_RELEASE_HOST", "VGPU_RELEASE_DIRECTORY"


def main() -> None:
    """The console script."""
    options = parsed(sys.argv[1:])
    os.umask(0o022)  # a release is for all to read
    try:
        options.verb(options)
    except (VgpuError, OSError) as error:
        text = str(error).replace("\n", "; ")
        say(text)
        missed = node_object.report(options.reason, text) if options.reason else ""
        if missed:
            say(f"no event on the node: {missed}")
        sys.exit(1)


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Install vgpu on a host without its package.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    add = verbs.add_parser("install", help="put this image's release in force, and have the runtime call its hook")
    add.set_defaults(verb=put, reason="VgpuNotInstalled")
    add.add_argument("--source", default="/", metavar="DIR", help="the root of the image (default: %(default)s)")
    add.add_argument("--socket", default="", metavar="PATH", help="the runtime's socket (default: the usual places)")
    add.add_argument("--cdi-directory", default="", metavar="DIR",
                     help="where the CDI specification goes (default: as the runtime says)")  # fmt: skip
    take = verbs.add_parser("remove", help="remove everything of vgpu from the host")
    take.set_defaults(verb=take_away, reason="VgpuNotRemoved")
    take.add_argument("--config", default=compiled.COMPILED_PATH, metavar="PATH",
                      help="the compiled settings, as the host names them (default: %(default)s)")  # fmt: skip
    take.add_argument("--wait", action="store_true", help="wait until no container has a share, instead of refusing")
    take.add_argument("--cdi-directory", default="", metavar="DIR", help="as for install")
    start = verbs.add_parser("run", help="run a program with the capabilities that it needs; vgpud and vgpuctl are "
                       "those of the release in force, with the host's root as their own")  # fmt: skip
    start.set_defaults(verb=run, reason="")
    start.add_argument("program", choices=tuple(capabilities.KEPT))
    start.add_argument("arguments", nargs=argparse.REMAINDER)
    for verb in (add, take, start):
        verb.add_argument("--host", default=os.environ.get(HOST, ""), metavar="DIR",
                          help="where the host's directories are mounted")  # fmt: skip
        verb.add_argument("--directory", default=os.environ.get(DIRECTORY, install.DIRECTORY), metavar="DIR",
                          help="the directory of releases, as the host names it (default: %(default)s)")  # fmt: skip
    return parser.parse_args(arguments)


def put(options: argparse.Namespace) -> None:
    """Install. The runtime is asked first: a node that cannot have shares is left as it was."""
    from vgpu.plugin.release import cri  # noqa: PLC0415 - needs grpc, which only this verb has to have

    runtime = cri.ask(options.host, options.socket)
    cri.require_cdi(runtime)
    chosen = cdi.choose(options.cdi_directory, runtime.directories)
    directory = options.host + options.directory
    os.makedirs(directory, 0o755, exist_ok=True)
    fd = install.lock(directory)
    try:
        wanted = install.place(options.source, directory, install.run_once)
        install.turn(directory, wanted.name)
    finally:
        os.close(fd)
    changed = cdi.write(options.host, chosen, f"{options.directory}/{install.CURRENT}/{install.PROGRAMS}")
    say(f"{options.directory}/{wanted.name}: in force")
    say(f"{chosen}/{cdi_spec.FILE}: {'written' if changed else 'in force already'}, for {runtime}")


def take_away(options: argparse.Namespace) -> None:
    """Remove, from the host and from the node's object."""
    told: list[list[str]] = [[]]

    def wait(left: list[str]) -> bool:
        if options.wait and left != told[0]:
            say(f"waiting for containers with a share: {', '.join(left[:10])}")
        told[0] = left
        return bool(options.wait)

    settings = compiled.read_or_default(options.host + remove.resolved(options.host, options.config))
    directories = [options.cdi_directory] if options.cdi_directory else list(cdi.DIRECTORIES)
    for path in remove.remove(options.host, options.directory, directories, settings, wait):
        say(f"{path}: removed")
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        for name in node_object.clear():
            say(f"node: {name}: removed")


def run(options: argparse.Namespace) -> None:
    """Become the program. The paths of one of a release are the host's, so it works as on a host with the package."""
    program = options.program
    if program in OF_A_RELEASE:
        release = install.current(options.host + remove.resolved(options.host, options.directory))
        if not release:
            raise VgpuError(options.directory, expected="a release in force", found="none", do="look at the installer")
        program = os.path.join(options.directory, release, install.PROGRAMS, program)
        if options.host:
            os.chroot(options.host)
            os.chdir("/")
    os.umask(0o077)  # as the units have it
    capabilities.keep(capabilities.KEPT[options.program].values())
    os.execvp(program, [options.program, *options.arguments])  # noqa: S606 - no shell is wanted


def say(text: str) -> None:
    print(f"{PROGRAM}: {text}", flush=True)
