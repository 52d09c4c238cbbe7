"""The compiler of config.yaml: accepted files, and the error line for everything else."""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from checkout import CHECKOUT
from jsonschema import Draft7Validator
from settings_texts import compile_file, lines_of, uncommented, values

from vgpu.config import compiled, compiler, settings
from vgpu.config.compiler import compile_source
from vgpu.config.errors import VgpuError
from vgpu.config.settings import DEFAULTS


@pytest.fixture
def source(tmp_path: Path):
    def write(text: str | bytes) -> str:
        path = tmp_path / "config.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


@pytest.mark.parametrize(
    "text", ["", "{}", "# nothing\n", "---\n", "driver:\nnodes:\n", "null\n", "\ufeff", "nodes: {a: }"]
)
def test_nothing_gives_the_defaults(source, text: str) -> None:
    made = compile_file(source(text), "n")
    assert values(made) == DEFAULTS
    assert {type(made[name]) for name in DEFAULTS} == {type(value) for value in DEFAULTS.values()}


def test_missing_file_gives_the_defaults_and_a_note(tmp_path: Path) -> None:
    made = compile_source(str(tmp_path / "none"), "n")
    assert values(made.settings) == DEFAULTS
    assert made.notes == [f"{tmp_path}/none: no such file; the defaults are used"]


def test_dangling_link_is_no_missing_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    assert lines_of(str(tmp_path / "link")) == [
        "F: expected a file to read, found a link to gone, which does not exist; repair the link"
    ]


ACCEPTED = [
    ("driver: {root: /run/nvidia/driver/}", "driver.root", "/run/nvidia/driver"),
    ("driver: {root: //a///b//}", "driver.root", "/a/b"),
    ("driver: {root: auto}", "driver.root", "auto"),
    ("driver: {root: /a..b/.c/...}", "driver.root", "/a..b/.c/..."),
    ("driver: {dev_root: ''}", "driver.dev_root", ""),
    ("driver: {dev_root: /run/nvidia/driver/dev}", "driver.dev_root", "/run/nvidia/driver/dev"),
    ("driver: {library_dirs: [/opt/lib64/]}", "driver.library_dirs", ["/opt/lib64"]),
    ("driver:\n  capabilities:\n  - compute\n  - video\n", "driver.capabilities", ["compute", "video"]),
    ("driver: {exclude_libraries: ['libnvidia-opencl.so.*']}", "driver.exclude_libraries", ["libnvidia-opencl.so.*"]),
    ("driver: {share_excludes: no}", "driver.share_excludes", False),
    (
        "driver: {capabilities: [compute, utility, video], share_capabilities: [compute, video]}",
        "driver.share_capabilities",
        ["compute", "video"],
    ),
    ("devices: {permissions: rwm}", "devices.permissions", "rwm"),
    ("standalone: {enabled: false}", "standalone.enabled", False),
    ("placement: {policy: spread}", "placement.policy", "spread"),
    ("scaling: {cores: 2}", "scaling.cores", 2.0),
    ("scaling: {memory: 0.5}", "scaling.memory", 0.5),
    ("scaling: {memory: 100}", "scaling.memory", 100.0),
    ("resources: {core_unit: 10}", "resources.core_unit", 10),
    ("resources: {core_unit: 10.0}", "resources.core_unit", 10),
    ("resources: {memory_unit: 1Mi}", "resources.memory_unit", 1 << 20),
    ("resources: {memory_unit: 1GiB}", "resources.memory_unit", 1 << 30),
    ("resources: {memory_unit: 1048576}", "resources.memory_unit", 1 << 20),
    ("resources: {memory_name: nvidia.com/vcuda-memory}", "resources.memory_name", "nvidia.com/vcuda-memory"),
    ("resources: {mode: gpu, split_count: 1}", "resources.split_count", 1),
    ("resources: {mode: gpu, split_count: 10}\nscaling: {memory: 10}", "scaling.memory", 10.0),
    ("resources: {mode: vcuda, split_count: 1000}", "resources.split_count", 1000),
    ("plugin: {ignored_xids: [31, '045']}", "plugin.ignored_xids", ["31", "45"]),
    ("plugin: {ignored_xids: []}", "plugin.ignored_xids", []),
    ("plugin: {ignored_xids: [all]}", "plugin.ignored_xids", ["all"]),
    ("plugin: {ignored_xids: [catalog, 48]}", "plugin.ignored_xids", ["catalog", "48"]),
    ("metrics: {listen: ''}", "metrics.listen", ""),
    ("metrics: {compat: [hami, gpu-manager]}", "metrics.compat", ["hami", "gpu-manager"]),
    ("plugin: {cdi: on}", "plugin.cdi", True),
    ("plugin: {http: ''}", "plugin.http", ""),
    ("plugin: {http: '[::1]:80'}", "plugin.http", "[::1]:80"),
    (
        "plugin: {socket_dir: /var/lib/k0s/kubelet/device-plugins/}",
        "plugin.socket_dir",
        "/var/lib/k0s/kubelet/device-plugins",
    ),
    ("kubernetes: {dialects: [vgpu, hami]}", "kubernetes.dialects", ["vgpu", "hami"]),
    ("scaling: &s {cores: 3}\nnodes: {n: {scaling: *s}}", "scaling.cores", 3.0),
    ("scaling: &s {cores: 3, memory: 2}\nnodes: {n: {scaling: {<<: *s, cores: 4}}}", "scaling.cores", 4.0),
    ("scaling: &s {cores: 3, memory: 2}\nnodes: {n: {scaling: {cores: 4, <<: [*s]}}}", "scaling.memory", 2.0),
]


