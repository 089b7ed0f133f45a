"""Convolutions by oneDNN: which ones go there, the same numbers as XLA's, each device its part."""

from __future__ import annotations

import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from replicax._core import cpu_tuning
from replicax._core.convolutions import library as of_library
from replicax._core.convolutions import sharding
from replicax._core.convolutions.forms import Kind, form_of
from replicax._core.convolutions.keys import found_again
from replicax._core.handlers import building
from replicax._core.lowering import with_rules

IMAGES, SEQUENCES = ("NHWC", "HWIO", "NHWC"), ("NWC", "WIO", "NWC")


def convolved(x, w, **how):
    names = IMAGES if x.ndim == 4 else SEQUENCES
    how = {"window_strides": (1,) * (x.ndim - 2), "padding": "SAME", **how}
    return lax.conv_general_dilated(x, w, dimension_numbers=names, **how)


def with_gradients(x, w, **how):
    out, back = jax.vjp(lambda x, w: convolved(x, w, **how), x, w)
    return out, *back(jnp.cos(out))


def forms(function, *operands):
    """The forms of all convolutions in the function, in the order of the program."""
    equations = jax.make_jaxpr(function)(*operands).eqns
    return [
        form_of(*(operand.aval for operand in one.invars), **one.params)
        for one in equations
        if one.primitive is lax.conv_general_dilated_p
    ]


