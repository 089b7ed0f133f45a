"""Records what TensorFlow's array functions compute, for `test_arrays.py`.

    tf/bin/python tests/parity/record_tf_arrays.py

(the environment is `record_tf.py`'s) writes `recorded_arrays.json` next to this file: for each
case the function, its arguments and its result, and the parameters of TensorFlow's functions.
"""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow as tf

RECORDED = Path(__file__).with_name("recorded_arrays.json")
NAMESPACES = ("", "math", "linalg", "nn", "nest", "dtypes", "ragged", "sparse")

random = np.random.default_rng(7)


def f(*shape: int) -> np.ndarray:
    return random.normal(size=shape).round(3).astype(np.float32)


def i(*shape: int, low: int = -9, high: int = 10) -> np.ndarray:
    return random.integers(low, high, shape).astype(np.int32)


def ids(*shape: int, high: int) -> np.ndarray:
    return i(*shape, low=0, high=high)


def positive(*shape: int) -> np.ndarray:
    return np.abs(f(*shape)) + np.float32(0.125)


def unit(*shape: int) -> np.ndarray:
    return random.uniform(-0.9, 0.9, shape).round(3).astype(np.float32)


def b(*shape: int) -> np.ndarray:
    return random.integers(0, 2, shape).astype(bool)


def spd(size: int) -> np.ndarray:
    half = f(size, size)
    return half @ half.T + size * np.eye(size, dtype=np.float32)


def cases():
    """Yield (function, arguments, keywords)."""
    yield from elementwise()
    yield from reductions()
    yield from shapes()
    yield from indices()
    yield from products()
    yield from segments()
    yield from networks()


def elementwise():
    for name in (
        "abs", "negative", "sign", "square", "exp", "sin", "cos", "tan", "sinh", "cosh", "tanh",
        "asinh", "atan", "sigmoid", "floor", "round", "math.ceil", "math.rint", "math.expm1",
        "math.erf", "math.erfc", "math.log_sigmoid", "math.softplus", "math.softsign",
        "math.reciprocal", "math.is_finite",
    ):  # fmt: skip
        yield name, [f(3, 4)], {}
    for name in ("sqrt", "math.log", "math.log1p", "math.rsqrt", "math.lgamma", "math.digamma"):
        yield name, [positive(5)], {}
    for name in ("acos", "asin", "atanh", "math.erfinv"):
        yield name, [unit(5)], {}
    yield "acosh", [positive(4) + np.float32(1)], {}
    yield "round", [np.array([0.5, 1.5, 2.5, -0.5], np.float32)], {}
    yield "abs", [i(6)], {}
    yield "sign", [i(6)], {}
    yield "logical_not", [b(4)], {}
    broken = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    for name in ("math.is_nan", "math.is_inf", "math.is_finite"):
        yield name, [broken], {}
    for name in ("add", "subtract", "multiply", "maximum", "minimum", "math.squared_difference"):
        yield name, [f(3, 1), f(1, 4)], {}
        yield name, [i(3), i(3)], {}
    for name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
        yield name, [i(8, low=0, high=3), i(8, low=0, high=3)], {}
    for name in ("logical_and", "logical_or", "math.logical_xor"):
        yield name, [b(8), b(8)], {}
    whole = (np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32))
    for name in ("math.floordiv", "math.floormod", "math.mod", "truncatediv", "truncatemod"):
        yield name, list(whole), {}
    for name in ("divide", "truediv", "realdiv", "math.divide_no_nan", "math.xdivy", "pow"):
        yield name, [positive(4), positive(4)], {}
    yield "divide", [np.array([1, 2, 3], np.int8), np.array([2, 2, 2], np.int8)], {}
    yield "pow", [i(3), np.array([0, 1, 3], np.int32)], {}
    zeros = np.array([0, 2, 0], np.float32)
    yield "math.divide_no_nan", [f(3), zeros], {}
    yield "math.multiply_no_nan", [np.array([1, 2, np.nan], np.float32), zeros], {}
    yield "math.reciprocal_no_nan", [zeros], {}
    for name in ("math.xlogy", "math.xlog1py", "math.xdivy"):
        yield name, [zeros, np.array([0, 3, 2], np.float32)], {}
    yield "atan2", [f(4), f(4)], {}
    yield "multiply", [f(3), 2], {}
    yield "add", [i(3), [1, 2, 3]], {}
    yield "add_n", [[f(2), f(2), f(2)]], {}
    yield "scalar_mul", [2.5, f(3)], {}
    yield "clip_by_value", [f(5), -0.5, 0.5], {}
    yield "clip_by_value", [i(5), -2, 3], {}
    for kind in (tf.int32, tf.bool, tf.uint8, tf.float16):
        yield "cast", [np.array([0, 1.7, 2.2], np.float32), kind], {}
    yield "cast", [b(3), tf.float32], {}
    yield "saturate_cast", [np.array([-5, 300, 7.5], np.float32), tf.uint8], {}
    yield "saturate_cast", [np.array([-500, 300, 7], np.int32), tf.int8], {}
    yield "saturate_cast", [np.array([3e9, -3e9], np.float32), tf.int32], {}
    yield "complex", [f(2), f(2)], {}


