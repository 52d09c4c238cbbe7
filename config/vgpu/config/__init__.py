"""What all parts of vgpu share: node settings, annotation keys, and the records and files that they exchange.

Belongs here: names, layouts and their codecs. Not here: anything that acts on the machine. All modules but ``compiler``
and ``compiled`` use the standard library only. The hook's process loads them (root, `python3 -I -S`), so they import
little: no dataclasses, enum, typing, pathlib, and not even `json`, which imports `re`.
"""
