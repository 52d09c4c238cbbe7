"""The exporter: metrics for Prometheus, usage for people and programs, from the record of vgpud's last round.

Belongs here: everything that answers on `metrics.listen`, in a process of its own. It opens no file of a container and
never calls NVML. Not here: the figures, which vgpud writes (vgpu.node.daemon.round_record).
"""
