"""Every exception Replicax raises. A message says what is wrong, what to do and where to read.

ReplicaxError
  x UsageError (also ValueError or RuntimeError)
    + NotInReplicaContext · NotInCrossReplicaContext · MixedStrategies
    + VariableNotReduced · PerReplicaMisuse · UnevenBatch · UnbatchedInput · BatchStructureChanged
    + UnknownDevice · WrongBackend · UnsupportedVersion · LeakedTracer · NonFinite · ExhaustedInput
    + NothingRestored · UnsupportedIndex · IndexOutOfBounds · SignatureMismatch · TapeMisuse
  x ResultsDiffer (also ArithmeticError)
  x DataError (also ValueError)
    + MapFailed · CorruptRecord · WorkerDied
  x CheckpointError (also OSError)
  x ClusterError
    + ClusterSpecError · BackendAlreadyInitialized
    + ProcessFailed(rank, returncode, tail) · ProcessesTimedOut
    + WorkersDiffer(what, differing, table) · WorkerLost(workers)
  x CoordinatorError
    + UnavailableError(task) · CancelledError · ClosureInputError · OutOfRangeError · EndOfData
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import inspect
import signal
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

_LONGEST_VALUE = 120  # characters of a wrong value that a message shows
_MOST_NAMES = 8  # that a message lists


class ReplicaxError(Exception):
    """Base class of every error that Replicax raises on purpose."""

    @classmethod
    def of(cls, argument: str, must_be: str, got: object, then: str = "") -> Self:
        """The error of an argument with a wrong value: "`size` must be positive, got 0".

        `then` says what to do and where to read, in whole sentences.
        """
        text = repr(got)
        shown = text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
        return cls(f"`{argument}` must be {must_be}, got {shown}. {then}".rstrip())


class UsageError(ReplicaxError, ValueError):
    """Raised when an argument or a call breaks a rule that the caller can fix."""


class NotInReplicaContext(UsageError, RuntimeError):
    """Raised when a per-replica operation is called outside `strategy.run`."""


class NotInCrossReplicaContext(UsageError, RuntimeError):
    """Raised when a cross-replica operation is called inside `strategy.run`."""


class MixedStrategies(UsageError, RuntimeError):
    """Raised when a scope, model or variable of one strategy meets another strategy."""


class VariableNotReduced(UsageError, NotImplementedError):
    """Raised when replicas write what cannot become the one value of a variable.

    TensorFlow raises NotImplementedError, a RuntimeError, where they replace parts of one.
    """


class PerReplicaMisuse(UsageError, TypeError):
    """Raised when a value that differs per replica is used as if it were one array."""


class UnevenBatch(UsageError):
    """Raised when an operation needs equal shapes but the replicas hold different ones."""


class UnbatchedInput(UsageError):
    """Raised when a data set yields scalars, which cannot be split over replicas."""


class BatchStructureChanged(UsageError):
    """Raised when a batch has another nesting than the batches before it."""


class ExhaustedInput(UsageError):
    """Raised when a one-pass generator is iterated a second time."""


class NothingRestored(UsageError, AssertionError):
    """Raised when the check of a restored checkpoint finds objects or values without a match."""


class UnknownDevice(UsageError):
    """Raised when a device name matches no device of this machine."""


class WrongBackend(UsageError, RuntimeError):
    """Raised when Keras was imported with another backend than JAX."""


class UnsupportedVersion(UsageError, RuntimeError):
    """Raised when the installed Keras is outside the tested range."""


class LeakedTracer(UsageError, TypeError):
    """Raised when compiled code needs the concrete value of a traced array."""


class SignatureMismatch(UsageError, TypeError):
    """Raised when an argument of a compiled function does not fit its input signature."""


class TapeMisuse(UsageError, RuntimeError):
    """Raised when a `GradientTape` is used where or when it cannot record or differentiate."""


class UnsupportedIndex(UsageError, TypeError):
    """Raised when a sharded variable is indexed by something that no shard could be asked for."""


class IndexOutOfBounds(UsageError, IndexError):
    """Raised when an index or an id lies outside the rows that there are."""


class NonFinite(ReplicaxError, ArithmeticError):
    """Raised by the optional checks when a loss or a variable is NaN or infinite."""


class ResultsDiffer(ReplicaxError, ArithmeticError):
    """Raised by `rx.verify` and `VerifySteps` if replicas do not train as one device does."""


class DataError(ReplicaxError, ValueError):
    """Base class of errors in what a data set reads or computes."""


class MapFailed(DataError, RuntimeError):
    """Raised when a user's function in a pipeline raises; names the function and the element."""


class CorruptRecord(DataError):
    """Raised when a file's bytes are not what its format says: truncated, or a wrong checksum."""


class WorkerDied(DataError, RuntimeError):
    """Raised when a process that reads data ended before the data did."""


class CheckpointError(ReplicaxError, OSError):
    """Raised when a checkpoint could not be written, is not there, or is damaged."""


class ClusterError(ReplicaxError):
    """Base class of errors about processes and clusters."""


