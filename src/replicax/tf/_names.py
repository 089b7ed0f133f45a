"""Every namespace of `replicax.tf`: what it is, and where its names come from; as data.

A namespace is its text, then its sources; the first source that has a name gives it. A source is
a module whose public names are handed on, or a dict from names to their homes: `"module"` has the
name itself, `"module:other"` has it as `other`, and `"module:"` is the module. A module that begins
with a dot is one of `replicax.tf`. Nothing is loaded before it is asked for. Stub files for editors
are made from this table (`hatch_build.py`), which therefore imports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

Source = str | Mapping[str, str]


def _of(module: str, *names: str) -> dict[str, str]:
    """Names of a module; `shown=own` where it has them by another name."""
    pairs = (name.partition("=") for name in names)
    return {shown: f"{module}:{own}" if own else module for shown, _, own in pairs}


# Names side by side, as a table has them.
# fmt: off
_DTYPES = _of(
    "._dtypes",
    "DType", "as_dtype", "bfloat16", "bool", "complex128", "complex64", "double", "float16",
    "float32", "float64", "half", "int16", "int32", "int64", "int8", "string", "uint16", "uint32",
    "uint64", "uint8",
)
_ARITHMETIC = _of(
    "._elementwise",
    "abs", "acos", "acosh", "add", "add_n", "asin", "asinh", "atan", "atan2", "atanh", "cos",
    "cosh", "divide", "equal", "exp", "floor", "greater", "greater_equal", "less", "less_equal",
    "logical_and", "logical_not", "logical_or", "maximum", "minimum", "multiply", "negative",
    "not_equal", "pow", "round", "scalar_mul", "sigmoid", "sign", "sin", "sinh", "sqrt", "square",
    "subtract", "tan", "tanh", "truediv",
)
_SHORT_NAMES = _of(
    "keras.losses",
    "bce=binary_crossentropy", "cosine_proximity=cosine_similarity", "KLD=kl_divergence",
    "kld=kl_divergence", "kullback_leibler_divergence=kl_divergence", "logcosh=log_cosh",
    "MAE=mean_absolute_error", "mae=mean_absolute_error", "MAPE=mean_absolute_percentage_error",
    "mape=mean_absolute_percentage_error", "MSE=mean_squared_error", "mse=mean_squared_error",
    "MSLE=mean_squared_logarithmic_error", "msle=mean_squared_logarithmic_error",
)
_TEXT_LAYERS = _of(
    "replicax.layers",
    "Discretization", "HashedCrossing", "Hashing", "IntegerLookup", "StringLookup",
    "TextVectorization",
)
_DATA_SETS = _of(
    "replicax.data",
    "image_dataset_from_directory", "text_dataset_from_directory", "timeseries_dataset_from_array",
)
_LAYERS: tuple[Source, ...] = (_TEXT_LAYERS, "keras.layers")
_LOSSES: tuple[Source, ...] = (
    {"Reduction": "._keras2.classes", **_SHORT_NAMES},
    "keras.losses",
)
_METRICS: tuple[Source, ...] = (_SHORT_NAMES, "keras.metrics")
_CALLBACKS: tuple[Source, ...] = (
    {"BackupAndRestore": "._keras2.classes", "TensorBoard": "replicax.callbacks"},
    "keras.callbacks",
)
_RESOLVERS = _of(
    "replicax.cluster_resolver",
    "ClusterResolver", "GCEClusterResolver", "KubernetesClusterResolver",
    "KubernetesExecutableLocation", "SimpleClusterResolver", "SlurmClusterResolver",
    "TFConfigClusterResolver", "TPUClusterResolver", "UnionResolver",
)
_OLDER_STRATEGIES = {
    **_of("replicax", "CentralStorageStrategy", "ParameterServerStrategy"),
    **_of("replicax.experimental", "TPUStrategy"),
    **_of("._distribute", "CollectiveHints", "MultiWorkerMirroredStrategy"),
    "CollectiveCommunication": "replicax.experimental:CommunicationImplementation",
}
_SAVING = _of("._keras2.saving", "load_model", "save_model")

NAMESPACES: dict[str, tuple[str, *tuple[Source, ...]]] = {
    "tf": (
        "a program written for TensorFlow's strategies, on Keras 3 and JAX",
        _DTYPES,
        _of(
            "replicax",
            "GradientTape", "Module", "Variable", "VariableAggregation", "VariableSynchronization",
            "custom_gradient", "function", "print",
        ),
        _of(
            "._debugging", "Assert", "assert_equal", "assert_greater", "assert_less", "assert_rank"
        ),
        {
            "as_string": "._strings",
            "space_to_batch": "._convolutions",
            "UnconnectedGradients": "replicax._tape.tape_entries",
            "recompute_grad": "replicax._tape.custom_gradient",
        },
        _of(
            "keras.initializers",
            "constant_initializer=Constant", "ones_initializer=Ones", "zeros_initializer=Zeros",
            "random_normal_initializer=RandomNormal", "random_uniform_initializer=RandomUniform",
        ),
        _of(
            "._services",
            "control_dependencies", "device", "executing_eagerly", "get_logger", "group",
            "init_scope", "inside_function", "name_scope", "no_op", "numpy_function", "py_function",
            "stop_gradient", "timestamp",
        ),
        _of(
            "._tensors",
            "IndexedSlices", "Tensor", "TensorShape", "TensorSpec", "constant", "convert_to_tensor",
            "ensure_shape", "get_static_value", "identity", "identity_n", "is_tensor",
        ),
        {"DeviceSpec": "._config", "TypeSpec": "._tensors:TensorSpec"},
        _of(
            "._arrays",
            "broadcast_dynamic_shape", "broadcast_static_shape", "broadcast_to", "concat",
            "expand_dims", "eye", "fill", "linspace", "meshgrid", "one_hot", "ones", "ones_like",
            "pad", "rank", "repeat", "reshape", "reverse", "reverse_sequence", "roll",
            "sequence_mask", "shape", "shape_n", "size", "split", "squeeze", "stack", "tile",
            "transpose", "unstack", "zeros", "zeros_like",
        ),
        _ARITHMETIC,
        _of(
            "._elementwise",
            "bitcast", "cast", "clip_by_value", "complex", "realdiv", "saturate_cast",
            "truncatediv", "truncatemod",
        ),
        _of(
            "._indexing",
            "argsort", "boolean_mask", "dynamic_partition", "dynamic_stitch", "gather",
            "gather_nd", "newaxis", "scatter_nd", "searchsorted", "slice", "sort",
            "strided_slice", "tensor_scatter_nd_add", "tensor_scatter_nd_max",
            "tensor_scatter_nd_min", "tensor_scatter_nd_sub", "tensor_scatter_nd_update",
            "unique", "unique_with_counts", "unravel_index", "where",
        ),
        _of(
            "._linalg",
            "clip_by_global_norm", "clip_by_norm", "einsum", "matmul", "norm", "tensordot",
        ),
        _of(
            "._reductions",
            "argmax", "argmin", "cumsum", "reduce_all", "reduce_any", "reduce_logsumexp",
            "reduce_max", "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum",
        ),
        _of(
            "._flow.control_flow",
            "case", "cond", "foldl", "foldr", "map_fn", "scan", "switch_case", "vectorized_map",
            "while_loop",
        ),
        _of("._flow.ranges", "range"),
        _of("._flow.tensor_array", "TensorArray"),
        _of("._ragged", "RaggedTensor", "RaggedTensorSpec"),
        _of("._sparse", "SparseTensor", "SparseTensorSpec"),
        {"__version__": "._services:VERSION"},
    ),
    "tf.audio": ("sounds; on the host, with NumPy", _of("._files", "decode_wav", "encode_wav")),
    "tf.autograph": (
        "Python's control flow, converted for compiled code",
        _of("._autograph.calling", "set_verbosity", "to_code", "to_graph", "trace"),
    ),
    "tf.autograph.experimental": (
        "marks of functions and loops",
        _of("._autograph.calling", "do_not_convert"),
        _of("._autograph.converting", "set_loop_options"),
    ),
    "tf.bitwise": (
        "bits of integers",
        _of(
            "._elementwise",
            "bitwise_and", "bitwise_or", "bitwise_xor", "invert", "left_shift", "right_shift",
        ),
    ),
    "tf.compat": (
        "texts and bytes, `tf` itself as `v2`, and as `v1` what means the same there",
        _of("._compat", "as_bytes", "as_str", "as_str_any", "as_text", "path_to_str"),
        {"v2": "replicax.tf:"},
    ),
    "tf.compat.v1": (
        "the names of `tf` that mean the same in version 1, and a few of its own",
        _of(
            "._compat",
            "ConfigProto", "GPUOptions", "InteractiveSession", "Session",
            "enable_eager_execution", "enable_resource_variables", "enable_v2_behavior",
            "enable_v2_tensorshape", "executing_eagerly_outside_functions", "set_random_seed",
            "to_float", "to_int32",
        ),
        {"log": "._elementwise"},
    ),
    "tf.compat.v1.app": ("`absl.app`", "absl.app"),
    "tf.compat.v1.flags": ("`absl.flags`", "absl.flags"),
    "tf.compat.v1.gfile": (
        "`tf.io.gfile`, by its first names",
        _of(
            "._files",
            "GFile", "Open", "Copy=copy", "DeleteRecursively=rmtree", "Exists=exists",
            "FastGFile=GFile", "Glob=glob", "IsDirectory=isdir", "ListDirectory=listdir",
            "MakeDirs=makedirs", "MkDir=mkdir", "Remove=remove", "Rename=rename", "Stat=stat",
            "Walk=walk",
        ),
    ),
    "tf.compat.v1.logging": (
        "the logger of Replicax",
        _of(
            "._compat",
            "DEBUG", "ERROR", "FATAL", "INFO", "WARN", "WARNING", "debug", "error", "fatal",
            "get_verbosity", "info", "log", "set_verbosity", "warn", "warning",
        ),
    ),
    "tf.config": (
        "devices, and how compiled functions run",
        _of(
            "._config",
            "LogicalDevice", "LogicalDeviceConfiguration", "PhysicalDevice",
            "get_logical_device_configuration", "get_soft_device_placement", "get_visible_devices",
            "list_logical_devices", "list_physical_devices", "set_logical_device_configuration",
            "set_soft_device_placement", "set_visible_devices",
        ),
        _of(
            "replicax._function.function",
            "functions_run_eagerly", "run_functions_eagerly",
            "experimental_functions_run_eagerly=functions_run_eagerly",
            "experimental_run_functions_eagerly=run_functions_eagerly",
        ),
        _of("replicax.config", "experimental_connect_to_cluster", "experimental_connect_to_host"),
    ),
    "tf.config.experimental": (
        "older spellings, memory of GPUs, precision and determinism",
        _of(
            "._config",
            "enable_tensor_float_32_execution", "get_device_details", "get_memory_growth",
            "get_memory_info", "get_memory_usage", "get_visible_devices", "list_logical_devices",
            "list_physical_devices", "set_memory_growth", "set_visible_devices",
            "tensor_float_32_execution_enabled",
            "VirtualDeviceConfiguration=LogicalDeviceConfiguration",
            "get_virtual_device_configuration=get_logical_device_configuration",
            "set_virtual_device_configuration=set_logical_device_configuration",
        ),
        _of("replicax._core.machine.startup", "enable_op_determinism=compute_deterministically"),
    ),
    "tf.config.optimizer": (
        "noted, and of no consequence: XLA compiles and optimizes everything",
        _of(
            "._config",
            "get_experimental_options", "get_jit", "set_experimental_options", "set_jit",
        ),
    ),
    "tf.config.threading": (
        "noted, and of no consequence: XLA chooses its threads by the cores",
        _of(
            "._config",
            "get_inter_op_parallelism_threads", "get_intra_op_parallelism_threads",
            "set_inter_op_parallelism_threads", "set_intra_op_parallelism_threads",
        ),
    ),
    "tf.data": (
        # Where `replicax.tf` is imported, a loop over any data set gets arrays, numbers and texts
        # that have `numpy()`; functions of `map` and `as_numpy_iterator` get plain ones.
        "the pipelines of `replicax.data`, the same objects as there",
        _of(
            "replicax.data",
            "AUTOTUNE", "Dataset", "INFINITE_CARDINALITY", "Options", "TFRecordDataset",
            "TextLineDataset", "ThreadingOptions", "UNKNOWN_CARDINALITY", "DatasetSpec=ArraySpec",
            "Iterator=DatasetIterator", "IteratorSpec=ArraySpec",
        ),
    ),
    "tf.data.experimental": (
        "what has become methods since, as the functions that it was",
        _of(
            "._data",
            "Counter", "assert_cardinality", "choose_from_datasets", "copy_to_device",
            "enumerate_dataset", "get_single_element", "get_structure", "load", "map_and_batch",
            "parallel_interleave", "prefetch_to_device", "sample_from_datasets", "save", "scan",
            "shuffle_and_repeat", "take_while", "unbatch",
        ),
        "replicax.data.experimental",
    ),
    "tf.debugging": (
        "checks; checks of values work in compiled code, too",
        _of(
            "._debugging",
            "Assert", "assert_all_finite", "assert_equal", "assert_greater", "assert_greater_equal",
            "assert_integer", "assert_less", "assert_less_equal", "assert_near", "assert_negative",
            "assert_non_negative", "assert_non_positive", "assert_none_equal", "assert_positive",
            "assert_rank", "assert_rank_at_least", "assert_rank_in", "assert_same_float_dtype",
            "assert_scalar", "assert_shapes", "assert_type", "check_numerics",
            "disable_check_numerics", "disable_traceback_filtering", "enable_check_numerics",
            "enable_traceback_filtering", "get_log_device_placement", "is_numeric_tensor",
            "is_traceback_filtering_enabled", "set_log_device_placement",
        ),
    ),
    "tf.distribute": (
        "the strategies of Replicax, under TensorFlow's names",
        _of(
            "replicax",
            "CentralStorageStrategy", "CrossDeviceOps", "DistributedDataset", "DistributedIterator",
            "DistributedValues", "HierarchicalCopyAllReduce", "InputContext", "InputOptions",
            "InputReplicationMode", "MirroredStrategy", "MultiWorkerMirroredStrategy",
            "NcclAllReduce", "OneDeviceStrategy", "ParameterServerStrategy", "ReduceOp",
            "ReductionToOneDevice", "ReplicaContext", "RunOptions", "Server", "Strategy",
            "StrategyExtended", "TPUStrategy", "experimental_set_strategy", "get_replica_context",
            "get_strategy", "has_strategy", "in_cross_replica_context",
        ),
    ),
    "tf.distribute.cluster_resolver": ("who is in the cluster, and who am I", _RESOLVERS),
    "tf.distribute.coordinator": (
        "functions that run on the workers of a cluster",
        _of(
            "replicax.coordinator",
            "ClusterCoordinator", "PerWorkerValue=PerWorkerValues", "RemoteValue",
            "experimental_get_current_worker_index",
        ),
    ),
    "tf.distribute.experimental": (
        "with the older spellings of what has moved",
        _of(
            "replicax.experimental",
            "CommunicationImplementation", "CommunicationOptions", "PreemptionCheckpointHandler",
            "PreemptionWatcher", "TerminationConfig", "ValueContext",
        ),
        _OLDER_STRATEGIES,
    ),
    "tf.distribute.experimental.coordinator": (
        "what `tf.distribute.coordinator` was called first",
        _of("replicax.coordinator", "ClusterCoordinator", "PerWorkerValues", "RemoteValue"),
    ),
    "tf.distribute.experimental.partitioners": (
        "how variables are divided among servers",
        _of(
            "replicax.experimental.partitioners",
            "FixedShardsPartitioner", "MaxSizePartitioner", "MinSizePartitioner", "Partitioner",
        ),
    ),
    "tf.dtypes": (
        "the types of numbers",
        _DTYPES,
        _of("._elementwise", "cast", "complex", "saturate_cast"),
    ),
    "tf.errors": (
        # Each is the class that Replicax, JAX or Python raises where TensorFlow raises its own, so
        # that `except tf.errors.OutOfRangeError` means here what it means there.
        "the errors that programs catch, by TensorFlow's names; the classes are others'",
        _of(
            "replicax._core.errors",
            "AbortedError=UnavailableError", "CancelledError", "DataLossError=CorruptRecord",
            "OpError=ReplicaxError", "OperatorNotAllowedInGraphError=LeakedTracer",
            "OutOfRangeError", "UnavailableError",
        ),
        _of(
            "builtins",
            "AlreadyExistsError=FileExistsError", "DeadlineExceededError=TimeoutError",
            "FailedPreconditionError=RuntimeError", "InvalidArgumentError=ValueError",
            "NotFoundError=FileNotFoundError", "PermissionDeniedError=PermissionError",
            "UnauthenticatedError=PermissionError", "UnimplementedError=NotImplementedError",
        ),
        # Devices raise one class, whose text begins with the kind: "RESOURCE_EXHAUSTED: ...".
        _of(
            "jax.errors",
            "InternalError=JaxRuntimeError", "ResourceExhaustedError=JaxRuntimeError",
            "UnknownError=JaxRuntimeError",
        ),
        _of(
            "._services",
            "ABORTED", "ALREADY_EXISTS", "CANCELLED", "DATA_LOSS", "DEADLINE_EXCEEDED",
            "FAILED_PRECONDITION", "INTERNAL", "INVALID_ARGUMENT", "NOT_FOUND", "OK",
            "OUT_OF_RANGE", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "UNAUTHENTICATED",
            "UNAVAILABLE", "UNIMPLEMENTED", "UNKNOWN",
        ),
    ),
    "tf.experimental": (
        "what else was there has other places",
        _of("replicax.data._iterators", "Optional"),
    ),
    "tf.experimental.dlpack": (
        "arrays shared with other libraries",
        _of("._tensors", "from_dlpack", "to_dlpack"),
    ),
    "tf.experimental.numpy": (
        "functions of `jax.numpy`, with its types",
        {"experimental_enable_numpy_behavior": "._compat:enable_eager_execution"},
        "._numpy",
    ),
    "tf.image": (
        "images as arrays; NumPy arrays, as in pipelines, stay on the host",
        _of(
            "._image",
            "ResizeMethod", "central_crop", "crop_to_bounding_box", "flip_left_right",
            "flip_up_down", "pad_to_bounding_box", "random_crop", "random_flip_left_right",
            "random_flip_up_down", "resize", "resize_with_crop_or_pad", "resize_with_pad", "rot90",
            "stateless_random_crop", "stateless_random_flip_left_right",
            "stateless_random_flip_up_down", "transpose",
        ),
        _of(
            "._convolutions",
            "extract_patches", "image_gradients", "sobel_edges", "total_variation",
        ),
        _of(
            "._image_colors",
            "adjust_brightness", "adjust_contrast", "adjust_gamma", "adjust_hue",
            "adjust_jpeg_quality", "adjust_saturation", "convert_image_dtype",
            "grayscale_to_rgb", "hsv_to_rgb", "per_image_standardization", "psnr",
            "random_brightness", "random_contrast", "random_hue", "random_jpeg_quality",
            "random_saturation", "rgb_to_grayscale", "rgb_to_hsv", "rgb_to_yiq",
            "rgb_to_yuv", "ssim", "ssim_multiscale", "stateless_random_brightness",
            "stateless_random_contrast", "stateless_random_hue",
            "stateless_random_jpeg_quality", "stateless_random_saturation",
            "yiq_to_rgb", "yuv_to_rgb",
        ),
        _of(
            "._files",
            "decode_and_crop_jpeg", "decode_bmp", "decode_gif", "decode_image", "decode_jpeg",
            "decode_png", "encode_jpeg", "encode_png",
        ),
        _of(
            "._boxes",
            "combined_non_max_suppression", "crop_and_resize", "draw_bounding_boxes",
            "non_max_suppression", "non_max_suppression_padded", "non_max_suppression_with_scores",
            "sample_distorted_bounding_box", "stateless_sample_distorted_bounding_box",
        ),
    ),
    "tf.initializers": (
        "how weights begin; the same as `tf.keras.initializers`",
        "keras.initializers",
    ),
    "tf.io": (
        "files, images and records; on the host, with NumPy",
        _of(
            "._files",
            "TFRecordOptions", "decode_and_crop_jpeg", "decode_bmp", "decode_csv", "decode_gif",
            "decode_image", "decode_jpeg", "decode_png", "decode_raw", "encode_jpeg", "encode_png",
            "matching_files", "read_file", "write_file",
        ),
        _of(
            "._examples",
            "FixedLenSequenceFeature", "RaggedFeature", "parse_example", "parse_sequence_example",
            "parse_single_example", "parse_single_sequence_example", "parse_tensor",
            "serialize_tensor",
        ),
        _of("replicax.data", "FixedLenFeature", "TFRecordWriter", "VarLenFeature"),
    ),
    "tf.io.gfile": (
        "files of this machine, and by fsspec, where it is installed, of other places",
        _of(
            "._files",
            "FileStatistics", "GFile", "Open", "copy", "exists", "get_registered_schemes", "glob",
            "isdir", "join", "listdir", "makedirs", "mkdir", "remove", "rename", "rmtree", "stat",
            "walk",
        ),
    ),
    "tf.keras": ("Keras 3, and the older spellings that the guides use", "keras"),
    "tf.keras.backend": (
        "settings, and the functions of tensors that Keras 2 had",
        _of(
            "keras.ops",
            "abs", "all", "any", "binary_crossentropy", "cast", "categorical_crossentropy", "cos",
            "dot", "elu", "equal", "exp", "greater", "greater_equal", "less", "less_equal", "log",
            "max", "maximum", "mean", "min", "minimum", "not_equal", "prod", "reshape", "round",
            "sigmoid", "sign", "sin", "softmax", "softplus", "softsign",
            "sparse_categorical_crossentropy", "sqrt", "square", "squeeze", "stack", "std",
            "stop_gradient", "sum", "tanh", "transpose", "var",
        ),
        _of(
            "._keras2.backend",
            "arange", "argmax", "argmin", "batch_dot", "batch_flatten", "batch_get_value",
            "batch_set_value", "bias_add", "cast_to_floatx", "clip", "concatenate", "constant",
            "conv2d", "count_params", "cumprod", "cumsum", "dropout", "dtype", "eval",
            "expand_dims", "eye", "flatten", "foldl", "foldr", "gather", "get_value",
            "hard_sigmoid", "in_top_k", "int_shape", "l2_normalize", "map_fn",
            "moving_average_update", "ndim", "one_hot", "ones", "ones_like", "permute_dimensions",
            "pow", "random_bernoulli", "random_normal", "random_normal_variable", "random_uniform",
            "random_uniform_variable", "relu", "repeat", "repeat_elements", "reverse", "rnn",
            "set_value", "spatial_2d_padding", "switch", "temporal_padding", "tile",
            "truncated_normal", "update", "update_add", "update_sub", "variable", "zeros",
            "zeros_like",
        ),
        _of("._arrays", "shape"),
        _of("._services", "name_scope"),
        "keras.backend",
    ),
    "tf.keras.callbacks": ("callbacks; where Keras' one needs TensorFlow, ours", *_CALLBACKS),
    "tf.keras.callbacks.experimental": ("the same as `tf.keras.callbacks`", *_CALLBACKS),
    # Schedules once lived here, as `CosineDecay`; the rest is gone.
    "tf.keras.experimental": ("the first place of schedules", "keras.optimizers.schedules"),
    "tf.keras.layers": (
        "layers; those for text, which Keras has for TensorFlow only, are Replicax'",
        *_LAYERS,
    ),
    "tf.keras.layers.experimental": (
        "layers that have become ordinary ones since, and one for `strategy.run`",
        _of("._keras2.classes", "SyncBatchNormalization"),
        *_LAYERS,
    ),
    "tf.keras.layers.experimental.preprocessing": (
        "the older place of preprocessing layers",
        *_LAYERS,
    ),
    "tf.keras.losses": ("losses, with the older `Reduction`", *_LOSSES),
    "tf.keras.metrics": ("metrics", *_METRICS),
    "tf.keras.mixed_precision.experimental": (
        "the first names of what is there",
        {"set_policy": "keras.mixed_precision:set_global_policy"},
        "keras.mixed_precision",
    ),
    "tf.keras.models": ("models, and how they are saved", _SAVING, "keras.models"),
    "tf.keras.optimizers.experimental": ("Keras' optimizers of today", "keras.optimizers"),
    "tf.keras.optimizers.legacy": ("Keras' optimizers of today", "keras.optimizers"),
    "tf.keras.preprocessing": (
        "data sets of folders, and the older helpers for images and texts",
        _DATA_SETS,
        "keras.utils",
    ),
    "tf.keras.preprocessing.image": (
        "helpers for images",
        _of(
            "._keras2.preprocessing",
            "DirectoryIterator", "ImageDataGenerator", "Iterator", "NumpyArrayIterator",
        ),
        "keras.preprocessing.image",
    ),
    "tf.keras.preprocessing.sequence": (
        "sequences of one length",
        _of("._keras2.preprocessing", "TimeseriesGenerator"),
        "keras.preprocessing.sequence",
    ),
    "tf.keras.preprocessing.text": (
        "texts as numbers, by the older `Tokenizer`",
        _of(
            "._keras2.preprocessing",
            "Tokenizer", "hashing_trick", "one_hot", "text_to_word_sequence", "tokenizer_from_json",
        ),
        "keras.preprocessing",
    ),
    "tf.keras.random": (
        "`keras.random`, which needs no seed in compiled code",
        _of(
            "._keras2.random",
            "beta", "binomial", "categorical", "dropout", "gamma", "normal", "randint", "shuffle",
            "truncated_normal", "uniform",
        ),
        "keras.random",
    ),
    "tf.keras.saving": ("saving and loading", _SAVING, "keras.saving"),
    "tf.keras.utils": ("helpers; data sets of folders are Replicax'", _DATA_SETS, "keras.utils"),
    "tf.keras.utils.experimental": (
        "`DatasetCreator`",
        _of("replicax", "DatasetCreator"),
        _DATA_SETS,
        "keras.utils",
    ),
    "tf.linalg": (
        "matrices and vectors; here are only their names",
        _of("._arrays", "eye"),
        _of(
            "._linalg",
            "adjoint", "band_part", "cholesky", "cholesky_solve", "cross", "det", "diag",
            "diag_part", "eigh", "eigvalsh", "einsum", "expm", "global_norm", "inv", "l2_normalize",
            "logdet", "lstsq", "matmul", "matrix_rank", "matrix_transpose", "matvec", "norm",
            "normalize", "pinv", "qr", "set_diag", "slogdet", "solve", "svd", "tensor_diag",
            "tensor_diag_part", "tensordot", "trace", "triangular_solve",
        ),
    ),
    "tf.lookup": (
        "tables from texts or numbers to values",
        _of(
            "._lookup",
            "KeyValueTensorInitializer", "StaticHashTable", "StaticVocabularyTable",
            "TextFileIndex", "TextFileInitializer",
        ),
    ),
    "tf.lookup.experimental": (
        "tables that take new keys",
        _of("._lookup", "DenseHashTable", "MutableHashTable"),
    ),
    "tf.losses": ("losses; the same as `tf.keras.losses`", *_LOSSES),
    "tf.math": (
        "functions of numbers",
        _of("._nn", "in_top_k", "log_softmax", "softmax", "softplus", "softsign", "top_k"),
        _ARITHMETIC,
        _of(
            "._elementwise",
            "accumulate_n", "angle", "bessel_i0", "bessel_i0e", "bessel_i1", "bessel_i1e",
            "betainc", "ceil", "conj", "digamma", "divide_no_nan", "erf", "erfc", "erfcinv",
            "erfinv", "expm1", "floordiv", "floormod", "igamma", "igammac", "imag", "is_finite",
            "is_inf", "is_nan", "lgamma", "log", "log1p", "log_sigmoid", "logical_xor", "mod",
            "multiply_no_nan", "ndtri", "nextafter", "polygamma", "polyval", "real", "reciprocal",
            "reciprocal_no_nan", "rint", "rsqrt", "squared_difference", "xdivy", "xlog1py",
            "xlogy", "zeta",
        ),
        _of("._indexing", "invert_permutation"),
        _of(
            "._reductions",
            "argmax", "argmin", "bincount", "confusion_matrix", "count_nonzero", "cumprod",
            "cumsum", "cumulative_logsumexp", "reduce_all", "reduce_any", "reduce_euclidean_norm",
            "reduce_logsumexp", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod",
            "reduce_std", "reduce_sum", "reduce_variance", "segment_max", "segment_mean",
            "segment_min", "segment_prod", "segment_sum", "unsorted_segment_max",
            "unsorted_segment_mean", "unsorted_segment_min", "unsorted_segment_prod",
            "unsorted_segment_sqrt_n", "unsorted_segment_sum", "zero_fraction",
        ),
        _of("._linalg", "l2_normalize"),
    ),
    "tf.math.special": (
        "special functions of numbers",
        _of(
            "._elementwise",
            "bessel_i0", "bessel_i0e", "bessel_i1", "bessel_i1e", "dawsn", "expint", "spence",
        ),
    ),
    "tf.metrics": ("metrics; the same as `tf.keras.metrics`", *_METRICS),
    "tf.nest": (
        "lists, tuples and dicts of values",
        _of(
            "._nest",
            "assert_same_structure", "flatten", "is_nested", "map_structure", "pack_sequence_as",
        ),
    ),
    "tf.nn": (
        "losses over replicas and of logits, activations, convolutions, embeddings",
        _of(
            "._convolutions",
            "atrous_conv2d", "avg_pool", "avg_pool1d", "avg_pool2d", "avg_pool3d", "bias_add",
            "conv1d", "conv1d_transpose", "conv2d", "conv2d_transpose", "conv3d",
            "conv3d_transpose", "conv_transpose", "convolution", "depthwise_conv2d", "max_pool",
            "max_pool1d", "max_pool2d", "max_pool3d", "separable_conv2d", "batch_to_space",
            "depth_to_space", "space_to_batch", "space_to_depth",
        ),
        _of("._elementwise", "sigmoid", "tanh"),
        _of(
            "._nn",
            "batch_normalization", "crelu", "ctc_beam_search_decoder", "ctc_greedy_decoder",
            "ctc_loss", "dropout", "elu", "embedding_lookup", "embedding_lookup_sparse", "gelu",
            "in_top_k", "l2_loss", "leaky_relu", "local_response_normalization",
            "lrn=local_response_normalization", "log_poisson_loss", "log_softmax", "moments",
            "normalize_moments", "relu", "relu6",
            "safe_embedding_lookup_sparse", "selu", "sigmoid_cross_entropy_with_logits", "silu",
            "softmax", "softmax_cross_entropy_with_logits", "softplus", "softsign",
            "sparse_softmax_cross_entropy_with_logits", "sufficient_statistics", "swish", "top_k",
            "weighted_cross_entropy_with_logits", "weighted_moments",
        ),
        _of("._reductions", "zero_fraction"),
        _of("._linalg", "l2_normalize"),
        _of("replicax._core.nn", "compute_average_loss", "scale_regularization_loss"),
        _of("._sampled_losses", "nce_loss", "sampled_softmax_loss"),
    ),
    "tf.optimizers": (
        "optimizers; the same as `tf.keras.optimizers`",
        {name: f".keras.optimizers.{name}:" for name in ("experimental", "legacy", "schedules")},
        "keras.optimizers",
    ),
    "tf.profiler": ("JAX's profiler, which TensorBoard's profile plugin shows",),
    "tf.profiler.experimental": (
        "profiles of a program, or of a part of it",
        _of("._summary", "Profile", "ProfilerOptions", "Trace", "start", "stop"),
    ),
    "tf.profiler.experimental.server": (
        "a program that TensorBoard can ask for a profile",
        {"start": "._summary:start_server"},
    ),
    "tf.python": ("what programs import of TensorFlow's own modules",),
    "tf.python.client": ("what programs import of TensorFlow's own modules",),
    "tf.python.client.device_lib": (
        "the devices of this process",
        _of("._config", "list_local_devices"),
    ),
    "tf.python.framework": ("what programs import of TensorFlow's own modules",),
    "tf.python.framework.tensor_shape": (
        "the class of shapes, by its first place",
        _of("._tensors", "TensorShape", "dimension_value"),
    ),
    "tf.ragged": (
        "rows of different lengths",
        _of(
            "._ragged_functions",
            "boolean_mask", "constant", "map_flat_values", "row_splits_to_segment_ids",
            "segment_ids_to_row_splits", "stack",
        ),
        {"range": "._ragged_functions:ragged_range"},
    ),
    "tf.random": (
        "the numbers are JAX's, new at each call and on each replica",
        _of(
            "._random",
            "Generator", "categorical", "fold_in", "gamma", "get_global_generator", "normal",
            "poisson", "set_global_generator", "set_seed", "shuffle", "split", "stateless_binomial",
            "stateless_categorical", "stateless_gamma", "stateless_normal",
            "stateless_parameterized_truncated_normal", "stateless_poisson",
            "stateless_truncated_normal", "stateless_uniform", "truncated_normal", "uniform",
        ),
        _of("._sampled_losses", "log_uniform_candidate_sampler", "uniform_candidate_sampler"),
    ),
    "tf.random.experimental": (
        "the older places of some names",
        _of(
            "._random",
            "Generator", "get_global_generator", "set_global_generator", "stateless_shuffle",
            "stateless_fold_in=fold_in", "stateless_split=split",
        ),
    ),
    "tf.saved_model": (
        "models for inference",
        _of("._saved_model", "LoadOptions", "SERVING", "SaveOptions"),
        _of("replicax._function.exporting", "DEFAULT_SERVING_SIGNATURE_DEF_KEY=SERVING", "save"),
        _of("replicax._function.importing", "contains_saved_model", "load"),
    ),
    "tf.signal": (
        "transforms, windows and features of signals and of sound",
        _of(
            "._signal",
            "dct", "fft", "fft2d", "fft3d", "fftshift", "frame", "hamming_window", "hann_window",
            "idct", "ifft", "ifft2d", "ifft3d", "ifftshift", "inverse_mdct", "inverse_stft",
            "inverse_stft_window_fn", "irfft", "irfft2d", "kaiser_bessel_derived_window",
            "kaiser_window", "linear_to_mel_weight_matrix", "mdct",
            "mfccs_from_log_mel_spectrograms", "overlap_and_add", "rfft", "rfft2d", "stft",
            "vorbis_window",
        ),
    ),
    "tf.sparse": (
        "tensors of which only some elements are held",
        _of(
            "._sparse_functions",
            "add", "concat", "expand_dims", "fill_empty_rows", "from_dense", "map_values",
            "reduce_max", "reduce_sum", "reorder", "reset_shape", "reshape", "retain", "slice",
            "sparse_dense_matmul", "to_dense", "to_indicator", "transpose",
        ),
        {"SparseTensor": "._sparse"},
    ),
    "tf.strings": (
        "texts of pipelines; on the host, of Python's texts and NumPy arrays of them",
        _of(
            "._strings",
            "as_string", "bytes_split", "format", "join", "length", "lower", "ngrams",
            "reduce_join", "regex_full_match", "regex_replace", "split", "strip", "substr",
            "to_hash_bucket", "to_hash_bucket_fast", "to_number", "unicode_decode",
            "unicode_encode", "unicode_split", "unicode_transcode", "upper",
        ),
    ),
    "tf.summary": (
        "numbers, histograms, images and texts for TensorBoard, without TensorFlow",
        _of(
            "._summary",
            "SummaryWriter", "create_file_writer", "create_noop_writer", "flush", "histogram",
            "image", "record_if", "scalar", "should_record_summaries", "text", "trace_export",
            "trace_off", "trace_on",
        ),
    ),
    "tf.summary.experimental": (
        "the step of summaries that have none",
        _of("._summary", "get_step", "set_step"),
    ),
    "tf.test": (
        "test cases that compare arrays",
        _of(
            "._test",
            "TestCase", "gpu_device_name", "is_built_with_cuda", "is_built_with_gpu_support",
            "is_built_with_rocm", "is_built_with_xla", "is_gpu_available", "main",
        ),
    ),
    "tf.tpu": ("the names of `rx.tpu`", {"XLAOptions": "._distribute"}),
    "tf.tpu.experimental": (
        "the names of `rx.tpu.experimental`",
        _of(
            "replicax.tpu.experimental",
            "DeviceAssignment", "TPUSystemMetadata", "Topology", "initialize_tpu_system",
            "shutdown_tpu_system",
        ),
    ),
    "tf.train": (
        "checkpoints, clusters, and the messages of TFRecord files",
        _of(
            "replicax.train",
            "CheckpointManager", "CheckpointOptions", "NewCheckpointReader=CheckpointReader",
            "checkpoints_iterator", "list_variables", "load_checkpoint", "load_variable",
        ),
        _of("replicax.cluster_resolver", "ClusterSpec"),
        _of(
            "._train",
            "BytesList", "Checkpoint", "CheckpointState", "Example", "ExponentialMovingAverage",
            "Feature", "FeatureList", "FeatureLists", "Features", "FloatList", "Int64List",
            "SequenceExample", "get_checkpoint_state", "latest_checkpoint",
        ),
    ),
    "tf.types": ("what annotations name",),
    "tf.types.experimental": (
        "what annotations name, and types by which a function is traced",
        _of(
            "._types",
            "Callable", "FunctionType", "GenericFunction", "PolymorphicFunction",
            "SupportsTracingProtocol", "TensorLike", "TraceType",
        ),
        _of("replicax._function.concrete", "AtomicFunction=ConcreteFunction", "ConcreteFunction"),
    ),
    "tf.types.experimental.distributed": (
        "the values of replicas",
        _of("replicax._core.values", "Mirrored", "PerReplica"),
    ),
    "tf.version": (
        "the TensorFlow whose names these are, and the Replicax that has them",
        _of("._services", "COMPILER_VERSION", "GIT_VERSION", "VERSION"),
    ),
}

NAMESPACES |= {
    f"tf.keras.{name}": (f"the same as `keras.{name}`", f"keras.{name}")
    for name in (
        "activations", "applications", "config", "constraints", "datasets", "distribution",
        "dtype_policies", "export", "initializers", "mixed_precision", "ops", "optimizers",
        "optimizers.schedules", "quantizers", "regularizers", "tree", "wrappers",
    )
}

# Modules below a namespace that shows Keras' own module; here so that `import` finds them, too.
SUBMODULES_OF_KERAS = {
    **{
        f"tf.keras.applications.{name}": f"keras.applications.{name}"
        for name in (
            "convnext", "densenet", "efficientnet", "efficientnet_v2", "imagenet_utils",
            "inception_resnet_v2", "inception_v3", "mobilenet", "mobilenet_v2", "mobilenet_v3",
            "nasnet", "resnet", "resnet50", "resnet_v2", "vgg16", "vgg19", "xception",
        )
    },
    **{
        f"tf.keras.datasets.{name}": f"keras.datasets.{name}"
        for name in (
            "boston_housing", "california_housing", "cifar10", "cifar100", "fashion_mnist", "imdb",
            "mnist", "reuters",
        )
    },
}
NAMESPACES |= {name: (f"the same as `{home}`", home) for name, home in SUBMODULES_OF_KERAS.items()}

# Names that mean something else in `tf.compat.v1`, and what to write for them.
OTHERS_IN_V1 = {
    "tf.image.resize": "Its pixels lie elsewhere; use `tf.image.resize`.",
    "tf.initializers": "Use `tf.keras.initializers`, whose defaults differ.",
    "tf.keras": "Use `tf.keras`; `LSTM` and `GRU` there have other defaults than in version 1.",
    "tf.losses": "Use `tf.keras.losses`.",
    "tf.math.confusion_matrix": "Use `tf.math.confusion_matrix`, with `weights` before `dtype`.",
    "tf.math.in_top_k": "Use `tf.math.in_top_k(targets, predictions, k)`.",
    "tf.metrics": "Use `tf.keras.metrics`.",
    "tf.nn.convolution": "Use `tf.nn.convolution(input, filters, strides, padding)`.",
    "tf.nn.ctc_beam_search_decoder": "Use `tf.nn.ctc_beam_search_decoder`, which does not merge.",
    "tf.nn.ctc_loss": "Use `tf.nn.ctc_loss`, whose `blank_index` is 0 and not the last one.",
    "tf.nn.dropout": "Use `tf.nn.dropout(x, rate)`: `rate` is 1 − `keep_prob`.",
    "tf.nn.embedding_lookup": "Use `tf.nn.embedding_lookup`, which divides ids as \"div\" does.",
    "tf.nn.embedding_lookup_sparse": "Use `tf.nn.embedding_lookup_sparse`: \"div\", not \"mod\".",
    "tf.nn.in_top_k": "Use `tf.math.in_top_k(targets, predictions, k)`.",
    "tf.nn.nce_loss": "Use `tf.nn.nce_loss`, which divides ids as \"div\" does.",
    "tf.nn.sampled_softmax_loss": "Use `tf.nn.sampled_softmax_loss`: \"div\", not \"mod\".",
    "tf.nn.softmax_cross_entropy_with_logits": "Use the function of `tf.nn`, and "
    "`tf.stop_gradient(labels)`.",
    "tf.nn.space_to_batch": "Use `tf.nn.space_to_batch(input, block_shape, paddings)`.",
    "tf.optimizers": "Use `tf.keras.optimizers`.",
    "tf.random.poisson": "Use `tf.random.poisson(shape, lam)`.",
    "tf.random_normal_initializer": "Use `tf.random_normal_initializer(stddev=1.0)`: the default "
    "is 0.05.",
    "tf.random_uniform_initializer": "Use `tf.random_uniform_initializer(0.0, 1.0)`: the default "
    "is -0.05 to 0.05.",
    "tf.saved_model.load": "Use `tf.saved_model.load(export_dir)`, without a session.",
    "tf.strings.split": "Use `tf.strings.split`, whose result is ragged.",
    "tf.summary": "Use `tf.summary` with `tf.summary.create_file_writer(folder)`.",
    "tf.where": "Use `tf.where`, which broadcasts the condition as NumPy does.",
}

# Functions whose arguments are in another order in `tf.compat.v1`, and how many come first in both.
FIRST_IN_V1 = {
    "tf.argmax": 2, "tf.argmin": 2, "tf.boolean_mask": 2, "tf.convert_to_tensor": 2, "tf.gather": 3,
    "tf.gather_nd": 2, "tf.image.draw_bounding_boxes": 2,
    "tf.image.sample_distorted_bounding_box": 3, "tf.io.decode_csv": 4, "tf.io.decode_raw": 3,
    "tf.math.argmax": 2, "tf.math.argmin": 2, "tf.nn.conv1d": 4, "tf.nn.conv2d": 4,
    "tf.nn.conv2d_transpose": 6, "tf.nn.conv3d_transpose": 6, "tf.nn.crelu": 1,
    "tf.nn.depth_to_space": 2, "tf.nn.depthwise_conv2d": 4, "tf.nn.moments": 3,
    "tf.nn.safe_embedding_lookup_sparse": 5, "tf.nn.separable_conv2d": 5, "tf.nn.space_to_depth": 2,
    "tf.nn.weighted_moments": 3, "tf.pad": 3, "tf.shape": 1, "tf.size": 1, "tf.sparse.concat": 2,
    "tf.sparse.reduce_max": 3, "tf.sparse.reduce_sum": 3, "tf.strings.length": 1,
    "tf.strings.substr": 3, "tf.transpose": 2, "tf.while_loop": 7,
}


def _is_other(name: str) -> bool:
    elsewhere = (*OTHERS_IN_V1, "tf.compat", "tf.python")
    return any(f"{name}.".startswith(f"{other}.") for other in elsewhere)


def _in_v1(name: str, sources: list[Source]) -> tuple[str, *tuple[Source, ...]]:
    same = (
        {own: home for own, home in source.items() if not _is_other(f"{name}.{own}")}
        for source in sources
        if not isinstance(source, str)
    )
    text, *own = NAMESPACES.get(f"tf.compat.v1{name[2:]}", (f"the same as in `{name}`",))
    return text, *own, *same


NAMESPACES |= {
    f"tf.compat.v1{name[2:]}": _in_v1(name, sources)
    for name, (_, *sources) in NAMESPACES.items()
    if not _is_other(name)
}
