"""Options of a data set: how it is sharded over workers, and how its functions run."""

from __future__ import annotations

import copy
import enum
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from replicax._core.errors import UsageError, checks_types, did_you_mean, member

AUTOTUNE = -1
SHARD_HINT = -1


class AutoShardPolicy(enum.IntEnum):
    """How workers share a data set; the names and numbers of `tf.data.experimental`.

    `FILE` gives each worker some of the files. `DATA` lets each read everything and keep its
    part of every batch. `HINT` fills in `dataset.shard(SHARD_HINT, SHARD_HINT)`. `OFF` gives
    everything to everyone. `AUTO` is FILE where there are enough files and DATA otherwise.

    Example:
        >>> import replicax as rx
        >>> rx.data.AutoShardPolicy.DATA.value
        2
    """

    OFF = -1
    AUTO = 0
    FILE = 1
    DATA = 2
    HINT = 3


# older names of fields
_OLDER = {"experimental_deterministic": "deterministic", "experimental_threading": "threading"}


class _Fields:
    """Refuses names that are no field, which would silently have no effect."""

    def __setattr__(self, name: str, value: Any) -> None:
        name = _OLDER.get(name, name)
        if name not in type(self).__dataclass_fields__:  # type: ignore[attr-defined]
            raise UsageError(self._no_field(name))
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        if name in _OLDER:
            return getattr(self, _OLDER[name])
        raise AttributeError(self._no_field(name))

    @classmethod
    def _no_field(cls, name: str) -> str:
        known = ", ".join(sorted(cls.__dataclass_fields__))  # type: ignore[attr-defined]
        meant = did_you_mean(name, (*cls.__dataclass_fields__, *_OLDER))  # type: ignore[attr-defined]
        then = meant or " Remove the line: Replicax needs no other hints."
        return f"{cls.__name__} has no field {name!r}, only {known}.{then}"


@checks_types
@dataclass
class DistributeOptions(_Fields):
    """How a data set is shared between workers.

    Args:
        auto_shard_policy: An `AutoShardPolicy`.
    """

    auto_shard_policy: AutoShardPolicy | str = AutoShardPolicy.AUTO

    def __setattr__(self, name: str, value: Any) -> None:
        is_policy = name == "auto_shard_policy"
        super().__setattr__(name, member(AutoShardPolicy, name, value) if is_policy else value)


@checks_types
@dataclass
class ThreadingOptions(_Fields):
    """How many threads a data set uses.

    Args:
        private_threadpool_size: Threads of a `map` with `AUTOTUNE`; None for one per core.
        max_intra_op_parallelism: Accepted for tf.data programs: functions are plain Python.
    """

    private_threadpool_size: int | None = None
    max_intra_op_parallelism: int | None = None


class Tuning(SimpleNamespace):
    """Hints about tf.data's own speed: any names, None before they are set.

    They have no effect: a pipeline gives the same elements either way.
    """

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@checks_types
@dataclass
class Options(_Fields):
    """The options of a data set, for `Dataset.with_options`; made empty, then filled in.

    Args:
        deterministic: Whether parallel transformations keep their order; None for yes.
        experimental_distribute: How workers share the data set.
        threading: The number of threads.
        autotune: Accepted for tf.data programs, with any names in it, as the fields below:
            hints about speed, which change no element.
        experimental_optimization: See `autotune`.
        experimental_slack: See `autotune`.
        experimental_symbolic_checkpoint: See `autotune`.
        experimental_warm_start: See `autotune`.

    Raises:
        UsageError: If an option is set that does not exist.

    Example:
        >>> import replicax as rx
        >>> options = rx.data.Options()
        >>> options.experimental_distribute.auto_shard_policy = rx.data.AutoShardPolicy.OFF
        >>> dataset = rx.data.Dataset.range(4).with_options(options)
        >>> dataset.options().experimental_distribute.auto_shard_policy.name
        'OFF'
    """

    deterministic: bool | None = None
    experimental_distribute: DistributeOptions = field(default_factory=DistributeOptions)
    threading: ThreadingOptions = field(default_factory=ThreadingOptions)
    autotune: Tuning = field(default_factory=Tuning)
    experimental_optimization: Tuning = field(default_factory=Tuning)
    experimental_slack: bool | None = None
    experimental_symbolic_checkpoint: bool | None = None
    experimental_warm_start: bool | None = None

    def merged(self, over: Options) -> Options:
        """These options, overridden by the options of `over` that are not the defaults."""
        result, default = copy.deepcopy(self), Options()
        for name in type(self).__dataclass_fields__:
            if getattr(over, name) != getattr(default, name):
                setattr(result, name, copy.deepcopy(getattr(over, name)))
        return result
