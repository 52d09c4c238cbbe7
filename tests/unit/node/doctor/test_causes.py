"""One cause is named once: findings that follow from another one."""

from __future__ import annotations

from vgpu.node.ctl import doctor
from vgpu.node.doctor import causes
from vgpu.node.doctor.findings import FAILURE, OK, WARNING, Finding

DRIVER = Finding("driver", FAILURE, "no /proc/driver/nvidia/version", "the kernel module", "install the driver")
NODES = Finding("nodes", FAILURE, "NVIDIA kernel module: none", "major 195", "load it (modprobe nvidia)")
INVENTORY = Finding("inventory", FAILURE, "/run/vgpu/inventory.json: no file", "an inventory", "run: refresh it")
DRY_RUN = Finding("dry run", FAILURE, "vgpu-hook: inventory: /run/vgpu/inventory.json: no file", "a plan")
HOOK = Finding("hook", FAILURE, "/usr/bin/vgpu-hook is not a program", "the hook", "install vgpu again")


def folded(*findings: Finding) -> dict[str, str]:
    return {item.check: item.cause for item in causes.fold(findings)}


def test_a_missing_driver_is_one_cause() -> None:
    assert folded(DRIVER, NODES, INVENTORY, DRY_RUN) == {
        "driver": "", "nodes": "driver", "inventory": "driver", "dry run": "driver",
    }  # fmt: skip


def test_without_its_cause_a_finding_stands_for_itself() -> None:
    good = Finding("driver", OK, "550.54.15")
    assert folded(good, NODES, INVENTORY, DRY_RUN) == {
        "driver": "", "nodes": "", "inventory": "", "dry run": "inventory",
    }  # fmt: skip
    assert folded(good, DRY_RUN) == {"driver": "", "dry run": ""}
    full = Finding("dry run", WARNING, "vgpu-hook: allocation: no card fits 1 card")
    assert folded(Finding("cards in use", WARNING, "card 0: process 7 (python) of no container"), full)["dry run"] == ""


def test_two_causes_stay_two() -> None:
    assert folded(Finding("settings", FAILURE, "no file"), DRIVER, HOOK) == {"settings": "", "driver": "", "hook": ""}


def test_what_vgpud_repeats_is_folded_and_what_it_adds_is_not() -> None:
    text = "inventory: NVIDIA kernel module: expected major 195, found none; load it (modprobe nvidia)"
    repeated, own = Finding("daemon", WARNING, text), Finding("daemon", WARNING, "damaged claims: x")
    found = causes.fold([DRIVER, NODES, repeated, own])
    assert [item.cause for item in found] == ["", "driver", "driver", ""]


def test_a_process_on_a_card_is_one_cause() -> None:
    warned = Finding("daemon", WARNING, "GPU-1: process 7 (python) of no container")
    used = Finding("cards in use", WARNING, "card 0 (T4): process 7 (python) of no container, 100 MiB, compute")
    other = Finding("cards in use", WARNING, "card 1 (T4): process 77 (python) of no container, 100 MiB, compute")
    assert [item.cause for item in causes.fold([warned, used, other])] == ["cards in use", "", ""]


def test_an_entry_that_names_the_missing_hook_follows_from_it() -> None:
    entry = Finding("registration", FAILURE, "podman (/x.json): /usr/bin/vgpu-hook is not a program", "the hook")
    foreign = Finding("registration", FAILURE, "docker (vgpu): /opt/vgpu-runtime is not a program", "the hook")
    assert [item.cause for item in causes.fold([HOOK, entry, foreign])] == ["", "hook", ""]


def test_the_checks_that_are_named_exist_and_run_before() -> None:
    order = list(doctor.CHECKS)
    assert {*causes.LAST, *causes.NEEDS, *(name for needs in causes.NEEDS.values() for name in needs)} <= set(order)
    for name, needs in causes.NEEDS.items():
        assert all(order.index(need) < order.index(name) for need in needs), name
