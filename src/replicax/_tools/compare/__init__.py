"""`replicax compare` trains under each strategy of this machine; `replicax devices` looks at it.

`_compare.py` and `_measure.py` train and measure; `_comparison.py` is the result. `_table.py`,
`_plots.py` and `_page.py` show it: the other commands show their results by them, too.
"""
