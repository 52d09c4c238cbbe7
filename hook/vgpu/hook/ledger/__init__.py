"""The step that claims: which container holds what on which card, recorded under one lock.

Belongs here: claims, commitments, the core schedules and the presence file. Not here: the choice of cards (placement).
The daemon and vgpuctl read the same records.
"""
