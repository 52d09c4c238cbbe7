"""What is written for each containerd, compared with golden diffs, and the undo to the byte.

A handler that is not the default one is the same part of the file, without the line that makes it the default.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from checkout import DATA

from vgpu.config.errors import VgpuError
from vgpu.node.runtimes import containerd as module
from vgpu.node.runtimes import registry, verify
from vgpu.node.runtimes.registration import BASE_SPEC, DEFAULT, HANDLER, Wish

GOLDEN = DATA / "runtimes"
SPEC = "vgpu-base.json"  #: the base specification, which is the same in all cases
#: case: (the daemon's version, the file before). "" is no file. The files of 1.6 and 2.1 are the parts that the code
#: reads of `containerd config default`, and some lines beside. tests/component/node/test_containerd_default.py has all,
#: and random files of each version.
CASES = {
    "2.1": ("v2.1.9", "containerd-2.1.toml"),
    "1.6-none": ("1.6.20", ""),
    "2.1-none": ("v2.1.9", ""),
    "microk8s": ("1.6.28", "microk8s.toml"),
}
MODES = (HANDLER, DEFAULT, BASE_SPEC)
DEFAULTS = {"1": "containerd-1.6.toml", "v": "containerd-2.1.toml"}


@functools.cache
def default(name: str) -> dict[str, Any]:
    """What `containerd config default` prints, in part."""
    return dict(tomlkit.parse((GOLDEN / name).read_text()).unwrap())


def merged(version: str, texts: list[str]) -> str:
    """What `config dump` prints: 1.x replaces the map of handlers by the file's, 2.x merges all files deeply."""
    result = copy.deepcopy(default(DEFAULTS[version[0]]))
    section = "io.containerd.cri.v1.runtime" if version[0] == "v" else "io.containerd.grpc.v1.cri"
    for text in texts:
        document = tomlkit.parse(text).unwrap()
        (plugins, rest) = document.get("plugins", {}), {k: v for k, v in document.items() if k != "plugins"}
        _merge(result, rest)
        for name, table in plugins.items():
            ours = section if name in ("cri", "io.containerd.grpc.v1.cri", section) else name
            if version[0] != "v" and "runtimes" in table.get("containerd", {}):
                result["plugins"][ours]["containerd"]["runtimes"] = {}
            _merge(result["plugins"].setdefault(ours, {}), table)
    return tomlkit.dumps(result)


def _merge(into: dict[str, Any], table: dict[str, Any]) -> None:
    for key, value in table.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def texts(wish: Wish, change: registry.Change | None) -> list[str]:
    """The configuration files as they are, or as they will be."""
    found = {wish.config: Path(wish.config).read_text()} if os.path.exists(wish.config) else {}
    for edit in change.edits if change else ():
        if edit.path.endswith(".toml") and edit.after is not None:
            found[edit.path] = edit.after
    return list(found.values())


def place(wish: Wish, name: str) -> str | None:
    os.makedirs(os.path.dirname(wish.config), exist_ok=True)
    if not name:
        return None
    text = (GOLDEN / name).read_text()
    Path(wish.config).write_text(text)
    return text


def golden(case: str, mode: str) -> str:
    """Without a file, 2.1 gets as its file what is vgpu's own file beside another one."""
    if case != "2.1-none":
        return (GOLDEN / f"containerd-{case}-{mode}.diff").read_text()
    own = diffs((GOLDEN / f"containerd-2.1-{mode}.diff").read_text())["99-vgpu.toml"]
    return own.replace("/etc/conf.d/99-vgpu.toml", "/etc/config.toml")


def without_default(diff: str) -> list[str]:
    """The changed lines of a diff, but for those that make ours the default handler."""
    lines = [line for line in diff.splitlines() if line[:1] in ("+", "-") and line[:3] not in ("+++", "---")]
    return [line for line in lines if line != "+" and not re.search(r"default_runtime_name|\.containerd\]$", line)]


