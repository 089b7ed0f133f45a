"""Functions of each element: arithmetic, comparison, rounding, `exp` and its like, `cast`."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax.tf._calls import (
    array,
    array_function,
    arrays,
    check_divisor,
    numpy_dtype,
    published,
)
from replicax.tf._dtypes import as_dtype

Compute = Callable[..., Any]


def _one(name: str, compute: str | Compute = "", *, floating: bool = False) -> Callable[..., Any]:
    """A function of one array, which computes by its name in NumPy and JAX, or by a function.

    Where it is `floating`, integers become floating-point numbers, of single precision.
    """
    compute = compute or name

    def function(x: Any, name: str | None = None) -> Any:
        xp, value = array(x)
        if floating and xp is np and value.dtype.kind in "biu":
            value = value.astype(np.float32)
        return getattr(xp, compute)(value) if isinstance(compute, str) else compute(xp, value)

    return _published(function, name, compute, "element")


def _two(name: str, compute: str | Compute = "") -> Callable[..., Any]:
    """A function of two arrays, which are broadcast; the arguments are as in `_one`."""
    compute = compute or name

    def function(x: Any, y: Any, name: str | None = None) -> Any:
        xp, (x, y) = arrays(x, y)
        return getattr(xp, compute)(x, y) if isinstance(compute, str) else compute(xp, x, y)

    return _published(function, name, compute, "pair of elements")


def _published(
    function: Callable[..., Any], name: str, compute: str | Compute, what: str
) -> Callable[..., Any]:
    said = f"`numpy.{compute}`" if isinstance(compute, str) else f"`{name}`"
    return array_function(published(function, name, f"{said} of each {what}."))


def _rsqrt(xp: Any, x: Any) -> Any:
    if xp is np:
        return 1 / np.sqrt(x)
    return jax.lax.rsqrt(jnp.asarray(x, jnp.result_type(x, float)))  # also of a count of steps


def _divided(xp: Any, x: Any, y: Any) -> Any:
    quotient = xp.true_divide(x, y)
    # As JAX does; TensorFlow has float64 for integers of 32 bits and more.
    whole = xp is np and all(np.asarray(part).dtype.kind in "biu" for part in (x, y))
    return quotient.astype(np.float32) if whole else quotient


def _divided_or_zero(xp: Any, x: Any, y: Any) -> Any:
    zero = y == 0
    return xp.where(zero, xp.zeros_like(y), xp.true_divide(x, xp.where(zero, xp.ones_like(y), y)))


def _refusing_zero(compute: Compute) -> Compute:
    """A quotient or remainder, or an error if integers are divided by a 0 that is at hand."""

    def function(xp: Any, x: Any, y: Any) -> Any:
        check_divisor(x, y)
        return compute(xp, x, y)

    return function


def _whole_quotient(xp: Any, x: Any, y: Any, of_floats: Compute, of_integers: Compute) -> Any:
    if xp.result_type(x, y).kind in "biu":
        return of_integers(x, y)
    if xp is jnp:  # XLA multiplies by the reciprocal of what it broadcasts: 3.7 / 3.7 is below 1
        y = jax.lax.optimization_barrier(y * jnp.ones_like(x))
    return of_floats(x / y)


def _floored(xp: Any, x: Any, y: Any) -> Any:
    # As TensorFlow; NumPy and JAX have 9 for 1.0 // 0.1.
    return _whole_quotient(xp, x, y, xp.floor, xp.floor_divide)


def _truncated(xp: Any, x: Any, y: Any) -> Any:
    return _whole_quotient(xp, x, y, xp.trunc, lambda x, y: (x - xp.fmod(x, y)) // y)


_modulo = _refusing_zero(lambda xp, x, y: xp.mod(x, y))


def _x_times(factor: Compute) -> Compute:
    """x times a function of y; 0 where x is 0, whatever the function is there."""

    def compute(xp: Any, x: Any, y: Any) -> Any:
        zero = x == 0
        safe = xp.where(zero, xp.ones_like(y), y)
        return xp.where(zero, xp.zeros_like(y), x * factor(xp, safe))

    return compute


def _sigmoid(xp: Any, x: Any) -> Any:
    return jax.nn.sigmoid(x) if xp is jnp else (0.5 * (np.tanh(0.5 * x) + 1)).astype(x.dtype)


abs = _one("abs")
acos = _one("acos", "arccos", floating=True)
acosh = _one("acosh", "arccosh", floating=True)
asin = _one("asin", "arcsin", floating=True)
asinh = _one("asinh", "arcsinh", floating=True)
atan = _one("atan", "arctan", floating=True)
atanh = _one("atanh", "arctanh", floating=True)
bessel_i0 = _one("bessel_i0", lambda xp, x: special.i0(x))
bessel_i0e = _one("bessel_i0e", lambda xp, x: special.i0e(x))
bessel_i1 = _one("bessel_i1", lambda xp, x: special.i1(x))
bessel_i1e = _one("bessel_i1e", lambda xp, x: special.i1e(x))
ceil = _one("ceil", floating=True)
conj = _one("conj")
cos = _one("cos", floating=True)
cosh = _one("cosh", floating=True)
dawsn = _one("dawsn", lambda xp, x: special.dawsn(x))
digamma = _one("digamma", lambda xp, x: special.digamma(x))
erf = _one("erf", lambda xp, x: special.erf(x))
erfc = _one("erfc", lambda xp, x: special.erfc(x))
erfcinv = _one("erfcinv", lambda xp, x: special.ndtri(0.5 * x) * -math.sqrt(0.5))
erfinv = _one("erfinv", lambda xp, x: special.erfinv(x))
exp = _one("exp", floating=True)
expint = _one("expint", lambda xp, x: special.expi(x))
expm1 = _one("expm1", floating=True)
floor = _one("floor", floating=True)
is_finite = _one("is_finite", "isfinite")
is_inf = _one("is_inf", "isinf")
is_nan = _one("is_nan", "isnan")
lgamma = _one("lgamma", lambda xp, x: special.gammaln(x))
log = _one("log", floating=True)
log1p = _one("log1p", floating=True)
log_sigmoid = _one("log_sigmoid", lambda xp, x: -xp.logaddexp(-x, xp.zeros_like(x)))
logical_not = _one("logical_not")
ndtri = _one("ndtri", lambda xp, x: special.ndtri(x))
negative = _one("negative")
reciprocal = _one("reciprocal", lambda xp, x: 1 / x)
reciprocal_no_nan = _one(
    "reciprocal_no_nan", lambda xp, x: _divided_or_zero(xp, xp.ones_like(x), x)
)
rint = _one("rint", floating=True)
round = _one("round")
rsqrt = _one("rsqrt", _rsqrt, floating=True)
sigmoid = _one("sigmoid", _sigmoid, floating=True)
sign = _one("sign")
sin = _one("sin", floating=True)
sinh = _one("sinh", floating=True)
spence = _one("spence", lambda xp, x: special.spence(x))
sqrt = _one("sqrt", floating=True)
square = _one("square")
tan = _one("tan", floating=True)
tanh = _one("tanh", floating=True)

invert = _one("invert")

add = _two("add")
bitwise_and = _two("bitwise_and")
bitwise_or = _two("bitwise_or")
bitwise_xor = _two("bitwise_xor")
divide = _two("divide", _divided)
divide_no_nan = _two("divide_no_nan", _divided_or_zero)
equal = _two("equal")
floordiv = _two("floordiv", _refusing_zero(_floored))
floormod = _two("floormod", _modulo)
greater = _two("greater")
greater_equal = _two("greater_equal")
left_shift = _two("left_shift")
less = _two("less")
less_equal = _two("less_equal")
logical_and = _two("logical_and")
logical_or = _two("logical_or")
logical_xor = _two("logical_xor")
maximum = _two("maximum")
minimum = _two("minimum")
mod = _two("mod", _modulo)
multiply = _two("multiply")
multiply_no_nan = _two(
    "multiply_no_nan", lambda xp, x, y: xp.where(y == 0, xp.zeros_like(x * y), x * y)
)
not_equal = _two("not_equal")
pow = _two("pow", "power")
realdiv = _two("realdiv", _divided)
right_shift = _two("right_shift")
squared_difference = _two("squared_difference", lambda xp, x, y: (x - y) * xp.conj(x - y))
subtract = _two("subtract")
truediv = _two("truediv", _divided)
truncatediv = _two("truncatediv", _refusing_zero(_truncated))
truncatemod = _two("truncatemod", _refusing_zero(lambda xp, x, y: xp.fmod(x, y)))
xdivy = _two("xdivy", _x_times(lambda xp, y: 1 / y))
xlog1py = _two("xlog1py", _x_times(lambda xp, y: xp.log1p(y)))
xlogy = _two("xlogy", _x_times(lambda xp, y: xp.log(y)))


@array_function
def atan2(y: Any, x: Any, name: str | None = None) -> Any:
    """`numpy.arctan2` of each pair of elements."""
    xp, (y, x) = arrays(y, x)
    return xp.arctan2(y, x)


@array_function
def betainc(a: Any, b: Any, x: Any, name: str | None = None) -> Any:
    """The regularized incomplete beta function of each triple."""
    return special.betainc(*arrays(a, b, x)[1])


@array_function
def igamma(a: Any, x: Any, name: str | None = None) -> Any:
    """The lower regularized incomplete gamma function of each pair."""
    return special.gammainc(*arrays(a, x)[1])


@array_function
def igammac(a: Any, x: Any, name: str | None = None) -> Any:
    """The upper regularized incomplete gamma function of each pair."""
    return special.gammaincc(*arrays(a, x)[1])


@array_function
def polygamma(a: Any, x: Any, name: str | None = None) -> Any:
    """The derivative of `digamma` of an integer order, of each pair of order and number."""
    order, x = arrays(a, x)[1]
    return special.polygamma(jnp.asarray(order).astype(int), x)


@array_function
def zeta(x: Any, q: Any, name: str | None = None) -> Any:
    """The Hurwitz zeta function of each pair."""
    return special.zeta(*arrays(x, q)[1])


@array_function
def nextafter(x1: Any, x2: Any, name: str | None = None) -> Any:
    """The number next to each element, in the direction of another one."""
    xp, (x1, x2) = arrays(x1, x2)
    return xp.nextafter(x1, x2)


@array_function
def polyval(coeffs: Any, x: Any, name: str | None = None) -> Any:
    """A polynomial of each element; a list of coefficients, the highest power's first."""
    xp, (x, *coeffs) = arrays(x, *coeffs)
    found = coeffs[0] if coeffs else xp.zeros_like(x)
    for one in coeffs[1:]:
        found = found * x + one
    return found