def reductions():
    for name in ("sum", "mean", "max", "min", "prod", "logsumexp"):
        yield f"reduce_{name}", [f(3, 4)], {}
        yield f"reduce_{name}", [f(3, 4)], {"axis": -1, "keepdims": True}
        yield f"reduce_{name}", [f(2, 3, 4)], {"axis": [0, 2]}
    for name in ("sum", "mean", "max", "min", "prod"):
        yield f"reduce_{name}", [i(3, 5)], {"axis": 1}
    yield "reduce_mean", [np.array([-7, 0, 0], np.int32)], {}
    yield "reduce_sum", [np.array([100, 100], np.int8)], {}
    for name in ("variance", "std", "euclidean_norm"):
        yield f"math.reduce_{name}", [f(3, 4)], {}
        yield f"math.reduce_{name}", [f(3, 4)], {"axis": 0, "keepdims": True}
    for name in ("all", "any"):
        yield f"reduce_{name}", [b(3, 4)], {}
        yield f"reduce_{name}", [b(3, 4)], {"axis": 0}
    for name in ("argmax", "argmin"):
        yield name, [f(3, 4)], {}
        yield name, [f(3, 4)], {"axis": -1, "output_type": tf.int32}
    for name in ("cumsum", "math.cumprod"):
        yield name, [f(3, 4)], {}
        yield name, [i(4)], {}
        yield name, [f(3, 4)], {"axis": -1, "exclusive": True, "reverse": True}
    yield "math.cumulative_logsumexp", [f(5)], {}
    yield "math.cumulative_logsumexp", [f(5)], {"reverse": True}
    yield "math.count_nonzero", [i(3, 4, low=0, high=2)], {"axis": 1}
    yield "math.zero_fraction", [i(6, low=0, high=2)], {}


def shapes():
    x = f(2, 3, 4)
    yield "reshape", [x, [4, -1]], {}
    yield "expand_dims", [x, 1], {}
    yield "expand_dims", [x, -1], {}
    yield "squeeze", [f(1, 2, 1)], {}
    yield "squeeze", [f(1, 2, 1), [0]], {}
    yield "transpose", [x], {}
    yield "transpose", [x, [1, 0, 2]], {}
    yield "concat", [[f(2, 2), f(2, 1)], -1], {}
    yield "concat", [[i(2), i(1)], 0], {}
    yield "stack", [[f(2), f(2)]], {}
    yield "stack", [[f(2), f(2)]], {"axis": -1}
    yield "unstack", [x], {"axis": 1}
    yield "split", [f(6, 2), 3], {}
    yield "split", [f(2, 6), [1, 2, -1]], {"axis": 1}
    yield "tile", [f(2, 1), [2, 3]], {}
    yield "repeat", [f(2, 2), 2], {}
    yield "repeat", [f(2, 2), [1, 2]], {"axis": 0}
    yield "pad", [f(2, 2), [[1, 0], [0, 2]]], {"constant_values": 7.0}
    yield "pad", [f(3, 3), [[1, 1], [0, 2]], "REFLECT"], {}
    yield "pad", [f(3, 3), [[1, 1], [0, 2]], "SYMMETRIC"], {}
    yield "reverse", [x, [0, 2]], {}
    yield "roll", [x], {"shift": 1, "axis": 2}
    yield "roll", [x], {"shift": [1, -1], "axis": [0, 1]}
    yield "broadcast_to", [f(3, 1), [2, 3, 2]], {}
    yield "shape", [x], {}
    yield "size", [x], {}
    yield "rank", [x], {}
    yield "zeros", [[2, 3]], {}
    yield "ones", [[2], tf.int32], {}
    yield "fill", [[2, 2], 9], {}
    yield "zeros_like", [i(2)], {}
    yield "ones_like", [i(2)], {"dtype": tf.float32}
    yield "eye", [2, 3], {}
    yield "eye", [2], {"batch_shape": [2]}
    yield "linspace", [0.0, 1.0, 5], {}
    yield "meshgrid", [f(2), f(3)], {}
    yield "meshgrid", [f(2), f(3)], {"indexing": "ij"}
    yield "one_hot", [np.array([0, 2, -1, 5], np.int32), 3], {}
    yield "one_hot", [ids(2, 2, high=3), 3], {"on_value": 5.0, "off_value": -1.0, "axis": 0}
    yield "one_hot", [ids(2, 2, high=3), 3], {"axis": 1, "dtype": tf.int32}
    yield "sequence_mask", [np.array([1, 3, 0], np.int32), 4], {}
    yield "sequence_mask", [np.array([1, 3], np.int32)], {"dtype": tf.float32}
    yield "ensure_shape", [x, [None, 3, 4]], {}
    yield "broadcast_dynamic_shape", [[2, 1], [1, 3]], {}


