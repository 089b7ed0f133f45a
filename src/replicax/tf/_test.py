"""`tf.test`: test cases that compare arrays."""

from __future__ import annotations

import contextlib
import tempfile
import types
from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np
from absl.testing import absltest

from replicax._core.machine.nvidia import has_plugin
from replicax._core.machine.startup import count_accelerators


class TestCase(absltest.TestCase):
    """A test case that compares nests of arrays, with the checks of Abseil's."""

    def setUp(self) -> None:
        keras.utils.set_random_seed(87654321)

    def evaluate(self, tensors: Any) -> Any:
        """The arrays of NumPy."""
        return jax.tree.map(np.asarray, tensors)

    def get_temp_dir(self) -> str:
        """A folder of this test, that is removed behind it."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return folder.name

    @contextlib.contextmanager
    def session(
        self, graph: Any = None, config: Any = None, use_gpu: bool = True, force_gpu: bool = False
    ) -> Iterator[Any]:
        """There are no sessions: `run` of this one is `evaluate`."""
        yield types.SimpleNamespace(run=self.evaluate)

    cached_session = session

    def assertAllEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """Equal shapes and values."""
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b), msg or "")
        self.assertShapeEqual(a, b)

    def assertAllClose(
        self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6, msg: str | None = None
    ) -> None:
        """Equal structures and shapes, and values that are close; a list may stand for an array."""
        for one, other in _pairs(a, b):
            self.assertEqual(one.shape, other.shape, msg)
            np.testing.assert_allclose(one, other, rtol, atol, err_msg=msg or "")

    def assertNotAllClose(self, a: Any, b: Any, rtol: float = 1e-6, atol: float = 1e-6) -> None:
        """Some value is not close."""
        self.assertFalse(np.allclose(np.asarray(a), np.asarray(b), rtol, atol))

    def assertNotAllEqual(self, a: Any, b: Any) -> None:
        """Some value is not equal."""
        self.assertFalse(np.array_equal(np.asarray(a), np.asarray(b)))

    def assertAllInRange(self, target: Any, lower_bound: Any, upper_bound: Any) -> None:
        """All values lie between the bounds."""
        found = np.asarray(target)
        self.assertTrue(bool(((found >= lower_bound) & (found <= upper_bound)).all()), found)

    def assertAllInSet(self, target: Any, expected_set: Any) -> None:
        """All values are of the set."""
        self.assertLessEqual(set(np.asarray(target).ravel().tolist()), set(expected_set))

    def assertShapeEqual(self, a: Any, b: Any, msg: str | None = None) -> None:
        """Equal shapes."""
        self.assertEqual(np.shape(a), np.shape(b), msg)

    def assertNear(self, f1: Any, f2: Any, err: float, msg: str | None = None) -> None:
        """Two numbers that differ by at most `err`."""
        self.assertLessEqual(abs(float(f1) - float(f2)), err, msg)

    def assertArrayNear(self, farray1: Any, farray2: Any, err: float, msg: Any = None) -> None:
        """Rows of numbers that differ by at most `err`."""
        self.assertAllClose(farray1, farray2, rtol=0.0, atol=err, msg=msg)

    def assertDTypeEqual(self, target: Any, expected_dtype: Any) -> None:
        """The type of an array."""
        self.assertEqual(np.asarray(target).dtype, np.dtype(expected_dtype))


def _pairs(a: Any, b: Any) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    left, right = _array(a), _array(b)
    if left is not None and right is not None:
        yield left, right
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for one, other in zip(a, b, strict=True):
            yield from _pairs(one, other)
    elif isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            yield from _pairs(a[key], b[key])
    elif jax.tree.structure(a) != jax.tree.structure(b):
        raise AssertionError(f"Structures differ: {a} and {b}")
    else:
        leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
        yield from ((np.asarray(one), np.asarray(other)) for one, other in leaves)


def _array(value: Any) -> np.ndarray | None:
    """A number, an array, or a list of them as one array."""
    kinds = (list, tuple, int, float, complex, np.ndarray, np.generic)
    if not (hasattr(value, "__array__") or isinstance(value, kinds)):
        return None
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):  # rows of different lengths, or values that are no arrays
        return None
    return None if array.dtype == object else array


main = absltest.main


def is_gpu_available(cuda_only: bool = False, min_cuda_compute_capability: Any = None) -> bool:
    """Whether JAX can use a GPU; it is not started for that."""
    return count_accelerators("GPU") > 0


def gpu_device_name() -> str:
    """The name of the first GPU; empty if there is none."""
    return "/device:GPU:0" if is_gpu_available() else ""


def is_built_with_cuda() -> bool:
    """Whether JAX has its plugin for CUDA."""
    return has_plugin("cuda")


def is_built_with_rocm() -> bool:
    """Whether JAX has its plugin for ROCm."""
    return has_plugin("rocm")


def is_built_with_gpu_support() -> bool:
    """Whether JAX has a plugin for GPUs."""
    return is_built_with_cuda() or is_built_with_rocm()


def is_built_with_xla() -> bool:
    """Yes."""
    return True
