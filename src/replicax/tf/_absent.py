"""What TensorFlow has and Replicax has not, and what means something else here; as data.

Errors for missing names and `replicax migrate` read both. Names are sorted, with a sentence each.
"""

from __future__ import annotations

# What to use instead. The longest prefix of a name that is here speaks for it.
ABSENT = {
    "keras_cv": "Use keras_hub, its successor: it runs on JAX.",
    "keras_nlp": "Use keras_hub, its successor: it runs on JAX.",
    "tensorboard": "It is a program of its own and stays; `tf.summary` writes its files.",
    "tensorflow_addons": "It ended in 2024; most of it is in Keras 3, and optax has optimizers.",
    "tensorflow_datasets": "It reads without TensorFlow by `tfds.data_source(name)`: pass that to "
    "`rx.data.Dataset.from_source`.",
    "tensorflow_hub": "Use keras_hub's presets, or a saved model's weights in a Keras model.",
    "tensorflow_io": "Read the files with a Python library in `Dataset.map` or `from_generator`.",
    "tensorflow_model_optimization": "Use Keras 3's `model.quantize`.",
    "tensorflow_probability": "Its JAX half works: `import tensorflow_probability.substrates.jax "
    "as tfp`.",
    "tensorflow_text": "Use keras_hub's tokenizers, or Python's own text functions in "
    "`Dataset.map`.",
    "tf.AggregationMethod": "Gradients are added up; leave it out.",
    "tf.Assert": "Use `tf.debugging.assert_*`, or `rx.assert_finite`.",
    "tf.ConfigProto": "Sessions are gone; see `tf.config` for the devices.",
    "tf.CriticalSection": "A step runs at once on its device; leave it out.",
    "tf.DeviceSpec": "A device is its text, such as 'GPU:0'.",
    "tf.Graph": "Programs have no graph: `tf.function` compiles what it traces with JAX.",
    "tf.GraphDef": "Programs have no graph; `jax.export` keeps a compiled function.",
    "tf.IndexedSlicesSpec": "Gradients are dense arrays.",
    "tf.InteractiveSession": "Sessions are gone since TensorFlow 2: call the function itself.",
    "tf.OptionalSpec": "Use Python's `next(iterator, default)`.",
    "tf.RaggedTensor": "Rows of one length: fill them up with `Dataset.padded_batch`, and mask.",
    "tf.RaggedTensorSpec": "Rows of one length: fill them up with `Dataset.padded_batch`.",
    "tf.RegisterGradient": "Use `tf.custom_gradient`.",
    "tf.Session": "Sessions are gone since TensorFlow 2: call the function itself.",
    "tf.SparseTensor": "Arrays are dense: use `jax.experimental.sparse.BCOO`, or ids with -1 for "
    "none.",
    "tf.SparseTensorSpec": "Arrays are dense: use `jax.experimental.sparse.BCOO`.",
    "tf.TypeSpec": "Use `tf.TensorSpec`.",
    "tf.app": "Use argparse and Python's own `if __name__ == '__main__'`.",
    "tf.audio": "Read WAV files with Python's `wave` or soundfile in `Dataset.map`.",
    "tf.autodiff": "Use `jax.jvp` for forward mode; `tf.GradientTape` for gradients.",
    "tf.autodiff.ForwardAccumulator": "Use `jax.jvp(function, primals, tangents)`.",
    "tf.autograph": "`tf.function` converts control flow; `do_not_convert` and `to_code` are here.",
    "tf.batch_to_space": "It is `tf.nn.batch_to_space`.",
    "tf.case": "Use `tf.cond`, or `jax.lax.switch`.",
    "tf.compat": "Programs for TensorFlow 1 have to be written for TensorFlow 2 first.",
    "tf.compat.v1": "Programs for TensorFlow 1 have to be written for TensorFlow 2 first: no "
    "sessions, no placeholders.",
    "tf.config.experimental.set_synchronous_execution": "Call jax.block_until_ready on results.",
    "tf.contrib": "It ended with TensorFlow 1.",
    "tf.data.FixedLengthRecordDataset": "Read the file with `numpy.fromfile`, and pass "
    "the rows to `from_tensor_slices`.",
    "tf.data.NumpyIterator": "Use `dataset.as_numpy_iterator()`.",
    "tf.data.experimental.RandomDataset": "Use `Dataset.range(n).map` with a NumPy generator.",
    "tf.data.experimental.SqlDataset": "Use `from_generator` with a cursor of Python's sqlite3.",
    "tf.data.experimental.bucket_by_sequence_length": "Sort by length, or use `padded_batch`.",
    "tf.data.experimental.dense_to_ragged_batch": "Use `Dataset.padded_batch`.",
    "tf.data.experimental.make_batched_features_dataset": "Use `TFRecordDataset`, "
    "`rx.data.parse_example` in `map`, and `batch`.",
    "tf.data.experimental.service": "Workers read their own shares: see "
    "`strategy.experimental_distribute_dataset`.",
    "tf.data.experimental.snapshot": "Use `Dataset.cache(path)` or `Dataset.save(path)`.",
    "tf.debugging.experimental": "Use jax.profiler, or jax.debug.print in compiled code.",
    "tf.distribute.experimental.rpc": "Use `tf.distribute.coordinator.ClusterCoordinator`, "
    "`schedule(fn)` runs functions on workers.",
    "tf.dtensor": "Use `rx.ModelParallelStrategy`.",
    "tf.dtypes.resource": "Only TensorFlow's graphs have such elements.",
    "tf.dtypes.variant": "Only TensorFlow's graphs have such elements.",
    "tf.dynamic_partition": "The sizes are not known when a program is compiled: use masks.",
    "tf.dynamic_stitch": "Use `tf.scatter_nd` or `tf.tensor_scatter_nd_update`.",
    "tf.edit_distance": "Use a Python library in `Dataset.map`.",
    "tf.eig": "Use `jax.numpy.linalg.eig`, which works on CPUs.",
    "tf.eigvals": "Use `jax.numpy.linalg.eigvals`, which works on CPUs.",
    "tf.estimator": "Estimators ended with TensorFlow 2.15: use a Keras model and `fit`.",
    "tf.experimental.ExtensionType": "Use a dataclass registered by `jax.tree_util`.",
    "tf.experimental.Optional": "Use Python's `next(iterator, default)`.",
    "tf.experimental.async_scope": "JAX computes asynchronously always; leave it out.",
    "tf.experimental.dlpack": "Use `jax.dlpack`.",
    "tf.experimental.dtensor": "Use `rx.ModelParallelStrategy`.",
    "tf.experimental.numpy": "Use `jax.numpy`.",
    "tf.experimental.tensorrt": "Export the model with `jax.export`, or `model.export` to ONNX.",
    "tf.extract_volume_patches": "Use `jax.lax.conv_general_dilated_patches`.",
    "tf.feature_column": "Use Keras' preprocessing layers, or `keras.utils.FeatureSpace`.",
    "tf.fftnd": "Use `jax.numpy.fft.fftn`.",
    "tf.flags": "Use argparse, or absl.flags.",
    "tf.get_variable": "Use `tf.Variable`, in a layer or module.",
    "tf.gfile": "It is `tf.io.gfile`.",
    "tf.global_variables_initializer": "Variables have their values from the start; leave it out.",
    "tf.gradients": "Use `tf.GradientTape`, or `rx.value_and_grad`.",
    "tf.graph_util": "Programs have no graph; `jax.export` keeps a compiled function.",
    "tf.hessians": "Use `jax.hessian`, or two `tf.GradientTape`s.",
    "tf.histogram_fixed_width": "Use `jax.numpy.histogram`.",
    "tf.histogram_fixed_width_bins": "Use `jax.numpy.digitize`.",
    "tf.io.RaggedFeature": "Use tf.io.VarLenFeature, which fills rows up to one length.",
    "tf.io.SparseFeature": "Use tf.io.VarLenFeature, which fills rows up to one length.",
    "tf.io.decode_proto": "Use the message's own `FromString` in `Dataset.map`.",
    "tf.io.parse_tensor": "Use numpy.load of the bytes that numpy.save wrote.",
    "tf.io.serialize_tensor": "Use numpy.save into an io.BytesIO.",
    "tf.io.write_graph": "Programs have no graph.",
    "tf.keras.backend": "Use `keras.ops`: it has the functions of tensors.",
    "tf.keras.backend.experimental": "Random numbers are JAX's always; leave it out.",
    "tf.keras.backend.function": "Call the model, or `tf.function`.",
    "tf.keras.backend.get_session": "Sessions are gone since TensorFlow 2; leave it out.",
    "tf.keras.backend.gradients": "Use `tf.GradientTape`.",
    "tf.keras.backend.learning_phase": "Pass `training=True` or `False` to the model.",
    "tf.keras.backend.placeholder": "Use `tf.keras.Input`.",
    "tf.keras.backend.set_learning_phase": "Pass `training=True` or `False` to the model.",
    "tf.keras.backend.set_session": "Sessions are gone since TensorFlow 2; leave it out.",
    "tf.keras.dtensor": "Use `rx.ModelParallelStrategy`.",
    "tf.keras.estimator": "Estimators ended with TensorFlow 2.15: use the model's own `fit`.",
    "tf.keras.experimental.LinearModel": "Use a `Dense` layer of each input, and `Add`.",
    "tf.keras.experimental.PeepholeLSTMCell": "Keras 3 has no such cell: use `LSTMCell`.",
    "tf.keras.experimental.SequenceFeatures": "Use preprocessing layers and `Embedding`.",
    "tf.keras.experimental.WideDeepModel": "Add the outputs of a wide and of a deep model.",
    "tf.keras.layers.AbstractRNNCell": "Subclass `tf.keras.layers.Layer` with `state_size`.",
    "tf.keras.layers.CuDNNGRU": "Use `tf.keras.layers.GRU`.",
    "tf.keras.layers.CuDNNLSTM": "Use `tf.keras.layers.LSTM`.",
    "tf.keras.layers.DenseFeatures": "Use preprocessing layers, or `keras.utils.FeatureSpace`.",
    "tf.keras.layers.LocallyConnected1D": "Use `keras.ops.einsum` in a layer of yours.",
    "tf.keras.layers.LocallyConnected2D": "Use `keras.ops.einsum` in a layer of yours.",
    "tf.keras.layers.RandomHeight": "Use `RandomZoom(height_factor)`.",
    "tf.keras.layers.RandomWidth": "Use `RandomZoom(0.0, width_factor)`.",
    "tf.keras.layers.ThresholdedReLU": "Use `ReLU(threshold=theta)`.",
    "tf.keras.layers.experimental.RandomFourierFeatures": "Write `cos(x @ w + b)` as a layer, with "
    "weights that are not trained.",
    "tf.keras.mixed_precision.experimental.LossScale": "Use `tf.keras.mixed_precision."
    "LossScaleOptimizer`.",
    "tf.keras.models.model_from_yaml": "Use `model_from_json`, or `load_model`.",
    "tf.keras.premade": "Build it of layers: `Dense`, `Add`.",
    "tf.keras.utils.GeneratorEnqueuer": "Use `tf.data.Dataset.from_generator` and `prefetch`.",
    "tf.keras.utils.OrderedEnqueuer": "Use `tf.data.Dataset.from_generator` and `prefetch`.",
    "tf.keras.utils.SequenceEnqueuer": "Use `tf.data.Dataset.from_generator` and `prefetch`.",
    "tf.keras.utils.SidecarEvaluator": "Use `rx.train.checkpoints_iterator` and `model.evaluate`.",
    "tf.keras.utils.experimental": "Use `DatasetCreator`; the others are gone.",
    "tf.keras.utils.multi_gpu_model": "Use `tf.distribute.MirroredStrategy`.",
    "tf.keras.wrappers.scikit_learn": "Use `tf.keras.wrappers.SKLearnClassifier`, or scikeras.",
    "tf.layers": "Use `tf.keras.layers`.",
    "tf.linalg.LinearOperator": "Use whole matrices, or functions with `jax.scipy.sparse.linalg`.",
    "tf.linalg.logm": "Use `scipy.linalg.logm` outside compiled code.",
    "tf.linalg.lu": "Use `jax.scipy.linalg.lu`.",
    "tf.linalg.sqrtm": "Use `jax.scipy.linalg.sqrtm`.",
    "tf.lite": "Convert a model that is saved by `model.export(path)`, with LiteRT's own tools.",
    "tf.load_op_library": "Operations of your own: `jax.ffi`, or Pallas kernels.",
    "tf.logging": "Use Python's logging.",
    "tf.make_ndarray": "Arrays are NumPy's already.",
    "tf.make_tensor_proto": "Use `numpy.save`.",
    "tf.math.bessel_i0": "Use `jax.scipy.special.i0`.",
    "tf.math.bessel_i1": "Use `jax.scipy.special.i1`.",
    "tf.math.betainc": "Use `jax.scipy.special.betainc`.",
    "tf.math.igamma": "Use `jax.scipy.special.gammainc`.",
    "tf.math.igammac": "Use `jax.scipy.special.gammaincc`.",
    "tf.math.invert_permutation": "Use `tf.argsort`.",
    "tf.math.ndtri": "Use `jax.scipy.special.ndtri`.",
    "tf.math.nextafter": "Use `jax.numpy.nextafter`.",
    "tf.math.polygamma": "Use `jax.scipy.special.polygamma`.",
    "tf.math.polyval": "Use `jax.numpy.polyval`.",
    "tf.math.sobol_sample": "Use `scipy.stats.qmc.Sobol`.",
    "tf.math.zeta": "Use `jax.scipy.special.zeta`.",
    "tf.mlir": "Use `jax.jit(fn).lower(*args).as_text()`.",
    "tf.nondifferentiable_batch_function": "Batch with `rx.data.Dataset.batch`.",
    "tf.parallel_stack": "Use `tf.stack`.",
    "tf.placeholder": "Pass arrays to a `tf.function`.",
    "tf.profiler.experimental.client": "Use TensorBoard's profile plugin with "
    "tf.profiler.experimental.server.start.",
    "tf.quantization": "Use Keras' `model.quantize`.",
    "tf.queue": "Use `tf.data.Dataset`, or Python's queue.",
    "tf.ragged": "Rows of one length: fill them up with `Dataset.padded_batch`, and mask.",
    "tf.raw_ops": "Use `keras.ops`, or `jax.lax` for what is nearest to the hardware.",
    "tf.recompute_grad": "Use `jax.checkpoint`, or `keras.RematScope`.",
    "tf.register_tensor_conversion_function": "Give the class a method `__jax_array__`.",
    "tf.saved_model.Asset": "Keep the file beside the model, and open it by its path.",
    "tf.set_random_seed": "It is `tf.random.set_seed`.",
    "tf.sets": "Use `jax.numpy.intersect1d` and its sisters with `size=`, or Python's sets.",
    "tf.space_to_batch": "It is `tf.nn.space_to_batch`.",
    "tf.space_to_batch_nd": "It is `tf.nn.space_to_batch`.",
    "tf.sparse": "Arrays are dense: use `jax.experimental.sparse`, or ids with -1 for none.",
    "tf.summary.audio": "Write sounds as files, with a link in tf.summary.text.",
    "tf.summary.graph": "Programs have no graph; `tf.profiler` shows what was compiled.",
    "tf.sysconfig": "Use `jax.print_environment_info()`.",
    "tf.test.compute_gradient": "Use jax.test_util.check_grads.",
    "tf.tools": "Use `replicax plan` for what a model needs.",
    "tf.tpu.experimental.embedding": "Embeddings on SparseCores are not supported: use "
    "`tf.keras.layers.Embedding` or `rx.layers.DistributedEmbedding`.",
    "tf.train.AdamOptimizer": "Use `tf.keras.optimizers.Adam`.",
    "tf.train.CheckpointView": "Use `tf.train.list_variables`.",
    "tf.train.ClusterDef": "Use `tf.train.ClusterSpec`.",
    "tf.train.Coordinator": "Use Python's threading, or `tf.data`.",
    "tf.train.FeatureList": "Records of sequences: use `Dataset.save`, or Parquet.",
    "tf.train.FeatureLists": "Records of sequences: use `Dataset.save`, or Parquet.",
    "tf.train.GradientDescentOptimizer": "Use `tf.keras.optimizers.SGD`.",
    "tf.train.JobDef": "Use `tf.train.ClusterSpec`.",
    "tf.train.SequenceExample": "Records of sequences: use `Dataset.save`, or Parquet.",
    "tf.train.ServerDef": "Pass a `tf.train.ClusterSpec` to `tf.distribute.Server`.",
    "tf.train.TrackableView": "Use `checkpoint.restore(path).unused`.",
    "tf.train.experimental": "A checkpoint is one folder, written by the chief; an object with "
    "`get_state` and `set_state` is saved as it is.",
    "tf.types": "Arrays are `jax.Array`; annotate with that.",
    "tf.variable_creator_scope": "Variables are placed by the strategy of the scope they are made "
    "in.",
    "tf.variable_scope": "Use layers, or `tf.name_scope`.",
    "tf.xla": "`tf.function` compiles with XLA always.",
    "tf_agents": "It needs TensorFlow; on JAX there are rlax and others.",
    "tf_keras": "Use Keras 3: `import replicax.tf as tf`, and `tf.keras`.",
}
# What means something else. The longest part of a name that is here speaks for it.
CHANGES = {
    "keras.layers.BatchNormalization": "Under `fit` the statistics are those of the global batch; "
    "in `strategy.run` each replica's, and moving ones are averaged.",
    "keras.layers.Dropout": "Under `fit` one mask over the global batch; in `strategy.run` a mask "
    "for each replica.",
    "tf.GradientTape": "In compiled code the forward pass is computed once.",
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
    "tf.function": "Traced once for each shape and compiled by XLA; a loop over a data set runs as "
    "plain Python.",
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


def instead(path: str) -> str | None:
    """What to use for a TensorFlow name: by the longest prefix that the list has."""
    parts = path.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((ABSENT[prefix] for prefix in prefixes if prefix in ABSENT), None)
