"""Processes of this machine from start to end: started, watched, shown, and ended together.

It hands out `run_attempts`, which stays with a set of planned processes, and the rules, the signals
and the outcome of that, as data. The standard library only: `launch` is built on it.
"""
