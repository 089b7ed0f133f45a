"""Parameter servers: variables that live in other processes, and the workers that train them.

`start.py` makes the engine: a cluster (`hosts/`), a store of variables on servers (`store/`,
`server/`, `tables/`), and a queue of closures for the workers (`queue/`, `worker.py`). README.md
follows one closure from `schedule` to its result. It uses the engine's rooms, `_net` and
`_processes`, and no strategy.
"""