def diffs(text: str) -> dict[str, str]:
    """By the file's name."""
    parts = re.split(r"^(?=--- )", text, flags=re.MULTILINE)[1:]
    return {os.path.basename(part.splitlines()[1]): part for part in parts}


@pytest.mark.parametrize(
    ("case", "mode"), [pair for pair in itertools.product(CASES, MODES) if pair != ("microk8s", BASE_SPEC)]
)
def test_golden(case: str, mode: str, wish: Wish, containerd: Any, tmp_path: Path) -> None:
    version, name = CASES[case]
    wish = replace(wish, mode=mode)
    before = place(wish, name)
    containerd.answer(version, merged(version, texts(wish, None)), default=before is None)
    change = registry.configure("containerd", wish)
    by_file = diffs(change.diff().replace(str(tmp_path), ""))
    assert by_file.pop(SPEC, "") == ((GOLDEN / "base-spec.diff").read_text() if mode == BASE_SPEC else "")
    found = "".join(by_file.values())
    if mode == HANDLER:
        assert not re.search(r"^[+-].*default_runtime_name", found, re.MULTILINE)
        assert without_default(found) == without_default(golden(case, DEFAULT))
    else:
        assert found == golden(case, mode)
    containerd.answer(version, merged(version, texts(wish, change)))
    change.execute()
    os.chmod(wish.config, 0o640)
    again = merged(version, [] if before is None else [before])
    containerd.answer(version, again, default=before is None)
    assert not registry.configure("containerd", wish).changes(), "a second time changes nothing"
    registry.unconfigure("containerd", wish.state_dir).execute()
    assert os.path.exists(wish.config) is (before is not None)
    if before is not None:
        assert Path(wish.config).read_text() == before
        assert os.stat(wish.config).st_mode & 0o777 == 0o640
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()} - {"vgpu-hook", "vgpu-runtime"}
    assert left == ({"config.toml"} if before is not None else set())


# What is refused, and what is left alone


@pytest.mark.parametrize(
    ("version", "text", "line"),
    [
        ("1.6.20", 'disabled_plugins = ["cri"]\n', "for Docker use --runtime docker"),
        ("v2.1.9", "[plugins.cri.containerd]\n", "containerd config migrate"),
        ("1.7.24", "version = 3\n", "expected 1 or 2, which this containerd reads, found 3"),
        ("v2.1.9", "version = 5\n", "expected 1, 2, 3 or 4, found 5"),
        ("1.6.20", "version = \n", "expected TOML"),
    ],
)
def test_files_that_are_not_edited(version: str, text: str, line: str, wish: Wish, containerd: Any) -> None:
    os.makedirs(os.path.dirname(wish.config))
    Path(wish.config).write_text(text)
    containerd.answer(version, "")
    with pytest.raises(VgpuError, match=line):
        registry.configure("containerd", wish)
    assert Path(wish.config).read_text() == text


@pytest.mark.parametrize("text", ["", "# mine\n", "disabled_plugins = []\n", 'root = "/x"'])
def test_a_file_without_a_version_is_of_the_newest_to_containerd_2(text: str, wish: Wish, containerd: Any) -> None:
    os.makedirs(os.path.dirname(wish.config))
    Path(wish.config).write_text(text)
    containerd.answer("v2.1.9", merged("v2.1.9", [text]))
    change = registry.configure("containerd", wish)
    own = next(edit for edit in change.edits if edit.path.endswith("conf.d/99-vgpu.toml"))
    assert own.after is not None
    assert "version = 3\n" in own.after
    containerd.answer("v2.1.9", merged("v2.1.9", texts(wish, change)))
    change.execute()
    registry.unconfigure("containerd", wish.state_dir).execute()
    assert Path(wish.config).read_text() == text


