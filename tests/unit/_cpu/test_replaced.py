"""Every operation that Replicax replaces, under all that JAX does with operations.

Each has a row in `ROWS`: a function that meets it. The row is traced for any number of rows,
exported and run where there is no Replicax, mapped, differentiated, and given nothing at all.
"""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax
from jax.interpreters import mlir

import replicax as rx
from replicax._cpu import attention, kernels, programs
from replicax._cpu.adam import Settings, adam
from replicax._cpu.programs import with_rules
from replicax._cpu.tables import add_sums, first_places
from replicax._program.table_gradients import with_slices
from replicax._ps.recording import install

rx.MirroredStrategy(["CPU:0"])  # puts in what strategies replace
install()  # what only that of parameter servers does
programs.install()
# Programs ask for these before they use their operations.

FLOATS = ("float32", "bfloat16", "float16")
ANY = "any"  # a length that is a name when the function is exported
HOW = {"scale": 0.3, "causal": False}


@dataclass(frozen=True)
class Row:
    """A function of arrays, and what it meets.

    Args:
        meets: Names of what is replaced: operations of JAX, functions of JAX and Keras.
        compute: The function.
        shapes: Of its arrays, with `ANY` for the number of rows.
        many: A number of rows that is worth a kernel.
        shows: In the text of a program in which the operation is replaced.
        hides: In the text of a program in which it is not, and in no other.
        kinds: The types of numbers that it takes.
        is_smooth: Whether it has derivatives.
        is_internal: Whether only programs of Replicax meet it, whose lengths are all known.
    """

    meets: tuple[str, ...]
    compute: Callable[..., Any]
    shapes: tuple[Any, ...]
    many: int = 64
    shows: str = ""
    hides: str = ""
    kinds: tuple[str, ...] = FLOATS
    is_smooth: bool = True
    is_internal: bool = False

    def arrays(self, rows: int, kind: str = "float32", lead: tuple[int, ...] = ()) -> list[Any]:
        draw = np.random.default_rng(1)
        shapes = [(*lead, *(rows if n == ANY else n for n in shape)) for shape, _ in self._typed()]
        return [
            jnp.asarray(draw.integers(0, 50, shape), "int32")
            if is_index
            else jnp.asarray(draw.normal(size=shape) * 3, kind)
            for shape, (_, is_index) in zip(shapes, self._typed(), strict=True)
        ]

    def symbolic(self, kind: str) -> list[Any]:
        scope = jax.export.SymbolicScope()
        return [
            jax.ShapeDtypeStruct(
                jax.export.symbolic_shape(",".join(map(str, shape)), scope=scope),
                "int32" if is_index else kind,
            )
            for shape, is_index in self._typed()
        ]

    def fresh(self) -> Callable[..., Any]:
        """The function, as one that JAX has not seen."""
        return lambda *arrays: self.compute(*arrays)

    def _typed(self) -> list[tuple[tuple[Any, ...], bool]]:
        return [
            (shape[1:], True) if shape[0] == "index" else (shape, False) for shape in self.shapes
        ]


def take(table, ids):
    return jnp.take(table, ids, axis=0)


def add(table, ids, rows):
    return table.at[ids].add(rows, mode="drop")


def write(table, row):
    return lax.dynamic_update_slice(table, row, (0, 0))


def over_rows(left, right):
    return lax.dot_general(left, right, (((0,), (0,)), ((), ())))


def pooled(images):
    return keras.ops.max_pool(images, 3, 2, padding="same")


def averaged(images):
    return keras.ops.average_pool(images, 3, 2, padding="same")


def convolved(images, kernel):
    return keras.ops.conv(images, kernel, 1, "same")


def convolved_in_16_bits(images, kernel):
    return convolved(images.astype("bfloat16"), kernel.astype("float32").astype("bfloat16"))


def attended(query, key, value):
    return keras.ops.dot_product_attention(query, key, value)


def by_kernel(query, key, value):
    return attention.attend_here(query, key, value)


def attention_gradient(query, key, value):
    return jax.grad(lambda *given: by_kernel(*given).sum(), argnums=(0, 1, 2))(query, key, value)


def attention_tangent(query, key, value):
    return jax.jvp(by_kernel, (query, key, value), (query, key, value))[1]


def sgd_of_a_table(table, ids):
    def step(table, ids):
        return table - 0.5 * jax.grad(lambda t: (jnp.take(t, ids, axis=0) ** 2).sum())(table)

    return with_slices(step, None, platform="cpu")(table, ids)


def adam_step(value, momentum, gradient):
    return adam([value, momentum, momentum**2], [gradient], 0.1, Settings(0.9, 0.999, 1e-7))


