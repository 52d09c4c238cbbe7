"""The plugin's side towards kubelet: registration, device lists, Allocate, and the garbage collection of grants.

Belongs here: kubelet's protocols and files. This package works without the API server.
"""
