"""The node's cards and their health: the inventory and its changes, NVML, Xids, and the rules of health.

Belongs here: what the plugin finds out about cards. Reporting it to kubelet belongs to vgpu.plugin.kubelet.
"""
