"""A GPU node in a temporary directory: driver, settings, inventory and the hook's state, all below one root.

The tests of the hook, the demo and the benchmarks use it. No package contains it.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from checkout import BUILD, CHECKOUT

from vgpu.config import claims, grants, inventory, paths, records
from vgpu.config.grants import Grant
from vgpu.config.inventory import Card, Inventory
from vgpu.config.settings import Settings

PROFILES = CHECKOUT / "libvcuda/sim/profiles"


def simctl() -> ModuleType:
    """The simulator's tool simctl.py, as a module."""
    name = "vgpu_simctl"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, CHECKOUT / "libvcuda/sim/tools/simctl.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


class Node:
    """A node whose state is below `directory`: {state,run,config.json}. `hook` and `shim` are the built gate.

    This class uses the machine's own driver. SimulatedNode has a simulated one.
    """

    sim: Path | None = None

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        self.config = directory / "config.json"
        self.hook = BUILD / "bin/vgpu-hook"
        self.shim = BUILD / "bin/vgpu-runtime"
        values: dict[str, object] = {
            "paths.state": str(directory / "state"),
            "paths.run": str(directory / "run"),
            "paths.libvcuda": str(BUILD / "lib/vcuda"),
            "standalone.key": str(directory / "standalone.key"),
            # Tests ask by plain annotations, as nodes do that were installed before there was a key.
            "standalone.requests": "annotations",
        }
        self.settings = Settings({**values, **settings}, "testnode", "test")
        (directory / "run").mkdir(parents=True, exist_ok=True)
        self.write_settings()

    def write_settings(self) -> None:
        records.write(str(self.config), self.settings.record(), 0o644)

    def compiled_by_a_newer_version(self) -> str:
        """Write the settings as vgpu 9.0 would, with one that this version does not know. Returns the warning."""
        values = {**self.settings._values, "future.setting": 1}
        records.write(str(self.config), {**self.settings.record(), "compiled_by": "9.0", "settings": values}, 0o644)
        return f"{self.config}: settings of vgpu 9.0, which this version ignores: future.setting"

    def change_settings(self, **values: object) -> None:
        """Write settings of which some differ from now on."""
        self.settings._values.update(values)
        self.write_settings()

    def vgpuctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run vgpuctl on this node."""
        command = [*self.vgpuctl_command(), *arguments]
        return subprocess.run(command, env=self.environment(), capture_output=True, text=True, check=check)

    def vgpuctl_command(self) -> list[str]:
        return [str(Path(sys.executable).parent / "vgpuctl"), "--config", str(self.config)]

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def take_inventory(self) -> None:
        self.vgpuctl("inventory", "refresh")

    def grant(self, resource: str, amount: int, **fields: object) -> str:
        """Write a grant as the device plugin does. Returns its id."""
        grant = Grant(grants.new_id(), resource, amount, 1.0, **fields)  # type: ignore[arg-type]
        grants.write(self.settings.state_dir, grant)
        return grant.id

    # Its records

    @property
    def run_dir(self) -> Path:
        return Path(self.settings.run_dir)

    @property
    def containers(self) -> Path:
        return Path(paths.containers(self.settings.run_dir))

    def held(self) -> set[str]:
        """The containers that have a directory."""
        return {path.name for path in self.containers.iterdir()} if self.containers.exists() else set()

    def claims(self) -> dict[str, dict[str, Any]]:
        """Container -> the record of its claim. One may go meanwhile."""
        found = {}
        for path in self.containers.glob("[!.]*/claim.json"):
            with contextlib.suppress(FileNotFoundError):
                found[path.parent.name] = json.loads(path.read_text())
        return found

    def claim(self, container: str) -> claims.Claim:
        return claims.read(self.settings.run_dir, container)

    def grants(self) -> list[Grant]:
        return grants.read_all(self.settings.state_dir)[0]

    def log(self) -> list[dict[str, Any]]:
        """The lines of the hook's log."""
        path = Path(paths.hook_log(self.settings.run_dir))
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def status(self) -> dict[str, list[dict[str, Any]]]:
        return json.loads(self.vgpuctl("status", "--output", "json").stdout)  # type: ignore[no-any-return]


class SimulatedNode(Node):
    """A node with the simulated driver. `driver` is the driver's root, `sim` the state that all processes share.

    `version`: the driver is one of the build's lib/drivers, with its names.
    """

    def __init__(self, directory: Path, profile: str = "t4x1", version: str = "", **settings: object) -> None:
        self.driver = directory / "driver"
        self.sim: Path = directory / "sim"
        directory.mkdir(parents=True, exist_ok=True)
        simctl().make_root(str(self.driver), str(PROFILES / f"{profile}.yaml"), str(BUILD), driver=version)
        simctl().make_state(str(self.sim), str(PROFILES / f"{profile}.yaml"))
        driver: dict[str, object] = {
            "driver.root": str(self.driver),
            "driver.dev_root": str(self.driver / "dev"),
            "driver.proc_root": str(self.driver / "proc"),
        }
        super().__init__(directory, **{**driver, **settings})

    def environment(self) -> dict[str, str]:
        """For programs on the host: its /dev has no nodes, so the simulated driver must not look for them."""
        return {**os.environ, "VGPU_SIM_DIR": str(self.sim), "VGPU_SIM_DEVICE_NODES": "0"}

    def divide(self, card: int, *profiles: str, **options: Any) -> list[tuple[int, int, str]]:
        """Switch MIG on and make these instances of a card: (GPU instance, compute instance, UUID) of each."""
        simctl().set_mig(str(self.sim), card, True)
        made = [simctl().create_instance(str(self.sim), card, profile, **options) for profile in profiles]
        self.show_layout()
        return made

    def show_layout(self) -> None:
        """Bring the driver's files up to date, as the driver does by itself."""
        simctl().show_layout(str(self.driver), str(self.sim))

    def destroy(self, card: int, instance: int) -> None:
        """Destroy a GPU instance of a card, with all in it."""
        simctl().destroy_instance(str(self.sim), card, instance)
        self.show_layout()

    def inventory(self) -> Inventory:
        return inventory.read(self.settings.run_dir)

    def instances(self) -> dict[str, Card]:
        """The MIG instances of the inventory by their profiles."""
        return {card.profile: card for card in self.inventory().cards if card.parent}

    def read_cards(self) -> list[dict[str, Any]]:
        """The simulated cards' own ledgers. Tests compare limits with them."""
        return simctl().read_state(str(self.sim))["cards"]  # type: ignore[no-any-return]
