"""File formats that the hook reads and writes: ELF headers and the loader's cache.

Belongs here: bytes to values and back, pure. Which files are read is decided by the folders above.
"""