def test_a_link_stays(wish: Wish, containerd: Any, tmp_path: Path) -> None:
    before = place(wish, "containerd-1.6.toml") or ""
    target = tmp_path / "real/config.toml"
    target.parent.mkdir()
    os.rename(wish.config, target)
    os.symlink(target, wish.config)
    containerd.answer("1.6.20", merged("1.6.20", [before]))
    change = registry.configure("containerd", wish)
    assert [edit.path for edit in change.edits] == [str(target)]
    containerd.answer("1.6.20", merged("1.6.20", texts(wish, change)))
    change.execute()
    registry.unconfigure("containerd", wish.state_dir).execute()
    assert os.path.islink(wish.config)
    assert target.read_text() == before


def test_an_edit_that_containerd_does_not_see_is_taken_back(wish: Wish, containerd: Any) -> None:
    """An import of containerd 1.x replaces the section that was edited."""
    before = place(wish, "containerd-1.6.toml")
    containerd.answer("1.6.20", merged("1.6.20", []))
    change = registry.configure("containerd", wish)
    containerd.answer("1.6.20", merged("1.6.20", []))
    with pytest.raises(VgpuError, match=r"expected handler vgpu with vgpu's program.*the files are as before"):
        change.execute()
    assert Path(wish.config).read_text() == before
    assert os.listdir(f"{wish.state_dir}/runtimes") == []


def test_a_handler_of_another_origin_is_kept(wish: Wish, containerd: Any) -> None:
    os.makedirs(os.path.dirname(wish.config))
    text = 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.vgpu]\nruntime_type = "x"\n'
    Path(wish.config).write_text(text)
    containerd.answer("1.6.20", merged("1.6.20", [text]))
    with pytest.raises(VgpuError, match="handler vgpu: expected none yet, found one of another origin"):
        registry.configure("containerd", wish)


RUNTIMES = 'plugins."io.containerd.grpc.v1.cri".containerd'


def nvidia(options: str) -> str:
    return (
        f'version = 2\n[{RUNTIMES}]\ndefault_runtime_name = "nvidia"\n'
        f'[{RUNTIMES}.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\nsnapshotter = "a"\n'
        f'[{RUNTIMES}.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n{options}'
        f'[{RUNTIMES}.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
        f'[{RUNTIMES}.runtimes.runc.options]\nBinaryName = "/opt/crun"\nSystemdCgroup = true\n'
    )


def added(change: registry.Change) -> str:
    return "".join(edit.draft.text for edit in change.edits if edit.draft).split("runtimes.vgpu]")[-1]


def test_nvidias_handler_gives_its_settings_but_not_its_program(wish: Wish, containerd: Any) -> None:
    """The program behind the shim is that of runc's handler. The cgroups stay those of the default handler."""
    os.makedirs(os.path.dirname(wish.config))
    Path(wish.config).write_text(nvidia('Root = "/r"\n'))
    containerd.answer("1.7.24", merged("1.7.24", texts(wish, None)))
    change = registry.configure("containerd", replace(wish, mode=DEFAULT))
    text = added(change)
    assert 'snapshotter = "a"' in text
    assert 'Root = "/r"' in text
    assert "SystemdCgroup" not in text
    assert "vgpu-runtime-containerd" in text
    (script,) = (edit.after for edit in change.edits if edit.path.endswith("/vgpu-runtime-containerd"))
    assert "--vgpu-runtime /opt/crun" in str(script)


