"""vgpud, the node's daemon: inventory, reaper, watch for foreign users of cards, and a health endpoint.

One thread, one loop; what may hang (NVML) runs in a child. Nothing of a container's start depends on it: killed or
absent, containers start and run as before. Runs as root; third-party packages are fine here.
"""
