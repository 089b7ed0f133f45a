"""The commands of `replicax` that work in a process of their own, but for `run`.

`launch` reads their arguments and starts `commands.py`. Each tool is settings → data, which are
frozen dataclasses → text. They share `machine`, `strategies`, `script` (a user's program, run in
another way), `progress` and `text`. Nothing else of Replicax imports these packages, except for
public names: `rx.plan`, `rx.verify`, `replicax.report`.
"""
