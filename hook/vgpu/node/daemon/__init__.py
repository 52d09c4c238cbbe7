"""vgpud, the node's daemon: inventory, reaper, lender, monitors, and the socket on which vgpud answers vgpuctl.

Belongs here: what has to run again and again while containers live. vgpud has one thread and one loop; calls that may
hang (NVML) run in a worker process. Does not belong here: anything that a container's start needs. Without vgpud
containers start and run as before. Runs as root, and may use third-party packages.
"""
