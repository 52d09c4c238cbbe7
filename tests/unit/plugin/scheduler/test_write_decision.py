"""The writes of a decision: conflicts, pods of the same name, and pods that were bound meanwhile."""

from __future__ import annotations

import pytest
from gpu_clusters import GIB, Server, pod_object, share

from vgpu.plugin.apiserver.client import ApiError
from vgpu.plugin.scheduler import write_decision
from vgpu.plugin.scheduler.demand import PodSpec, parse


def known(server: Server, pod) -> PodSpec:
    found = parse(server.put(pod))
    assert found is not None
    return found


def test_a_pod_that_changed_is_patched_as_it_is_now() -> None:
    server = Server()
    pod = known(server, pod_object("p", share(30, GIB)))
    server.put(pod_object("p", share(30, GIB), annotations={"new": "1"}))
    write_decision.patch_pod(server, pod, {"a": "b"})
    assert server.get("/api/v1/namespaces/default/pods/p")["metadata"]["annotations"] == {"new": "1", "a": "b"}


def test_another_pod_of_the_same_name_is_left_alone() -> None:
    server = Server()
    pod = known(server, pod_object("p", share(30, GIB)))
    other = pod_object("p", share(30, GIB))
    other["metadata"]["uid"] = "another"
    server.put(other)
    with pytest.raises(ApiError, match="another pod has the name"):
        write_decision.patch_pod(server, pod, {"a": "b"})
    assert server.get("/api/v1/namespaces/default/pods/p")["metadata"]["annotations"] == {}


def test_a_pod_that_was_bound_meanwhile_is_left_alone() -> None:
    server = Server()
    pod = known(server, pod_object("p", share(30, GIB)))
    server.put(pod_object("p", share(30, GIB), node="x"))
    with pytest.raises(ApiError, match="bound to x meanwhile"):
        write_decision.patch_pod(server, pod, {"a": "b"})


def test_a_pod_that_changes_all_the_time_is_given_up() -> None:
    server = Server()
    pod = known(server, pod_object("p", share(30, GIB)))
    server.faults = ["conflict"] * write_decision.TRIES
    with pytest.raises(ApiError):
        write_decision.patch_pod(server, pod, {"a": "b"})
    assert not server.faults