ADAM = keras.optimizers.Adam(0.1)
ADAM.build([keras.Variable(np.ones((64, 64), "float32"))])


def keras_adam(rows):
    gradient = jnp.ones((64, 64)) * rows.sum()
    slots = [one.value for one in ADAM.variables]
    return ADAM.stateless_apply(slots, [gradient], [jnp.ones((64, 64))])[0]


def normalized(images):
    made = keras.layers.BatchNormalization()
    made.build((None, 8))
    means = [one.value for one in made.trainable_variables]
    rest = [one.value for one in made.non_trainable_variables]
    return made.stateless_call(means, rest, images, training=True)[0]


def dropped(rows):
    made = keras.layers.Dropout(0.5, seed=1)
    return made.stateless_call([], [made.seed_generator.state.value], rows, training=True)[0]


def counted(rows):
    variable = keras.Variable(np.zeros((), "float32"))
    with keras.StatelessScope([(variable, jnp.zeros(()))]):
        variable.assign_add(rows.sum().astype("float32"))
        variable.assign_sub(1.0)
        return variable.value * 1


def loss(predicted, true):
    return keras.losses.MeanSquaredError()(true, predicted)


def scaled_sgd(rows):
    made = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))
    made.build([keras.Variable(np.ones(8, "float32"))])
    slots = [one.value for one in made.variables]
    return made.stateless_apply(slots, [rows.sum(0).astype("float32")], [jnp.ones(8)])[0]


IMAGES = (ANY, 8, 8, 16)
HEADS = (ANY, 16, 4, 8)
ROWS = {
    "look up": Row(
        ("replicax_gather",), take, ((100, 64), ("index", ANY, 8)), shows="@rx_look_up",
        kinds=(*FLOATS, "int32"),
    ),
    "add rows": Row(
        ("replicax_scatter-add",), add, ((100, 64), ("index", ANY), (ANY, 64)),
        shows="@rx_add_rows", kinds=(*FLOATS, "int32"),
    ),
    "product": Row(
        ("replicax_dot_general",), over_rows, ((ANY, 64), (ANY, 64)), 1024,
        shows="@rx_row_products", kinds=(*FLOATS, "int32"),
    ),
    "sum": Row(("replicax_reduce_sum",), lambda x: lax.reduce_sum(x, (0,)), ((ANY, 8),)),
    "sums": Row(("replicax_cumsum",), lax.cumsum, ((ANY, 8),)),
    "slice": Row(("replicax_dynamic_update_slice",), write, ((8, ANY), (1, ANY))),
    "largest": Row(("replicax_reduce_window_max",), pooled, (IMAGES,), hides="reduce_window"),
    "average": Row(("replicax_reduce_window_sum",), averaged, (IMAGES,), hides="reduce_window"),
    "gradient of the largest": Row(
        ("replicax_select_and_scatter_add",), lambda x: jax.grad(lambda x: pooled(x).sum())(x),
        (IMAGES,), hides="select_and_scatter", is_smooth=False,
    ),
    "convolution": Row(
        ("replicax_conv_general_dilated",), convolved, (IMAGES, (3, 3, 16, 16)),
        shows="rx_convolution",
    ),
    "convolution of rounded weights": Row(
        ("replicax_convolution_rounding",), convolved_in_16_bits, (IMAGES, (3, 3, 16, 16)),
        shows="rx_convolution", kinds=("bfloat16",),
        is_smooth=False,  # XLA rounds no sum that float32 is made of
    ),
    "attention": Row(
        ("dot_product_attention",), attended, (HEADS,) * 3, kinds=("float32", "bfloat16"),
    ),
    "attention by its kernel": Row(
        ("replicax_attention",), by_kernel, (HEADS,) * 3, shows="@rx_attention",
        kinds=("float32",),
    ),
    "its gradient": Row(
        ("replicax_attention_gradient",), attention_gradient, (HEADS,) * 3, kinds=("float32",),
        shows="@rx_attention_gradient",
    ),
    "its tangent": Row(
        ("replicax_attention_tangent",), attention_tangent, (HEADS,) * 3, kinds=("float32",),
    ),
    "table of an optimizer": Row(
        ("replicax_gather",), sgd_of_a_table, ((100, 64), ("index", ANY)), 128,
    ),
    "sums of rows": Row(
        ("replicax_add_sums",),
        lambda t, i, r: add_sums(t, i[:, None], r, subtracts=False),
        ((100, 64), ("index", ANY), (ANY, 64)), shows="@rx_add_sums", kinds=("float32",),
        is_internal=True,
    ),
    "first rows": Row(
        ("replicax_first_places",), lambda i: first_places(i, 50), (("index", ANY),),
        shows="@rx_first_rows", kinds=("int32",), is_smooth=False, is_internal=True,
    ),
    "Adam": Row(
        ("replicax_adam",), adam_step, ((ANY, 64),) * 3, shows="@rx_adam", kinds=("float32",),
        is_smooth=False,
    ),
    "Keras' Adam": Row(
        ("Adam._backend_update_step", "BaseOptimizer.apply", "BaseOptimizer.stateless_apply"),
        keras_adam, ((ANY, ),), kinds=("float32",), is_smooth=False,
    ),
    "scaled losses": Row(
        ("LossScaleOptimizer.apply", "LossScaleOptimizer.stateless_apply"), scaled_sgd,
        ((ANY, 8),), is_smooth=False,
    ),
    "statistics": Row(
        ("BatchNormalization.build", "BatchNormalization._moments"), normalized, ((ANY, 8),),
        kinds=("float32",),
    ),
    "draws of a layer": Row(("SeedGenerator.next",), dropped, ((ANY, 8),), is_smooth=False),
    "counting": Row(("Variable.assign_add", "Variable.assign_sub"), counted, ((ANY, 8),)),
    "loss": Row(
        ("reduce_values", "scale_loss_for_distribution", "unscale_loss_for_distribution"),
        loss, ((ANY, 8), (ANY, 8)),
    ),
}  # fmt: skip

