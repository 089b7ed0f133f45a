"""A closure as a pure function, with all that it does to what lives on servers.

`recorder.py` is told of it while the function is traced, by Keras through `seams.py`; `record.py`
traces and gives a `Recorded`. It knows `_keras`, and nothing of servers.
"""
