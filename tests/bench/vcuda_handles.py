"""`vcuda_handles.py [PAIRS]`: cuMemCreate and cuMemRelease of several threads, with and without libvcuda.

In no group: the driver is the simulated one, whose own lock is most of the time. So the ratio says only whether the
lock for which libvcuda makes the threads wait adds to that. Figures: docs/decisions/measurements-vcuda.md.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "config"), str(HERE.parent / "beds")]

from checkout import BUILD, CHECKOUT  # noqa: E402 - found by the line above
from vcuda import Place  # noqa: E402

from vgpu.config import limits  # noqa: E402

THREADS = (1, 2, 4, 8)
ROUNDS = 20_000  #: pairs of calls of all threads in one run


class SimulatedPlace(Place):
    """The simulated driver in the place of the null driver."""

    def __init__(self, path: Path) -> None:
        spec = importlib.util.spec_from_file_location("simctl", CHECKOUT / "libvcuda/sim/tools/simctl.py")
        assert spec
        assert spec.loader
        simctl = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(simctl)
        super().__init__(path)
        simctl.make_state(str(path / "state"), "t4x1", device_nodes=False)
        (path / "driver/libnvidia-ml.so.1").unlink()
        shutil.copy(next((BUILD / "lib/sim").glob("libcuda.so.*")), path / "driver/libcuda.so.1")
        uuid = simctl.read_state(str(path / "state"))["cards"][0]["uuid"]
        (path / "limits").write_bytes(limits.encode("bench", [limits.CardLimit(uuid, 1 << 33)]))
        self._compile("program", "handles.c", "-ldl", "-lpthread")

    def environment(self, limited: bool) -> dict[str, str]:
        return {**super().environment(limited), "VGPU_SIM_DIR": str(self.path / "state")}

    def pair(self, threads: int, limited: bool) -> float:
        """Nanoseconds of a pair of calls."""
        command = self.command(str(threads), str(ROUNDS // threads))
        return float(subprocess.check_output(command, env=self.environment(limited), text=True))


def main(pairs: int) -> None:
    with tempfile.TemporaryDirectory(prefix="vgpu-bench-") as name, SimulatedPlace(Path(name)) as place:
        for threads in THREADS:
            runs = [(place.pair(threads, False), place.pair(threads, True)) for _ in range(pairs)]
            ratios = [limited / plain for plain, limited in runs]
            plain, limited = (median(column) for column in zip(*runs))
            figures = f"{min(ratios):.2f} {median(ratios):.2f} {max(ratios):.2f}"
            print(f"threads {threads}: {plain:.0f} ns, {limited:.0f} ns, ratio min median max {figures}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