# They make variables, which is no operation of a program.
MAKE_VARIABLES = {
    "BaseOptimizer.add_variable",
    "BaseOptimizer.add_variable_from_reference",
    "JaxVariable._initialize",
    "JaxVariable._initialize_with_initializer",
}
# Where Keras' code is for programs, not for loops, data or files.
COMPUTING = tuple(
    f"keras.src.{part}"
    for part in (
        "backend.common.variables",
        "backend.jax.core",
        "backend.jax.nn",
        "backend.jax.numpy",
        "backend.jax.random",
        "initializers",
        "layers",
        "losses",
        "optimizers",
        "random",
    )
)
# This one computes nothing: it says whether attention goes to cuDNN.
DECIDE = {"_can_use_flash_attention"}


def each_row_that(is_wanted: Callable[[Row], object]) -> Any:
    chosen = {name: row for name, row in ROWS.items() if is_wanted(row)}
    return pytest.mark.parametrize("row", chosen.values(), ids=chosen)


each_row = each_row_that(lambda row: True)
each_kind = pytest.mark.parametrize(
    ("row", "kind"),
    [
        pytest.param(row, kind, id=f"{name}, {kind}")
        for name, row in ROWS.items()
        for kind in row.kinds
    ],
)
TOLERANCE = {"float32": 2e-5, "bfloat16": 0.1, "float16": 0.02, "int32": 0}


def close(found, expected, kind="float32"):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert [(one.shape, one.dtype) for one in found] == [(e.shape, e.dtype) for e in expected]
    for one, other in zip(found, expected, strict=True):
        one, other = (np.asarray(x).astype("float64") for x in (one, other))
        scale = max(1.0, np.abs(other[np.isfinite(other)]).max(initial=0.0))
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE[kind] * scale)


def stock(fn, *arrays):
    with rx.config.cpu_tuning(False):
        return jax.jit(lambda *given: fn(*given))(*arrays)


def ours(fn, *arrays):
    return jax.jit(with_rules(lambda *given: fn(*given)))(*arrays)


def own_operations():
    """The operations that are ours; those of JAX keep their rules."""
    rules = mlir._lowerings, *mlir._platform_specific_lowerings.values()
    for primitive, entry in (pair for some in rules for pair in some.items()):
        rule = getattr(entry, "rule", entry)
        if primitive.name.startswith("replicax_"):
            yield primitive.name
        else:
            assert not rule.__module__.startswith("replicax.")


def replaced_functions():
    """The functions and methods of JAX and Keras that compute, and that we replace."""
    for name, module in list(sys.modules.items()):
        if not name.startswith(COMPUTING):
            continue
        for owner in (module, *(v for v in vars(module).values() if isinstance(v, type))):
            for called, value in vars(owner).items():
                if isinstance(value, types.FunctionType) and hasattr(value, "_replicax_original"):
                    is_method = isinstance(owner, type)
                    yield f"{owner.__name__}.{called}" if is_method else called


def test_what_others_compile_is_left_alone():
    row = ROWS["gradient of the largest"]
    assert row.hides in jax.jit(row.fresh()).lower(*row.arrays(row.many)).as_text()


