"""The coordinator's store: variables that live on servers, and the traffic with these.

It divides variables into shards, reads, writes and updates them, and reaches servers by a client
that tries again.
"""