def indices():
    yield "gather", [f(4, 2), ids(3, high=4)], {}
    yield "gather", [f(2, 4), ids(2, 2, high=4)], {"axis": 1}
    yield "gather", [f(2, 4, 3), ids(2, 3, high=4)], {"batch_dims": 1}
    yield "gather", [f(2, 3, 4), ids(2, 2, high=4)], {"batch_dims": 1, "axis": -1}
    yield "gather_nd", [f(2, 3), np.array([[0, 1], [1, 2]], np.int32)], {}
    yield "gather_nd", [f(2, 3), np.array([[1], [0]], np.int32)], {}
    yield "gather_nd", [f(2, 3), np.array([[1], [2]], np.int32)], {"batch_dims": 1}
    places = np.array([[0], [3], [0]], np.int32)
    yield "scatter_nd", [places, f(3), [5]], {}
    for how in ("add", "sub", "max", "min"):
        yield f"tensor_scatter_nd_{how}", [f(5), places, f(3)], {}
    yield "tensor_scatter_nd_update", [f(3, 2), np.array([[2], [0]], np.int32), f(2, 2)], {}
    yield "boolean_mask", [f(3, 2), np.array([True, False, True])], {}
    yield "boolean_mask", [f(2, 3), b(3)], {"axis": 1}
    yield "where", [b(2, 3)], {}
    yield "where", [b(3), f(3), f(3)], {}
    yield "where", [b(2, 1), f(2, 3), 0.0], {}
    yield "slice", [f(3, 4), [1, 0], [2, -1]], {}
    yield "strided_slice", [f(5), [3], [0], [-1]], {}
    yield "strided_slice", [f(3, 4), [0, 1], [2, 3]], {"begin_mask": 1, "shrink_axis_mask": 2}
    for direction in ("ASCENDING", "DESCENDING"):
        yield "sort", [f(2, 4)], {"direction": direction}
        yield "argsort", [i(8, low=0, high=3)], {"direction": direction}
    yield "argsort", [f(3, 2)], {"axis": 0}
    yield "searchsorted", [np.array([1, 3, 5], np.float32), f(4) * 4], {}
    yield "searchsorted", [np.sort(f(2, 3)), f(2, 2)], {"side": "right"}
    yield "unique", [np.array([3, 1, 3, 2, 1], np.int32)], {}
    yield "unique_with_counts", [np.array([3, 1, 3, 2, 1], np.int32)], {}
    yield "unravel_index", [np.array([1, 5], np.int32), [2, 3]], {}


