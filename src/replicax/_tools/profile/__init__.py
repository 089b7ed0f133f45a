"""`replicax profile`: what the time of a training step goes into, and what the step needs.

`_recorder.py` notes what the engine tells (`_core/events.py`); `_split.py` and `_trace.py` make
numbers of it; `_summary.py` puts them together into a `Profile`, which `_render.py` writes.
"""
