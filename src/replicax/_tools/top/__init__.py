"""`replicax top`: the workers of a run as a table that moves, from what `--metrics` gives."""
