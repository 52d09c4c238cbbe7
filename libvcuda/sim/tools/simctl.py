#!/usr/bin/env python3
"""The command line of the simulated driver: makes, reads and changes its state directory, and makes a driver root.

A *state* is the shared memory file that represents the cards of a node. A *driver root* is a directory that looks
like a host with the driver installed. Neither is ever packaged. Only making device nodes needs root. The work is done
by the sim_*.py modules beside this one.

    simctl.py state DIR --profile a100x2 [--device-nodes no] [--clock virtual --parties 3]
    simctl.py root DIR --profile a100x2 [--build BUILD] [--device-nodes no] [--driver 470.256.02]
    simctl.py show DIR [--json]
    simctl.py event DIR [--card 0] [--kind xid] [--data 79]
    simctl.py set DIR [--card 0] [--lost yes] [--ecc 0,1] [--remapped-rows 0,1,1,0] [--temperature 90] ...
    simctl.py driver DIR unloaded
    simctl.py mig DIR on [--card 0] [--pending] [--root ROOT]
    simctl.py mig DIR create 1c.3g.40gb [--gi 1] [--bare] [--uuid UUID] [--root ROOT]
    simctl.py mig DIR destroy 1/0 [--root ROOT]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
if HERE not in sys.path:  # tests load this file as a module
    sys.path.insert(0, HERE)

import sim_layout as layout  # noqa: E402 - found by the lines above
from sim_incidents import (  # noqa: E402
    DRIVER_STATES,
    EVENT_TYPES,
    LOSSES,
    add_session,
    inject_ecc,
    inject_event,
    set_driver,
    set_lost,
    set_readings,
    set_remapped_rows,
    set_retired_pages,
)
from sim_layout import SimError  # noqa: E402
from sim_ledger import VIRTUAL_BEGIN_NS, make_state, read_state  # noqa: E402
from sim_mig import create_instance, destroy_instance, set_mig  # noqa: E402
from sim_profiles import MIB, load_profile  # noqa: E402
from sim_root import DEFAULT_BUILD, make_root, show_layout, soname_of  # noqa: E402

__all__ = [
    "VIRTUAL_BEGIN_NS",
    "SimError",
    "add_session",
    "create_instance",
    "destroy_instance",
    "inject_ecc",
    "inject_event",
    "layout",
    "load_profile",
    "main",
    "make_root",
    "make_state",
    "read_state",
    "set_driver",
    "set_lost",
    "set_mig",
    "set_readings",
    "set_remapped_rows",
    "set_retired_pages",
    "show_layout",
    "soname_of",
]


def _print_state(state: dict[str, Any]) -> None:
    for card in state["cards"]:
        print(
            f"{card['index']} {card['uuid']} {card['name']} minor {card['minor']} {card['bus_id']}: "
            f"{card['used'] / MIB:.1f} of {card['capacity'] / MIB:.1f} MiB used"
        )
        for process in card["processes"]:
            print(
                f"    pid {process['pid']} (own {process['own_pid']}) {process['command']}: "
                f"allocated {process['allocated']}, context {process['context']}"
            )


def _parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="simctl.py", description="state and driver root of the simulated driver")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in (("state", "create a state directory"), ("root", "lay out a driver root")):
        command = verbs.add_parser(verb, help=text)
        command.add_argument("directory")
        command.add_argument("--profile", required=True, help="a name in profiles/ or a file")
        command.add_argument("--device-nodes", choices=("yes", "no"), help="override the profile")
        if verb == "state":
            command.add_argument("--clock", choices=("wall", "virtual"), default="wall")
            command.add_argument("--parties", type=int, default=0, help="processes that start virtual time")
        if verb == "root":
            command.add_argument("--build", default=DEFAULT_BUILD)
            command.add_argument("--driver", default="", help="a version in the build's lib/drivers")
    event = verbs.add_parser("event", help="send an event of a card")
    event.add_argument("directory")
    event.add_argument("--card", type=int, default=0)
    event.add_argument("--kind", choices=sorted({**EVENT_TYPES, **LOSSES}), default="xid")
    event.add_argument("--data", type=int, default=0, help="the Xid's number")
    _add_set(verbs.add_parser("set", help="change the condition of a card"))
    driver = verbs.add_parser("driver", help="load or unload the kernel's part of the driver")
    driver.add_argument("directory")
    driver.add_argument("state", choices=sorted(DRIVER_STATES))
    _add_mig(verbs.add_parser("mig", help="change a card's MIG mode and instances"))
    show = verbs.add_parser("show", help="print the ledger")
    show.add_argument("directory")
    show.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def _add_set(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory")
    command.add_argument("--card", type=int, default=0)
    command.add_argument("--lost", choices=("yes", "no"), help="whether the card has fallen off the bus")
    command.add_argument("--ecc", type=_numbers(2), help="corrected,uncorrected: errors to add")
    command.add_argument("--remapped-rows", type=_numbers(4), help="corrected,uncorrected,pending,failed")
    command.add_argument("--retired-pages", type=_numbers(3), help="single-bit,double-bit,pending")
    command.add_argument("--temperature", type=int, help="degrees; 0: computed from the load")
    command.add_argument("--power", type=int, help="watts; 0: computed from the load")


def _add_mig(command: argparse.ArgumentParser) -> None:
    command.add_argument("directory")
    command.add_argument("action", choices=("on", "off", "create", "destroy"))
    command.add_argument("instance", nargs="?", default="", help="a profile, or GI/CI or GI to destroy")
    command.add_argument("--card", type=int, default=0)
    command.add_argument("--pending", action="store_true", help="on or off at the next reset")
    command.add_argument("--gi", type=int, help="the GPU instance's id")
    command.add_argument("--bare", action="store_true", help="a GPU instance without a compute instance")
    command.add_argument("--uuid", default="")
    command.add_argument("--root", help="a driver root whose files show the layout")


def _mig(options: argparse.Namespace) -> None:
    if options.action == "create":
        made = create_instance(
            options.directory, options.card, options.instance, options.gi, options.uuid, options.bare
        )
        print(*made)
    elif options.action == "destroy":
        destroy_instance(options.directory, options.card, *map(int, options.instance.split("/")))
    else:
        set_mig(options.directory, options.card, options.action == "on", options.pending)
    if options.root:
        show_layout(options.root, options.directory)


def _numbers(count: int) -> Callable[[str], list[int]]:
    def parse(text: str) -> list[int]:
        numbers = [int(part) for part in text.split(",")]
        if len(numbers) != count or min(numbers) < 0:
            raise ValueError(text)
        return numbers

    parse.__name__ = f"list of {count} numbers"  # argparse prints this name
    return parse


def _set(options: argparse.Namespace) -> None:
    directory, card = options.directory, options.card
    if options.lost:
        set_lost(directory, card, options.lost == "yes")
    if options.ecc:
        inject_ecc(directory, card, *options.ecc)
    if options.remapped_rows:
        set_remapped_rows(directory, card, *options.remapped_rows)
    if options.retired_pages:
        set_retired_pages(directory, card, *options.retired_pages)
    if options.temperature is not None or options.power is not None:
        set_readings(directory, card, options.temperature or 0, options.power or 0)


def _show(options: argparse.Namespace) -> None:
    state = read_state(options.directory)
    print(json.dumps(state, indent=2)) if options.json else _print_state(state)


def _make(options: argparse.Namespace) -> None:
    nodes = {"yes": True, "no": False, None: None}[options.device_nodes]
    if options.verb == "state":
        make_state(options.directory, options.profile, nodes, options.clock, options.parties)
    else:
        make_root(options.directory, options.profile, options.build, nodes, options.driver)


VERBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "state": _make,
    "root": _make,
    "show": _show,
    "event": lambda options: inject_event(options.directory, options.card, options.kind, options.data),
    "set": _set,
    "driver": lambda options: set_driver(options.directory, options.state),
    "mig": _mig,
}


def main(arguments: list[str] | None = None) -> int:
    options = _parse_arguments(arguments)
    try:
        VERBS[options.verb](options)
    except (SimError, OSError, ValueError) as error:
        print(f"simctl: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
