"""What `tf.keras` and `tf.data` of TensorFlow have and Replicax has not, and what to use."""

from __future__ import annotations

# Sorted. A sentence each; the longest prefix of a name that is here speaks for it.
ABSENT_KERAS = {
    "tf.data.FixedLengthRecordDataset": "Read the file with `numpy.fromfile`, and pass "
    "the rows to `from_tensor_slices`.",
    "tf.data.NumpyIterator": "Use `dataset.as_numpy_iterator()`.",
    "tf.data.experimental.RandomDataset": "Use `Dataset.range(n).map` with a NumPy generator.",
    "tf.data.experimental.SqlDataset": "Use `from_generator` with a cursor of Python's sqlite3.",
    "tf.data.experimental.bucket_by_sequence_length": "Sort by length, or use `padded_batch`.",
    "tf.data.experimental.dense_to_ragged_batch": "Use `Dataset.padded_batch`.",
    "tf.data.experimental.make_batched_features_dataset": "Use `TFRecordDataset`, "
    "`rx.data.parse_example` in `map`, and `batch`.",
    "tf.data.experimental.snapshot": "Use `Dataset.cache(path)` or `Dataset.save(path)`.",
    "tf.keras.__internal__": "It is TensorFlow's own; use what `tf.keras` documents.",
    "tf.keras.backend": "Use `keras.ops`: it has the functions of tensors.",
    "tf.keras.backend.function": "Call the model, or `tf.function`.",
    "tf.keras.backend.get_session": "Sessions are gone since TensorFlow 2; leave it out.",
    "tf.keras.backend.gradients": "Use `tf.GradientTape`.",
    "tf.keras.backend.learning_phase": "Pass `training=True` or `False` to the model.",
    "tf.keras.backend.placeholder": "Use `tf.keras.Input`.",
    "tf.keras.backend.set_learning_phase": "Pass `training=True` or `False` to the model.",
    "tf.keras.backend.set_session": "Sessions are gone since TensorFlow 2; leave it out.",
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
    "tf.keras.layers.experimental.SyncBatchNormalization": "In `fit` statistics are of the whole "
    "batch anyway: use `BatchNormalization`; in `strategy.run` they are of a replica.",
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
}
