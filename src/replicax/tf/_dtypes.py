"""The types of numbers: `float32`, `int32`, `bool`, …; arrays of any of them are elsewhere."""

from __future__ import annotations

import builtins
import functools
from typing import Any, final

import numpy as np

from replicax._core.errors import UsageError, did_you_mean


@final
class DType:
    """The type of an array's elements.

    It equals its name and the types of NumPy and JAX, and is taken as `dtype=` by NumPy, JAX and
    Keras.

    **Differs from TF:** the `dtype` of an array is NumPy's own class, which equals this one but
    has not its properties: `tf.as_dtype(x.dtype).is_floating`.

    Example:
        >>> import numpy as np
        >>> import replicax.tf as tf
        >>> tf.float32 == np.float32, tf.uint8.max, np.zeros(2, tf.int8).dtype.name
        (True, 255, 'int8')
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @functools.cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type of NumPy; NumPy and JAX look for it under this name."""
        if self.name == "string":
            return np.dtype(object)
        if self.name == "bfloat16":
            import jax.numpy as jnp

            return np.dtype(jnp.bfloat16)
        return np.dtype(self.name)

    @property
    def as_numpy_dtype(self) -> Any:
        """The type of NumPy's numbers, such as `numpy.float32`."""
        return self.dtype.type if self.name != "string" else object

    @property
    def base_dtype(self) -> DType:
        """Itself."""
        return self

    @property
    def real_dtype(self) -> DType:
        """The type of the real part."""
        return as_dtype({"complex64": "float32", "complex128": "float64"}.get(self.name, self))

    @property
    def is_floating(self) -> builtins.bool:
        """Whether it is a floating-point type."""
        return "float" in self.name

    @property
    def is_integer(self) -> builtins.bool:
        """Whether it is an integer type, signed or not; `bool` is none."""
        return "int" in self.name

    @property
    def is_unsigned(self) -> builtins.bool:
        """Whether it is an integer type without negative numbers."""
        return self.name.startswith("uint")

    @property
    def is_complex(self) -> builtins.bool:
        """Whether it is a complex type."""
        return self.name.startswith("complex")

    @property
    def is_bool(self) -> builtins.bool:
        """Whether it is `bool`."""
        return self.name == "bool"

    @property
    def size(self) -> int:
        """Bytes of one element; text has 1, as in TensorFlow."""
        return 1 if self.name == "string" else self.dtype.itemsize

    @property
    def max(self) -> Any:
        """The largest number."""
        return self.limits[1]

    @property
    def min(self) -> Any:
        """The smallest number, for a floating-point type the most negative one."""
        return self.limits[0]

    @property
    def limits(self) -> tuple[Any, Any]:
        """The smallest and the largest number.

        Raises:
            UsageError: If the type has none.
        """
        if self.is_bool:
            return False, True
        if self.is_integer:
            found = np.iinfo(self.dtype)
            return found.min, found.max
        if self.is_floating:
            import jax.numpy as jnp

            info = jnp.finfo(self.dtype)
            return info.min, info.max
        raise UsageError(
            f"{self!r} has no smallest and largest value. Ask an integer or floating-point type, "
            "such as the `real_dtype` of a complex one."
        )

    def is_compatible_with(self, other: Any) -> builtins.bool:
        """Whether the other is the same type."""
        return self == other

    def __eq__(self, other: object) -> builtins.bool:
        if isinstance(other, DType):
            return self.name == other.name
        try:
            return self.name == as_dtype(other).name
        except TypeError:
            return False

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> Any:
        return as_dtype, (self.name,)

    def __repr__(self) -> str:
        return f"tf.{self.name}"

    def __str__(self) -> str:
        return f"<dtype: '{self.name}'>"


bfloat16 = DType("bfloat16")
complex64, complex128 = DType("complex64"), DType("complex128")
float16, float32, float64 = DType("float16"), DType("float32"), DType("float64")
half, double = float16, float64
int8, int16, int32, int64 = DType("int8"), DType("int16"), DType("int32"), DType("int64")
string = DType("string")
uint8, uint16, uint32, uint64 = DType("uint8"), DType("uint16"), DType("uint32"), DType("uint64")
bool = DType("bool")

_KNOWN = (
    bfloat16, complex64, complex128, float16, float32, float64, int8, int16, int32, int64, string,
    uint8, uint16, uint32, uint64, bool,
)  # fmt: skip
_BY_NAME = {found.name: found for found in _KNOWN}
_BY_NAME |= {"half": float16, "float": float32, "double": float64, "object": string, "str": string}
# As protocol buffers number them, and `tf.zeros(1, 1)` by mistake.
_NUMBERS = (14, 8, 18, 19, 1, 2, 6, 5, 3, 9, 7, 4, 17, 22, 23, 10)
_BY_NUMBER: dict[int, DType] = dict(zip(_NUMBERS, _KNOWN, strict=True))
_BY_TYPE = {float: float32, builtins.bool: bool, object: string, str: string, bytes: string}


@final
class NoSuchType(UsageError, TypeError):
    """A `UsageError` as TensorFlow raises it for an unknown type."""


def as_dtype(type_value: Any) -> DType:
    """The `DType` that a name, a type of NumPy, JAX or Python, or a `DType` means.

    Raises:
        TypeError: If there is none.

    Example:
        >>> import numpy as np
        >>> import replicax.tf as tf
        >>> tf.as_dtype(np.zeros(2).dtype)
        tf.float64
    """
    if isinstance(type_value, DType):
        return type_value
    found = _numbered(type_value)
    if isinstance(type_value, str):
        found = _BY_NAME.get(type_value)
    elif isinstance(type_value, type):
        found = _BY_TYPE.get(type_value)
    if found is None:
        try:
            kept = np.dtype(type_value) if type_value is not None else None
        except TypeError:
            kept = None
        name = getattr(kept, "name", "")
        found = string if getattr(kept, "kind", "") in ("U", "S", "T") else _BY_NAME.get(name)
    if found is None:
        raise NoSuchType(
            f"No dtype {type_value!r} here.{did_you_mean(type_value, _BY_NAME)} Use one of "
            'tf.dtypes, such as tf.float32, or its name, "float32".'
        )
    return found


def _numbered(value: Any) -> DType | None:
    return _BY_NUMBER.get(value) if type(value) is int else None


@final
class _Spelled(str):
    """A type as Keras spells it, "float32", with the properties of `DType`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(as_dtype(str(self)), name)


def give_kind(owner: type) -> None:
    """Let the `dtype` of a class of Keras, a text, have the properties of `DType`."""
    plain: Any = owner.dtype  # pyright: ignore[reportAttributeAccessIssue]
    spelled = functools.cache(_Spelled)
    owner.dtype = property(lambda self: spelled(plain.fget(self)), plain.fset)
