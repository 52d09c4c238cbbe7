"""The step that claims: who holds what on which card, recorded under one lock.

Belongs here: claims, commitments, the core schedules and the presence file. The daemon and vgpuctl read them too.
"""
