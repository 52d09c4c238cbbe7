"""`vgpuctl logs`: what the hook, the reaper and vgpud did for containers.

Belongs here: reading `hook.log` and `hook.log.1`, and the choice of lines. Does not belong here: the form of the hook's
log (vgpu.hook.hooklog), and reading vgpud's lines, which are in journald (vgpu.node.ctl.journal). vgpud's lines name a
container by its id or by its pod, somewhere in the text. The hook knows names of pods only. The names that podman and
Docker gave are those of the claims, and of vgpud's record of what containers have held.
"""

from __future__ import annotations

import contextlib
import json

import click

from vgpu.config import paths, records, settings
from vgpu.config.errors import VgpuError
from vgpu.config.settings import Settings
from vgpu.hook import hooklog
from vgpu.hook.ledger.ledger import Ledger
from vgpu.node.ctl import journal, report
from vgpu.node.ctl.output import Id, Time, output_option, print_table, wide_option
from vgpu.node.daemon.container_names import Names

LINES = ("time", "source", "stage", "container", "name", "pid", "error", "notes")
#: Columns that a narrow terminal does not show, the first to go first.
OPTIONAL = ("pid", "stage")
SOURCES = ("all", "hook", "vgpud")
MAX_FILE = 16 * hooklog.MAX_SIZE  #: hooks that wait for a rename may write past MAX_SIZE

Line = dict[str, object]


@click.command()
@click.argument("container", required=False, default="")
@click.option("--errors", is_flag=True, help="Print only refused starts and vgpud's warnings.")
@click.option("--source", type=click.Choice(SOURCES), default="all", show_default=True, help="Whose lines to print.")
@output_option
@wide_option
@click.pass_obj
def logs(config_path: str, container: str, errors: bool, source: str, output: str, wide: bool) -> None:
    """Print what the hook and vgpud did for containers, the oldest first.

    CONTAINER is an id, or the beginning of one, or a name: namespace/pod/container for a container of a pod,
    namespace/pod for all of a pod, otherwise the name that podman or Docker gave it.
    """
    node = settings.read(config_path)
    hook_lines, known = named(node)
    lines = [] if source == "vgpud" else hook_lines
    if source != "hook":
        lines = sorted([*lines, *_vgpud_lines()], key=time_of)
    if container:
        wanted = Wanted(container, hook_lines, known)
        lines = [line for line in lines if wanted.matches(line)]
        if not lines and not wanted.ids:
            raise VgpuError("container", expected="an id or a name of the log, or of a container that holds a share",
                            found=container, do="vgpuctl logs prints all; vgpuctl ps, those that run")  # fmt: skip
    if errors:
        lines = [line for line in lines if line["error"]]
    print_table([_row(line) for line in lines], LINES, output, wide, optional=OPTIONAL)


def read(run_dir: str) -> list[Line]:
    """The lines of the hook's log, the oldest first. A line of another form, such as half a line, is left out."""
    path = paths.hook_log(run_dir)
    found: list[Line] = []
    for name in (f"{path}.1", path):
        with contextlib.suppress(FileNotFoundError):
            found += [line for text in records.read_bounded(name, MAX_FILE).splitlines() for line in _decoded(text)]
    return sorted(found, key=time_of)


def named(node: Settings) -> tuple[list[Line], dict[str, str]]:
    """The hook's lines with the names that are known, and these names by container."""
    names = Names()
    known = {
        **report.names(node.run_dir, node.state_dir),
        **{claim.container: names.of(claim) for claim in Ledger(node, []).claims()},
    }
    return [
        {**line, "name": line["name"] or known.get(str(line["container"]), "")} for line in read(node.run_dir)
    ], known


class Wanted:
    """The containers that the user means by `wanted`: their ids and names.

    `names` are those of containers by id. An id is known also if neither the lines nor `names` have it.
    """

    def __init__(self, wanted: str, hook_lines: list[Line], names: dict[str, str]) -> None:
        known = [(str(line["container"]), str(line["name"])) for line in hook_lines] + list(names.items())
        self.names = {name for _, name in known if name == wanted or name.startswith(f"{wanted}/")}
        exact = any(container == wanted for container, _ in known)
        self.ids = {
            container
            for container, name in known
            if name in self.names or container == wanted or (not exact and container.startswith(wanted))
        }
        of_ids = {name for container, name in known if container in self.ids}
        self.words = {wanted, *self.ids, *self.names, *of_ids} - {""}

    def matches(self, line: Line) -> bool:
        """Whether the line is about one of the containers. A line of vgpud may name it anywhere in its text."""
        if line["source"] == "hook":
            return line["container"] in self.ids or line["name"] in self.names
        return any(_names(str(text), word) for text in _texts(line) for word in self.words)


def _names(text: str, word: str) -> bool:
    """Whether `text` has `word`, and not as a part of a longer id or name. A pod's name covers its containers."""
    at = text.find(word)
    while at >= 0:
        before, after = text[:at][-1:], text[at + len(word) :]
        path = before == "/" and "/" not in word  # an id in the path of a file
        if (path or not _continues(before)) and (after[:1] == "/" or not _continues(after.rstrip(".")[:1])):
            return True
        at = text.find(word, at + 1)
    return False


def _continues(character: str) -> bool:
    return bool(character) and (character.isalnum() or character in "-_./+")


def _vgpud_lines() -> list[Line]:
    """vgpud's lines in journald. If they cannot be read, a warning gives the reason."""
    try:
        entries = journal.read("vgpud.service")
    except VgpuError as error:
        click.echo(f"warning: without vgpud's lines: {error}", err=True)
        return []
    return [_line_of(entry) for entry in entries]


def _line_of(entry: journal.Entry) -> Line:
    warns = entry.priority <= journal.WARNING
    return {
        "time": entry.time, "source": "vgpud", "stage": "", "container": _field(entry.text, "container"),
        "name": _field(entry.text, "pod"), "pid": entry.pid, "error": entry.text if warns else "",
        "notes": [] if warns else [entry.text],
    }  # fmt: skip


def _field(text: str, name: str) -> str:
    """The value of the field `name` at the end of one of vgpud's lines, or ""."""
    _, found, rest = text.partition(f" {name}=")
    return rest.split(" ")[0] if found else ""


def _decoded(text: bytes) -> list[Line]:
    """The line of the hook's log as a list of one, or none."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(line, dict) or not all(isinstance(line.get(key), str) for key in ("stage", "container", "error")):
        return []
    numbers = [line.get(key) for key in ("time", "pid")]
    notes = line.get("notes")
    if not all(isinstance(number, (int, float)) for number in numbers) or not isinstance(notes, list):
        return []
    name = line.get("name", "")  # lines of an older hook have none
    return [{**line, "source": "hook", "name": name if isinstance(name, str) else ""}]


def _texts(line: Line) -> list[object]:
    notes = line["notes"]
    return [line["error"], *notes] if isinstance(notes, list) else [line["error"]]


def time_of(line: Line) -> float:
    """When it happened; 0 for a time that is none, so that the order of the others does not depend on it."""
    when = line["time"]
    return float(when) if isinstance(when, (int, float)) and 0 <= when < journal.END_OF_TIME else 0.0


def _row(line: Line) -> list[object]:
    notes = line["notes"]
    when = Time(time_of(line)) if time_of(line) else None
    texts = [str(note) for note in notes] if isinstance(notes, list) else []
    return [
        when, line["source"], line["stage"], Id(line["container"]), line["name"], line["pid"], line["error"], texts
    ]  # fmt: skip
