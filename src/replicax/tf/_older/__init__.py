"""Keras 2: spellings, arguments and files that `replicax.tf.keras` still takes."""