def random_case(seed):
    """Operands and parameters of some convolution: images or sequences, groups, steps, padding."""
    draw = np.random.default_rng(seed)
    rank, groups = draw.integers(1, 3), int(draw.choice([1, 1, 2, 3]))
    inputs, outputs = draw.integers(1, 6, 2)
    size, kernel = draw.integers(4, 11, rank), draw.integers(1, 5, rank)
    dilation = draw.integers(1, 3, rank)
    reach = dilation * (kernel - 1)
    padding = [(int(reach[i]), int(reach[i] // 2)) for i in range(rank)]
    how = {
        "window_strides": draw.integers(1, 4, rank).tolist(),
        "rhs_dilation": dilation.tolist(),
        "feature_group_count": groups,
        "padding": padding if seed % 2 else "SAME",
    }
    if seed % 4 == 3:  # a transposed convolution
        how |= {"lhs_dilation": how["window_strides"], "window_strides": [1] * rank}
    x = draw.normal(size=(draw.integers(4, 8), *size, groups * inputs)).astype("float32")
    w = draw.normal(size=(*kernel, inputs, groups * outputs)).astype("float32")
    return x, w, how


def test_a_convolution_and_its_gradients_are_the_three_forms():
    x, w = jnp.ones((4, 9, 8, 3)), jnp.ones((3, 2, 3, 5))
    found = forms(lambda x, w: with_gradients(x, w, window_strides=(2, 1)), x, w)
    assert {form.kind for form in found} == set(Kind)
    for form in found:
        assert (form.images, form.channels, form.channels_out) == (4, 3, 5)
        assert (form.size, form.size_out, form.kernel) == ((9, 8), (5, 8), (3, 2))
        assert (form.strides, form.dilation) == ((2, 1), (1, 1))
        # SAME: 5 rows at steps of 2 reach over 11, one more than 9 on each side; 8 columns over 9.
        assert form.padding == ((1, 1), (0, 1))


def test_a_sequence_is_an_image_of_one_row():
    (form,) = forms(convolved, jnp.ones((4, 9, 3)), jnp.ones((5, 3, 2)))
    assert (form.size, form.kernel, form.padding) == ((1, 9), (1, 5), ((0, 0), (2, 2)))


@pytest.mark.parametrize(
    ("x", "w", "how"),
    [
        ((2, 5, 5, 5, 1), (3, 3, 3, 1, 1), {"dimension_numbers": ("NDHWC", "DHWIO", "NDHWC")}),
        ((2, 1, 5, 5), (3, 3, 1, 1), {"dimension_numbers": ("NCHW", "HWIO", "NCHW")}),
        ((2, 5, 5, 1), (3, 3, 1, 1), {"padding": [(-1, 0), (0, 0)]}),
        (
            (2, 5, 5, 1),
            (3, 3, 1, 1),
            {"lhs_dilation": (2, 2), "window_strides": (2, 2), "padding": [(1, 1), (1, 1)]},
        ),
        ((4, 5, 5, 1), (3, 3, 1, 2), {"batch_group_count": 2}),
    ],
    ids=["volumes", "channels first", "cropped", "dilated with strides", "groups of images"],
)
def test_other_convolutions_stay_with_xla(x, w, how):
    how = {"window_strides": (1,) * (len(x) - 2), "padding": "SAME", **how}
    how.setdefault("dimension_numbers", IMAGES)
    call = lambda x, w: lax.conv_general_dilated(x, w, **how)  # noqa: E731
    assert forms(call, jnp.ones(x), jnp.ones(w)) == [None]


def test_other_types_stay_with_xla():
    assert forms(
        convolved, jnp.ones((2, 5, 5, 1), "bfloat16"), jnp.ones((3, 3, 1, 1), "bfloat16")
    ) == [None]


def test_numbers_are_those_of_xla(kernel):
    cases = [random_case(seed) for seed in range(8)]
    operands = [(x, w) for x, w, _ in cases]

    def run_all(operands):
        return [
            with_gradients(*some, **how) for some, (*_, how) in zip(operands, cases, strict=True)
        ]

    run = jax.jit(run_all)
    compiled = run.lower(operands).compile()
    assert compiled.as_text().count('custom_call_target="rx_convolution"') > len(cases)
    ours = compiled(operands)
    cpu_tuning.choose_parts(frozenset())
    jax.clear_caches()
    expected = run(operands)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), ours, expected
    )


@pytest.mark.parametrize("axes", [{"data": 2}, {"data": 2, "model": 2}], ids=["data", "model"])
def test_each_device_computes_its_own_part(kernel, axes):
    mesh = jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes),
        devices=jax.devices()[: np.prod(list(axes.values()))],
    )  # fmt: skip
    draw = np.random.default_rng(0)
    x = draw.normal(size=(8, 6, 6, 4)).astype("float32")
    kernels = [draw.normal(size=(3, 3, 4, 6)), draw.normal(size=(3, 3, 6, 4))]
    kernels = [one.astype("float32") for one in kernels]

    def loss(kernels, x):
        hidden = jnp.sin(convolved(x, kernels[0], window_strides=(2, 2)))
        return jnp.mean(jnp.sin(convolved(hidden, kernels[1])))

    expected = jax.value_and_grad(loss)(kernels, x)
    model = "model" if "model" in axes else None
    by_out, by_in = (
        PartitionSpec(*where) for where in [(None, None, None, model), (None, None, model, None)]
    )
    where = [NamedSharding(mesh, by_out), NamedSharding(mesh, by_in)]
    placed = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    step = jax.jit(jax.value_and_grad(loss), out_shardings=(None, where))
    compiled = step.lower(jax.device_put(kernels, where), placed).compile()
    text = compiled.as_text()
    assert "rx_convolution" in text
    assert not re.search(r" (all-gather|all-to-all)", text)
    ours = compiled(jax.device_put(kernels, where), placed)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), ours, expected
    )


def test_replicas_that_run_the_same_program(kernel):
    mesh = jax.sharding.Mesh(jax.devices()[:4], ("data",))
    x, w, how = random_case(0)
    x = np.concatenate([x] * 4)
    each = jax.shard_map(
        lambda x: with_gradients(x, w, **how)[1], mesh=mesh, in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec("data"),
    )  # fmt: skip
    run = jax.jit(each)
    assert "rx_convolution" in run.lower(x).as_text()
    np.testing.assert_allclose(run(x), with_gradients(x, w, **how)[1], rtol=1e-4, atol=1e-4)


