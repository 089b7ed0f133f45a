"""A closure as a pure function, with everything it does to variables on servers.

Keras tells `recorder.py` of it through `record.py` while the function is traced; `record.py` traces
and returns a `Recorded`. The folder knows `_keras`, and nothing of servers.
"""