class ClusterSpecError(ClusterError, ValueError):
    """Raised when the description of a cluster, or of this process' task in it, cannot be used."""


class BackendAlreadyInitialized(ClusterError, RuntimeError):
    """Raised when JAX was used before this process could join its cluster."""


class ProcessesTimedOut(ClusterError, TimeoutError):
    """Raised when processes that were started together did not all end in time."""


class ProcessFailed(ClusterError, RuntimeError):
    """Raised when a process that was started ended with an error.

    Args:
        rank: Its number in its job.
        returncode: Its exit code, or the negative number of the signal that ended it.
        tail: The last lines it printed.
        pid: Its process id.
        job: Its job.
        host: Its machine; empty if that is this one.
    """

    def __init__(
        self,
        rank: int,
        returncode: int,
        tail: str,
        pid: int | None = None,
        job: str = "worker",
        host: str = "",
    ) -> None:
        super().__init__(rank, returncode, tail, pid, job, host)  # so that it can be pickled
        self.rank = rank
        self.returncode = returncode
        self.tail = tail
        self.pid = pid
        self.job = job
        self.host = host

    @property
    def who(self) -> str:
        """Which process it was, in words."""
        place = f"{self.host}:" if self.host else ""
        return f"{place}{self.job} {self.rank}" + (f" (pid {self.pid})" if self.pid else "")

    def __str__(self) -> str:
        tail = "\n".join(f"    {line}" for line in self.tail.splitlines())
        output = f"Its last lines:\n{tail}" if tail else "Its output, if any, is above."
        return (
            f"{self.who} failed with {describe_exit(self.returncode)}, so all were ended. {output}"
        )


