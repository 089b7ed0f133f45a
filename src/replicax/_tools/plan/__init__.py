"""`replicax plan` and `rx.plan`: the needs of a training step on machines that are not here.

`planning.py` combines a `planned_step` with `targets`, devices that the compiler only describes.
`step.py` compiles the step for them, and reads its memory and, by `hlo.py`, its communication;
`scaling.py` does arithmetic with both. `batch_size.py`, `rx.find_batch_size`, is the same search
for the devices that are here.
"""
