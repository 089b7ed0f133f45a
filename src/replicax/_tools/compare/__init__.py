"""`replicax compare` trains under each strategy of this machine; `replicax devices` looks at it.

`comparing.py` runs a comparison, with `training.py` and `subjects.py`; `result.py` is what
comes out, which `text.py`, `plots.py` and `page.py` show.
"""
