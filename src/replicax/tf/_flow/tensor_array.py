"""`TensorArray`: an array that a loop writes element by element."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

import jax
import jax.numpy as jnp
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._core.tracing import in_pipeline


@final
@dataclass(frozen=True, eq=False)
class Unwritten:
    """An element of a TensorArray that no round of a pipeline's loop wrote: zeros, shape unknown.

    TensorFlow knows the shape from the graph of the loop, whose body a pipeline here did not run.
    """

    size: int
    dtype: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__array__", "__jax_array__"):
            raise AttributeError(name)
        _unread()

    def _refuse(self, *others: Any) -> NoReturn:
        _unread()

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = (
        _refuse
    )
    __eq__ = __lt__ = __gt__ = __getitem__ = __iter__ = __len__ = __bool__ = _refuse


@final
@jax.tree_util.register_pytree_node_class
class TensorArray:
    """An array that is written element by element; it may be a variable of a `tf.while_loop`.

    **Differs from TF:** writing returns a new one and leaves this one as it is; all elements have
    one shape. In compiled code it has a fixed size; elsewhere one of a dynamic size grows.
    `clear_after_read` has no effect.

    Example:
        >>> import jax.numpy as jnp
        >>> from replicax.tf._flow.tensor_array import TensorArray
        >>> array = TensorArray("float32", size=3)
        >>> for index in range(3):
        ...     array = array.write(index, jnp.float32(index * index))
        >>> array.stack().tolist()
        [0.0, 1.0, 4.0]
    """

    def __init__(
        self,
        dtype: Any,
        size: Any = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: Any = None,
        flow: Any = None,
        infer_shape: bool = True,
        element_shape: Any = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        if isinstance(size, Tracer):
            raise UsageError(
                "`size` of a TensorArray must be known when compiled code is traced, got a "
                "computed one. Pass the largest size, or an axis's length, such as `x.shape[0]`."
            )
        self._dtype = jnp.dtype(getattr(dtype, "as_numpy_dtype", dtype))
        self._size = 0 if size is None else int(size)
        self._grows = bool(dynamic_size)
        shape = None if element_shape is None else tuple(element_shape)
        if shape is None or None in shape:
            self._buffer = None
        else:
            self._buffer = jnp.zeros((self._size, *shape), dtype)

    @property
    def dtype(self) -> Any:
        """The type of its elements."""
        return self._dtype

    @property
    def element_shape(self) -> tuple[int, ...] | None:
        """The shape of its elements; None while none was written."""
        return None if self._buffer is None else tuple(self._buffer.shape[1:])

    @property
    def dynamic_size(self) -> bool:
        """Whether it grows."""
        return self._grows

    def size(self, name: str | None = None) -> int:
        """How many elements there are."""
        return self._size

    def write(self, index: Any, value: Any, name: str | None = None) -> TensorArray:
        """A new one, with an element replaced.

        Raises:
            IndexError: If it is behind the end and does not grow.
        """
        value = jnp.asarray(value, self._dtype)
        size = self._size
        if not isinstance(index, Tracer) and int(index) >= size:
            if not self._grows:
                raise IndexError(
                    f"Tried to write index {int(index)} of a TensorArray of size {size}. Make it "
                    "larger, or pass `dynamic_size=True` outside compiled code."
                )
            size = int(index) + 1
        buffer = self._with_room(size, value)
        return _filled(self, buffer.at[index].set(value))

    def read(self, index: Any, name: str | None = None) -> Any:
        """An element."""
        return self._written()[index]

    def stack(self, name: str | None = None) -> Any:
        """All elements, along a new first axis."""
        if self._buffer is None and in_pipeline():
            return Unwritten(self._size, self._dtype)
        return self._written()

    def concat(self, name: str | None = None) -> Any:
        """All elements, one after the other along their first axis."""
        whole = self._written()
        return whole.reshape(-1, *whole.shape[2:])

    def gather(self, indices: Any, name: str | None = None) -> Any:
        """Some elements, along a new first axis."""
        return self._written()[jnp.asarray(indices)]

    def scatter(self, indices: Any, value: Any, name: str | None = None) -> TensorArray:
        """A new one, with several elements replaced."""
        value = jnp.asarray(value, self._dtype)
        buffer = self._with_room(self._size, value[0])
        return _filled(self, buffer.at[jnp.asarray(indices)].set(value))

    def unstack(self, value: Any, name: str | None = None) -> TensorArray:
        """A new one, of the rows of an array."""
        return _filled(self, jnp.asarray(value, self._dtype))

    def identity(self) -> TensorArray:
        """This one."""
        return self

    def _with_room(self, size: int, value: Any) -> Any:
        if self._buffer is None:
            return jnp.zeros((size, *value.shape), self._dtype)
        if size == self._size:
            return self._buffer
        more = jnp.zeros((size - self._size, *self._buffer.shape[1:]), self._dtype)
        return jnp.concatenate([self._buffer, more])

    def _written(self) -> Any:
        if self._buffer is None:
            _unread()
        return self._buffer

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        return (self._buffer,), (str(self._dtype), self._size, self._grows)

    @classmethod
    def tree_unflatten(cls, about: Any, children: Sequence[Any]) -> TensorArray:
        new = cls(about[0], about[1], about[2])
        new._buffer = children[0]
        return new


def _unread() -> NoReturn:
    raise UsageError(
        "Cannot read this TensorArray: nothing was written to it. Pass `element_shape`, or keep "
        "the result of a write: `array = array.write(index, value)`."
    )


def _filled(like: TensorArray, buffer: Any) -> TensorArray:
    about = (like.dtype, len(buffer), like.dynamic_size)
    return TensorArray.tree_unflatten(about, (buffer,))