@pytest.mark.parametrize(("text", "name", "expected"), ACCEPTED)
def test_accepts(source, text: str, name: str, expected: object) -> None:
    made = compile_file(source(text), "n")
    assert made[name] == expected
    assert type(made[name]) is type(DEFAULTS[name])
    assert settings.from_record(json.loads(json.dumps(made.record())), "x")[name] == expected


#: text, then the beginning of each error line
REFUSED = [
    ("driver:\n  rot: /", ["F:2: driver.rot: expected one of the keys ", "found rot; did you mean root?"]),
    ("root: /", ["F:1: root: expected one of the keys ", "; write root: below driver:"]),
    ("\ndriver.root: /", ["F:2: driver.root: expected one of the keys ", "; write root: below driver:"]),
    ("zzz: 1", ["F:1: zzz: expected one of the keys devices, driver, kubernetes, limits, ", "remove it, or correct"]),
    ("- a", ["F:1: expected sections such as `driver:`, found a list; write for example: driver: {root: /}"]),
    ("driver: /", ["F:1: driver: expected keys with values, found /; write for example: driver: {root:"]),
    ("nodes: [a]", ["F:1: nodes: expected node names, each with sections of its own, found a list"]),
    ("nodes:\n  a: 5", ["F:2: nodes.a: expected sections such as `driver:`, found 5"]),
    ("nodes:\n  a: {nodes: {}}", ["F:2: nodes.a.nodes: expected one of the keys devices, driver, kubernetes, limits,"]),
    ("nodes: {a/b: {}}", ["F:1: nodes.a/b: expected a node's name, found a/b; "]),
    ("nodes: {GPU: {}, gpu: {}}", ["F:1: nodes.gpu: expected one entry for each node, found GPU"]),
    ("nodes:\n  12: {}", ["F:2: nodes: expected text as a key, found '12'; put it in quotes"]),
    ("on: {}", ["F:1: expected text as a key, found 'on'; put it in quotes"]),
    ("profiles: {}", ["F:1: profiles: expected a list of profiles, the first that matches a node wins, found an"]),
    ("profiles: [{name: a}]", ["F:1: profiles[0]: expected name, node_labels and sections such as", "found a mapping"]),
    ("profiles: [{name: a b, node_labels: {x: y}}]", ["F:1: profiles[0].name: expected a name of letters, digits, "]),
    ("profiles: [{name: a, node_labels: {}}]", ["F:1: profiles[0].node_labels: expected labels that the node must "]),
    (
        "profiles: [{name: a, node_labels: {x: true}}]",
        ["F:1: profiles[0].node_labels.x: expected a label's value as text", "found true", 'for example: x: "true"'],
    ),
    ("profiles: [{name: a, node_labels: {x: [y, z z]}}]", ["F:1: profiles[0].node_labels.x[1]: expected a label's"]),
    ("profiles: [{name: a, node_labels: {x: []}}]", ["F:1: profiles[0].node_labels.x: expected a label's value"]),
    ("profiles: [{name: a, node_labels: {/x: y}}]", ["F:1: profiles[0].node_labels: expected the name of a label"]),
    ("profiles: [{name: a, node_labels: {x: y}, scalng: {}}]", ["F:1: profiles[0].scalng: ", "did you mean scaling?"]),
    (
        "profiles:\n- {name: a, node_labels: {x: y}}\n- {name: a, node_labels: {x: z}}",
        ["F:3: profiles[1].name: expected a name of its own for each profile, found a; line 2 has the first"],
    ),
    ("profiles: [{name: a, node_labels: {x: y}, scaling: {cores: 0}}]", ["F:1: profiles[0].scaling.cores: expected a"]),
    ("driver: {root: a}", ["F:1: driver.root: expected auto, or an absolute path without . or .., found a; write for"]),
    ("driver: {root: /a/../b}", ["F:1: driver.root: expected auto, or an absolute path without . or .., found /a"]),
    ("driver: {root: /..}", ["F:1: driver.root: expected auto, or an absolute path"]),
    ("driver: {root: /a/.}", ["F:1: driver.root: expected auto, or an absolute path"]),
    ("driver: {root: }", ["F:1: driver.root: expected auto, or an absolute path without . or .., found nothing"]),
    ("driver: {root: 5}", ["F:1: driver.root: expected auto, or an absolute path without . or .., found 5"]),
    ('driver: {root: "/a\\nb"}', ["F:1: driver.root: expected plain text on one line, found /a\\x0ab"]),
    ("driver: {dev_root: dev}", ["F:1: driver.dev_root: expected an absolute path"]),
    ("paths: {state: /}", ["F:1: paths.state: expected an absolute path without . or .., other than /"]),
    ("paths: {state: //}", ["F:1: paths.state: expected an absolute path without . or .., other than /"]),
    (
        "paths: {run: /var/lib/vgpu/}",
        ["F:1: paths.run: expected another value than paths.state has, found /var/lib/vgpu"],
    ),
    (
        "nodes: {x: {paths: {state: /run/vgpu}}}",
        ["F:1: nodes.x.paths.state: expected another value than paths.run has"],
    ),
    ("driver:\n  library_dirs:\n  - /a\n  - b", ["F:4: driver.library_dirs[1]: expected an absolute path"]),
    ("driver: {library_dirs: /a}", ["F:1: driver.library_dirs: expected a list of absolute paths"]),
    (
        "driver: {capabilities: []}",
        ["F:1: driver.capabilities: expected a list of at least one capability, found an empty"],
    ),
    ("driver: {capabilities: [cuda]}", ["F:1: driver.capabilities[0]: expected compute, compat32", "found cuda"]),
    ("driver: {capabilities: [video, video]}", ["F:1: driver.capabilities: expected each item once"]),
    ("driver: {capabilities: 'compute,utility'}", ["F:1: driver.capabilities: expected a list of at least one"]),
    (
        "driver: {extra_libraries: ['']}",
        ["F:1: driver.extra_libraries[0]: expected a pattern of file names", 'found ""'],
    ),
    ("driver: {extra_libraries: [a/b]}", ["F:1: driver.extra_libraries[0]: expected a pattern of file names"]),
    (
        "driver: {exclude_libraries: ['lib*']}",
        ["F:1: driver.exclude_libraries: expected patterns that leave libcuda to"],
    ),
    (
        "driver: {exclude_libraries: ['libnvidia-ml.*']}",
        ["F:1: driver.exclude_libraries: expected patterns that leave lib"],
    ),
    (
        "driver: {share_capabilities: [graphics]}",
        ["F:1: driver.share_capabilities[0]: expected compute, utility or video, found graphics"],
    ),
    (
        "driver:\n  share_capabilities: [compute, video]",
        [
            "F:2: driver.share_capabilities: expected video in driver.capabilities too",
            "add video to driver.capabilities",
        ],
    ),
    (
        "driver: {capabilities: [compute, video], share_capabilities: [video]}\n"
        "nodes: {F: {driver: {capabilities: [compute]}}}",
        ["F:2: nodes.F.driver.capabilities: expected video in driver.capabilities too"],
    ),
    ("driver: {share_excludes: 1}", ["F:1: driver.share_excludes: expected true or false, found 1"]),
    ("driver: {compat_libraries: mount}", ["F:1: driver.compat_libraries: expected mask or refuse, found mount"]),
    ("devices: {permissions: r}", ["F:1: devices.permissions: expected rw or rwm, found r"]),
    ("devices: {permissions: rwx}", ["F:1: devices.permissions: expected rw or rwm, found rwx"]),
    ("standalone: {enabled: 'yes'}", ["F:1: standalone.enabled: expected true or false, found yes"]),
    ("placement: {policy: best}", ["F:1: placement.policy: expected binpack or spread, found best"]),
    ("scaling: {cores: 0}", ["F:1: scaling.cores: expected a number above 0 and at most 100, found 0"]),
    ("scaling: {cores: -1}", ["F:1: scaling.cores: expected a number above 0 and at most 100, found -1"]),
    ("scaling: {cores: 100.1}", ["F:1: scaling.cores: expected a number above 0 and at most 100, found 100.1"]),
    ("scaling: {cores: .inf}", ["F:1: scaling.cores: expected a plain number, found .inf"]),
    ("scaling: {cores: .nan}", ["F:1: scaling.cores: expected a plain number, found .nan"]),
    ("scaling: {cores: true}", ["F:1: scaling.cores: expected a number above 0 and at most 100, found true"]),
    ("scaling: {cores: '2'}", ["F:1: scaling.cores: expected a number above 0"]),
    ("scaling: {cores: " + "9" * 9000 + "}", ["F:1: scaling.cores: expected ", "found 999"]),
    (
        "scaling: {cores: 1}\nscaling: {memory: 1}",
        ["F:2: scaling: expected a key once, found it again; line 1 has the first"],
    ),
    ("resources: {core_unit: 3}", ["F:1: resources.core_unit: expected a whole number that divides 100, found 3"]),
    (
        "resources: {core_unit: true}",
        ["F:1: resources.core_unit: expected a whole number that divides 100, found true"],
    ),
    ("resources: {memory_unit: 3000}", ["F:1: resources.memory_unit: expected a multiple of 1Mi", "found 3000"]),
    ("resources: {memory_unit: '3000'}", ["F:1: resources.memory_unit: expected a multiple of 1Mi"]),
    ("resources: {memory_unit: 1000M}", ["F:1: resources.memory_unit: expected a multiple of 1Mi", "found 1000M"]),
    ("resources: {memory_unit: 0Mi}", ["F:1: resources.memory_unit: expected a "]),
    ("resources: {memory_unit: 1MB}", ["F:1: resources.memory_unit: expected a multiple of 1Mi", "write 256Mi"]),
    ("resources: {memory_unit: 512Ki}", ["F:1: resources.memory_unit: expected a multiple of 1Mi"]),
    ("resources: {memory_unit: -256Mi}", ["F:1: resources.memory_unit: expected a multiple of 1Mi"]),
    ("resources: {memory_unit: 999999999Ti}", ["F:1: resources.memory_unit: expected at most 1024 TiB"]),
    (
        "resources: {core_name: vcuda}",
        ["F:1: resources.core_name: expected a resource name with its domain", "found vcuda"],
    ),
    (
        "resources: {core_name: tencent.com/vcuda-memory}",
        ["F:1: resources.core_name: expected another value than resources."],
    ),
    (
        "a: b\n\tc: d",
        ["F:2: expected valid YAML, found character '\\t' that cannot start any token; indent with spaces"],
    ),
    ("driver: {root: /\n", ["F:1: expected ',' or '}', found '<stream end>'; correct this line"]),
    (
        "driver: {}\n---\ndriver: {}",
        ["F:2: expected a single document in the stream, found another document; keep one"],
    ),
    ("x: *gone", ["F:1: expected valid YAML, found undefined alias 'gone'"]),
    ('x: "\\UFFFFFFFF"', ["F:1: expected YAML, found "]),
    ("driver: {root: !!python/object:os.system x}", ["F:1: driver.root: expected plain text on one line, found tag "]),
    ("driver: {root: !foo x}", ["F:1: driver.root: expected plain text on one line, found tag !foo"]),
    ("scaling: {cores: !!int x}", ["F:1: scaling.cores: expected a whole number, found x"]),
    ("scaling: {cores: !!int ''}", ['F:1: scaling.cores: expected a whole number, found ""; correct the value']),
    ("scaling: {<<: 5}", ["F:1: expected an alias of a mapping after <<, found another value"]),
    ("? [a]\n: 1", ["F:1: expected text as a key, found a list or a mapping"]),
    (b"# ok\ndriver: \xff", ["F:2: expected UTF-8, found byte 0xff; save the file as UTF-8"]),
    ("# a\x00".encode("utf-16"), ["F:1: expected UTF-8, found byte 0xff"]),
    ("# ok\n\n# \x00", ["F:3: expected YAML, found character 0x0; remove it"]),
    ("[" * 5000, ["F:1: expected valid YAML, found more than 16 levels"]),
    ("a: &a [*a]", ["F:1: expected a few settings, found more than 16 levels"]),
    ("a: &a\n  <<: *a\n", ["F:1: expected an alias of a mapping after <<"]),
    ("a:\n" + "- b\n" * 30_000, ["F:", ": expected valid YAML, found more than 20000 values"]),
    ("resources: {gpu_name: tencent.com/vcuda-core}", ["F:1: resources.gpu_name: expected another value than "]),
    (
        "resources: {mig_strategy: mixed}\nnodes: {n: {resources: {gpu_name: nvidia.com/mig-1g.5gb}}}",
        ["F:2: nodes.n.resources.gpu_name: expected no name nvidia.com/mig-... in resources.gpu_name beside "],
    ),
    (
        "resources: {mode: gpu, split_count: 101}",
        ["F:1: resources.split_count: expected at least 1 core", "split less"],
    ),
    ("scaling: {memory: 2.5}\nresources: {mode: gpu}", ["F:1: scaling.memory: expected no unit larger", "split more"]),
    (
        "resources: {split_count: 9}\nscaling: {cores: .05}\nnodes: {n: {resources: {mode: gpu}}}",
        ["F:3: nodes.n.resources.mode: expected at least 1 core", "found 9 units of 5 cores"],
    ),
    (
        "plugin: {ignored_xids: [x]}",
        ["F:1: plugin.ignored_xids[0]: expected the number of an Xid, catalog, or all, found x"],
    ),
    ("metrics: {compat: [nvidia]}", ["F:1: metrics.compat[0]: expected gpu-manager, hami or gpu-fractioning"]),
    ("plugin: {http: 127.0.0.1}", ["F:1: plugin.http: expected host:port", "write for example: http: 127.0.0.1:5679"]),
    ("plugin: {http: 'a:99999'}", ["F:1: plugin.http: expected a port from 1 to 65535, found 99999"]),
    ("kubernetes: {dialects: [hummy]}", ["F:1: kubernetes.dialects[0]: expected all, vgpu, tencent", "found hummy"]),
]


