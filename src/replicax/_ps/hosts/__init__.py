"""Where servers and workers run: threads, local processes, Ray actors, or a given cluster.

Each kind starts its members, watches them and starts them again; all of them answer one protocol.
"""