def products():
    yield "matmul", [f(2, 3), f(3, 2)], {}
    yield "matmul", [f(2, 3, 2), f(2, 3, 4)], {"transpose_a": True}
    yield "matmul", [f(2, 3), f(4, 3)], {"transpose_b": True}
    yield "matmul", [i(2, 2), i(2, 2)], {}
    yield "tensordot", [f(2, 3), f(3, 4), 1], {}
    yield "tensordot", [f(2, 3), f(2, 3), [[0, 1], [0, 1]]], {}
    yield "einsum", ["bij,bjk->bik", f(2, 2, 3), f(2, 3, 2)], {}
    for keywords in ({}, {"axis": 1}, {"axis": 0, "keepdims": True}, {"ord": 1}, {"ord": np.inf}):
        yield "norm", [f(3, 2)], keywords
    yield "norm", [f(3, 2)], {"ord": 3, "axis": 1}
    yield "norm", [f(2, 3, 2)], {"axis": [1, 2]}
    yield "clip_by_norm", [f(2, 3), 1.0], {}
    yield "clip_by_norm", [f(2, 3), 0.5], {"axes": 1}
    yield "clip_by_global_norm", [[f(3), f(2)], 1.0], {}
    yield "clip_by_global_norm", [[f(3), f(2)], 100.0], {}
    yield "linalg.global_norm", [[f(3), f(2)]], {}
    yield "linalg.l2_normalize", [f(2, 3)], {"axis": 1}
    yield "linalg.normalize", [f(2, 3)], {"axis": 1}
    yield "linalg.matvec", [f(2, 3), f(3)], {}
    yield "linalg.matrix_transpose", [f(2, 3, 4)], {}
    yield "linalg.trace", [f(2, 3, 3)], {}
    yield "linalg.diag", [f(2, 3)], {}
    yield "linalg.diag", [f(2)], {"k": 1}
    yield "linalg.diag", [f(2)], {"k": -1}
    yield "linalg.diag_part", [f(2, 3, 3)], {}
    yield "linalg.set_diag", [f(3, 3), f(3)], {}
    yield "linalg.band_part", [f(3, 4), 1, 0], {}
    yield "linalg.band_part", [f(3, 3), -1, 0], {}
    yield "linalg.tensor_diag", [f(3)], {}
    yield "linalg.tensor_diag_part", [f(2, 2, 2, 2)], {}
    yield "linalg.cross", [f(2, 3), f(2, 3)], {}
    for name in ("det", "inv", "cholesky", "logdet", "slogdet", "eigvalsh", "matrix_rank", "pinv"):
        yield f"linalg.{name}", [spd(3)], {}
    yield "linalg.solve", [spd(3), f(3, 1)], {}
    yield "linalg.lstsq", [f(4, 2), f(4, 1)], {}
    yield "linalg.cholesky_solve", [np.linalg.cholesky(spd(3)), f(3, 1)], {}
    yield "linalg.triangular_solve", [np.tril(spd(3)), f(3, 2)], {}
    yield "linalg.svd", [f(3, 2)], {"compute_uv": False}
    yield "linalg.expm", [f(2, 2)], {}


def segments():
    own = np.array([0, 0, 2], np.int32)
    for name in ("sum", "mean", "max", "min", "prod"):
        yield f"math.segment_{name}", [f(3, 2), own], {}
    for name in ("sum", "mean", "max", "min", "prod", "sqrt_n"):
        yield f"math.unsorted_segment_{name}", [f(3, 2), np.array([2, 0, 2], np.int32), 4], {}
    yield "math.bincount", [ids(6, high=4)], {}
    yield "math.bincount", [ids(6, high=4)], {"minlength": 6}
    yield "math.bincount", [ids(4, high=3), positive(4)], {}
    yield "math.bincount", [ids(2, 4, high=3)], {"axis": -1}
    yield "math.confusion_matrix", [ids(6, high=3), ids(6, high=3)], {}
    yield "math.confusion_matrix", [ids(4, high=2), ids(4, high=2), 3], {"weights": positive(4)}


