"""The side of the plugin that looks at the cards: the inventory as it changes, NVML, Xids, and each card's health.

Belongs here: what is known of cards. Telling kubelet of it is vgpu.plugin.kubelet's.
"""
