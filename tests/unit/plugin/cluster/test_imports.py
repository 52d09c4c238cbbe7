"""What the access to the API server costs before it is used: nothing."""

from __future__ import annotations

import subprocess
import sys


def test_the_kubernetes_package_is_not_loaded_before_the_connection() -> None:
    program = (
        "import sys, vgpu.plugin.apiserver\n"
        "print([name for name in ('kubernetes', 'urllib3', 'yaml', 'requests') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"
