"""What the extender shows to Prometheus.

Belongs here: the names of the figures and their labels. A registry of its own, so that several can live in one process.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vgpu.plugin.scheduler.cluster import Cluster

BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)


class Metrics:
    """The counters of one extender."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "vgpu_extender_requests", "Requests by verb and result", ["verb", "result"], registry=self.registry
        )
        self.seconds = Histogram(
            "vgpu_extender_seconds", "Seconds until the answer", ["verb"], buckets=BUCKETS, registry=self.registry
        )
        self._nodes = Gauge("vgpu_extender_nodes", "Nodes that the watch has shown", registry=self.registry)
        self._pods = Gauge("vgpu_extender_pods", "Pods with cards that have not ended", registry=self.registry)
        self._assumed = Gauge("vgpu_extender_assumed", "Decisions that no watch has confirmed", registry=self.registry)
        self._ready = Gauge("vgpu_extender_ready", "1 while this replica answers", registry=self.registry)

    def text(self, cluster: Cluster, ready: bool) -> bytes:
        with cluster.guard:
            self._nodes.set(sum(1 for _ in cluster.names()))
            self._pods.set(len(cluster.pods))
            self._assumed.set(len(cluster.assumed))
        self._ready.set(ready)
        return generate_latest(self.registry)
