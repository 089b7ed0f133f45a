"""Convolutions by the kernel: which ones go there, the right numbers, each device its part."""

import ctypes
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from replicax._cpu import convolutions, kernels
from replicax._cpu.convolution_forms import Kind, form_of
from replicax._cpu.convolutions import found_again
from replicax._cpu.kernels import multiplies_pairs
from replicax._cpu.programs import with_rules
from replicax._program.jaxpr import equations

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
    rank, groups = draw.integers(1, 3), int(draw.choice([1, 1, 2, 8, 40]))
    inputs, outputs = draw.integers(1, 20 if groups < 8 else 4, 2).tolist()
    inputs = 1 if seed % 3 == 0 else inputs  # depthwise, with groups
    size, kernel = draw.integers(3, 13, rank), draw.integers(1, 5, rank)
    kernel = 1 + 0 * kernel if seed % 7 == 0 else kernel
    strides, dilation = draw.integers(1, 4, rank).tolist(), draw.integers(1, 3, rank)
    reach = dilation * (kernel - 1)
    how = {
        "window_strides": [1] * rank if seed % 5 == 0 else strides,
        "rhs_dilation": dilation.tolist(),
        "feature_group_count": groups,
        "padding": [tuple(draw.integers(-1, most + 2, 2).tolist()) for most in reach],
    }
    if seed % 4 == 3:  # a transposed convolution
        how |= {"lhs_dilation": how["window_strides"], "window_strides": [1] * rank}
    x = draw.normal(size=(draw.integers(1, 9), *size, groups * inputs)).astype("float32")
    return x, draw.normal(size=(*kernel, inputs, groups * outputs)).astype("float32"), how


