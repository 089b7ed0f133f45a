"""The commands of `replicax` that work in a process of their own, but for `run`.

Each is a package that runs in a process of its own; `launch` reads its arguments and starts it. All
of them show results by the tables, plots and pages of `compare/`. Nothing else of Replicax imports
these packages, except for public names: `rx.plan`, `rx.verify`, `replicax.report`.
"""
