"""Products that sum over many rows, by the kernel: the numbers, and which products it computes."""

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax._cpu import kernels
from replicax._cpu.programs import with_rules

from helpers import tuned

pytestmark = pytest.mark.skipif(not kernels.are_there(), reason="the kernels are not built")


def numbers(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype("float32")


def over(left_axes, right_axes, **how):
    return lambda a, b: lax.dot_general(a, b, ((left_axes, right_axes), ((), ())), **how)


def is_for_kernel(fn, *arrays):
    return kernels.ROW_PRODUCTS in jax.jit(with_rules(fn)).lower(*arrays).as_text()


@pytest.mark.parametrize(
    ("rows", "left", "right"),
    [(1024, 16, 16), (4099, 48, 32), (70_001, 16, 128)],  # one part, two, and the most there are
)
def test_the_product(rows, left, right):
    a, b = numbers(rows, left), numbers(rows, right) + 1
    product = over((0,), (0,))
    assert is_for_kernel(product, a, b)
    expected = a.T.astype("float64") @ b
    np.testing.assert_allclose(
        jax.jit(with_rules(product))(a, b), expected, rtol=1e-4, atol=rows * 1e-7
    )


def test_the_gradient_of_a_weight_with_three_axes():
    x, w = numbers(8, 200, 16), numbers(16, 2, 8)

    def loss(w):
        return (jnp.einsum("btd,dhk->bthk", x, w) ** 2).sum() / 2

    assert is_for_kernel(jax.grad(loss), w)
    rows = x.reshape(-1, 16).astype("float64")
    expected = (rows.T @ rows @ w.reshape(16, 16)).reshape(w.shape)
    np.testing.assert_allclose(
        jax.jit(with_rules(jax.grad(loss)))(w), expected, rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(
    ("product", "left", "right"),
    [
        (over((0,), (0,)), (512, 16), (512, 16)),  # few rows
        (over((0,), (0,)), (1024, 16), (1024, 24)),  # no whole vectors
        (over((0,), (0,)), (1024, 16), (1024, 256)),  # wide
        (over((1,), (0,)), (16, 1024), (1024, 16)),  # transposed already
        (over((0, 1), (1, 0)), (32, 64, 16), (64, 32, 16)),  # rows in another order
        (over((0,), (0,), preferred_element_type="bfloat16"), (1024, 16), (1024, 16)),
    ],
)
def test_others_are_left_to_xla(product, left, right):
    assert not is_for_kernel(product, numbers(*left), numbers(*right))


def test_each_device_its_rows():
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("rows",))
    rows, a, b = PartitionSpec("rows"), numbers(4096, 16), numbers(4096, 32)
    product = over((0,), (0,))
    on_each = jax.shard_map(
        lambda a, b: lax.psum(product(a, b), "rows"),
        mesh=mesh, in_specs=rows, out_specs=PartitionSpec(),
    )  # fmt: skip
    assert is_for_kernel(on_each, a, b)
    np.testing.assert_allclose(jax.jit(with_rules(on_each))(a, b), a.T @ b, rtol=1e-4, atol=1e-3)
    divided = [jax.device_put(array, NamedSharding(mesh, rows)) for array in (a, b)]
    assert not is_for_kernel(lambda a, b: product(a, b), *divided)


@pytest.fixture
def tiles(request):
    """Whether the kernel may use tiles, if this CPU has them."""
    use_tiles = kernels.function("rx_use_tiles", ctypes.c_int64) or bool
    use_tiles(request.param)
    yield request.param
    use_tiles(True)


def are_computed_by_the_kernel(product, left, right):
    """Whether the kernel computes a product; its numbers are right in any case."""
    arrays = [jnp.asarray(numbers(*shape), "bfloat16") for shape in (left, right)]
    run = jax.jit(with_rules(product))
    expected = product(*(array.astype("float32") for array in arrays))
    atol = 2**-8 * float(abs(expected).max())
    np.testing.assert_allclose(run(*arrays).astype("float32"), expected, rtol=0, atol=atol)
    return kernels.CONVOLUTION in run.lower(*arrays).as_text()


@pytest.mark.parametrize("tiles", [True, False], ids=["tiles", "pairs"], indirect=True)
@pytest.mark.parametrize(
    ("product", "left", "right"),
    [
        (over((2,), (0,)), (4, 64, 64), (64, 700)),
        (over((2,), (1,)), (4, 512, 48), (100, 48)),  # a gradient by the rows
        (over((2,), (1,)), (4, 512, 49), (260, 49)),
        (over((1, 2), (0, 1)), (300, 9, 13), (9, 13, 300)),  # an odd number of products
        (over((1, 2), (0, 1)), (300, 8, 16), (8, 16, 300)),  # several axes of a weight
        (over((0, 1), (0, 1)), (5, 411, 48), (5, 411, 8, 16)),  # by the weight, of odd rows
        (over((0,), (0,)), (2047, 33), (2047, 253)),
    ],
)
def test_products_of_sixteen_bits(product, left, right, tiles):
    assert are_computed_by_the_kernel(product, left, right) == kernels.multiplies_pairs()


@pytest.mark.parametrize("tiles", [True, False], ids=["tiles", "pairs"], indirect=True)
@pytest.mark.parametrize(
    ("product", "left", "right"),
    [
        (over((1,), (0,)), (33, 160), (160, 257)),
        (over((1,), (1,)), (16, 300), (333, 300)),  # 15 pairs of a weight fill no tile
        (over((0,), (0,)), (129, 100), (129, 90)),
    ],
)
def test_small_products_of_sixteen_bits_are_for_tiles(product, left, right, tiles):
    assert are_computed_by_the_kernel(product, left, right) == kernels.multiplies_tiles()


@pytest.mark.parametrize(
    ("product", "left", "right", "tiles"),
    [
        (over((1,), (0,)), (2048, 729), (729, 24), True),  # an odd number of products, few columns
        (over((1,), (0,)), (32, 2048), (2048, 512), False),  # few rows
        (over((1,), (0,)), (24, 512), (512, 512), True),
        (over((1,), (0,)), (64, 94), (94, 512), True),  # 47 pairs are no number of whole tiles
        (over((0,), (0,)), (512, 256), (512, 256), False),
        (over((0,), (0,)), (96, 256), (96, 256), True),
        (over((1,), (0,)), (256, 64), (64, 256), False),  # few numbers
        (over((1,), (0,)), (64, 64), (64, 64), True),
        (over((1, 2), (1, 0)), (512, 32, 32), (32, 32, 128), True),  # another order
    ],
    indirect=["tiles"],
)
def test_other_products_of_sixteen_bits_are_left_to_xla(product, left, right, tiles):
    assert not are_computed_by_the_kernel(product, left, right)


def test_neither_exported_nor_switched_off():
    arrays = numbers(1024, 16), numbers(1024, 16)
    exported = jax.export.export(jax.jit(with_rules(over((0,), (0,)))))(*arrays)
    assert kernels.ROW_PRODUCTS not in exported.mlir_module()
    with tuned(products=False):
        assert not is_for_kernel(over((0,), (0,)), *arrays)