@pytest.mark.parametrize(("text", "parts"), REFUSED)
def test_refuses_with_a_line(source, text: str | bytes, parts: list[str]) -> None:
    [line] = lines_of(source(text))
    assert line.startswith(parts[0]), line
    for part in parts[1:]:
        assert part in line
    assert re.match(r"F:[0-9]+: .*expected .+, found .+; .+", line), "each error says where, expected, found and do"


def test_yaml_bomb_is_refused_at_once(source) -> None:
    names = "abcdefgh"
    lines = ["a: &a [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"{new}: &{new} [{','.join(['*' + old] * 10)}]" for old, new in zip(names, names[1:])]
    [line] = lines_of(source("\n".join(lines)))
    assert "expected a few settings, found more than 20000 values; write them without aliases" in line


@pytest.mark.parametrize("kind", ["directory", "fifo", "device"])
def test_what_is_no_file(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.yaml"
    if kind == "directory":
        path.mkdir()
        assert lines_of(str(path)) == ["F: expected a file to read, found Is a directory; check its type and mode"]
    elif kind == "device":
        assert lines_of("/dev/zero") == ["F: expected at most 1048576 bytes, found more; is it the right file?"]
    else:
        os.mkfifo(path)
        assert values(compile_file(str(path), "n")) == DEFAULTS  # empty, and above all no wait


def test_all_errors_in_the_order_of_lines(source) -> None:
    text = "scaling:\n  memory: 0\n  cores: x\nzzz: 1\ndriver: {rot: 1, root: r}\nscaling: {}\n"
    where = [line.split(": expected")[0] for line in lines_of(source(text))]
    assert where == [
        "F:2: scaling.memory", "F:3: scaling.cores", "F:4: zzz", "F:5: driver.root", "F:5: driver.rot",
        "F:6: scaling",
    ]  # fmt: skip


def test_number_of_error_lines_is_bounded(source) -> None:
    found = lines_of(source("".join(f"k{number}: 1\n" for number in range(200))))
    assert len(found) == compiler.MAX_ERRORS + 1
    assert found[-1] == "and 150 more errors"


def test_node_overrides_lie_over_the_top_level(source) -> None:
    path = source(
        "scaling: {cores: 2, memory: 2}\nnodes:\n"
        "  GPU-7.example: {scaling: {memory: 3}}\n  other: {driver: {root: /o}}\n"
    )
    made = compile_source(path, "gpu-7.Example")
    assert (made.settings["scaling.cores"], made.settings["scaling.memory"], made.settings["driver.root"]) == (
        2,
        3,
        "auto",
    )
    origins = [made.origins[name] for name in ("scaling.cores", "scaling.memory", "driver.root")]
    assert [(origin.kind, origin.line) for origin in origins] == [("file", 1), ("node", 3), ("default", 0)]
    assert made.notes == []
    assert compile_source(path, "gpu-8").notes == [
        f"{path}: nodes: has GPU-7.example, other, but nothing for this node, gpu-8"
    ]


def test_errors_in_other_nodes_overrides_count(source) -> None:
    assert lines_of(source("nodes: {other: {scaling: {cores: 0}}}"), "n")[0].startswith(
        "F:1: nodes.other.scaling.cores"
    )


PROFILES = """
scaling: {cores: 2, memory: 2}
profiles:
- name: big
  node_labels: {nvidia.com/gpu.product: [A100, H100], pool: training}
  scaling: {memory: 3}
- {name: trial, node_labels: {pool: training}, scaling: {cores: 3}}
nodes:
  gpu-7: {scaling: {cores: 4}}
"""
BIG = {"nvidia.com/gpu.product": "H100", "pool": "training", "other": "x"}


def test_the_profile_that_applies_lies_between_the_top_level_and_the_node(source) -> None:
    path = source(PROFILES)
    made = compile_source(path, "gpu-7", lambda _: BIG)
    assert (made.settings["scaling.cores"], made.settings["scaling.memory"], made.profile) == (4, 3, "big")
    assert [compiler.origin_text(made, f"scaling.{key}") for key in ("cores", "memory", "virtual_memory")] == [
        f"{path}:9 (node gpu-7)", f"{path}:6 (profile big)", "default",
    ]  # fmt: skip
    assert made.labels == {"nvidia.com/gpu.product": "H100", "pool": "training"}
    assert made.notes == [f"{path}:4: profile big applies to this node, gpu-7; it comes before trial, which match too"]
    other = compile_source(path, "gpu-8", lambda _: {"pool": "trial"})
    assert (other.profile, other.notes[0]) == ("", f"{path}: profiles: none of big, trial matches this node, gpu-8")
    with pytest.raises(VgpuError, match=r"profiles: expected the node's labels.*--labels-from-api in a pod$"):
        compile_source(path, "gpu-7")


@pytest.mark.parametrize("seed", range(40))
def test_the_first_profile_that_matches_wins(source, seed: int) -> None:
    """Random profiles over few labels, beside the rule in its longest form."""
    rng = random.Random(seed)
    profiles: list[dict[str, Any]] = []
    for at in range(rng.randrange(1, 6)):
        keys = rng.sample(["a", "b", "c/d"], rng.randrange(1, 4))
        selector = {key: rng.choice([rng.choice("xy"), rng.sample(["x", "y", "z"], 2)]) for key in keys}
        profiles.append({"name": f"p{at}", "node_labels": selector, "scaling": {"cores": at + 2}})
    labels = {key: rng.choice("xyz") for key in ("a", "b", "c/d") if rng.random() < 0.8}
    made = compile_source(source(yaml.safe_dump({"profiles": profiles})), "n", lambda _: labels)
    wanted = ("", 1.0)
    for profile in reversed(profiles):
        fits = True
        for key, of in profile["node_labels"].items():
            fits = fits and key in labels and (labels[key] == of or labels[key] in list(of))
        wanted = (profile["name"], profile["scaling"]["cores"]) if fits else wanted
    assert (made.profile, made.settings["scaling.cores"]) == wanted


def test_a_node_and_its_profile_may_contradict_each_other(source) -> None:
    """Each is right by itself. The file is refused on the node that has both."""
    path = source(
        "resources: {split_count: 4}\nprofiles:\n- {name: p, node_labels: {a: b}, scaling: {memory: 3}}\n"
        "nodes: {n: {resources: {mode: gpu, split_count: 2}}}\n"
    )
    assert compile_source(path, "other", lambda _: {"a": "b"}).profile == "p"
    with pytest.raises(VgpuError, match=r":4: nodes\.n\.resources\.split_count: expected no unit larger than the card"):
        compile_source(path, "n", lambda _: {"a": "b"})


NEWER = compiler.Newer("0.9.0", frozenset({"scaling.bandwidth", "quota.default", "quota.burst"}))


def test_keys_that_a_newer_version_had_in_force_are_ignored_and_named(source) -> None:
    path = source("scaling: {cores: 2, bandwidth: 3}\nquota: {default: 1}\nnodes: {n: {scaling: {bandwidth: x}}}\n")
    made = compile_source(path, "n", newer=NEWER)
    assert made.settings["scaling.cores"] == 2
    keys = "nodes.n.scaling.bandwidth, quota, scaling.bandwidth"
    assert [", ".join(sorted(note.partition("ignores: ")[2].split(", "))) for note in made.notes] == [keys]
    assert made.notes[0].startswith(f"{path}: settings of vgpu 0.9.0, which this version ignores: ")
    Path(path).write_text("scaling: {bandwidht: 3, quota: 1}\nquotas: {default: 1}\n")
    with pytest.raises(VgpuError) as caught:
        compile_source(path, "n", newer=NEWER)
    keys = [line.split(": ")[1] for line in str(caught.value).split("\n")]
    assert keys == ["scaling.bandwidht", "scaling.quota", "quotas"], "a typing error stays one"


def test_a_way_back_ignores_what_the_newer_version_knew_again_and_again(source, tmp_path: Path) -> None:
    target = tmp_path / "config.json"
    values = {**DEFAULTS, "scaling.bandwidth": 3}
    newer = {"version": 1, "node": "n", "source": "x", "compiled_by": "0.9.0", "settings": values}
    target.write_text(json.dumps(newer))
    path = source("scaling: {cores: 2, bandwidth: 3}\n")
    for written in (True, False):
        done = compiled.apply(path, str(target), "n")
        assert (done.written, len(done.compiled.notes)) == (written, 1)
    assert settings.read(str(target)).notes == [], "nothing unknown is in force"
    target.unlink()
    with pytest.raises(VgpuError, match=r"scaling\.bandwidth: expected one of the keys"):
        compiled.apply(path, str(target), "n")


def test_as_yaml_compiles_to_the_same(source) -> None:
    text = "driver: {library_dirs: ['/a b', '/c: d', '/#e']}\nresources: {memory_unit: 3Gi}\nscaling: {memory: 0.3}\n"
    made = compile_source(source(text), "n")
    printed = compiler.as_yaml(made)
    assert values(compile_file(source(printed), "n")) == values(made.settings)
    assert f"memory_unit: 3Gi  # {made.settings.source}:2\n" in printed
    assert "policy: binpack  # default\n" in printed


def test_schema_is_a_schema_of_exactly_the_defaults() -> None:
    schema = json.loads((CHECKOUT / "config/vgpu/config/schema.json").read_text())
    Draft7Validator.check_schema(schema)
    sections = {name for name in schema["properties"] if name not in ("nodes", "profiles")}
    assert sections == set(schema["definitions"]["node"]["properties"])
    assert schema["definitions"]["profile"]["properties"].keys() - {"name", "node_labels"} == sections
    known = {f"{section}.{key}" for section in sections for key in schema["definitions"][section]["properties"]}
    assert known == set(DEFAULTS)
    assert all(schema["definitions"][section]["additionalProperties"] is False for section in (*sections, "node"))


def test_default_file_uncommented_has_exactly_the_defaults(source) -> None:
    made = compile_source(source(uncommented()), "n")
    assert values(made.settings) == DEFAULTS
    assert {name for name, origin in made.origins.items() if origin.kind == "file"} == set(DEFAULTS)
    assert values(compile_file(str(CHECKOUT / "config/config.yaml"), "n")) == DEFAULTS


def test_example_of_the_default_file_is_right(source) -> None:
    text = (CHECKOUT / "config/config.yaml").read_text()
    example = text[text.index("# profiles:") :].replace("\n# ", "\n").removeprefix("# ")
    made = compile_source(source(example), "gpu-7", lambda _: {"pool": "training"}).settings
    assert (made["scaling.memory"], made["placement.policy"]) == (1.5, "spread")


def test_documentation_has_every_key_with_its_default() -> None:
    text = (CHECKOUT / "docs/configuration.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| `(.*?)` \|", text, flags=re.M))
    assert rows == {name: compiler.value_text(name, value).replace("''", '""') for name, value in DEFAULTS.items()}


@pytest.mark.parametrize("page", ["configuration.md", "coexistence.md"])
def test_the_settings_that_documents_show_are_right(source, page: str) -> None:
    blocks = re.findall(r"^( *)```yaml\n(.*?)^ *```$", (CHECKOUT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    for indent, text in blocks:
        made = compile_source(source(re.sub(f"^{indent}", "", text, flags=re.MULTILINE)), "gpu-7", compiler.no_labels)
        assert values(made.settings) != DEFAULTS or "profiles" in text


def test_apply_writes_reports_and_repeats(source, tmp_path: Path) -> None:
    target = str(tmp_path / "state" / "config.json")
    done = compiled.apply(source("scaling: {memory: 2}"), target, "n")
    assert done.written
    assert os.stat(target).st_mode & 0o777 == 0o644
    assert settings.read(target)["scaling.memory"] == 2.0
    before = os.stat(target)
    again = compiled.apply(source("scaling: {memory: 2}"), target, "n")
    assert (again.written, again.changed) == (False, [])
    assert os.stat(target).st_ino == before.st_ino
    third = compiled.apply(source("scaling: {memory: 3}"), target, "n", dry_run=True)
    assert (third.written, third.changed) == (False, [("scaling.memory", 2.0, 3.0)])
    assert settings.read(target)["scaling.memory"] == 2.0


def test_bad_edit_keeps_the_last_good_settings(source, tmp_path: Path) -> None:
    target = tmp_path / "config.json"
    compiled.apply(source("scaling: {memory: 2}"), str(target), "n")
    before = target.read_bytes()
    with pytest.raises(VgpuError) as caught:
        compiled.apply(source("scaling: {memory: 0}\nzzz: 1"), str(target), "n")
    lines = str(caught.value).split("\n")
    assert len(lines) == 3
    assert f"nothing changed; the last good settings stay in force ({target}, of 20" in lines[-1]
    assert target.read_bytes() == before


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"version":1,"node":"","settings":{"zzz":1}}'])
def test_bad_edit_without_good_settings_is_an_error(source, tmp_path: Path, content: bytes | None) -> None:
    target = tmp_path / "config.json"
    if content is not None:
        target.write_bytes(content)
    with pytest.raises(VgpuError, match="nothing changed; no settings are in force"):
        compiled.apply(source("zzz: 1"), str(target), "n")
    assert compiled.apply(source(""), str(target), "n").written, "a good file replaces a damaged one"
    assert values(settings.read(str(target))) == DEFAULTS


def test_apply_where_nothing_can_be_written(source, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VgpuError, match=r"file/config\.json: expected a file to write, found .*; run as root"):
        compiled.apply(source(""), str(tmp_path / "file" / "config.json"), "n")
