"""Device rules of config.json, and the rules that the runtimes make of them."""

from __future__ import annotations

import pytest

from vgpu.config.errors import VgpuError
from vgpu.hook.devices import rules
from vgpu.hook.devices.rules import ANY, ContainerRules, Filter, Rule

DENY_ALL = {"allow": False, "access": "rwm"}


def container_rules(*items: dict[str, object], nodes: tuple[str, ...] = ()) -> ContainerRules:
    devices = [{"path": path, "type": "c", "major": 1, "minor": 3} for path in nodes]
    return rules.from_config({"linux": {"resources": {"devices": list(items)}, "devices": devices}})


def lines(filter_: Filter) -> list[str]:
    return [("" if rule.allow else "!") + str(rule) for rule in filter_.rules]


#: devices.list of a container of runc 1.1.5 on v1, with the configuration that `runc spec` writes.
RUNC_LIST = """\
b *:* m
c *:* m
c 1:3 rwm
c 1:5 rwm
c 1:7 rwm
c 1:8 rwm
c 1:9 rwm
c 5:0 rwm
c 5:2 rwm
c 10:200 rwm
c 136:* rwm
"""


def test_runcs_defaults_are_those_of_a_real_container() -> None:
    filter_ = rules.runc(container_rules(DENY_ALL))
    assert lines(filter_) == RUNC_LIST.splitlines()
    assert filter_.default is False
    assert lines(rules.parse_list(RUNC_LIST)) == RUNC_LIST.splitlines()


def test_runc_leaves_out_a_default_whose_node_config_json_defines() -> None:
    filter_ = rules.runc(container_rules(DENY_ALL, nodes=("/dev/null", "/dev/fuse")))
    assert "c 1:3 rwm" not in lines(filter_)
    assert len(filter_.rules) == len(RUNC_LIST.splitlines()) - 1


def test_runc_adds_accesses_of_one_device_up_and_takes_them_away() -> None:
    filter_ = rules.runc(
        container_rules(
            DENY_ALL,
            {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "r"},
            {"allow": True, "type": "c", "major": 10, "minor": 229, "access": "wm"},
            {"allow": False, "type": "c", "major": 10, "minor": 229, "access": "m"},
            {"allow": True, "type": "b", "major": 8, "minor": 0, "access": "rw"},
            {"allow": False, "type": "b", "major": 8, "minor": 0, "access": "rw"},
            {"allow": False, "type": "b", "major": 9, "minor": 9, "access": "rw"},
        )
    )
    assert [line for line in lines(filter_) if line not in RUNC_LIST] == ["c 10:229 rw"]


def test_runc_starts_afresh_at_a_rule_for_all() -> None:
    allow_all = {"allow": True, "access": "rwm"}
    filter_ = rules.runc(
        container_rules({"allow": True, "type": "c", "major": 1, "minor": 1, "access": "r"}, allow_all)
    )
    assert (lines(filter_), filter_.default) == ([], True)
    filter_ = rules.runc(container_rules(allow_all, {"allow": False, "type": "b", "major": 8, "access": "w"}))
    assert (lines(filter_), filter_.default) == (["!b 8:* w"], True)
    assert not filter_.permits("b", 8, 3, "w")
    assert filter_.permits("b", 8, 3, "r")


def test_runc_refuses_a_hole_in_a_wildcard() -> None:
    with pytest.raises(VgpuError, match=r"c 195:0 rw: expected no wildcard.*found c 195:\* rwm"):
        rules.runc(
            container_rules(
                DENY_ALL,
                {"allow": True, "type": "c", "major": 195, "access": "rwm"},
                {"allow": False, "type": "c", "major": 195, "minor": 0, "access": "rw"},
            )
        )


def test_crun_asks_the_last_rule_first_and_stops_at_a_rule_for_all() -> None:
    filter_ = rules.crun(
        container_rules(
            {"allow": True, "type": "c", "major": 4, "minor": 4, "access": "rwm"},
            DENY_ALL,
            {"allow": True, "type": "c", "major": 195, "access": "rwm"},
            {"allow": False, "type": "c", "major": 195, "minor": 0, "access": "rw"},
        )
    )
    assert lines(filter_)[-2:] == ["!c 195:0 rw", "c 195:* rwm"]
    assert filter_.permits("c", 5, 1, "rw")  # the console, which runc has not
    assert not filter_.permits("c", 195, 0, "rw")
    assert filter_.permits("c", 195, 1, "rw")
    assert not filter_.permits("c", 4, 4, "r")