@array_function
def add_n(inputs: Any, name: str | None = None) -> Any:
    """The sum of a list of arrays of one shape.

    Raises:
        UsageError: If the list is empty, or the shapes differ.
    """
    if not isinstance(inputs, list | tuple) or not inputs:
        raise UsageError.of("inputs", "a list of one or more arrays", inputs)
    _, found = arrays(*inputs)
    if len(shapes := {np.shape(one) for one in found}) > 1:
        raise UsageError.of("inputs", "of one shape", list(shapes))
    return sum(found[1:], found[0])


def accumulate_n(
    inputs: Any, shape: Any = None, tensor_dtype: Any = None, name: str | None = None
) -> Any:
    """`add_n`."""
    return add_n(inputs)


@array_function
def scalar_mul(scalar: Any, x: Any, name: str | None = None) -> Any:
    """An array times a number."""
    _, (scalar, x) = arrays(scalar, x)
    return scalar * x


@array_function
def clip_by_value(t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None) -> Any:
    """The elements, and the limit for those that are outside."""
    xp, (t, low, high) = arrays(t, clip_value_min, clip_value_max)
    return xp.maximum(xp.minimum(t, high), low).astype(t.dtype)


@array_function
def cast(x: Any, dtype: Any, name: str | None = None) -> Any:
    """The elements as another type.

    **Differs from TF:** on JAX, int64 and float64 are int32 and float32 unless `jax_enable_x64`
    is set; NumPy arrays have all types.

    Raises:
        UsageError: If a number outside compiled code then does not fit.
    """
    xp, x = array(x)
    wanted = numpy_dtype(dtype, xp)
    _check_fits(x, dtype, wanted)
    if x.dtype.kind == "c" and wanted.kind != "c":
        x = x.real
    return x.astype(wanted)


