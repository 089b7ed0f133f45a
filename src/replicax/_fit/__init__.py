"""`fit`, `evaluate` and `predict` of models that were made in a strategy's scope.

`trainer.py` changes Keras with the first strategy; `steps.py` and `replica_steps.py` are the steps,
in the global and in the replica view; `figures.py` counts them, `data.py` hands them batches, and
`callback_list.py` tells callbacks of them. This imports `_keras`, `_program`, `_core` and, for
CPUs, `_cpu`. A strategy installs it, `_ps` has steps of its own beside it, and `callbacks`,
`_tools` and `tf` look at its steps; `_mesh` gets the functions that it calls as arguments.
"""
