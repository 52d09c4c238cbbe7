"""The node's cards as the plugin offers them: the inventory, the health that vgpud has recorded, a driver's upgrade.

Belongs here: what the plugin knows of cards, from records. vgpud watches the cards (vgpu.node.cards). Reporting them to
kubelet belongs to vgpu.plugin.kubelet.
"""