@array_function
def saturate_cast(value: Any, dtype: Any, name: str | None = None) -> Any:
    """The elements as another type, and its limit for those that it cannot hold.

    Raises:
        UsageError: If a number outside compiled code needs the 64 bits that JAX lacks.
    """
    xp, value = array(value)
    wanted = numpy_dtype(dtype, xp)
    _check_fits(value, dtype, wanted, negative=wanted.kind == "u")
    into, out_of = as_dtype(wanted), as_dtype(value.dtype)
    low, high = builtins.max(into.min, out_of.min), builtins.min(into.max, out_of.max)
    if out_of.is_floating and into.is_integer:  # the limits may be no numbers of this precision
        low, high = (np.asarray(limit, value.dtype) for limit in (low, high))
        high = np.nextafter(high, low) if int(high) > into.max else high
    return xp.clip(value, low, high).astype(wanted)


def _check_fits(x: Any, dtype: Any, held: Any, *, negative: bool = False) -> None:
    """Refuse known numbers that do not fit in the 32 bits that JAX has instead of 64.

    Negative ones may pass where they become 0.
    """
    asked = as_dtype(dtype).dtype
    narrowed = asked != held and asked.kind in "iu" and not np.can_cast(x.dtype, held)
    if not narrowed or isinstance(x, Tracer):
        return
    with jax.ensure_compile_time_eval():  # the number is known, also while code is compiled
        real = jnp.real(x)
        finite, limits = jnp.isfinite(real), np.iinfo(held)
        least = float(jnp.min(real, initial=0, where=finite))
        most = float(jnp.max(real, initial=0, where=finite))
    if (least < limits.min and not negative) or most > limits.max:
        raise UsageError(
            f"{most if most > limits.max else least} does not fit into {asked}: JAX computes in "
            '32 bits by default. Call `jax.config.update("jax_enable_x64", True)` at the top of '
            "the program."
        )


