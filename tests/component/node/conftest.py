"""A driver root made of files that the compiler makes."""

from __future__ import annotations

from driver_fixtures import driver_parts, driver_root  # noqa: F401 - fixtures
