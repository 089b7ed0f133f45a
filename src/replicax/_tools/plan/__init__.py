"""`replicax plan` and `rx.plan`: what a training step needs on machines that one does not have.

Read `_planning.py` first. What it puts together:

`_targets.py`      names such as `v5e:4x4` → devices, which the compiler only describes
`_chips.py`        how much memory chips have
`_strategies.py`   names such as `mirrored` → a strategy for these devices
`_subject.py`      what is planned: a model and the shapes of a batch; `_load.py` finds it
`_compiled.py`     the step that `fit` would run, lowered for such devices
`_reading.py`      what the compiled program says: memory, arithmetic, collective operations
`_wire.py`, `_largest.py`   arithmetic
`_batch_size.py`   `rx.find_batch_size`: the same search for the devices that are here
`_scaling.py`      what the same step sends on other numbers of chips
"""