def networks():
    for name in ("relu", "relu6", "leaky_relu", "elu", "selu", "gelu", "silu", "crelu"):
        yield f"nn.{name}", [f(3, 4) * 3], {}
    yield "nn.gelu", [f(4)], {"approximate": True}
    yield "nn.silu", [f(4), 1.5], {}
    yield "nn.leaky_relu", [f(4)], {"alpha": 0.5}
    for name in ("softmax", "log_softmax"):
        yield f"nn.{name}", [f(3, 4)], {}
        yield f"nn.{name}", [f(3, 4)], {"axis": 0}
    share = np.array([[0.2, 0.8, 0.0], [1.0, 0.0, 0.0]], np.float32)
    yield "nn.softmax_cross_entropy_with_logits", [share, f(2, 3)], {}
    yield "nn.sparse_softmax_cross_entropy_with_logits", [ids(4, high=3), f(4, 3)], {}
    yield "nn.sigmoid_cross_entropy_with_logits", [share, f(2, 3) * 9], {}
    yield "nn.weighted_cross_entropy_with_logits", [share, f(2, 3), 2.0], {}
    yield "nn.log_poisson_loss", [positive(3) * 4, f(3)], {}
    yield "nn.log_poisson_loss", [positive(3) * 4, f(3)], {"compute_full_loss": True}
    yield "nn.l2_loss", [f(2, 2)], {}
    yield "nn.moments", [f(3, 4)], {"axes": [0]}
    yield "nn.moments", [f(3, 4)], {"axes": [0, 1], "keepdims": True}
    yield "nn.weighted_moments", [f(3, 4), [0], positive(3, 1)], {}
    yield "nn.batch_normalization", [f(3, 2), f(2), positive(2), f(2), f(2), 1e-3], {}
    yield "nn.batch_normalization", [f(3, 2), f(2), positive(2), None, None, 1e-3], {}
    yield "nn.top_k", [f(2, 5)], {"k": 2}
    yield "nn.in_top_k", [ids(4, high=3), f(4, 3), 2], {}
    yield "nn.bias_add", [f(2, 2, 2, 3), f(3)], {}
    yield "nn.embedding_lookup", [f(4, 2), ids(2, 2, high=4)], {}
    yield "nn.zero_fraction", [i(4, low=0, high=2)], {}
    image = f(2, 5, 5, 3)
    yield "nn.conv1d", [f(2, 5, 3), f(2, 3, 2), 2, "SAME"], {}
    yield "nn.conv2d", [image, f(3, 3, 3, 2), 2, "SAME"], {}
    yield "nn.conv2d", [image, f(2, 2, 3, 2), [1, 2, 1, 1], "VALID"], {}
    yield "nn.conv2d", [image, f(2, 2, 3, 1), 1, "VALID"], {"dilations": 2}
    yield "nn.conv2d", [image, f(2, 2, 3, 1), 1, [[0, 0], [1, 0], [0, 1], [0, 0]]], {}
    yield "nn.conv3d", [f(1, 3, 3, 3, 1), f(2, 2, 2, 1, 2), [1, 1, 1, 1, 1], "SAME"], {}
    yield "nn.convolution", [image, f(2, 2, 3, 2)], {}
    yield "nn.depthwise_conv2d", [image, f(2, 2, 3, 2), [1, 1, 1, 1], "SAME"], {}
    kernels = [f(2, 2, 3, 1), f(1, 1, 3, 2)]
    yield "nn.separable_conv2d", [image, *kernels, [1, 2, 2, 1], "SAME"], {}
    yield "nn.conv2d_transpose", [f(1, 3, 3, 2), f(3, 3, 1, 2), [1, 6, 6, 1], 2], {}
    yield "nn.conv2d_transpose", [f(1, 2, 2, 2), f(2, 2, 1, 2), [1, 3, 3, 1], 1, "VALID"], {}
    for name in ("max_pool", "avg_pool"):
        yield f"nn.{name}", [image, 2, 2, "SAME"], {}
        yield f"nn.{name}2d", [image, [3, 3], [1, 2], "VALID"], {}
        yield f"nn.{name}1d", [f(2, 5, 3), 2, 1, "SAME"], {}
    yield "nn.max_pool3d", [f(1, 3, 3, 3, 1), 2, 1, "VALID"], {}


# Values -----------------------------------------------------------------------------------------


def main() -> None:
    found = [recorded(*case) for case in cases()]
    versions = {"tensorflow": tf.__version__, "numpy": np.__version__}
    parameters = (f"{short(name)}:{short(own)}" for name, own in signatures().items())
    parts = (
        f'"versions":{short(versions)}',
        '"cases":[\n' + ",\n".join(map(short, found)) + "\n]",
        '"parameters":{\n' + ",\n".join(parameters) + "\n}",
    )
    RECORDED.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def short(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def recorded(name: str, args: list, keywords: dict) -> dict:
    result = function(name)(*args, **keywords)
    return {
        "function": name,
        "args": [described(argument) for argument in args],
        "keywords": {key: described(value) for key, value in keywords.items()},
        "result": described(result),
    }


def function(name: str):
    found = tf
    for part in name.split("."):
        found = getattr(found, part)
    return found


def described(value: object) -> object:
    """A value as JSON: arrays with their type, types by their name."""
    if isinstance(value, tf.DType):
        return {"type": value.name}
    if isinstance(value, tf.Tensor | np.ndarray):
        array = np.asarray(value)
        return {"array": plain(array.tolist()), "dtype": array.dtype.name}
    if isinstance(value, tf.TensorShape):
        return value.as_list()
    if isinstance(value, list | tuple):
        return [described(part) for part in value]
    return plain(value)


def plain(value: object) -> object:
    """Numbers with the nine digits that float32 has."""
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    if isinstance(value, complex):
        return [plain(value.real), plain(value.imag)]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def signatures() -> dict[str, list]:
    """The parameters of every public function, each a name, or a name and its default."""
    found = {}
    for namespace in NAMESPACES:
        module = getattr(tf, namespace) if namespace else tf
        for name in sorted(dir(module)):
            member = getattr(module, name)
            if name.startswith("_") or not callable(member) or inspect.isclass(member):
                continue
            parameters = inspect.signature(member).parameters.values()
            found[".".join(filter(None, [namespace, name]))] = [spelt(one) for one in parameters]
    return found


def spelt(parameter: inspect.Parameter) -> str | list:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    default = parameter.default
    return [parameter.name, default if isinstance(default, int | float | str) else str(default)]


if __name__ == "__main__":
    main()
