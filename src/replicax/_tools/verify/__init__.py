"""`replicax verify` and `rx.verify`: whether replicas train as one device does, and why not.

Read `_verifying.py` first. What it puts together:

`_recorder.py`     watches a program train; `_record.py` is what it keeps
`_gradients.py`    lets optimizers keep the gradients, so that they are seen as variables are
`_draws.py`        gives replicas the random numbers that one device would draw
`_compare.py`      two records → what differs, and how much may
`_causes.py`       what differs → the likely cause; `_evidence.py` is what the rules are given
`_result.py`       what was found; `_render.py` makes text of it
`_strategies.py`   names → strategies
`_on_one_device.py`   single steps of a running `fit`, for `rx.callbacks.VerifySteps`
"""
