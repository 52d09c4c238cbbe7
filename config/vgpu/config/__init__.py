"""What all parts of vgpu agree on: node settings, annotation keys, grant and claim records, the limits file.

Belongs here: names, layouts and their codecs. Does not belong here: anything that acts on the machine.
Everything but ``compiler`` is standard library only and runs inside the hook's process (root, `python3 -I -S`),
so these modules import little: no dataclasses, enum, typing, pathlib, and not even `json` (it pulls in `re`).
"""
