"""The health of the node's cards: what NVML and its events say of them, and the rules of health.

Belongs here: what vgpud finds out about cards by watching them. Does not belong here: reporting it to kubelet, which
the device plugin does from the record `<run>/health.json` (vgpu.config.health).
"""
