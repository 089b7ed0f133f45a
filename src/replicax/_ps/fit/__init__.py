"""`fit`, `evaluate` and `predict` of models with variables on servers: each batch is a closure.

`steps.py` schedules them and waits for them; `worker_batches.py` is for data that workers read by
themselves. It knows the queue, and `_fit` what Keras' loops want.
"""
