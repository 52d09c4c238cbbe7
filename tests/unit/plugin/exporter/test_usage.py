"""Usage: gpu-manager's JSON, and the page, in which no name becomes markup."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import round_records
from round_records import container, share

from vgpu.plugin.exporter import usage
from vgpu.plugin.exporter.snapshot import Snapshot, of_record


def test_the_json_has_gpu_managers_shape() -> None:
    found = json.loads(json.dumps(usage.as_json(of_record(round_records.record()))))
    ((uid, pod),) = found["usage"].items()
    assert uid == "00000000-0000-4000-8000-000000000000"
    assert pod == {
        "project": "team", "user": "", "cluster": "", "spec": {"main": {"gpu": 0.25, "mem": 4096.0}},
        "stat": {"main": {"dev": [{
            "id": "0000:00:00.0", "card_idx": "0", "gpu": 22.0, "mem": 2304.0, "pids": [1000], "device_mem": 16384.0,
        }]}},
    }  # fmt: skip


def test_a_container_outside_kubernetes_stands_under_its_id() -> None:
    made = round_records.record(containers=0)
    made["containers"] = [container(0, [share(0)], pod_uid="", pod="", namespace="", container_name="c1")]
    found = usage.as_json(of_record(made))["usage"]
    assert isinstance(found, dict)
    assert list(found) == [made["containers"][0]["container"]]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_names_cards_and_holders_and_escapes_them() -> None:
    odd = "<script>alert(1)</script>\"'&"
    made = round_records.record(cards=2, containers=0)
    made["containers"] = [container(0, [share(0)], pod=odd)]
    made["cards"][1]["fault"] = odd
    page = Page(usage.as_page(of_record(made)))
    assert "script" not in page.tags
    assert page.text.count(odd) == 2
    assert "Tesla T4" in page.text
    assert "22 % of 25 %" in page.text
    assert "2.2 GiB of 4.0 GiB" in page.text


def test_the_page_says_why_there_is_nothing() -> None:
    assert "hangs" in Page(usage.as_page(Snapshot("node-1", "vgpud hangs"))).text
    assert "no cards" in Page(usage.as_page(Snapshot("node-1"))).text
