"""What TensorFlow has and Replicax has not, and what means something else here; as data.

Errors for missing names and `replicax migrate` read both. Names are sorted, with a sentence each;
"tf.keras.Model.fit(workers)" is an argument, and "…(run_eagerly=True)" a value of one.
"""

from __future__ import annotations

# What to use instead. The longest prefix of a name that is here speaks for it.
ABSENT = {
    "keras_cv": "Use keras_hub, its successor: it runs on JAX.",
    "keras_nlp": "Use keras_hub, its successor: it runs on JAX.",
    "tensorboard": "It is a program of its own and stays; `tf.summary` writes its files.",
    "tensorflow_addons": "It ended in 2024; most of it is in Keras 3, and optax has optimizers.",
    "tensorflow_addons.activations.gelu": "It is `keras.activations.gelu`; approximate=False is "
    "the default there, too.",
    "tensorflow_addons.activations.hardshrink": "It is `keras.activations.hard_shrink`.",
    "tensorflow_addons.activations.mish": "It is `keras.activations.mish`.",
    "tensorflow_addons.activations.softshrink": "It is `keras.activations.soft_shrink`.",
    "tensorflow_addons.activations.sparsemax": "It is `keras.activations.sparsemax`.",
    "tensorflow_addons.activations.tanhshrink": "It is `keras.activations.tanh_shrink`.",
    "tensorflow_addons.image.rotate": "Use `keras.layers.RandomRotation`, or "
    "`keras.ops.image.affine_transform`.",
    "tensorflow_addons.image.translate": "Use `keras.layers.RandomTranslation`, or "
    "`keras.ops.image.affine_transform`.",
    "tensorflow_addons.layers.AdaptiveAveragePooling2D": "Use "
    "`keras.layers.AdaptiveAveragePooling2D`.",
    "tensorflow_addons.layers.GELU": "Use `keras.layers.Activation('gelu')`.",
    "tensorflow_addons.layers.GroupNormalization": "It is `keras.layers.GroupNormalization`.",
    "tensorflow_addons.layers.InstanceNormalization": "Use "
    "`keras.layers.GroupNormalization(groups=-1)`.",
    "tensorflow_addons.layers.Maxout": "Use `keras.ops.max` of a reshaped `Dense` layer's output.",
    "tensorflow_addons.layers.MultiHeadAttention": "Use `keras.layers.MultiHeadAttention`.",
    "tensorflow_addons.layers.SpectralNormalization": "It is `keras.layers.SpectralNormalization`.",
    "tensorflow_addons.layers.StochasticDepth": "Use `keras.layers.Dropout(rate, "
    "noise_shape=(None, 1, 1, 1))`.",
    "tensorflow_addons.layers.WeightNormalization": "Normalize the kernel in a layer of yours; "
    "`keras.layers.SpectralNormalization` and `UnitNormalization` are others.",
    "tensorflow_addons.losses.SigmoidFocalCrossEntropy": "Use "
    "`keras.losses.BinaryFocalCrossentropy(apply_class_balancing=True)`.",
    "tensorflow_addons.metrics.CohenKappa": "Use scikit-learn's `cohen_kappa_score` on "
    "predictions.",
    "tensorflow_addons.metrics.F1Score": "It is `keras.metrics.F1Score`.",
    "tensorflow_addons.metrics.FBetaScore": "It is `keras.metrics.FBetaScore`.",
    "tensorflow_addons.metrics.MeanMetricWrapper": "It is `keras.metrics.MeanMetricWrapper`.",
    "tensorflow_addons.metrics.RSquare": "It is `keras.metrics.R2Score`.",
    "tensorflow_addons.optimizers.AdamW": "It is `keras.optimizers.AdamW`; its weight_decay is "
    "multiplied by the learning rate.",
    "tensorflow_addons.optimizers.CyclicalLearningRate": "Subclass "
    "`keras.optimizers.schedules.LearningRateSchedule`.",
    "tensorflow_addons.optimizers.ExponentialCyclicalLearningRate": "Subclass "
    "`keras.optimizers.schedules.LearningRateSchedule`.",
    "tensorflow_addons.optimizers.LAMB": "It is `keras.optimizers.Lamb`.",
    "tensorflow_addons.optimizers.Lookahead": "Use `optax.lookahead` in a step of yours.",
    "tensorflow_addons.optimizers.MovingAverage": "Pass `use_ema=True` to the optimizer.",
    "tensorflow_addons.optimizers.RectifiedAdam": "Use `keras.optimizers.Adam` with a warmup, "
    "or `optax.radam`.",
    "tensorflow_addons.optimizers.SGDW": "Use `keras.optimizers.SGD(weight_decay=…)`.",
    "tensorflow_addons.optimizers.SWA": "Pass `use_ema=True` to the optimizer.",
    "tensorflow_addons.optimizers.extend_with_decoupled_weight_decay": "Pass `weight_decay=` to "
    "Keras' optimizer.",
    "tensorflow_hub": "Use keras_hub's presets, or a saved model's weights in a Keras model.",
    "tensorflow_io": "Read the files with a Python library in `Dataset.map` or `from_generator`.",
    "tensorflow_model_optimization": "Use Keras 3's `model.quantize`.",
    "tensorflow_probability": "Its JAX half works: `import tensorflow_probability.substrates.jax "
    "as tfp`.",
    "tensorflow_text": "Use keras_hub's tokenizers, or Python's own text functions in "
    "`Dataset.map`.",
    "tf.AggregationMethod": "Gradients are added up; leave it out.",
    "tf.ConfigProto": "Sessions are gone; see `tf.config` for the devices.",
    "tf.CriticalSection": "A step runs at once on its device; leave it out.",
    "tf.Graph": "Programs have no graph: `tf.function` compiles what it traces with JAX.",
    "tf.GraphDef": "Programs have no graph; `jax.export` keeps a compiled function.",
    "tf.IndexedSlicesSpec": "Gradients are dense arrays.",
    "tf.InteractiveSession": "Sessions are gone since TensorFlow 2: call the function itself.",
    "tf.OptionalSpec": "Use Python's `next(iterator, default)`.",
    "tf.RaggedTensor.from_nested_row_splits": "One axis is ragged: fill the inner rows up.",
    "tf.RaggedTensor.from_uniform_row_length": "Use `tf.reshape`: such rows are alike.",
    "tf.RaggedTensor.merge_dims": "One axis is ragged: `values` are all of them.",
    "tf.RegisterGradient": "Use `tf.custom_gradient`.",
    "tf.Session": "Sessions are gone since TensorFlow 2: call the function itself.",
    "tf.Tensor.eval": "Sessions are gone since TensorFlow 2: use `.numpy()`.",
    "tf.Variable.count_up_to": "Use `assign_add`, or `tf.data.Dataset.range`.",
    "tf.Variable.eval": "Sessions are gone since TensorFlow 2: use `.numpy()`.",
    "tf.Variable.load": "Use `assign`.",
    "tf.app": "Use argparse and Python's own `if __name__ == '__main__'`.",
    "tf.autodiff": "Use `jax.jvp` for forward mode; `tf.GradientTape` for gradients.",
    "tf.autodiff.ForwardAccumulator": "Use `jax.jvp(function, primals, tangents)`.",
    "tf.autograph": "`tf.function` converts control flow; `do_not_convert` and `to_code` are here.",
    "tf.batch_to_space": "It is `tf.nn.batch_to_space`.",
    "tf.compat": "Programs for TensorFlow 1 have to be written for TensorFlow 2 first.",
    "tf.compat.v1": "Programs for TensorFlow 1 have to be written for TensorFlow 2 first: no "
    "sessions, no placeholders.",
    "tf.config.experimental.set_synchronous_execution": "Call jax.block_until_ready on results.",
    "tf.contrib": "It ended with TensorFlow 1.",
    "tf.data.Dataset.bucket_by_sequence_length": "Sort by length, or use `padded_batch`.",
    "tf.data.Dataset.filter_with_legacy_function": "Use `filter`.",
    "tf.data.Dataset.get_single_element": "Use `next(iter(dataset))`.",
    "tf.data.Dataset.make_initializable_iterator": "Use `iter(dataset)`.",
    "tf.data.Dataset.make_one_shot_iterator": "Use `iter(dataset)`.",
    "tf.data.Dataset.map_with_legacy_function": "Use `map`.",
    "tf.data.Dataset.output_shapes": "Use `element_spec`.",
    "tf.data.Dataset.output_types": "Use `element_spec`.",
    "tf.data.Dataset.ragged_batch": "Use `padded_batch`, or `tf.ragged.stack` of several elements.",
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
    "tf.distribute.Strategy.experimental_make_numpy_dataset": "Use "
    "`tf.data.Dataset.from_tensor_slices`.",
    "tf.distribute.Strategy.experimental_run": "Use `run` with the next batch.",
    "tf.distribute.Strategy.experimental_run_v2": "It is `run`.",
    "tf.distribute.Strategy.make_dataset_iterator": "Use "
    "`iter(strategy.experimental_distribute_dataset(dataset))`.",
    "tf.distribute.Strategy.unwrap": "It is `experimental_local_results`.",
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
    "tf.experimental.async_scope": "JAX computes asynchronously always; leave it out.",
    "tf.experimental.dtensor": "Use `rx.ModelParallelStrategy`.",
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
    "tf.io.SparseFeature": "Read its indices and values as `tf.io.RaggedFeature`s, and make a "
    "`tf.SparseTensor` of them.",
    "tf.io.decode_proto": "Use the message's own `FromString` in `Dataset.map`.",
    "tf.io.write_graph": "Programs have no graph.",
    "tf.keras.Model._feed_input_names": "Use the names of `model.inputs`.",
    "tf.keras.Model._is_graph_network": "Ask for `model.inputs`, which only such a model has.",
    "tf.keras.Model.distribute_strategy": "Keep the strategy yourself, or call "
    "`tf.distribute.get_strategy()` in its scope.",
    "tf.keras.Model.evaluate_generator": "`evaluate` takes generators.",
    "tf.keras.Model.fit_generator": "`fit` takes generators.",
    "tf.keras.Model.get_weight_paths": "Variables have a `path`.",
    "tf.keras.Model.input_names": "Use the names of `model.inputs`.",
    "tf.keras.Model.predict_classes": "Use `predict(x).argmax(-1)`.",
    "tf.keras.Model.predict_generator": "`predict` takes generators.",
    "tf.keras.Model.predict_proba": "Use `predict`.",
    "tf.keras.Model.state_updates": "Assign in `call`: the assignment is the update.",
    "tf.keras.Model.test_on_batch(reset_metrics)": "Call `model.reset_metrics()` before it for "
    "what was True.",
    "tf.keras.Model.to_yaml": "Use `to_json`.",
    "tf.keras.Model.total_loss": "Use what `train_on_batch` or `evaluate` return.",
    "tf.keras.Model.train_on_batch(reset_metrics)": "Call `model.reset_metrics()` before it for "
    "what was True.",
    "tf.keras.Model.uses_learning_phase": "Pass `training=True` or `False` to the model.",
    "tf.keras.backend": "Use `keras.ops`: it has the functions of tensors.",
    "tf.keras.backend.experimental": "Random numbers are JAX's always; leave it out.",
    "tf.keras.backend.function": "Call the model, or `tf.function`.",
    "tf.keras.backend.get_session": "Sessions are gone since TensorFlow 2; leave it out.",
    "tf.keras.backend.gradients": "Use `tf.GradientTape`.",
    "tf.keras.backend.learning_phase": "Pass `training=True` or `False` to the model.",
    "tf.keras.backend.placeholder": "Use `tf.keras.Input`.",
    "tf.keras.backend.set_learning_phase": "Pass `training=True` or `False` to the model.",
    "tf.keras.backend.set_session": "Sessions are gone since TensorFlow 2; leave it out.",
    "tf.keras.callbacks.Callback.validation_data": "Pass the data to the callback yourself.",
    "tf.keras.callbacks.TensorBoard(write_grads)": "Write them in `train_step`, by "
    "`tf.summary.histogram`.",
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
    "tf.keras.layers.Layer.add_update": "Assign in `call`: the assignment is the update.",
    "tf.keras.layers.Layer.compute_output_signature": "Use `compute_output_spec`.",
    "tf.keras.layers.Layer.dynamic": "Leave it out: to run as Python, compile with "
    "`run_eagerly=True`.",
    "tf.keras.layers.Layer.get_input_at": "Use `layer.input`, or keep the tensor of each call.",
    "tf.keras.layers.Layer.get_input_shape_at": "Use `layer.input.shape`.",
    "tf.keras.layers.Layer.get_losses_for": "Use `losses`.",
    "tf.keras.layers.Layer.get_output_at": "Use `layer.output`, or keep the tensor of each call.",
    "tf.keras.layers.Layer.get_output_shape_at": "Use `layer.output.shape`.",
    "tf.keras.layers.Layer.get_updates_for": "Assign in `call`: the assignment is the update.",
    "tf.keras.layers.Layer.submodules": "Use `layers` of a model, or attributes.",
    "tf.keras.layers.Layer.updates": "Assign in `call`: the assignment is the update.",
    "tf.keras.layers.Layer.with_name_scope": "Use `tf.name_scope` in the method.",
    "tf.keras.layers.LocallyConnected1D": "Use `keras.ops.einsum` in a layer of yours.",
    "tf.keras.layers.LocallyConnected2D": "Use `keras.ops.einsum` in a layer of yours.",
    "tf.keras.layers.RandomHeight": "Use `RandomZoom(height_factor)`.",
    "tf.keras.layers.RandomWidth": "Use `RandomZoom(0.0, width_factor)`.",
    "tf.keras.layers.ThresholdedReLU": "Use `ReLU(threshold=theta)`.",
    "tf.keras.layers.experimental.RandomFourierFeatures": "Write `cos(x @ w + b)` as a layer, with "
    "weights that are not trained.",
    "tf.keras.metrics.MeanTensor": "Add up in a variable of a metric of yours.",
    "tf.keras.metrics.Metric.get_weights": "Use the values of `variables`.",
    "tf.keras.metrics.Metric.set_weights": "Assign to `variables`.",
    "tf.keras.metrics.Metric.updates": "Assign in `update_state`: the assignment is the update.",
    "tf.keras.metrics.Metric.weights": "Use `variables`.",
    "tf.keras.mixed_precision.experimental.LossScale": "Use `tf.keras.mixed_precision."
    "LossScaleOptimizer`.",
    "tf.keras.models.model_from_yaml": "Use `model_from_json`, or `load_model`.",
    "tf.keras.optimizers.Optimizer._decayed_lr": "Use `learning_rate`.",
    "tf.keras.optimizers.Optimizer._get_hyper": "Keep the value as an attribute.",
    "tf.keras.optimizers.Optimizer._set_hyper": "Keep the value as an attribute.",
    "tf.keras.optimizers.Optimizer.add_slot": "Use `add_variable_from_reference` in `build`.",
    "tf.keras.optimizers.Optimizer.add_weight": "Use `add_variable` in `build`.",
    "tf.keras.optimizers.Optimizer.aggregate_gradients": "Leave it out: `apply_gradients` adds "
    "up what replicas give it.",
    "tf.keras.optimizers.Optimizer.compute_gradients": "Use `tf.GradientTape`.",
    "tf.keras.optimizers.Optimizer.get_gradients": "Use `tf.GradientTape`.",
    "tf.keras.optimizers.Optimizer.get_unscaled_gradients": "Leave it out: gradients are scaled "
    "back when they are applied.",
    "tf.keras.optimizers.Optimizer.get_updates": "Use `apply_gradients`.",
    "tf.keras.optimizers.Optimizer.updates": "Use `apply_gradients`.",
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
    "tf.python": "It is TensorFlow's inside: use the public name.",
    "tf.python.keras": "Use `tf.keras`.",
    "tf.quantization": "Use Keras' `model.quantize`.",
    "tf.queue": "Use `tf.data.Dataset`, or Python's queue.",
    "tf.ragged": "Make an array of the rows with `to_tensor()`, and mask.",
    "tf.ragged.cross": "Use `tf.keras.layers.HashedCrossing`.",
    "tf.ragged.cross_hashed": "Use `tf.keras.layers.HashedCrossing`.",
    "tf.ragged.stack_dynamic_partitions": "Sort by the partitions, and use "
    "`tf.RaggedTensor.from_value_rowids`.",
    "tf.raw_ops": "Use `keras.ops`, or `jax.lax` for what is nearest to the hardware.",
    "tf.register_tensor_conversion_function": "Give the class a method `__jax_array__`.",
    "tf.saved_model.Asset": "Keep the file beside the model, and open it by its path.",
    "tf.set_random_seed": "It is `tf.random.set_seed`.",
    "tf.sets": "Use `jax.numpy.intersect1d` and its sisters with `size=`, or Python's sets.",
    "tf.space_to_batch": "It is `tf.nn.space_to_batch`.",
    "tf.space_to_batch_nd": "It is `tf.nn.space_to_batch`.",
    "tf.sparse": "Make an array of it with `tf.sparse.to_dense`.",
    "tf.sparse.bincount": "Use `tf.math.bincount` of the values.",
    "tf.sparse.cross": "Use `tf.keras.layers.HashedCrossing`.",
    "tf.sparse.cross_hashed": "Use `tf.keras.layers.HashedCrossing`.",
    "tf.sparse.eye": "Use `tf.sparse.from_dense(tf.eye(n))`.",
    "tf.sparse.mask": "Gradients are dense arrays: use `tf.where`.",
    "tf.sparse.reset_shape": "Make a `tf.SparseTensor` of its indices and values with that shape.",
    "tf.sparse.segment_mean": "Use `tf.math.segment_mean(tf.gather(data, indices), ids)`.",
    "tf.sparse.segment_sqrt_n": "Use `tf.math.segment_sum(tf.gather(data, indices), ids)`.",
    "tf.sparse.segment_sum": "Use `tf.math.segment_sum(tf.gather(data, indices), ids)`.",
    "tf.sparse.split": "Use `tf.sparse.slice`.",
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
    "tf.train.GradientDescentOptimizer": "Use `tf.keras.optimizers.SGD`.",
    "tf.train.JobDef": "Use `tf.train.ClusterSpec`.",
    "tf.train.ServerDef": "Pass a `tf.train.ClusterSpec` to `tf.distribute.Server`.",
    "tf.train.TrackableView": "Use `checkpoint.restore(path).unused`.",
    "tf.train.experimental": "A checkpoint is one folder, written by the chief; an object with "
    "`get_state` and `set_state` is saved as it is.",
    "tf.types.experimental": "Arrays are `jax.Array`; annotate with that.",
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
    "tensorflow_datasets.builder": "Its data sets are those of `rx.data`, of ArrayRecord files.",
    "tensorflow_datasets.load": "Data sets of `rx.data`, of ArrayRecord files; needs `pip install "
    "tensorflow-datasets array_record`.",
    "tf.GradientTape": "In compiled code the forward pass is computed once.",
    "tf.RaggedTensor": "One axis is ragged, the second; compiled code is compiled for the lengths "
    "of the rows.",
    "tf.Variable": "It is a `keras.Variable`: `value` is an attribute; an integer has 32 bits; a "
    "write that differs between replicas needs an aggregation.",
    "tf.config.experimental.set_memory_growth": "Holds for all GPUs of the process; before JAX is "
    "used.",
    "tf.config.experimental_connect_to_cluster": "Every host runs the program; it joins the "
    "cluster of a TPU.",
    "tf.config.run_functions_eagerly": "What `strategy.run` is given stays compiled.",
    "tf.config.set_logical_device_configuration": "For CPUs, before JAX is used.",
    "tf.config.set_soft_device_placement": "Has no effect: XLA places operations.",
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
    "`service` have no effect; `fallback=` names devices for machines without a TPU.",
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
    "tf.function(jit_compile=False)": "Compiled by XLA all the same.",
    "tf.int64": "Computed in 32 bits unless `jax_enable_x64` is set; a value that does not fit is "
    "an error.",
    "tf.keras.Model.compile(jit_compile=False)": "Compiled by XLA all the same.",
    "tf.keras.Model.compile(run_eagerly=True)": "Under a strategy a step is compiled all the "
    "same; print with `tf.print`.",
    "tf.keras.Model.export": "A folder that `tf.saved_model.load` here reads.",
    "tf.keras.Model.load_weights": "Reads Keras 3's `.weights.h5`, and TensorFlow's checkpoints.",
    "tf.keras.Model.load_weights(by_name)": "For files of Keras 2, `.h5`.",
    "tf.keras.Model.save(include_optimizer)": "Always for `.keras`; of `.h5` it is heeded.",
    "tf.keras.Model.save(options)": "Has no effect.",
    "tf.keras.Model.save(save_format)": "The path's ending decides; a path without one becomes a "
    "folder.",
    "tf.keras.Model.save(save_traces)": "Has no effect.",
    "tf.keras.Model.save(signatures)": "Of a folder, for `tf.saved_model.load`; a file has none.",
    "tf.keras.layers.BatchNormalization": "Under `fit` the statistics are those of the global "
    "batch; in `strategy.run` each replica's, and moving ones are averaged.",
    "tf.keras.layers.Dropout": "Under `fit` one mask over the global batch; in `strategy.run` a "
    "mask for each replica.",
    "tf.keras.optimizers.Optimizer(decay)": "The rate is divided by 1 + decay · updates.",
    "tf.keras.optimizers.legacy": "Keras 3's optimizers under their old names.",
    "tf.nn.ctc_beam_search_decoder": "With few beams others may be kept; by Keras.",
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
    "tf.sparse": "Results of unknown size are computed outside of compiled code.",
    "tf.train.Checkpoint": "Restores TensorFlow's, writes another format; checked at once when it "
    "is restored; with several workers the chief writes, and all call the same methods.",
    "tf.train.CheckpointManager": "The latest is the one with the highest number; all workers call "
    "`save`.",
    "tf.train.latest_checkpoint": "By the number in its name, or the newest `.weights.h5`.",
    "tf.while_loop": "Compiled by `jax.lax.while_loop`: shapes must not change; reverse-mode "
    "gradients need `maximum_iterations`.",
}


def instead(path: str) -> str | None:
    """What to use for a TensorFlow name: by the longest prefix that the list has."""
    parts = path.split(".")
    prefixes = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((ABSENT[prefix] for prefix in prefixes if prefix in ABSENT), None)
