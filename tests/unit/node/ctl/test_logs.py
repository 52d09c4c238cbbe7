"""`vgpuctl logs`: which lines of the hook and of vgpud it prints, and in which order."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cards import card
from click.testing import CliRunner, Result
from host import Host

from vgpu.config import paths, records
from vgpu.config.errors import VgpuError
from vgpu.config.request import Request
from vgpu.hook import hooklog
from vgpu.hook.ledger.ledger import Ledger, Start
from vgpu.hook.linux.procfs import start_time
from vgpu.node.ctl import journal
from vgpu.node.ctl.logs import logs
from vgpu.node.daemon.held_time import Held

ONE, TWO = "1" * 64, "2" * 64
POD = "lab/train/main"
CARD = card()


class Node(Host):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        Path(self.run_dir).mkdir()
        self.write_settings()
        self.journal: list[journal.Entry] = []
        self.failure = ""

    def read_journal(self, _unit: str) -> list[journal.Entry]:
        if self.failure:
            raise VgpuError("journal", found=self.failure)
        return self.journal

    def hooked(self, container: str, error: str = "", name: str = "", stage: str = "prestart", at: float = 5.0) -> None:
        record = hooklog.record(stage, {"id": container, "pid": 7}, ["a note"], error, name)
        hooklog.write(self.run_dir, {**record, "time": at})

    def vgpud(self, text: str, at: float = 5.0, priority: int = 6) -> None:
        self.journal.append(journal.Entry(at, 9, priority, text))

    def call(self, *arguments: str) -> Result:
        done = CliRunner().invoke(logs, list(arguments), obj=str(self.config))
        assert done.exit_code == 0, done.output
        return done

    def lines(self, *arguments: str) -> list[dict[str, object]]:
        return json.loads(self.call(*arguments, "--output", "json").stdout)  # type: ignore[no-any-return]

    def texts(self, *arguments: str) -> list[object]:
        """vgpud's lines that are printed."""
        found = self.lines(*arguments)
        return [line["error"] or line["notes"] for line in found if line["source"] == "vgpud"]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setattr(journal, "read", made.read_journal)
    return made


def test_no_log_has_no_lines(node: Node) -> None:
    assert node.lines() == []


def test_the_lines_of_both_files_the_oldest_first(node: Node) -> None:
    node.hooked(ONE)
    Path(paths.hook_log(node.run_dir)).rename(paths.hook_log(node.run_dir) + ".1")
    node.hooked(TWO, name=POD)
    found = node.lines()
    assert [line["container"] for line in found] == [ONE, TWO]
    assert [line["name"] for line in found] == ["", POD]
    assert (found[0]["stage"], found[0]["pid"], found[0]["notes"]) == ("prestart", 7, ["a note"])


def test_lines_of_vgpud_stand_between_those_of_the_hook(node: Node) -> None:
    node.hooked(ONE, at=10)
    node.hooked(ONE, at=30, stage="poststop")
    node.vgpud("started version=1", at=5)
    node.vgpud(f"released: its init has died container={ONE} pod={POD} pid=7", at=20)
    found = node.lines()
    assert [line["source"] for line in found] == ["vgpud", "hook", "vgpud", "hook"]
    assert (found[2]["container"], found[2]["name"], found[2]["pid"]) == (ONE, POD, 9)
    assert [line["source"] for line in node.lines("--source", "hook")] == ["hook", "hook"]
    assert [line["source"] for line in node.lines("--source", "vgpud", ONE)] == ["vgpud"]


def test_without_a_journal_the_hooks_lines_are_printed_with_a_warning(node: Node) -> None:
    node.hooked(ONE)
    node.failure = "no such program"
    done = node.call("--output", "json")
    assert [line["container"] for line in json.loads(done.stdout)] == [ONE]
    assert done.stderr == "warning: without vgpud's lines: journal: found no such program\n"


def test_one_container_by_the_beginning_of_its_id(node: Node) -> None:
    node.hooked(ONE)
    node.hooked(TWO)
    assert [line["container"] for line in node.lines("22")] == [TWO]


def test_a_whole_id_is_not_the_beginning_of_another(node: Node) -> None:
    node.hooked("train")
    node.hooked("train-2")
    assert [line["container"] for line in node.lines("train")] == ["train"]


