"""The engine of every strategy but parameter servers: one program on all devices of a mesh.

`engine.py` runs a step, `spmd.py` makes its program, `store.py` says where variables live, and
`processes.py` joins the processes of a cluster. It receives batches from `_input`, whose data sets
it never reads.
"""
