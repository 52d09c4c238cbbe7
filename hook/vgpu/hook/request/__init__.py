"""The step that finds out what the container asks for: its OCI state, its identity, its authority, its grants.

Belongs here: from the runtime's words to a request. Whether there is room for it is the ledger's business.
"""
