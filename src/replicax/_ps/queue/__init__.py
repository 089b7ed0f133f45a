"""The closure queue: what `schedule` takes, which worker runs it, and what `join` says of it.

Tasks are functions that are traced once; lanes are threads that take closures and send each to a
worker, also when workers or servers die. It knows the store and the protocol, and starts nothing.
"""