@pytest.mark.parametrize("words", [("nothing",), ("3", "--output", "json"), ("nothing", "--source", "hook")])
def test_a_name_that_nobody_knows_is_an_error(node: Node, words: tuple[str, ...]) -> None:
    node.hooked(ONE, name=POD)
    node.vgpud(f"gone container={TWO}")
    done = CliRunner().invoke(logs, list(words), obj=str(node.config))
    assert isinstance(done.exception, VgpuError)
    assert "container: expected an id or a name of the log" in str(done.exception)
    assert f"found {words[0]}; " in str(done.exception)
    assert node.lines(ONE, "--errors") == [], "a known one without such lines is none"


def test_the_containers_of_a_pod_by_name_and_not_those_of_another_pod(node: Node) -> None:
    me = os.getpid()
    for container, name in ((ONE, POD), (TWO, "lab/train-2/main")):
        ledger = Ledger(node.settings, [CARD])
        assert ledger.claim(Start(container, me, start_time(me), "/b", None, name, 1.0), Request(1, 10, 1 << 30))
        node.hooked(container)
    for wanted in ("lab/train", POD):
        assert [line["container"] for line in node.lines(wanted)] == [ONE]


def test_a_pod_whose_start_was_refused_has_lines_and_so_has_its_stop(node: Node) -> None:
    node.hooked(ONE, "allocation: no card fits", POD)
    node.hooked(ONE, stage="poststop")
    node.hooked(TWO, "allocation: no card fits", "lab/train-2/main")
    assert [line["stage"] for line in node.lines("lab/train")] == ["prestart", "poststop"]


def test_an_ended_container_by_the_name_that_podman_gave_it(node: Node) -> None:
    """Neither the hook's lines nor a claim have the name: it is vgpud's, from when the container lived."""
    node.hooked(ONE)
    node.hooked(TWO)
    held = Held(ONE, 7, 5, "", "", "web", 30, 1 << 30, 1.0, 1.0, 2.0)
    Path(node.state_dir).mkdir()
    Path(paths.held_log(node.state_dir)).write_text(records.encode(held.line()) + "\nno line\n")
    assert [(line["container"], line["name"]) for line in node.lines("web")] == [(ONE, "web")]


def test_lines_of_vgpud_by_container_and_pod(node: Node) -> None:
    node.hooked(ONE, name=POD)
    of_id = f"container {ONE}: no usage region"
    path = f"/run/vgpu/containers/{ONE}/claim.json: damaged"
    of_pod = "a share is passed by lab/train/main."
    others = (f"container {ONE}1: x", "lab/train-2/main", "lab/train.1/main", "my/lab/train/main", f"x{ONE}")
    for text in (of_id, path, of_pod, *others):
        node.vgpud(text)
    for wanted in (ONE[:12], ONE, "lab/train", POD):
        assert node.texts(wanted) == [[of_id], [path], [of_pod]]


def test_refused_starts_and_warnings_alone(node: Node) -> None:
    node.hooked(ONE)
    node.hooked(TWO, "allocation: no card has room", at=1)
    node.vgpud("started")
    node.vgpud("no driver", priority=4, at=2)
    assert [line["error"] for line in node.lines("--errors")] == ["allocation: no card has room", "no driver"]


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"time": "x", "stage": "", "container": "", "error": ""}', "\\xff"])
def test_a_line_of_another_form_is_left_out(node: Node, line: str) -> None:
    node.hooked(ONE)
    with Path(paths.hook_log(node.run_dir)).open("ab") as file:
        file.write(line.encode() + b"\xff\n" + line.encode() + b"\n")
    node.hooked(TWO)
    assert [found["container"] for found in node.lines()] == [ONE, TWO]


def test_a_line_of_an_older_hook_has_no_name(node: Node) -> None:
    with Path(paths.hook_log(node.run_dir)).open("a") as file:
        file.write('{"time":1,"stage":"s","container":"c","pid":1,"notes":[],"error":""}\n')
    (line,) = node.lines()
    assert (line["container"], line["name"]) == ("c", "")


@pytest.mark.parametrize("time", ["1e300", "-1e300", "NaN", "1e11111"])
def test_a_time_that_is_none_is_not_known(node: Node, time: str) -> None:
    with Path(paths.hook_log(node.run_dir)).open("a") as file:
        file.write(f'{{"time":{time},"stage":"s","container":"c","pid":1,"notes":[],"error":""}}\n')
    assert [found["time"] for found in node.lines()] == [None]


def test_a_table_has_no_control_characters_of_a_container(node: Node) -> None:
    node.hooked(ONE, "plan: \x1b[2J")
    node.vgpud("text \x1b[2J")
    done = node.call()
    assert "\x1b" not in done.stdout
    assert "plan:" in done.stdout
