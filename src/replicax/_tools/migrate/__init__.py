"""`replicax migrate`: whether a TensorFlow program runs here, and its imports rewritten.

`programs` reads scripts and notebooks. `reader` infers what the values in them are (`values`),
`calls` judges names and calls by `names` and `kinds`, which ask `replicax.tf` and Keras themselves.
`findings` joins that to a verdict on each program, `imports` rewrites, `trial` runs the program in
a copy, and `report` prints.
"""
