"""`replicax verify` and `rx.verify`: whether replicas train as one device does, and why not.

`verifying.py` lets a program train under each strategy. `record.py` watches it, with random numbers
aligned by `draws.py`; `compare.py` says what differs in two records, and `causes.py` why.
"""