def test_check_finds_a_setting_that_the_default_handler_got_later(wish: Wish, containerd: Any) -> None:
    """And a setting that containerd does not read is an error of configure."""
    before = place(wish, "containerd-1.6.toml") or ""
    wish = replace(wish, mode=DEFAULT)
    containerd.answer("1.7.24", merged("1.7.24", [before]))
    change = registry.configure("containerd", wish)
    answer = merged("1.7.24", texts(wish, change))
    containerd.answer("1.7.24", answer.replace("io.containerd.runc.v2", "io.containerd.runc.v1"))
    with pytest.raises(VgpuError, match=r"expected handler runc as before|with runtime_type of runc, found another"):
        change.execute()
    containerd.answer("1.7.24", answer)
    change.execute()
    edited = Path(wish.config).read_text().replace('cni_conf_dir = ""', 'cni_conf_dir = "/c"', 1)
    Path(wish.config).write_text(edited)
    containerd.answer("1.7.24", merged("1.7.24", [before.replace('cni_conf_dir = ""', 'cni_conf_dir = "/c"', 1)]))
    proof = verify.Proof()
    assert not verify._files(proof, "containerd", wish)
    assert "is not as configured" in proof.steps[0][1]


def test_a_default_handler_that_a_template_names_later_has_no_base_specification(wish: Wish, containerd: Any) -> None:
    """A second table of the handler's name would end MicroK8s' containerd."""
    place(wish, "microk8s.toml")
    containerd.answer("1.6.28", "")
    with pytest.raises(VgpuError, match=r"found \$\{RUNTIME\}"):
        registry.configure("containerd", replace(wish, mode=BASE_SPEC))


# k3s: a template of its file


@pytest.mark.parametrize(
    ("name", "section"), [("config.toml.tmpl", "grpc.v1.cri"), ("config-v3.toml.tmpl", "cri.v1.runtime")]
)
@pytest.mark.parametrize("before", [None, '{{ template "base" . }}\n# mine\n'])
def test_k3s(name: str, section: str, before: str | None, wish: Wish, tmp_path: Path) -> None:
    directory = tmp_path / "k3s/agent/etc/containerd"
    directory.mkdir(parents=True)
    runc = tmp_path / "k3s/data/current/bin/runc"
    runc.parent.mkdir(parents=True)
    runc.touch(0o755)
    path = directory / name
    if before is not None:
        path.write_text(before)
    change = registry.configure("containerd", replace(wish, config=str(path)))
    change.execute()
    text = path.read_text()
    assert text.startswith('{{ template "base" . }}\n')
    assert f'[plugins."io.containerd.{section}".containerd.runtimes.vgpu.options]' in text
    assert "SystemdCgroup = {{ .SystemdCgroup }}" in text
    script = Path(wish.state_dir, "runtimes/vgpu-runtime-containerd")
    assert f'BinaryName = "{script}"' in text
    assert f"--vgpu-runtime {runc}" in script.read_text()
    with pytest.raises(VgpuError, match="--default-runtime vgpu"):
        registry.configure("containerd", replace(wish, config=str(path), mode=DEFAULT))
    registry.unconfigure("containerd", wish.state_dir).execute()
    assert (path.read_text() if path.exists() else None) == before
    assert not script.exists()


@pytest.mark.parametrize(
    ("path", "command"),
    [
        ("/etc/containerd/config.toml", "containerd"),
        (module.MICROK8S, "snap.microk8s.daemon-containerd"),
        (f"{module.K3S[0]}/config.toml.tmpl", "k3s"),
    ],
)
def test_what_is_to_be_restarted(path: str, command: str) -> None:
    assert module.restart(path) == ("systemctl", "restart", command)


# Files of others


def test_an_edit_of_others_in_between_survives_too(wish: Wish, containerd: Any) -> None:
    before = place(wish, "containerd-1.6.toml") or ""
    wish = replace(wish, mode=DEFAULT)
    containerd.answer("1.7.24", merged("1.7.24", [before]))
    change = registry.configure("containerd", wish)
    containerd.answer("1.7.24", merged("1.7.24", texts(wish, change)))
    change.execute()
    edited = Path(wish.config).read_text().replace("oom_score = 0", "oom_score = -999 # mine")
    Path(wish.config).write_text(edited)
    registry.unconfigure("containerd", wish.state_dir).execute()
    assert Path(wish.config).read_text() == before.replace("oom_score = 0", "oom_score = -999 # mine")
