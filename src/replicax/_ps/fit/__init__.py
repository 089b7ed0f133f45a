"""`fit`, `evaluate` and `predict` of models with variables on servers: each batch is a closure.

`steps.py` schedules closures and waits for them; `worker_batches.py` is for data that workers read
by themselves. The folder knows the queue, and `_fit` what Keras' loops want.
"""
