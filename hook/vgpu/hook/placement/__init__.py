"""The choice of cards for a request, and the value that holds the result.

Belongs here: pure functions of request, cards and commitments. Not here: reading or recording any of them. The ledger,
the plugin and vgpuctl share these functions.
"""
