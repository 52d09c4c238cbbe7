"""The scheduler's messages: both spellings of names, both forms of nodes and victims, and what is malformed."""

from __future__ import annotations

import json

import pytest

from vgpu.config.errors import VgpuError
from vgpu.plugin.scheduler import wire

POD = {"metadata": {"name": "p", "namespace": "d", "uid": "u"}, "spec": {"containers": []}}


@pytest.mark.parametrize("spelled", [str, str.lower])
def test_names_are_read_without_regard_to_case(spelled) -> None:
    found = wire.filter_args(json.dumps({spelled("Pod"): POD, spelled("NodeNames"): ["a", "b"]}).encode())
    assert (found.pod.metadata.uid, found.names, found.nodes) == ("u", ["a", "b"], None)


def test_nodes_stay_as_they_came() -> None:
    node = {"metadata": {"name": "a", "labels": {"x": "ü"}}, "status": {"images": [1, 2]}}
    found = wire.filter_args(json.dumps({"Pod": POD, "Nodes": {"metadata": {}, "items": [node]}}).encode())
    assert found.nodes is not None
    assert [wire.name_of(item) for item in found.nodes] == ["a"]
    assert json.loads(wire.encode({"items": found.nodes})) == {"items": [node]}


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"5", b"{}", b'{"Pod": {}}', b'{"Pod": 5, "NodeNames": []}', b"\xff\xfe",
        b'{"Pod": {"metadata": {"uid": 5}}, "NodeNames": []}', b'{"Pod": {}, "NodeNames": [5]}',
        b'{"Pod": {}, "NodeNames": {}}', b'{"Pod": {}, "Nodes": {"items": 5}}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(body) -> None:
    for read in (wire.filter_args, wire.binding_args):
        with pytest.raises(VgpuError):
            read(body)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"Pod": 5}', b'{"Pod": {}, "NodeNameToVictims": [5]}'])
def test_what_is_no_preemption_is_refused(body) -> None:
    with pytest.raises(VgpuError):
        wire.preemption_args(body)


def test_a_node_without_a_name_is_refused() -> None:
    found = wire.filter_args(json.dumps({"Pod": POD, "Nodes": {"items": [5]}}).encode())
    assert found.nodes is not None
    with pytest.raises(VgpuError, match=r"metadata\.name"):
        wire.name_of(found.nodes[0])


@pytest.mark.parametrize(
    "body",
    [
        {"Pod": POD, "NodeNameToVictims": {"n": {"Pods": [{"metadata": {"uid": "v"}}], "NumPDBViolations": 2}}},
        {"Pod": POD, "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "v"}], "NumPDBViolations": 2}}},
    ],
)
def test_victims_are_read_in_both_forms_and_answered_by_uid(body) -> None:
    found = wire.preemption_args(json.dumps(body).encode())
    assert found.victims == {"n": wire.Victims(["v"], 2)}
    answered = json.loads(wire.preemption_result(found.victims))
    assert answered == {"NodeNameToMetaVictims": {"n": {"Pods": [{"UID": "v"}], "NumPDBViolations": 2}}}


@pytest.mark.parametrize(
    "victims", [5, {"Pods": 5}, {"Pods": [5]}, {"Pods": [{}]}, {"Pods": [], "NumPDBViolations": "2"}]
)
def test_victims_that_are_none_are_refused(victims) -> None:
    with pytest.raises(VgpuError):
        wire.preemption_args(json.dumps({"Pod": POD, "NodeNameToVictims": {"n": victims}}).encode())


def test_a_binding_names_a_uid_and_a_node() -> None:
    body = {"PodName": "p", "PodNamespace": "d", "PodUID": "u", "Node": "n"}
    assert wire.binding_args(json.dumps(body).encode()) == wire.BindingArgs("p", "d", "u", "n")
    with pytest.raises(VgpuError):
        wire.binding_args(json.dumps({**body, "PodUID": ""}).encode())
