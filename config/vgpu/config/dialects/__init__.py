"""Annotation dialects: the forms in which schedulers and nodes exchange which cards a container gets.

Belongs here: names and grammars, read and written. Not here: anything that acts. The hook loads `placements`, which is
therefore small; the plugin also needs `resources` and `registration`.
"""
