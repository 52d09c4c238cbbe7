"""File formats that the hook reads and writes: ELF headers and the loader's cache.

Belongs here: bytes to values and back. Not here: which files are read, which the folders above decide.
"""
