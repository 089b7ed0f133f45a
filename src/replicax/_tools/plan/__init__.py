"""`replicax plan` and `rx.plan`: what a training step needs on machines that one does not have.

`planning.py` puts together a `subject`, what is planned, and `targets`, devices that the compiler
only describes. `step.py` compiles the one for the other and reads memory and, by `hlo.py`, what is
sent; `scaling.py` does arithmetic with that. `batch_size.py`, `rx.find_batch_size`, is the same
search for the devices that are here.
"""