@array_function
def complex(real: Any, imag: Any, name: str | None = None) -> Any:
    """Complex numbers of their two parts."""
    xp, (real, imag) = arrays(real, imag)
    kind = np.complex128 if np.float64 in (real.dtype, imag.dtype) else np.complex64
    return (real + 1j * imag).astype(kind)


@array_function
def real(input: Any, name: str | None = None) -> Any:
    """The real part."""
    xp, x = array(input)
    return xp.real(x)


@array_function
def imag(input: Any, name: str | None = None) -> Any:
    """The imaginary part."""
    xp, x = array(input)
    return xp.imag(x)


@array_function
def angle(input: Any, name: str | None = None) -> Any:
    """The angle of a complex number, of a negative number π."""
    xp, x = array(input)
    return xp.angle(x)


@array_function
def bitcast(input: Any, type: Any, name: str | None = None) -> Any:
    """The same bits as another type; of another size, the last axis is made or goes."""
    xp, x = array(input)
    kind = np.dtype(numpy_dtype(type, xp))
    if xp is not np:
        return jax.lax.bitcast_convert_type(x, kind)
    x = np.ascontiguousarray(x)
    if kind.itemsize < x.dtype.itemsize:
        return x[..., None].view(kind)
    return x.view(kind) if kind.itemsize == x.dtype.itemsize else x.view(kind)[..., 0]