def test_a_request_is_covered_by_one_rule_as_a_whole() -> None:
    filter_ = Filter([Rule("c", 1, 1, "r"), Rule("c", 1, 1, "w"), Rule("c", 2, ANY, "rw")], False)
    assert filter_.permits("c", 1, 1, "r")
    assert filter_.permits("c", 1, 1, "w")
    assert not filter_.permits("c", 1, 1, "rw")
    assert filter_.permits("c", 2, 77, "rw")
    assert not filter_.permits("c", 2, 77, "rwm")
    assert not filter_.permits("b", 2, 77, "r")


def test_opening_leaves_everything_else_as_it_was() -> None:
    before = rules.runc(container_rules(DENY_ALL))
    after = before.opened(rules.opening([(195, 0), (195, 255)], "rw"))
    for kind in "bc":
        for major in (0, 1, 5, 10, 136, 194, 195, 196):
            for minor in (0, 1, 3, 200, 229, 254, 255):
                for access in ("r", "w", "m", "rw", "rm", "rwm"):
                    ours = kind == "c" and major == 195 and minor in (0, 255) and "m" not in access
                    expected = ours or before.permits(kind, major, minor, access)
                    assert after.permits(kind, major, minor, access) is expected


@pytest.mark.parametrize("config", [{}, {"linux": None}, {"linux": {}}, {"linux": {"resources": {"devices": None}}}])
def test_no_rules_are_no_error(config: dict[str, object]) -> None:
    assert rules.from_config(config).rules == []
    assert lines(rules.runc(rules.from_config(config))) == RUNC_LIST.splitlines()


def test_absent_and_wild_numbers_are_the_same() -> None:
    found = container_rules(
        {"allow": True, "type": "c", "major": -1, "access": "mr"}, {"allow": True, "type": "b"}
    ).rules
    assert [str(rule) for rule in found] == ["c *:* rm", "b *:* "]


@pytest.mark.parametrize(
    ("rule", "where"),
    [
        ({"type": "x", "access": "r"}, r"devices\[1\].type: expected a, b or c, found x"),
        ({"type": ["c"], "access": "r"}, r"devices\[1\].type"),
        ({"type": "c", "access": "rx"}, r"devices\[1\].access"),
        ({"type": "c", "access": ["r"]}, r"devices\[1\].access"),
        ({"type": "c", "major": "195"}, r"devices\[1\].major"),
        ({"type": "c", "major": True}, r"devices\[1\].major"),
        ({"type": "c", "minor": -2}, r"devices\[1\].minor"),
        ({"type": "c", "minor": 1 << 31}, r"devices\[1\].minor"),
        ({"type": "c", "minor": 1.5}, r"devices\[1\].minor"),
        ({"allow": "yes"}, r"devices\[1\].allow"),
        ("c 1:3 rwm", r"devices\[1\]: expected an object, found str"),
    ],
)
def test_a_nonsensical_rule_is_named(rule: object, where: str) -> None:
    with pytest.raises(VgpuError, match=where):
        rules.from_config({"linux": {"resources": {"devices": [DENY_ALL, rule]}}})


@pytest.mark.parametrize(
    "config",
    [
        {"linux": []},
        {"linux": {"resources": "x"}},
        {"linux": {"resources": {"devices": {}}}},
        {"linux": {"devices": "x"}},
        {"linux": {"devices": [1]}},
        {"linux": {"resources": {"devices": [DENY_ALL] * 1025}}},
        {"linux": {"devices": [{}] * 1025}},
    ],
)
def test_garbage_is_an_error_of_one_line(config: dict[str, object]) -> None:
    with pytest.raises(VgpuError) as caught:
        rules.from_config(config)
    assert caught.value.line().startswith("config.json: linux")
    assert "\n" not in caught.value.line()


def test_a_deny_list_of_v1_shows_one_line_only() -> None:
    assert rules.parse_list("a *:* rwm\n").default is True
    assert not rules.parse_list("").permits("c", 1, 3, "r")


def test_a_devices_list_that_is_none() -> None:
    with pytest.raises(VgpuError, match=r"devices\.list: expected lines such as"):
        rules.parse_list("c x:3 rwm\n")
