"""The CDI device by which a container's runtime is told to call the hook.

Belongs here: the device's name, which the node's specification defines and the device plugin's answers name, and the
annotation for kubelets that pass no CDI devices on. The device adds the hook and nothing else. So it grants nothing: a
tenant who names it gets a hook that finds no grants.
"""

from __future__ import annotations

KIND = "vgpu.io/share"
NAME = "grant"
DEVICE = f"{KIND}={NAME}"
#: Of the runtime's annotations cdi.k8s.io/<plugin>_<device>; the value is a list of devices.
ANNOTATION = "cdi.k8s.io/vgpu_share"
