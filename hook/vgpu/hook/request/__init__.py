"""The step that reads the container's request: its OCI state, its identity, its authorization, its grants.

Belongs here: everything from the runtime's state JSON to a request. Not here: whether the cards have room for it, which
the ledger decides.
"""
