"""The commands `replicax compare`, `devices`, `doctor`, `migrate`, `plan`, `profile` and `verify`.

Each is a package that runs in a process of its own; `launch` reads its arguments and starts it.
Results are shown by the tables, plots and pages of `compare/`. Nothing else of Replicax imports
these packages, except for what is public: `rx.plan`, `rx.verify`, `replicax.report`.
"""
