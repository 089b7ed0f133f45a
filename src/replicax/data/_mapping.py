"""Methods of `Dataset` that call functions of the user."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from replicax._core.errors import UsageError, checks_types
from replicax.data._derive import chosen_seed, derived, whole
from replicax.data._element import as_element, as_returned, yielded
from replicax.data._nodes.ahead import Prefetch
from replicax.data._nodes.map import Filter, Map, Scan, call
from replicax.data._nodes.mix import Interleave
from replicax.data._nodes.workers import InProcesses
from replicax.data._options import AUTOTUNE

if TYPE_CHECKING:
    from replicax.data._dataset import Dataset
    from replicax.data._node import Node

# How many data sets `interleave` reads in turn by default. tf.data asks the machine, so
# that the order of the elements depends on it; here it is the same everywhere.
_CYCLE_LENGTH = 16
# Elements that `prefetch(AUTOTUNE)` keeps ready: one in use, one in the making.
_PREFETCHED = 2


class Mapping:
    """Transformations by functions, and where they run."""

    node: Node

    @checks_types
    def map(
        self,
        map_func: Callable[..., Any],
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """Apply a function to every element.

        The function is plain Python on NumPy arrays. On batches it may be a jitted JAX
        function, whose result stays on its device.

        **Differs from TF:** it is not traced: it runs for every element, sees values, and may
        use any library.

        Args:
            map_func: Called with an element; with its parts, if the element is a tuple.
            num_parallel_calls: Calls that run in threads at a time. `AUTOTUNE` takes one
                thread per core where that is faster than none. Python code holds the
                interpreter's lock: for it, use `in_processes`.
            deterministic: Whether results keep the order of the elements; None for what
                `Options.deterministic` says, which is yes.

        Raises:
            MapFailed: When it is read, if the function raises; names it and the element.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.range(3).map(lambda x: x * 10)]
            [0, 10, 20]
        """
        calls = num_parallel_calls
        if calls not in (None, AUTOTUNE):
            calls = whole("num_parallel_calls", calls, least=1)
        return derived(self, Map(self.node, map_func, calls, deterministic))

    def filter(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements for which a function is true.

        Args:
            predicate: Called like the function of `map`.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.range(6).filter(lambda x: x % 3 == 0)]
            [0, 3]
        """
        _callable(predicate, "filter")
        return derived(self, Filter(self.node, predicate))

    def take_while(self, predicate: Callable[..., Any]) -> Dataset:
        """The elements before the first for which a function is false.

        Args:
            predicate: Called like the function of `map`.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.range(9).take_while(lambda x: x < 2)]
            [0, 1]
        """
        _callable(predicate, "take_while")
        return derived(self, Filter(self.node, predicate, ends=True))

    def flat_map(self, map_func: Callable[..., Any]) -> Dataset:
        """The elements of the data sets that a function makes, one after the other.

        Args:
            map_func: Called like the function of `map`; returns a `Dataset`.

        Example:
            >>> import replicax as rx
            >>> numbers = rx.data.Dataset.range(3).flat_map(rx.data.Dataset.range)
            >>> [int(n) for n in numbers]
            [0, 0, 1]
        """
        _callable(map_func, "flat_map")
        return derived(self, Interleave(self.node, map_func, chosen_seed(None)[0]))

    @checks_types
    def interleave(
        self,
        map_func: Callable[..., Any],
        cycle_length: int | None = None,
        block_length: int | None = None,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
    ) -> Dataset:
        """The elements of several data sets that a function makes, in turn.

        Args:
            map_func: Called like the function of `map`; returns a `Dataset`.
            cycle_length: Data sets that are read in turn; None for 16.
            block_length: Elements taken from a data set in a row; None for 1.
            num_parallel_calls: Not None: each open data set is read ahead by a thread.
            deterministic: Accepted for tf.data programs: the order is always the same.

        Example:
            >>> import replicax as rx
            >>> def three(x):
            ...     return rx.data.Dataset.from_tensors(x).repeat(3)
            >>> turns = rx.data.Dataset.range(3).interleave(three, cycle_length=2)
            >>> [int(n) for n in turns]
            [0, 1, 0, 1, 0, 1, 2, 2, 2]
        """
        cycle = _CYCLE_LENGTH
        if cycle_length not in (None, AUTOTUNE):
            cycle = whole("cycle_length", cycle_length, least=1)
        block = 1 if block_length is None else whole("block_length", block_length, least=1)
        ahead = num_parallel_calls is not None
        seed, _ = chosen_seed(None)
        return derived(self, Interleave(self.node, map_func, seed, cycle, block, ahead))

    def scan(self, initial_state: Any, scan_func: Callable[[Any, Any], Any]) -> Dataset:
        """Apply a function to each element and a state, which it returns for the next.

        Args:
            initial_state: The state before the first element.
            scan_func: Called with the state and the element; returns the next state and what
                the data set yields.

        Example:
            >>> import replicax as rx
            >>> sums = rx.data.Dataset.range(4).scan(0, lambda s, x: (s + x, s + x))
            >>> [int(n) for n in sums]
            [0, 1, 3, 6]
        """
        _callable(scan_func, "scan")
        return derived(self, Scan(self.node, initial_state, scan_func))

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Fold the elements into one value.

        Args:
            initial_state: The state before the first element.
            reduce_func: Called with the state and the element; returns the next state.

        Returns:
            The last state.

        Example:
            >>> import replicax as rx
            >>> int(rx.data.Dataset.range(5).reduce(0, lambda state, x: state + x))
            10
        """
        state = as_element(initial_state)
        returned = as_returned if isinstance(state, tuple) else as_element
        for number, element in enumerate(cast("Dataset", self)):
            state = returned(call(reduce_func, (state, element), number))
        return yielded(state)

    def prefetch(self, buffer_size: int) -> Dataset:
        """Read ahead in a background thread.

        A distributed data set does so by itself; put this where a slow function should overlap
        with what follows it.

        Args:
            buffer_size: Elements that wait at most; `AUTOTUNE` for two, 0 for none.

        Example:
            >>> import replicax as rx
            >>> [int(n) for n in rx.data.Dataset.range(3).prefetch(2)]
            [0, 1, 2]
        """
        size = whole("buffer_size", buffer_size, least=-1)
        node = Prefetch(self.node, _PREFETCHED if size == AUTOTUNE else size)
        return derived(self, node if size else self.node)

    def in_processes(self: Any, num_workers: int, buffer_size: int = 2) -> Dataset:
        """Make the elements in worker processes, in the same order; tf.data has none.

        For Python functions that hold the interpreter's lock, which threads (`map` with
        `num_parallel_calls`) cannot speed up. The workers take turns in making elements. They
        share the steps after the last `filter`, `flat_map`, `repeat` or shuffle of a stream; each
        worker does all earlier steps itself, as well as the reading of files.
        Arrays in memory are copied to each worker; a data set that `load` gave is not.

        The workers are new processes: they start within seconds at the first element of each
        pass, use JAX on the CPU, and end with the iterator. As with Python's `multiprocessing`,
        put the program's own code under `if __name__ == "__main__":`. Give the workers whole
        batches: handing over an element takes about 0.2 ms.

        Args:
            num_workers: Processes; 0 computes in this one, for debugging.
            buffer_size: Elements that each process makes ahead.

        Raises:
            UsageError: If Grain is missing, or something before this cannot be sent to another
                process.

        Example:
            >>> import replicax as rx
            >>> dataset = rx.data.Dataset.range(6).map(lambda x: x * x).batch(2).in_processes(2)
            >>> dataset.cardinality()
            3
        """
        workers = whole("num_workers", num_workers, least=0)
        size = whole("buffer_size", buffer_size, least=1)
        return derived(self, InProcesses(self.node, workers, size)) if workers else self

    @checks_types
    def apply(self, transformation_func: Callable[[Any], Any]) -> Any:
        """`transformation_func(self)`, for chains of method calls.

        Args:
            transformation_func: Takes and returns a data set.

        Example:
            >>> import replicax as rx
            >>> evens = rx.data.Dataset.range(5).apply(lambda ds: ds.shard(2, 0))
            >>> [int(n) for n in evens]
            [0, 2, 4]
        """
        return transformation_func(self)


def _callable(fn: Any, where: str) -> None:
    if not callable(fn):
        raise UsageError(f"`{where}` takes a function, not {type(fn).__name__}. Pass a `lambda`.")
