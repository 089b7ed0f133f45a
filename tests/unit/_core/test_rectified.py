"""A convolution, its bias and `relu` in one: the same numbers and derivatives as one by one."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from replicax._core import cpu_tuning
from replicax._core.convolutions.rectified import How, rectified

LAYOUTS = {3: ("NWC", "WIO", "NWC"), 4: ("NHWC", "HWIO", "NHWC")}
TOGETHER = re.compile(r"custom_call @rx_convolution\(%\w+, %\w+, %\w+\)")


def one_by_one(x, w, b, how):
    sums = lax.conv_general_dilated(
        x, w, how.strides, how.padding, rhs_dilation=how.dilation,
        dimension_numbers=LAYOUTS[x.ndim], feature_group_count=x.shape[-1] // w.shape[-2],
    )  # fmt: skip
    return jax.nn.relu(sums + b)


def random_case(seed, *, images=5):
    draw = np.random.default_rng(seed)
    rank, groups = 1 + seed % 2, int(draw.choice([1, 1, 2]))
    inputs, outputs = draw.integers(1, 6, 2)
    size, taps = draw.integers(5, 11, rank), draw.integers(1, 4, rank)
    dilation, strides = draw.integers(1, 3, (2, rank))
    how = How(tuple(strides.tolist()), ["SAME", "VALID"][seed // 2 % 2], tuple(dilation.tolist()))
    x = draw.normal(size=(images, *size, groups * inputs)).astype("float32")
    w = draw.normal(size=(*taps, inputs, groups * outputs)).astype("float32")
    return x, w, draw.normal(size=groups * outputs).astype("float32"), how


def gradients(function, *operands):
    return jax.grad(lambda *some: jnp.sum(jnp.sin(function(*some))), (0, 1, 2))(*operands)


def alike(ours, theirs):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), ours, theirs)


def test_numbers_and_gradients_are_those_of_one_by_one(kernel):
    cases = [random_case(seed) for seed in range(6)]

    def run_all(function):
        def all_of(operands):
            found = []
            for some, (*_, how) in zip(operands, cases, strict=True):
                fixed = lambda *some, how=how: function(*some, how)  # noqa: E731
                found.append((fixed(*some), gradients(fixed, *some)))
            return found

        return jax.jit(all_of)

    operands = [case[:3] for case in cases]
    assert len(TOGETHER.findall(run_all(rectified).lower(operands).as_text())) >= len(cases)
    ours = run_all(rectified)(operands)
    cpu_tuning.choose_parts(frozenset())
    jax.clear_caches()
    alike(ours, run_all(one_by_one)(operands))


def test_many_parts_of_a_batch_get_the_bias_once(kernel):
    # 5 images of 1.2 MB each: a part has one.
    x, w = np.ones((5, 96, 96, 1), "float32"), np.zeros((1, 1, 1, 32), "float32")
    b = np.arange(-16, 16, dtype="float32")
    found = jax.jit(lambda *some: rectified(*some, How((1, 1), "SAME", (1, 1))))(x, w, b)
    np.testing.assert_array_equal(found, np.broadcast_to(np.maximum(b, 0), found.shape))


def test_what_is_no_number_stays_so(kernel):
    x, w, b, how = random_case(1)
    x[0] = np.nan
    b[0] = np.nan
    run = jax.jit(lambda *some: rectified(*some, how))
    assert TOGETHER.search(run.lower(x, w, b).as_text())
    found = np.isnan(run(x, w, b))
    np.testing.assert_array_equal(found, np.isnan(one_by_one(x, w, b, how)))
    assert found[1, ..., 0].all()
    assert not found[1, ..., 1:].any()


@pytest.mark.parametrize(
    "change",
    [
        lambda f: lambda *all: jax.jvp(f, all, all),
        lambda f: lambda *all: jax.jvp(lambda *all: gradients(f, *all), all, all),
        lambda f: lambda *all: gradients(jax.checkpoint(f), *all),
        lambda f: lambda x, w, b: jax.jvp(lambda b: f(x, w, b), (b,), (b,)),
        lambda f: lambda x, w, b: jax.vmap(f, (None, None, 0))(x, w, jnp.stack([b, -b])),
        lambda f: lambda x, w, b: jax.vmap(f, (0, None, None))(jnp.stack([x, -x]), w, b),
        lambda f: lambda x, w, b: jax.vmap(f)(*(jnp.stack([one, -one]) for one in (x, w, b))),
    ],
    ids=["forward", "second", "checkpoint", "by bias", "biases", "images", "all"],
)
def test_other_transformations_give_the_same(ruled, change):
    *operands, how = random_case(3)
    ours = jax.jit(change(lambda *some: rectified(*some, how)))(*operands)
    alike(ours, jax.jit(change(lambda *some: one_by_one(*some, how)))(*operands))


@pytest.mark.parametrize("axes", [{"data": 2}, {"data": 2, "model": 2}], ids=["data", "model"])
def test_each_device_computes_its_own_part(kernel, axes):
    mesh = jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes),
        devices=jax.devices()[: np.prod(list(axes.values()))],
    )  # fmt: skip
    draw = np.random.default_rng(0)
    x = draw.normal(size=(8, 6, 6, 4)).astype("float32")
    w, b = (draw.normal(size=some).astype("float32") for some in ((3, 3, 4, 6), 6))
    how = How((1, 1), "SAME", (1, 1))
    expected = gradients(lambda *some: one_by_one(*some, how), x, w, b)
    model = "model" if "model" in axes else None
    specs = [("data",), (None, None, None, model), (model,)]
    where = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in specs]
    step = jax.jit(
        lambda *some: gradients(lambda *some: rectified(*some, how), *some),
        in_shardings=where, out_shardings=tuple(where),
    )  # fmt: skip
    compiled = step.lower(x, w, b).compile()
    text = compiled.as_text()
    assert text.count('custom_call_target="rx_convolution"') > 2
    assert not re.search(r" (all-gather|all-to-all)", text)
    alike(compiled(*map(jax.device_put, (x, w, b), where)), expected)


def test_a_kernel_whose_inputs_are_divided_is_summed_before_relu(kernel):
    mesh = jax.make_mesh((2,), ("model",), axis_types=(AxisType.Auto,), devices=jax.devices()[:2])
    x, w, b, how = random_case(0)
    x, w = np.concatenate([x, x], -1), np.concatenate([w, -w], -2)
    b = np.concatenate([b] * (w.shape[-1] // len(b)))
    rank = x.ndim - 2
    specs = [(None,) * (rank + 1) + ("model",), (None,) * rank + ("model",), ()]
    where = [NamedSharding(mesh, PartitionSpec(*spec)) for spec in specs]
    run = jax.jit(lambda *some: rectified(*some, how), in_shardings=where)
    alike(run(x, w, b), one_by_one(x, w, b, how))


def test_replicas_that_run_the_same_program(kernel):
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("data",))
    x, w, b, how = random_case(1, images=8)
    spec = PartitionSpec("data")
    run = jax.jit(
        jax.shard_map(
            lambda x, w, b: rectified(x, w, b, how), mesh=mesh,
            in_specs=(spec, PartitionSpec(), PartitionSpec()), out_specs=spec,
        )
    )  # fmt: skip
    assert TOGETHER.search(run.lower(x, w, b).as_text())
    alike(run(x, w, b), one_by_one(x, w, b, how))


def test_an_exported_program_needs_no_kernel(kernel):
    x, w, b, how = random_case(1)
    exported = jax.export.export(jax.jit(lambda *some: rectified(*some, how)))(x, w, b)
    assert "rx_convolution" not in exported.mlir_module()
