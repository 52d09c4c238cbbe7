"""The side of the plugin that talks to kubelet: registration, the device list, Allocate, and the end of grants.

Belongs here: kubelet's protocols and files. It works without the API server.
"""