def test_all_that_is_replaced_has_a_row():
    found = {*own_operations(), *replaced_functions()} - MAKE_VARIABLES - DECIDE
    assert found == {name for row in ROWS.values() for name in row.meets}


@each_row_that(lambda row: row.shows or row.hides)
def test_the_row_meets_what_is_replaced(row):
    if row.shows and not kernels.are_there():
        pytest.skip("the kernels are not built")
    arrays = row.arrays(row.many, row.kinds[0])
    assert row.shows in jax.jit(with_rules(row.fresh())).lower(*arrays).as_text()
    if row.hides:
        assert row.hides not in jax.jit(with_rules(row.fresh())).lower(*arrays).as_text()
        with rx.config.cpu_tuning(False):
            assert row.hides in jax.jit(with_rules(row.fresh())).lower(*arrays).as_text()


@each_kind
def test_each_type_and_no_rows_at_all(row, kind):
    for rows in (row.many, 0):
        arrays = row.arrays(rows, kind)
        found = jax.tree.leaves(ours(row.compute, *arrays))
        close(found, stock(row.compute, *arrays), kind)
        shapes = jax.tree.leaves(jax.eval_shape(row.fresh(), *arrays))
        assert [one.shape for one in shapes] == [one.shape for one in found]


@each_row
def test_mapped(row):
    arrays = row.arrays(row.many, row.kinds[0], lead=(2,))
    mapped = jax.vmap(row.fresh())
    close(ours(mapped, *arrays), stock(mapped, *arrays), row.kinds[0])
    one_by_one = [stock(row.compute, *(array[i] for array in arrays)) for i in range(2)]
    stacked = jax.tree.map(lambda *found: jnp.stack(found), *one_by_one)
    close(ours(mapped, *arrays), stacked, row.kinds[0])


@each_row_that(lambda row: row.is_smooth)
def test_differentiated(row):
    arrays = row.arrays(row.many)
    smooth = [i for i, array in enumerate(arrays) if jnp.issubdtype(array.dtype, jnp.floating)]
    given = [arrays[i] for i in smooth]
    tangents = [jnp.cos(one) for one in given]

    def of_smooth(*given):
        new = dict(zip(smooth, given, strict=True))
        return row.compute(*(new.get(i, array) for i, array in enumerate(arrays)))

    def total(*given):
        return sum(leaf.astype("float32").sum() for leaf in jax.tree.leaves(of_smooth(*given)))

    def forward(*given):
        return jax.jvp(of_smooth, given, tuple(tangents))

    backward = jax.grad(total, argnums=tuple(range(len(given))))
    for fn in (forward, backward):
        close(ours(fn, *given), stock(fn, *given))


# Runs each program of a folder on its arrays.
ELSEWHERE = """
import pathlib, sys
import jax, jax.export, ml_dtypes, numpy as np
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.bin")):
    program = jax.export.deserialize(path.read_bytes())
    with np.load(path.with_suffix(".npz")) as file:
        given = [file[f"arr_{n}"] for n in range(len(file.files))]
    given = [a.view(ml_dtypes.bfloat16) if a.dtype.kind == "V" else a for a in given]
    found = [np.asarray(one) for one in jax.tree.leaves(program.call(*given))]
    np.savez(path.with_suffix(".found.npz"), *(one.astype("float64") for one in found))
assert "replicax" not in sys.modules
"""


def test_exported_programs_need_nothing_of_ours(tmp_path):
    """For any number of rows, and for one; they are run by a process without Replicax."""
    expected = {}
    for name, row in ROWS.items():
        for kind in row.kinds:
            arrays = row.arrays(row.many, kind)
            known = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
            for number, shapes in enumerate(
                [known] if row.is_internal else [known, row.symbolic(kind)]
            ):
                exported = jax.export.export(jax.jit(with_rules(row.fresh())))(*shapes)
                assert "custom_call @rx_" not in exported.mlir_module(), name
                path = tmp_path / f"{name} {kind} {number}"
                path.with_suffix(".bin").write_bytes(exported.serialize())
                np.savez(path.with_suffix(".npz"), *map(np.asarray, arrays))
                expected[path] = kind, stock(row.compute, *arrays)
    subprocess.run([sys.executable, "-c", ELSEWHERE, str(tmp_path)], check=True, timeout=250)
    for path, (kind, results) in expected.items():
        with np.load(path.with_suffix(".found.npz")) as file:
            found = [file[f"arr_{n}"] for n in range(len(file.files))]
        wanted = [np.asarray(one).astype("float64") for one in jax.tree.leaves(results)]
        close(found, wanted, kind)