def by_taps(x, w, towards, **how):
    """A convolution and both gradients of its sum times `towards(it)`: tap by tap, in float64.

    XLA's own numbers are no measure: some of its convolutions with negative padding are wrong.
    """
    rank, groups = x.ndim - 2, how["feature_group_count"]
    steps = how.get("lhs_dilation", [1] * rank)
    frame = [
        (size - 1) * step + 1 + max(0, before) + max(0, after)
        for size, step, (before, after) in zip(x.shape[1:], steps, how["padding"], strict=False)
    ]
    images = np.zeros((len(x), *frame, groups, x.shape[-1] // groups))
    middle = tuple(
        slice(max(0, before), max(0, before) + (size - 1) * step + 1, step)
        for size, step, (before, _) in zip(x.shape[1:], steps, how["padding"], strict=False)
    )
    images[:, *middle] = x.reshape(*x.shape[:-1], groups, -1)
    kernel = w.astype("float64").reshape(*w.shape[:-1], groups, -1)
    shape = jax.eval_shape(lambda x, w: convolved(x, w, **how), x, w).shape

    def seen(tap):
        places = zip(tap, how["rhs_dilation"], how["window_strides"], shape[1:], strict=False)
        starts = [
            position * dilation + max(0, -before)
            for (position, dilation, _, _), (before, _) in zip(places, how["padding"], strict=True)
        ]
        return slice(None), *(
            slice(start, start + (size - 1) * stride + 1, stride)
            for start, stride, size in zip(starts, how["window_strides"], shape[1:], strict=False)
        )

    taps = list(np.ndindex(*w.shape[:rank]))
    out = sum(np.einsum("...gi,igo->...go", images[seen(tap)], kernel[tap]) for tap in taps)
    back = towards(out)
    of_images, of_kernel = np.zeros_like(images), np.zeros_like(kernel)
    for tap in taps:
        of_images[seen(tap)] += np.einsum("...go,igo->...gi", back, kernel[tap])
        of_kernel[tap] = np.einsum("ngi,ngo->igo", *(
            one.reshape(-1, *one.shape[-2:]) for one in (images[seen(tap)], back)
        ))  # fmt: skip
    return out.reshape(shape), of_images[:, *middle].reshape(x.shape), of_kernel.reshape(w.shape)


def test_a_convolution_and_its_gradients_are_the_three_forms():
    x, w = jnp.ones((4, 9, 8, 3)), jnp.ones((3, 2, 3, 5))
    found = forms(lambda x, w: with_gradients(x, w, window_strides=(2, 1)), x, w)
    assert {form.kind for form in found} == set(Kind)
    for form in found:
        assert (form.images, form.channels, form.channels_out) == (4, 3, 5)
        assert (form.size, form.size_out, form.kernel) == ((9, 8), (5, 8), (3, 2))
        assert (form.strides, form.dilation) == ((2, 1), (1, 1))
        # SAME: 5 rows at steps of 2 reach over 11, one more than 9 on each side; 8 columns over 9.
        assert form.before == (1, 0)


def test_a_sequence_is_an_image_of_one_row():
    (form,) = forms(convolved, jnp.ones((4, 9, 3)), jnp.ones((5, 3, 2)))
    assert (form.size, form.kernel, form.before) == ((1, 9), (1, 5), (0, 2))


@pytest.mark.parametrize(
    ("x", "w", "how"),
    [
        ((2, 5, 5, 5, 1), (3, 3, 3, 1, 1), {"dimension_numbers": ("NDHWC", "DHWIO", "NDHWC")}),
        ((2, 1, 5, 5), (3, 3, 1, 1), {"dimension_numbers": ("NCHW", "HWIO", "NCHW")}),
        (
            (2, 5, 5, 1),
            (3, 3, 1, 1),
            {"lhs_dilation": (2, 2), "window_strides": (2, 2), "padding": [(1, 1), (1, 1)]},
        ),
        ((4, 5, 5, 1), (3, 3, 1, 2), {"batch_group_count": 2}),
    ],
    ids=["volumes", "channels first", "dilated with strides", "groups of images"],
)
def test_other_convolutions_stay_with_xla(x, w, how):
    how = {"window_strides": (1,) * (len(x) - 2), "padding": "SAME", **how}
    how.setdefault("dimension_numbers", IMAGES)
    call = lambda x, w: lax.conv_general_dilated(x, w, **how)  # noqa: E731
    assert forms(call, jnp.ones(x), jnp.ones(w)) == [None]


def test_other_types_stay_with_xla():
    assert forms(
        convolved, jnp.ones((2, 5, 5, 1), "float16"), jnp.ones((3, 3, 1, 1), "float16")
    ) == [None]


@pytest.mark.parametrize("groups", [1, 6])
def test_sixteen_bits_are_computed_in_thirty_two(kernel, groups):
    draw = np.random.default_rng(0)
    x, w = (draw.normal(size=size) for size in ((3, 9, 8, 6), (3, 3, 6 // groups, 12)))
    x, w = (jnp.asarray(value, "bfloat16") for value in (x, w))

    def both(x, w):
        return with_gradients(x, w, feature_group_count=groups)

    found = jax.jit(with_rules(both)).lower(x, w)
    assert found.as_text().count("rx_convolution") >= 3
    out, *gradients = found.compile()(x, w)
    wide = [value.astype("float32") for value in (x, w)]
    expected = convolved(*wide, feature_group_count=groups)
    np.testing.assert_allclose(out.astype("float32"), expected, rtol=2**-8, atol=1e-4)
    for ours, expected in zip(gradients, both(x, w)[1:], strict=True):
        assert ours.dtype == "bfloat16"
        np.testing.assert_allclose(ours.astype(float), expected.astype(float), rtol=0.02, atol=0.1)


def with_gradient_of_images(x, w, **how):
    out, back = jax.vjp(lambda x: convolved(x, w.astype("bfloat16"), **how), x)
    return out, *back(jnp.cos(out))


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("strides", [(1, 1), (2, 1)])
@pytest.mark.parametrize("groups", [1, 6])
def test_the_kernel_rounds_weights_as_xla_does(kernel, groups, strides, devices):
    draw = np.random.default_rng(0)
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))
    x = jnp.asarray(draw.normal(size=(4, 9, 8, 6)), "bfloat16")
    x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    w = draw.normal(size=(3, 3, 6 // groups, 42)).astype("float32")
    how = {"feature_group_count": groups, "window_strides": strides}
    run = jax.jit(with_rules(lambda x, w: with_gradient_of_images(x, w, **how)))
    text = run.lower(x, w).compile().as_text()
    assert text.count('custom_call_target="rx_convolution"') == 2
    # JAX puts the weights of groups into another order first, for the gradient: XLA rounds those.
    assert (f"bf16[3,3,{6 // groups},42]" in text) == (groups > 1)
    for ours, expected in zip(run(x, w), run(x, w.astype("bfloat16")), strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("cast_weights", [False, True])
def test_results_of_which_only_32_bits_are_used_are_not_rounded(
    kernel, cast_weights, devices, monkeypatch
):
    monkeypatch.setattr(convolutions, "multiplies_pairs", lambda: False)
    draw = np.random.default_rng(0)
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(AxisType.Auto,))
    x = jnp.asarray(draw.normal(size=(4, 9, 8, 6)), "bfloat16")
    x = jax.device_put(x, NamedSharding(mesh, PartitionSpec("data")))
    w = jnp.asarray(draw.normal(size=(3, 3, 6, 42)), "bfloat16")
    w = w.astype("float32") if cast_weights else w

    slopes = jnp.asarray(draw.normal(size=(4, 9, 8, 42)), "bfloat16")

    def all_three(x, w):
        out, back = jax.vjp(lambda x, w: convolved(x, w.astype("bfloat16")), x, w)
        return [one.astype("float32") for one in (out, *back(slopes))]

    out, back = jax.vjp(convolved, x.astype("float32"), w.astype("float32"))
    expected = (out, *back(slopes.astype("float32")))
    for ours, exact in zip(jax.jit(with_rules(all_three))(x, w), expected, strict=True):
        np.testing.assert_allclose(ours, exact, rtol=1e-5, atol=1e-4)
        assert np.abs(ours - ours.astype("bfloat16")).max() > 1e-3
    rounded = jax.jit(with_rules(lambda x: convolved(x, w.astype("bfloat16"))))(x)
    assert rounded.dtype == "bfloat16"
    np.testing.assert_allclose(rounded.astype("float32"), out, rtol=2**-8, atol=1e-4)


def test_results_of_32_bits_are_computed_without_the_kernel_too(monkeypatch):
    monkeypatch.setattr(convolutions, "are_there", lambda: False)
    x, w = jnp.ones((2, 8, 8, 8), "bfloat16"), jnp.ones((3, 3, 1, 8), "bfloat16")
    how = {"feature_group_count": 8, "preferred_element_type": "float32"}
    found = jax.jit(with_rules(lambda x, w: convolved(x, w, **how)))(x, w)
    assert found.dtype == "float32"
    assert found[0, 4, 4, 0] == 9


def test_ties_and_what_is_no_number_are_rounded_as_xla_does(kernel):
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F817FFF, 0xBF808000, 0x7F7FFFFF, 0xFF7FFFFF]
    bits += [0x7F800000, 0xFF800000, 0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0, 0x80000000]
    w = np.array(bits, np.uint32).view(np.float32).reshape(1, 1, 1, -1)
    one = jnp.ones((1, 1, 1, 1), "bfloat16")
    run = jax.jit(with_rules(lambda w: convolved(one, w.astype("bfloat16"))))
    assert "xbf16" not in re.findall(r"custom_call @rx_convolution.*", run.lower(w).as_text())[0]
    found, expected = (x.astype("float32") for x in (run(w), jnp.asarray(w).astype("bfloat16")))
    np.testing.assert_array_equal(found, expected)
    assert found[0, 0, 0, :4].tolist() == [1, 1 + 2**-6, 1 + 2**-7, 1 + 2**-7]


def test_without_the_kernel_weights_are_rounded_by_xla(monkeypatch):
    monkeypatch.setattr(convolutions, "are_there", lambda: False)
    x, w = jnp.ones((1, 4, 4, 2), "bfloat16"), jnp.full((3, 3, 2, 2), 1 + 2**-8)
    run = jax.jit(with_rules(lambda w: convolved(x, w.astype("bfloat16"))))
    assert run(w)[0, 1, 1, 0] == 18  # 1 is the even one of the two nearest


def cases():
    for seed in range(60):
        x, w, how = random_case(seed)
        shape = jax.eval_shape(lambda x, w, how=how: convolved(x, w, **how), x, w).shape
        if 0 not in shape:
            yield x, w, how


def cases_of_many_channels():
    """Images at one place in one tile, blocks with a last image alone, and 1×1 over many pixels."""
    draw = np.random.default_rng(0)
    for images, size, kernel, stride, inputs, outputs in [
        (5, (4, 3), (3, 3), 1, 64, 40),
        (7, (2, 2), (3, 3), 1, 128, 64),
        (49, (1, 3), (1, 3), 1, 66, 7),
        (4, (9, 7), (3, 2), 2, 64, 33),
        (3, (11, 12), (5, 5), 3, 34, 72),
        (3, (13, 9), (1, 1), 1, 256, 20),
    ]:
        x = draw.normal(size=(images, *size, inputs)).astype("float32")
        w = draw.normal(size=(*kernel, inputs, outputs)) / np.sqrt(inputs * np.prod(kernel))
        w = w.astype("float32")
        padding = [((taps - 1) // 2, taps // 2) for taps in kernel]
        how = {"window_strides": (stride, stride), "rhs_dilation": (1, 1), "padding": padding}
        yield x, w, {**how, "feature_group_count": 1}


def rounded(array):
    return np.asarray(array).astype("bfloat16").astype("float64")


@pytest.mark.parametrize(("pairs", "tiles"), [(True, True), (True, False), (False, False)], ids=str)
def test_numbers_of_sixteen_bits_are_right(kernel, pairs, tiles, monkeypatch, request):
    use_tiles = kernels.function("rx_use_tiles", ctypes.c_int64)
    request.addfinalizer(lambda: use_tiles(True))
    assert bool(use_tiles(tiles)) <= tiles
    if not pairs:
        monkeypatch.setattr(convolutions, "multiplies_pairs", lambda: False)
    with_pairs = pairs and multiplies_pairs()
    drawn = [*cases_of_many_channels(), *itertools.islice(cases(), 30)]
    operands = [(x.astype("bfloat16"), w.astype("bfloat16")) for x, w, _ in drawn]

    def run_all(operands):
        return [
            with_gradients(*some, **how) for some, (*_, how) in zip(operands, drawn, strict=True)
        ]

    compiled = jax.jit(with_rules(run_all)).lower(operands).compile()
    calls = re.findall(r'= (\w+)\[.*custom_call_target="rx_convolution"', compiled.as_text())
    assert len(calls) > 2.5 * len(drawn)
    assert ("bf16" in calls) == with_pairs
    for found, (x, w), (*_, how) in zip(compiled(operands), operands, drawn, strict=True):
        right = by_taps(*map(rounded, (x, w)), lambda out: rounded(np.cos(rounded(out))), **how)
        for ours, expected in zip(found, right, strict=True):
            atol = 2**-7 * max(1e-3, np.abs(expected).max())
            np.testing.assert_allclose(
                ours.astype(float), expected, rtol=0, atol=atol, err_msg=f"{x.shape} {how}"
            )


@pytest.mark.parametrize(
    ("width", "bad", "how"),
    [
        (8, 7, {"window_strides": (2, 2), "padding": "VALID"}),  # a pixel that no tap reads
        (9, 8, {}),
        (9, 0, {"rhs_dilation": (2, 2)}),
        (1, 0, {}),
    ],
)
def test_what_is_no_number_stays_where_it_counts(kernel, width, bad, how):
    draw = np.random.default_rng(0)
    x = draw.normal(size=(2, 9, width, 16)).astype("float32")
    x[:, :, bad] = np.inf
    x, w = jnp.asarray(x, "bfloat16"), jnp.zeros((3, 3, 16, 24), "bfloat16")
    out = jnp.asarray(draw.normal(size=convolved(x, w, **how).shape), "bfloat16")
    gradient = lambda out: jax.vjp(lambda w: convolved(x, w, **how), w)[1](out)[0]  # noqa: E731
    ours, expected = (jax.jit(one)(out) for one in (with_rules(gradient), gradient))
    np.testing.assert_allclose(
        ours.astype(float), expected.astype(float), rtol=2**-7, atol=2**-7 * 20
    )


def test_numbers_are_right(kernel):
    drawn = [*cases(), *cases_of_many_channels()]
    operands = [(x, w) for x, w, _ in drawn]

    def run_all(operands):
        return [
            with_gradients(*some, **how) for some, (*_, how) in zip(operands, drawn, strict=True)
        ]

    compiled = jax.jit(with_rules(run_all)).lower(operands).compile()
    assert compiled.as_text().count('custom_call_target="rx_convolution"') > 2.5 * len(drawn)
    for found, (x, w, how) in zip(compiled(operands), drawn, strict=True):
        for ours, right in zip(found, by_taps(x, w, np.cos, **how), strict=True):
            atol = 1e-5 * max(1e-3, np.abs(right).max())
            np.testing.assert_allclose(ours, right, rtol=0, atol=atol, err_msg=f"{x.shape} {how}")


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("how", [{}, {"window_strides": (2, 1)}, {"rhs_dilation": (1, 2)}])
def test_without_the_kernel_slices_compute_depthwise_ones(how, size, monkeypatch):
    monkeypatch.setattr(convolutions, "are_there", lambda: False)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(3, 9, 8, 6)).astype("float32")
    w = draw.normal(size=(size, size, 1, 6)).astype("float32")

    def both(x, w):
        return with_gradients(x, w, feature_group_count=6, **how)

    found = jax.jit(with_rules(both)).lower(x, w)
    assert "convolution" not in found.as_text()
    for ours, expected in zip(found.compile()(x, w), both(x, w), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)


def test_without_the_kernel_one_tap_of_all_channels_is_a_product(monkeypatch):
    monkeypatch.setattr(convolutions, "are_there", lambda: False)
    draw = np.random.default_rng(0)
    x, w = (draw.normal(size=s).astype("float32") for s in ((3, 5, 4, 6), (1, 1, 6, 2)))
    found = jax.jit(with_rules(lambda x, w: with_gradients(x, w))).lower(x, w)
    assert "convolution" not in found.as_text()
    for ours, expected in zip(found.compile()(x, w), with_gradients(x, w), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("channels", "strides", "stays"), [(3, (2, 2), True), (3, (1, 1), False), (5, (2, 2), False)]
)
def test_gradients_of_few_channels_with_strides_stay_with_xla(kernel, channels, strides, stays):
    x, w = jnp.ones((4, 8, 8, channels)), jnp.ones((3, 3, channels, 8))
    out = convolved(x, w, window_strides=strides)

    def gradient(out):
        return jax.vjp(lambda x: convolved(x, w, window_strides=strides), x)[1](out)

    assert ("rx_convolution" not in jax.jit(with_rules(gradient)).lower(out).as_text()) == stays


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
    step = jax.jit(with_rules(jax.value_and_grad(loss)), out_shardings=(None, where))
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
    run = jax.jit(with_rules(each))
    assert "rx_convolution" in run.lower(x).as_text()
    np.testing.assert_allclose(run(x), with_gradients(x, w, **how)[1], rtol=1e-4, atol=1e-4)


def test_kernels_of_which_each_thread_cannot_have_its_own_gradient(kernel):
    # 36 MB: of two threads, one computes the sum over both images.
    draw = np.random.default_rng(0)
    x, g = (draw.normal(size=(2, 3, 3, 1024)).astype("float32") for _ in "xg")
    w = np.zeros((3, 3, 1024, 1024), "float32")
    gradient = jax.jit(with_rules(lambda w: jax.vjp(lambda w: convolved(x, w), w)[1](g)[0]))
    assert "rx_convolution" in gradient.lower(w).as_text()
    found = gradient(w)
    np.testing.assert_allclose(found[1, 1], np.einsum("nhwi,nhwo->io", x, g), rtol=1e-4, atol=1e-4)
    corner = np.einsum("nhwi,nhwo->io", x[:, :2, :2], g[:, 1:, 1:])
    np.testing.assert_allclose(found[0, 0], corner, rtol=1e-4, atol=1e-4)


def test_an_exported_program_needs_no_kernel(kernel):
    x, w, _ = random_case(0)
    exported = jax.export.export(jax.jit(with_rules(convolved)))(
        x, jnp.ones((3,) * (x.ndim - 2) + (x.shape[-1], 2))
    )
    assert "rx_convolution" not in exported.mlir_module()


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
    traced = jax.make_jaxpr(with_rules(lambda x: inner(x) + 1))(x)
    with found_again({equation.primitive.name for equation in equations(traced.jaxpr)}):
        assert jax.config._value_holders[setting].value is found
    assert jax.config._value_holders[setting].value is False


def test_another_edition_of_the_code_is_another_program(monkeypatch):
    x, w = jnp.ones((2, 8, 8, 3)), jnp.ones((3, 3, 3, 3))
    (form,) = forms(convolved, x, w)
    given = []
    monkeypatch.setattr(convolutions, "_divided", lambda *args: given.append(args[-1]))
    convolutions.convolution(form, x, x, w)
    monkeypatch.setattr(convolutions, "_edition", lambda: 7)
    convolutions.convolution(form, x, x, w)
    before, after = (numbers.tolist() for numbers in given)
    assert before[:-1] == after[:-1]
    assert before[-1] != after[-1] == 7
