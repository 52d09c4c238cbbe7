"""Prometheus' text format, written fast: prometheus_client's own writer takes 25 us for each series.

Belongs here: families with labels that are escaped once for all metrics, and their text. The families are
prometheus_client's, so its collectors and tests read them. Not here: what is in them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache

from prometheus_client.core import Metric
from prometheus_client.samples import Sample

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
MAX_LABELS = 1 << 13  #: sets of labels that are remembered; a node of 64 containers has some thousand

Names = tuple[str, ...]


class Labels(dict[str, str]):
    """The labels of a series, with their text. Families share them: nobody may change one."""

    def __init__(self, names: Names, values: Names) -> None:
        super().__init__(zip(names, values))
        self.text = ",".join(f'{name}="{_escaped(value)}"' for name, value in self.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


labels_of = lru_cache(MAX_LABELS)(Labels)


def family(kind: str, name: str, text: str, names: Names, values: Iterable[tuple[Names, float | None]]) -> Metric:
    """A family with the values that are known. A counter's name is without `_total`."""
    found = Metric(name, text, kind)
    sample = f"{name}_total" if kind == COUNTER else name
    found.samples = [Sample(sample, labels_of(names, at), value) for at, value in values if value is not None]
    return found


def add_histogram(
    found: Metric, names: Names, at: Names, bounds: Sequence[float], counts: Sequence[float], total: float
) -> None:
    """Add the samples of one histogram. `counts` are those of each bucket alone, and has one more than `bounds`."""
    so_far = 0.0
    for bound, count in zip((*(repr(float(item)) for item in bounds), "+Inf"), counts):
        so_far += count
        found.samples.append(Sample(f"{found.name}_bucket", labels_of((*names, "le"), (*at, bound)), so_far))
    found.samples.append(Sample(f"{found.name}_count", labels_of(names, at), so_far))
    found.samples.append(Sample(f"{found.name}_sum", labels_of(names, at), total))


def text_of(families: Iterable[Metric]) -> bytes:
    """The families as a scrape's answer. A family without series is left out.

    After each family another thread gets its turn, which else would wait 5 ms at each of its own steps.
    """
    lines = []
    for found in families:
        time.sleep(0)
        if not found.samples:
            continue
        name = f"{found.name}_total" if found.type == COUNTER else found.name
        lines.append(f"# HELP {name} {found.documentation}\n# TYPE {name} {found.type}\n")
        lines.extend([f"{one.name}{{{one.labels.text}}} {one.value!r}\n" for one in found.samples])  # type: ignore[attr-defined]
    return "".join(lines).encode("utf-8", "replace")
