"""The decision which cards a request gets, and the value that records it.

Belongs here: pure functions of request, cards and commitments. The ledger, the plugin and vgpuctl share them.
"""
