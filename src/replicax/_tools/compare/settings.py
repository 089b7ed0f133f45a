"""The checked request for a comparison, and the command that repeats it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from typing import final

import replicax as rx

BASELINE = "one_device"

LOCAL = ("default", BASELINE, "mirrored", "central_storage")
# strategies that need processes of their own
MULTI_WORKER, PARAMETER_SERVER = "multi_worker", "parameter_server"
OF_WORKERS = (MULTI_WORKER, PARAMETER_SERVER)
ASYNCHRONOUS = (PARAMETER_SERVER,)

_USUAL_WORKERS = 2


@final
@dataclass(frozen=True)
class Settings:
    """The training to compare, and how to compare it.

    Args:
        dataset: `"digits"` or `"cifar10"`, which Keras downloads.
        model: `"cnn"`, `"mlp"` or `"resnet20"`.
        strategies: Names of strategies; `one_device` is added where it is missing.
        replicas: How many devices to use; None for all that JAX sees.
        workers: How many processes `multi_worker` and `parameter_server` have, which are added if
            neither is named. None for 2 if one of them is named, else for none.
        epochs: Passes over the training examples.
        batch_size: Examples in a global batch.
        repeats: Rounds in which the strategies are timed in turn.
        seed: Of the initial weights, the split and the order of the data.
        examples: How many training examples to use; None for all.
    """

    dataset: str = "digits"
    model: str = "cnn"
    strategies: tuple[str, ...] = LOCAL
    replicas: int | None = None
    workers: int | None = None
    epochs: int = 8
    batch_size: int = 64
    repeats: int = 5
    seed: int = 0
    examples: int | None = None

    def __post_init__(self) -> None:
        for name in ("replicas", "workers", "epochs", "batch_size", "repeats", "examples"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise rx.errors.UsageError.of(
                    name, "at least 1", count, "Leave it out for the default."
                )
        missing = () if BASELINE in self.strategies else (BASELINE,)
        of_workers = any(name in OF_WORKERS for name in self.strategies)
        added = OF_WORKERS if self.workers and not of_workers else ()
        set_ = object.__setattr__  # missing entries are filled in
        set_(self, "strategies", (*missing, *self.strategies, *added))
        set_(self, "workers", self.workers or (_USUAL_WORKERS if of_workers else None))

    def command(self) -> str:
        """The command that does the same again."""
        words = ["replicax", "compare"]
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                text = ",".join(value) if field.name == "strategies" else str(value)
                words += [f"--{field.name.replace('_', '-')}", text]
        return shlex.join(words)
