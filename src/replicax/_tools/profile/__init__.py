"""`replicax profile`: what the time of a training step goes into, and what the step needs.

`recorder.py` notes what the engine tells (`_core/events.py`); `times.py` makes numbers of it;
`summary.py` puts them together into a `Profile`, which `text.py` writes.
"""