def test_kernels_of_which_each_thread_cannot_have_its_own_gradient(kernel):
    # 36 MB: of two threads, one computes the sum over both images.
    draw = np.random.default_rng(0)
    x, g = (draw.normal(size=(2, 3, 3, 1024)).astype("float32") for _ in "xg")
    w = np.zeros((3, 3, 1024, 1024), "float32")
    gradient = jax.jit(lambda w: jax.vjp(lambda w: convolved(x, w), w)[1](g)[0])
    assert "rx_convolution" in gradient.lower(w).as_text()
    found = gradient(w)
    np.testing.assert_allclose(found[1, 1], np.einsum("nhwi,nhwo->io", x, g), rtol=1e-4, atol=1e-4)
    corner = np.einsum("nhwi,nhwo->io", x[:, :2, :2], g[:, 1:, 1:])
    np.testing.assert_allclose(found[0, 0], corner, rtol=1e-4, atol=1e-4)


def test_an_exported_program_needs_no_kernel(kernel):
    x, w, _ = random_case(0)
    exported = jax.export.export(jax.jit(convolved))(
        x, jnp.ones((3,) * (x.ndim - 2) + (x.shape[-1], 2))
    )
    assert "rx_convolution" not in exported.mlir_module()


@pytest.fixture
def afresh():
    of_library.library.cache_clear()
    yield
    of_library.library.cache_clear()


def test_without_the_wheels_nothing_is_said(afresh, monkeypatch, caplog):
    monkeypatch.setattr(of_library, "_WHEELS", {"replicax-no-such-wheel": "libdnnl.so.3"})
    assert of_library.library() is None
    assert not caplog.records


@pytest.fixture
def installed(afresh, monkeypatch, tmp_path):
    """The wheels seem to be there, and the user's cache folder is a new one."""
    monkeypatch.setattr(of_library, "_onednn", lambda: (tmp_path / "libdnnl.so.3", tmp_path))
    monkeypatch.setattr(of_library, "_WHEELS", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def why_not(caplog):
    """Why there is no kernel, which is said once."""
    with caplog.at_level(logging.WARNING, "replicax"):
        assert of_library.library() is None
        assert of_library.library() is None
    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith("Convolutions stay with XLA; no kernel that calls oneDNN: ")
    return said


def test_without_a_home_one_line_says_so(installed, monkeypatch, caplog):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")  # as Python without HOME

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr("pathlib.Path.home", nowhere)
    assert "home directory" in why_not(caplog)


def test_without_a_compiler_one_line_says_so(installed, monkeypatch, caplog):
    monkeypatch.setattr(building.shutil, "which", lambda name: None)
    assert "no compiler of C" in why_not(caplog)


def _others():
    double = custom_partitioning(lambda x: 2 * x)
    double.def_partition(lambda *_: None, sharding_rule="a b c d -> a b c d")
    return double


@pytest.mark.parametrize(
    ("with_convolution", "with_others", "found"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_addresses_are_left_out_of_keys_where_all_that_is_divided_is_ours(
    with_convolution, with_others, found
):
    @jax.jit
    def inner(x):
        x = _others()(x) if with_others else x
        return lax.conv(x, jnp.ones((3, 3, 3, 3)), (1, 1), "SAME") if with_convolution else x

    x = jnp.ones((2, 3, 8, 8))
    setting = "jax_remove_custom_partitioning_ptr_from_cache_key"
    with found_again(jax.make_jaxpr(with_rules(lambda x: inner(x) + 1))(x)):
        assert jax.config._value_holders[setting].value is found
    assert jax.config._value_holders[setting].value is False


def test_another_edition_of_the_code_is_another_program(monkeypatch):
    x, w = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 3))
    (form,) = forms(convolved, x, w)
    given = []
    monkeypatch.setattr(sharding, "_divided", lambda *args: given.append(args[-1]))
    sharding.convolution(form, x.shape, x, w)
    monkeypatch.setattr(sharding, "_edition", lambda: 7)
    sharding.convolution(form, x.shape, x, w)
    before, after = (numbers.tolist() for numbers in given)
    assert before[:-1] == after[:-1]
    assert before[-1] != after[-1] == 7
