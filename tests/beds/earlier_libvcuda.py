"""The libvcuda of the version before containers had leases, built from its sources.

Its containers wait in the queue at the time at which they came, and say nothing of when their work ends. Containers
that run while a node is upgraded keep that library. The sources are a file of the tests' data, because a checkout may
have no history: libvcuda/ without sim/, as at the parent of the commit "libvcuda: containers run in the order of what
is owed to them, and leave in pauses".
"""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

from checkout import DATA

SOURCES = DATA / "libvcuda-0.1.0.tar.xz"


def build(directory: Path) -> Path:
    """Build it in `directory`. Returns the build, whose lib/vcuda has the library."""
    with tarfile.open(SOURCES) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.12 warns without one
        archive.extractall(directory)
    made = directory / "build"
    configure = ["cmake", "-S", directory / "libvcuda", "-B", made, "-DCMAKE_BUILD_TYPE=Debug"]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", made, "--target", "vcuda"], check=True, stdout=subprocess.DEVNULL)
    return made
