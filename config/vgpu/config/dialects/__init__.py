"""Annotation dialects: how schedulers and nodes tell each other which cards a container gets.

Belongs here: names and grammars, read and written, and nothing that acts. `placements` is what the hook reads, and so
as small as the rest of its half; `resources` and `registration` are what the plugin needs besides.
"""
