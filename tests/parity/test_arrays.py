"""The array functions of `replicax.tf` against TensorFlow's own results.

`record_tf_arrays.py` wrote them down, with the arguments, into `recorded_arrays.json`.
"""

import functools
import inspect
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax.tf._names import NAMESPACES

RECORDED = json.loads(Path(__file__).with_name("recorded_arrays.json").read_text())
CASES = RECORDED["cases"]
PARAMETERS = RECORDED["parameters"]
# What has a result whose shape depends on values, and is not there in compiled code.
ON_VALUES = {
    "boolean_mask", "math.bincount", "math.confusion_matrix", "unique", "unique_with_counts",
} | {f"math.segment_{name}" for name in ("sum", "mean", "max", "min", "prod")}  # fmt: skip


def function(name):
    found = tf
    for part in name.split("."):
        found = getattr(found, part)
    return found


def value_of(described, make):
    if isinstance(described, dict) and "array" in described:
        return make(np.array(described["array"], described["dtype"]))
    if isinstance(described, dict):
        return getattr(tf, described["type"])
    if isinstance(described, list):
        return [value_of(part, make) for part in described]
    return described


def arguments(case, make):
    args = [value_of(argument, make) for argument in case["args"]]
    return args, {key: value_of(value, make) for key, value in case["keywords"].items()}


def assert_same(found, described, exact_type):
    if isinstance(described, list):
        assert len(found) == len(described)
        for one, other in zip(found, described, strict=True):
            assert_same(one, other, exact_type)
        return
    if not isinstance(described, dict):
        assert found == described
        return
    found, dtype = np.asarray(found), np.dtype(described["dtype"])
    expected = np.array(described["array"])
    if dtype.kind == "c":
        expected = expected[..., 0] + 1j * expected[..., 1]
    expected = expected.astype(dtype)
    kinds = {dtype.name} if exact_type else {dtype.name, jax.dtypes.canonicalize_dtype(dtype).name}
    assert found.shape == expected.shape
    assert found.dtype.name in kinds
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def named(case):
    keywords = ",".join(case["keywords"])
    kinds = [part.get("dtype", "") for part in case["args"] if isinstance(part, dict)]
    return f"{case['function']}({','.join([*kinds, keywords])})"


def depends_on_values(case):
    return case["function"] in ON_VALUES or (
        case["function"] in ("where", "sequence_mask") and len(case["args"]) == 1
    )


# Computed by JAX, of NumPy arrays, too.
BY_JAX = tuple(
    f"{prefix}{name}"
    for prefix, names in {
        "nn.": ("avg_pool", "conv", "depthwise", "elu", "gelu", "max_pool", "selu", "separable"),
        "linalg.": ("cholesky", "det", "eig", "expm", "inv", "lstsq", "pinv", "slogdet", "svd"),
        "math.": ("segment", "unsorted", "cumulative"),
    }.items()
    for name in names
)
BY_NUMPY = [case for case in CASES if not case["function"].startswith(BY_JAX)]


@pytest.mark.parametrize("case", BY_NUMPY, ids=named)
def test_of_numpy_arrays_each_gives_what_tensorflow_gives(case):
    args, keywords = arguments(case, np.asarray)
    assert_same(function(case["function"])(*args, **keywords), case["result"], exact_type=False)


@pytest.mark.parametrize("case", list(filter(depends_on_values, CASES)), ids=named)
def test_of_jax_arrays_each_gives_what_tensorflow_gives(case):
    args, keywords = arguments(case, jnp.asarray)
    assert_same(function(case["function"])(*args, **keywords), case["result"], exact_type=False)


def test_in_a_compiled_function_all_others_give_what_tensorflow_gives():
    """What is an array argument is an argument of the compiled function: so it is JAX's."""
    compiled = [case for case in CASES if not depends_on_values(case)]
    values = [arguments(case, np.asarray) for case in compiled]
    leaves, tree = jax.tree.flatten(values)
    moving = [place for place, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]

    @rx.function
    def everything(arrays):
        filled = list(leaves)
        for place, array in zip(moving, arrays, strict=True):
            filled[place] = array
        pairs = zip(compiled, tree.unflatten(filled), strict=True)
        return [function(case["function"])(*args, **keywords) for case, (args, keywords) in pairs]

    found = everything([leaves[place] for place in moving])
    assert len(found) > 250
    for case, one in zip(compiled, found, strict=True):
        assert_same(one, case["result"], exact_type=False)


# Parameters that TensorFlow has and that are not here, or are spelt otherwise, and why.
OTHER_PARAMETERS = {
    "fill": "no layout, which is of DTensor",
    "zeros": "no layout",
    "zeros_like": "no layout",
    "ones": "no layout",
    "ones_like": "no layout",
    "meshgrid": "indexing is named",
    "einsum": "optimize and name are named",
    "linalg.einsum": "the same",
    "nest.map_structure": "check_types and expand_composites are named",
}


def test_parameters_are_those_of_tensorflow():
    differing, compared = [], 0
    for name, theirs in PARAMETERS.items():
        namespace, _, own = name.rpartition(".")
        page = f"tf.{namespace}".rstrip(".")
        if namespace == "dtypes" or own not in listed(page) or name in OTHER_PARAMETERS:
            continue
        parameters = inspect.signature(function(name)).parameters.values()
        ours = [spelt(parameter) for parameter in parameters]
        compared += 1
        if [same_default(one) for one in ours] != [same_default(one) for one in theirs]:
            differing.append(f"{name}: {ours} here, {theirs} there")
    assert compared > 250
    assert not differing, "\n".join(differing)


def spelt(parameter):
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    default = parameter.default
    return [parameter.name, default if isinstance(default, int | float | str) else str(default)]


def same_default(parameter):
    """The name alone for `name`, whose default is of no consequence."""
    return "name" if isinstance(parameter, list) and parameter[0] == "name" else parameter


PAGE = Path(__file__).parents[2] / "docs" / "tf_names.md"
# Where `tf` itself has the names from that the page is about; it lists others, too.
TOP = ("_arrays", "_dtypes", "_elementwise", "_indexing", "_linalg", "_reductions", "_tensors")


@functools.cache
def listed(namespace):
    """The names that the page lists for a namespace."""
    section = PAGE.read_text().split(f"\n### {namespace}\n\n")[1]
    return set(re.findall(r"`(\w+)`", section.split("\n\n")[0]))


def test_the_page_lists_the_names_of_tf():
    tables = [source for source in NAMESPACES["tf"][1:] if not isinstance(source, str)]
    homes = {name: home for table in tables for name, home in table.items()}
    assert {name for name, home in homes.items() if home[1:] in TOP} <= listed("tf") <= set(homes)


@pytest.mark.parametrize(
    "namespace", ["dtypes", "linalg", "math", "nest", "nn", "ragged", "sparse", "version"]
)
def test_the_page_lists_the_names_of_a_namespace(namespace):
    names, found = dir(getattr(tf, namespace)), listed(f"tf.{namespace}")
    assert found <= set(names)
    theirs = {name.partition(".")[2] for name in PARAMETERS if name.startswith(f"{namespace}.")}
    assert theirs & set(names) <= found
