"""What means something else in `replicax.tf`: a sentence by name, as data only."""

from __future__ import annotations

# Sorted. The longest part of a name that is here speaks for it.
CHANGES = {
    "keras.layers.BatchNormalization": "Under `fit` the statistics are those of the global batch; "
    "in `strategy.run` each replica's, and moving ones are averaged.",
    "keras.layers.Dropout": "Under `fit` one mask over the global batch; in `strategy.run` a mask "
    "for each replica.",
    "tf.GradientTape": "In compiled code the forward pass is computed once; Python's `if` on a "
    "value in it has to be `tf.cond`.",
    "tf.Variable": "It is a `keras.Variable`: `value` is an attribute; an integer has 32 bits; a "
    "write that differs between replicas needs an aggregation.",
    "tf.config.experimental.set_memory_growth": "Holds for all GPUs of the process; before JAX is "
    "used.",
    "tf.config.experimental_connect_to_cluster": "Every host runs the program; it joins the "
    "cluster of a TPU.",
    "tf.config.run_functions_eagerly": "What `strategy.run` is given stays compiled.",
    "tf.config.set_logical_device_configuration": "For CPUs, before JAX is used.",
    "tf.config.set_soft_device_placement": "Changes nothing: XLA places operations.",
    "tf.config.set_visible_devices": "Before JAX is used.",
    "tf.custom_gradient": "Traced once by JAX: `grad` gets arrays, no variables.",
    "tf.data.Dataset.from_generator": "`output_signature` may be left out.",
    "tf.data.Dataset.interleave": "The function is plain Python.",
    "tf.data.Dataset.map": "The function is plain Python on NumPy arrays, not traced; operations "
    "in it compute with NumPy.",
    "tf.data.Dataset.save": "Another format than TensorFlow's.",
    "tf.data.TextLineDataset": "Lines are `str`.",
    "tf.data.experimental.AutoShardPolicy.AUTO": "With fewer files than workers it falls back to "
    "DATA, and says so once.",
    "tf.device": "An unknown device is an error; without effect in compiled code.",
    "tf.distribute.CrossDeviceOps": "A subclass overrides one method, `combine`.",
    "tf.distribute.MirroredStrategy": "Unknown and repeated devices are errors. `fit` gives one "
    "device's result for any batch size, BatchNorm and dropout included.",
    "tf.distribute.MultiWorkerMirroredStrategy": "Create it before JAX is used, or start the "
    "program by `replicax run`. `fit` gives one device's result for any batch size, BatchNorm and "
    "dropout included.",
    "tf.distribute.OneDeviceStrategy": "An unknown device is an error, not the CPU.",
    "tf.distribute.ParameterServerStrategy": "A server that dies is restored; staleness is "
    "measured and can be bounded; works with `fit` of Keras 3.",
    "tf.distribute.Server": "`join` returns when the coordinator has ended; it needs the cluster's "
    "secret.",
    "tf.distribute.TPUStrategy": "The program runs on the TPU's hosts, all of them; batches of any "
    "size.",
    "tf.distribute.cluster_resolver.TPUClusterResolver": "`zone`, `project`, `credentials` and "
    "`service` say nothing; `fallback=` names devices for machines without a TPU.",
    "tf.distribute.experimental.CentralStorageStrategy": "Without arguments all local devices "
    "compute, not one CPU.",
    "tf.distribute.experimental.MultiWorkerMirroredStrategy": "Create it before JAX is used, or "
    "start the program by `replicax run`.",
    "tf.distribute.experimental.ParameterServerStrategy": "A server that dies is restored; "
    "staleness is measured and can be bounded.",
    "tf.distribute.experimental.TPUStrategy": "The program runs on the TPU's hosts, all of them.",
    "tf.float64": "Computed in 32 bits unless `jax_enable_x64` is set.",
    "tf.function": "Traced once for each shape and compiled by XLA; no AutoGraph: `if` and `while` "
    "on values have to be `tf.cond` and `tf.while_loop`; a loop over a data set runs as plain "
    "Python.",
    "tf.int64": "Computed in 32 bits unless `jax_enable_x64` is set; a value that does not fit is "
    "an error.",
    "tf.io.VarLenFeature": "No sparse tensors: rows are filled up.",
    "tf.keras.Model.export": "A folder that `tf.saved_model.load` here reads.",
    "tf.keras.Model.load_weights": "Reads Keras 3's `.weights.h5`, not TensorFlow's checkpoints.",
    "tf.keras.layers.BatchNormalization": "Under `fit` the statistics are those of the global "
    "batch; in `strategy.run` each replica's, and moving ones are averaged.",
    "tf.keras.layers.Dropout": "Under `fit` one mask over the global batch; in `strategy.run` a "
    "mask for each replica.",
    "tf.keras.optimizers.legacy": "Keras 3's optimizers under their old names.",
    "tf.nn.embedding_lookup": "An id that is not there gives NaN.",
    "tf.numpy_function": "In compiled code it calls back to the host; in `Dataset.map` it is the "
    "function itself.",
    "tf.print": "In compiled code it prints from each replica.",
    "tf.py_function": "In compiled code it calls back to the host; in `Dataset.map` it is the "
    "function itself.",
    "tf.random": "The numbers are JAX's, other ones than TensorFlow's for the same seed.",
    "tf.random.set_seed": "The numbers are JAX's, in functions of pipelines NumPy's.",
    "tf.saved_model.load": "Reads what `tf.saved_model.save` here has written.",
    "tf.saved_model.save": "A folder that `load` here reads, and `TFSMLayer`; TensorFlow does not.",
    "tf.train.Checkpoint": "Another format than TensorFlow's; checked at once when it is restored; "
    "with several workers the chief writes, and all call the same methods.",
    "tf.train.CheckpointManager": "The latest is the one with the highest number; all workers call "
    "`save`.",
    "tf.train.latest_checkpoint": "By the number in its name, or the newest `.weights.h5`.",
    "tf.train.list_variables": "Names are paths of Keras' variables.",
    "tf.train.load_variable": "Names are paths of Keras' variables.",
    "tf.while_loop": "Compiled by `jax.lax.while_loop`: shapes must not change; reverse-mode "
    "gradients need `maximum_iterations`.",
}
