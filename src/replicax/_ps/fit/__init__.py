"""`fit`, `evaluate` and `predict` of models with variables on servers: each batch is a closure.

`steps.py` schedules closures and waits for them; `steps.py` is for data that workers read
by themselves. The folder knows the queue, and `_fit` what Keras' loops want.
"""
