"""Embedding tables whose rows have ids that come and go: on servers, or in this process."""