class WorkersDiffer(ClusterError, RuntimeError):
    """Raised when workers are about to compute different things, on every one of them.

    Args:
        what: What was compared.
        differing: The names of what is not the same everywhere.
        table: Who has what.
        fix: What to do about it, if not the usual.
    """

    def __init__(self, what: str, differing: Sequence[str], table: str, fix: str = "") -> None:
        super().__init__(what, differing, table, fix)  # so that it can be pickled
        self.what = what
        self.differing = tuple(differing)
        self.table = table
        self.fix = fix or _SAME_EVERYWHERE

    def __str__(self) -> str:
        more = len(self.differing) - _MOST_NAMES
        names = ", ".join(self.differing[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        return (
            f"The workers differ in {names}:\n{self.table}\n"
            f"All must have the same {self.what}; otherwise they wait for each other forever or "
            f"compute wrong numbers. {self.fix}"
        )


def by_worker(column: Sequence[object]) -> str:
    """The table of `WorkersDiffer` for one fact of each worker, in worker order."""
    return "\n".join(f"      worker {worker}: {value}" for worker, value in enumerate(column))


class WorkerLost(ClusterError, RuntimeError):
    """Raised when the workers of a cluster cannot go on because of one of them.

    Each worker prints it and ends, because no step can be finished. It is raised only if a Python
    callback of a step has raised on another worker.

    Args:
        message: What happened: who, where it was, and who waits for it.
        workers: The numbers of those who are to blame.
    """

    def __init__(self, message: str, workers: tuple[int, ...] = ()) -> None:
        super().__init__(message, workers)  # so that it can be pickled
        self.workers = workers

    def __str__(self) -> str:
        return self.args[0]


class CoordinatorError(ReplicaxError):
    """Base class of errors about closures, and the workers and servers that run them."""


class UnavailableError(CoordinatorError, RuntimeError):
    """Raised when a worker or a parameter server is gone and will not come back.

    Args:
        message: What happened.
        task: Who, such as `/job:ps/task:0`.
    """

    def __init__(self, message: str, task: str = "") -> None:
        super().__init__(message, task)  # so that it can be pickled
        self.task = task

    def __str__(self) -> str:
        return self.args[0]


class CancelledError(CoordinatorError, RuntimeError):
    """Raised by `fetch` when a closure was not run because another one had failed."""


class ClosureInputError(CoordinatorError, RuntimeError):
    """Raised when a closure was given a per-worker value that could not be made."""


class OutOfRangeError(CoordinatorError, IndexError):
    """Raised when compiled code, such as a closure, asks a data set for more than it has."""


class EndOfData(OutOfRangeError, StopIteration):
    """Raised by an iterator's `get_next` at the end of its data; `next` raises `StopIteration`."""


def describe_exit(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = "unknown"
    hint = _SIGNAL_HINTS.get(name)
    return f"signal {-returncode} ({name}" + (f": {hint})" if hint else ")")


_SAME_EVERYWHERE = (
    "Start the same code with the same arguments, data and versions on every worker, and do not "
    "branch on the worker's number around anything that all must do."
)
_SIGNAL_HINTS = {
    "SIGABRT": "native code gave up",
    "SIGBUS": "native code touched memory it does not have; /dev/shm may be full",
    "SIGKILL": "kill -9, or memory ran out",
    "SIGSEGV": "native code touched memory it does not have",
    "SIGTERM": "somebody asked it to end",
}


class _Kind(NamedTuple):
    words: str
    holds: Callable[[Any], bool]


# By the words of annotations. NumPy's scalars and arrays without dimensions count as numbers.
# Programs for TensorFlow pass 0 and None for False.
_KINDS = {
    "bool": _Kind("True or False", lambda v: v is None or (hasattr(v, "__bool__") and v in (0, 1))),
    "int": _Kind("an integer", lambda v: hasattr(v, "__index__")),
    "float": _Kind("a number", lambda v: hasattr(v, "__float__")),
    "str": _Kind("a text", lambda v: isinstance(v, str)),
    "bytes": _Kind("bytes", lambda v: isinstance(v, bytes)),
    "Callable": _Kind("a function, not its result", callable),
    "os.PathLike": _Kind("a path", lambda v: hasattr(v, "__fspath__")),
    "Path": _Kind("a path", lambda v: hasattr(v, "__fspath__")),
    "Sequence": _Kind(
        "a list", lambda v: hasattr(v, "__iter__") and not isinstance(v, str | bytes)
    ),
    "Mapping": _Kind("a dict", lambda v: isinstance(v, Mapping)),
    "dict": _Kind("a dict", lambda v: isinstance(v, Mapping)),
    "None": _Kind("None", lambda v: v is None),
}
_Checked = TypeVar("_Checked", bound=Callable[..., Any])
_Member = TypeVar("_Member", bound=enum.Enum)


def _kind_of(word: str, names: Mapping[str, Any]) -> _Kind | None:
    """The check for a word of an annotation, by `names` of its module; None for no check.

    Of classes only enums and dataclasses are checked; others may be duck-typed.
    """
    named = names.get(word)
    if isinstance(named, enum.EnumType):
        words = " or ".join(f"{word}.{name}" for name in named.__members__)
        return _Kind(words, lambda v: v in list(named))
    if isinstance(named, type) and dataclasses.is_dataclass(named):
        article = "an" if word[0] in "AEIOU" else "a"
        return _Kind(f"{article} `{word}`", lambda v: isinstance(v, named))
    return _KINDS.get(word)


def checks_types(function: _Checked) -> _Checked:
    """Let a function, or the `__init__` of a class, refuse arguments of wrong types.

    A whole float is an integer, as in Keras. The error of a misspelled keyword suggests one, as in
    Python 3.13. The function must not take `**kwargs`.
    """
    made: Any = function
    if isinstance(made, type):
        owner: Any = made
        owner.__init__ = checks_types(owner.__init__)
        return function

    @functools.cache  # at the first call, so that the import is fast
    def kinds_of_arguments() -> tuple[list[str], dict[str, list[_Kind]]]:
        kinds = {}
        parameters = inspect.signature(function).parameters
        for name, parameter in parameters.items():
            words = [one.partition("[")[0] for one in str(parameter.annotation).split(" | ")]
            found = [_kind_of(word, made.__globals__) for word in words]
            if None not in found:
                kinds[name] = found
        return list(parameters), kinds

    def checked(name: str, value: Any, allowed: Sequence[_Kind]) -> Any:
        if not allowed or any(kind.holds(value) for kind in allowed):
            return value
        if _KINDS["int"] in allowed and getattr(value, "is_integer", bool)():
            return int(value)
        words = sorted({kind.words for kind in allowed}, key="None".__eq__)
        raise UsageError.of(name, " or ".join(words), value)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        names, kinds = kinds_of_arguments()
        unknown = next((name for name in kwargs if name not in names), None)
        if unknown is not None:
            known = [name for name in names if name != "self"]
            hint = did_you_mean(unknown, known) or f" It takes {', '.join(known)}."
            called = f"{made.__qualname__}()"
            raise TypeError(f"{called} got an unexpected keyword argument {unknown!r}.{hint}")
        named = zip(names, args, strict=False)
        values = [checked(name, value, kinds.get(name, ())) for name, value in named]
        others = {name: checked(name, kwargs[name], kinds.get(name, ())) for name in kwargs}
        return function(*values, *args[len(names) :], **others)

    checking: Any = call
    return checking


def member(kind: type[_Member], argument: str, value: Any) -> _Member:
    """The member of an enumeration that this value is, or whose name it is, in any case."""
    named = kind.__members__.get(str(value).upper())
    if named is None and value not in list(kind):
        raise UsageError.of(argument, f"one of {', '.join(kind.__members__)}", value)
    return kind(value) if named is None else named


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """ " Did you mean 'fit'?" with the known name closest to `name`, or an empty text."""
    import difflib  # takes a millisecond

    by_folded = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(str(name).casefold(), by_folded, n=1, cutoff=0.7)
    return f" Did you mean {by_folded[close[0]]!r}?" if close else ""


@contextlib.contextmanager
def needs(what: str, *, extra: str) -> Generator[None]:
    """Name the extra to install if an import of this block fails.

    `what` needs the package, such as "Reading TFRecords".
    """
    try:
        yield
    except ImportError as error:
        raise UsageError(
            f"{what} needs an optional package ({error}). Run `pip install 'replicax[{extra}]'`."
        ) from error
