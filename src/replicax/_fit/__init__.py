"""`fit`, `evaluate` and `predict` of models that were made in a strategy's scope.

`trainer.py` changes Keras with the first strategy; `steps.py` and `replica_steps.py`
are the steps, in the global and in the replica view; `figures.py` says how they get on; `data.py`
hands them batches, and `callback_list.py` tells callbacks of them.
"""
