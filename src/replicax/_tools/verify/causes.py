"""From differences to the likely cause: small rules, each a pure function of the evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from replicax._core.errors import VariableNotReduced
from replicax._tools.verify.compare import (
    COPIES,
    RESULT,
    ROWS,
    START,
    STEPS,
    Difference,
    Pieces,
    count,
    rows,
)
from replicax._tools.verify.record import (
    GRADIENT,
    METRIC,
    NORMS,
    SEED,
    SLOT,
    STATISTIC,
    WEIGHT,
    Run,
    StepRecord,
)

NEAR = 1e-2
"""How near a ratio must be to a number to be taken for it."""


@final
@dataclass(frozen=True)
class Cause:
    """The likely cause of a run's difference from one device's.

    In a few words, as in docs/tools.md, and in a sentence with the numbers that support it.
    """

    name: str
    text: str


@dataclass(frozen=True)
class Evidence:
    """The evidence of a run that differs from one device's: the first differing step."""

    reference: Run
    other: Run
    found: Sequence[Difference]

    @property
    def replicas(self) -> int:
        return self.other.replicas

    def of(self, *kinds: str) -> list[Difference]:
        return [one for one in self.found if one.kind in kinds]

    @cached_property
    def steps(self) -> tuple[StepRecord, StepRecord] | None:
        number = self.found[0].step if self.found else 0
        both = self.reference.steps, self.other.steps
        if not 0 < number <= min(map(len, both)):
            return None
        return both[0][number - 1], both[1][number - 1]

    @cached_property
    def pieces(self) -> tuple[Pieces, Pieces]:
        """The rows of that step of both runs, by replica."""
        return rows(*self.steps) if self.steps else ([], [])

    @cached_property
    def is_uneven(self) -> bool:
        """Whether the replicas do not divide the rows of that step."""
        return count(self.pieces[0]) % self.replicas != 0

    @cached_property
    def updates(self) -> list[Difference]:
        """The gradients that differ; if none was seen, the changes of weights."""
        seen = self.steps is not None and bool(self.steps[1].of(GRADIENT))
        return self.of(GRADIENT if seen else WEIGHT)

    @cached_property
    def norms(self) -> np.ndarray:
        """The norms of each replica's gradients, by variable; empty if not seen."""
        found = list(self.steps[1].of(NORMS).values()) if self.steps else []
        fitting = [one.array for one in found if one.array.shape[:1] == (self.replicas,)]
        return np.concatenate(fitting, axis=1) if fitting else np.zeros((0, 0))

    def factor(self, differences: Sequence[Difference]) -> float | None:
        """The one factor by which all values differ from one device's, if there is one."""
        ratios = [one.ratio for one in differences]
        one_number = ratios and max(ratios) - min(ratios) <= NEAR * max(map(abs, ratios))
        pure = all(one.rest <= max(NEAR, one.allowed) for one in differences)
        return ratios[0] if one_number and pure else None


Rule = Callable[[Evidence], Cause | None]


BATCH_TOO_LARGE = "batch too large"


def start(evidence: Evidence) -> Cause | None:
    if not evidence.of(START):
        return None
    return Cause(
        "seed by replica",
        "the initial values differ: a seed, or a shape, depends on the strategy, the rank or "
        "the number of replicas.",
    )


def steps(evidence: Evidence) -> Cause | None:
    if not evidence.of(STEPS):
        return None
    fewer = len(evidence.other.steps) < len(evidence.reference.steps)
    if fewer:
        return Cause("rows dropped", "there are fewer steps: a batch is left out, often the last.")
    return Cause("different data", "there are more steps: the batches are cut differently.")


def batches(evidence: Evidence) -> Cause | None:
    if not evidence.of(ROWS):
        return None
    mine, theirs = evidence.pieces
    ours = Counter(row for piece in mine for row in piece)
    others = Counter(row for piece in theirs for row in piece)
    several = len(theirs) > 1 and len(theirs[0]) > 0
    if several and all(piece == theirs[0] for piece in theirs):
        return Cause(
            "wrong shard", "every replica reads the same rows: they all take the same shard."
        )
    twice = _read_twice(evidence)
    if several and twice:
        return Cause(
            "wrong shard",
            f"{twice} rows are read twice in these steps: shards overlap, or each is taken from an "
            "order of its own, shuffled with another seed.",
        )
    if count(theirs) == evidence.replicas * count(mine):
        return Cause(
            BATCH_TOO_LARGE,
            "each replica gets as many rows as one device: the batch size is for one replica, or "
            "is multiplied by the number of replicas.",
        )
    missing, added = (ours - others).total(), (others - ours).total()
    if not added:
        return Cause(
            "rows dropped", f"{missing} rows are left out, often at the end of an uneven batch"
        )
    return Cause(
        "different data",
        f"{added} rows differ from the rows on one device: the order, the seed or the batches "
        "depend on the strategy.",
    )


def _read_twice(evidence: Evidence) -> int:
    """The number of rows that recur in the steps seen, if none does on one device."""
    both = zip(evidence.reference.steps, evidence.other.steps, strict=False)
    ours, theirs = Counter[tuple[bytes, ...]](), Counter[tuple[bytes, ...]]()
    for mine, other in both:
        for found, pieces in zip((ours, theirs), rows(mine, other), strict=True):
            found.update(row for piece in pieces for row in piece)
    return theirs.total() - len(theirs) if ours.total() == len(ours) else 0


NOT_DETERMINISTIC = "not deterministic"


def cause_of(evidence: Evidence) -> Cause:
    found = (rule(evidence) for rule in _RULES)
    return next(cause for cause in found if cause is not None)


def cause_of_chance(evidence: Evidence) -> Cause:
    """Why two runs on one device differ."""
    if evidence.of(START):
        which = f"the initial value of {evidence.found[0].name}"
    elif evidence.of(ROWS, STEPS):
        which = "the data, such as the result of an unseeded map or shuffle,"
    else:
        which = f"the result of the step, first {evidence.found[0].name},"
    return Cause(
        NOT_DETERMINISTIC,
        f"{which} differs between two runs on one device: seed it. Python's, NumPy's and Keras' "
        "global generators are seeded here; generators of your own are not.",
    )


def _error(evidence: Evidence) -> Cause | None:
    error = evidence.other.error
    if error is None:
        return None
    if isinstance(error, VariableNotReduced):
        return Cause("missing all-reduce", f"the replicas' copies would drift apart. {error}")
    return Cause("it fails", f"{type(error).__name__}: {error}")


def _random(evidence: Evidence) -> Cause | None:
    if evidence.other.shared_draws and not evidence.reference.shared_draws:
        drawn = ", ".join(sorted(evidence.other.shared_draws))
        return Cause(
            "same random numbers on all replicas",
            f"{drawn} with a seed that is written in the program: every replica draws the same "
            "mask. Use a keras.random.SeedGenerator.",
        )
    if evidence.of(SEED):
        return Cause(
            "random streams part",
            "random numbers are drawn more or less often than on one device: a draw depends on the "
            "strategy, the rank or the number of replicas.",
        )
    if evidence.other.own_draws:
        return Cause(
            "random numbers of each replica",
            "the replicas draw numbers that are not one for each row of the batch, so one device "
            "cannot draw the same. Verify without them.",
        )
    return None


def _statistic(evidence: Evidence) -> Cause | None:
    found = evidence.of(STATISTIC)
    if not found:
        return None
    return Cause(
        "per-replica statistic",
        f"{found[0].name} is computed from each replica's own rows, from the same weights as on "
        "one device, as in tf.distribute. Use fit, which computes it over the whole batch, use "
        "LayerNormalization or GroupNormalization, which need none, or all-reduce it.",
    )


def _copies(evidence: Evidence) -> Cause | None:
    found = evidence.of(COPIES)
    if not found:
        return None
    return Cause(
        "missing all-reduce",
        f"the copies of {found[0].name} on the devices are not equal: replicas applied gradients "
        "that were not summed.",
    )


def _clipped(evidence: Evidence) -> Cause | None:
    local = evidence.norms
    if not evidence.of(GRADIENT) or not local.size or evidence.replicas < 2:
        return None
    whole = np.linalg.norm(local, axis=1)
    alike = np.ptp(whole) <= NEAR * whole.max() or np.all(
        np.ptp(local, axis=0) <= NEAR * local.max(axis=0)
    )
    applied = _applied(evidence)
    if not alike or abs(applied - whole[0]) <= NEAR * whole[0]:
        return None
    return Cause(
        "clipped before the sum",
        f"each replica's gradient has the norm {whole[0]:.3g}: it is clipped or normalised before "
        "the sum over replicas. Use clipnorm or global_clipnorm of the optimizer.",
    )


def _applied(evidence: Evidence) -> float:
    """The norm of all applied gradients."""
    found = evidence.steps[1].of(GRADIENT).values() if evidence.steps else ()
    return float(np.sqrt(sum(np.linalg.norm(one.array.astype(np.float64)) ** 2 for one in found)))


def _not_summed(evidence: Evidence) -> Cause | None:
    steps, found = evidence.steps, evidence.updates
    if steps is None or not found:
        return None
    aggregations = {
        one.aggregation for one in steps[1].of(WEIGHT).values() if one.path == found[0].name
    }
    if "only_first_replica" in aggregations:
        return Cause(
            "missing all-reduce",
            f"each replica writes {found[0].name} from its own rows, and only the first one's "
            "value is kept.",
        )
    if "mean" in aggregations:
        return Cause(
            "written per replica",
            f"each replica writes {found[0].name} from its own rows, and the mean is kept. Sum the "
            "gradients first.",
        )
    local, applied = evidence.norms, _applied(evidence)
    if local.size and evidence.of(GRADIENT):
        whole = np.linalg.norm(local, axis=1)
        parted = np.ptp(whole) > NEAR * whole.max()
        if parted and np.any(np.abs(whole - applied) <= 1e-4 * applied):
            return Cause(
                "missing all-reduce",
                "the applied gradients come from one replica: they are not summed.",
            )
    return None


def _scaled(evidence: Evidence) -> Cause | None:
    found, replicas = evidence.updates, evidence.replicas
    factor = evidence.factor(found) if found and not evidence.is_uneven else None
    if factor is None:
        return None
    of_what = f"gradients are {factor:.3g} times the gradients on one device"
    if abs(factor - replicas) <= NEAR * replicas:
        return Cause(
            "loss not divided",
            f"{of_what}, the number of replicas: each replica's loss is the mean of its own rows. "
            "Divide the sum by the rows of the whole batch: rx.nn.compute_average_loss.",
        )
    if abs(factor * replicas - 1) <= NEAR:
        return Cause(
            "loss scaled twice",
            f"{of_what}, one over the number of replicas: the loss is divided by it once too "
            "often.",
        )
    if abs(factor - 1) <= NEAR:
        return None
    return Cause("loss scaled", f"{of_what}: a factor depends on the strategy.")


def _uneven(evidence: Evidence) -> Cause | None:
    if not evidence.is_uneven or not (evidence.updates or evidence.of(RESULT, METRIC)):
        return None
    sizes = "+".join(str(len(piece)) for piece in evidence.pieces[1])
    return Cause(
        "mean of means",
        f"the batch is uneven ({sizes} rows), and each replica's mean counts alike, whatever its "
        "rows. Divide sums by the rows of the whole batch.",
    )


def _rate(evidence: Evidence) -> Cause | None:
    rates = [one for one in evidence.of(SLOT) if "learning_rate" in one.name]
    if not rates or evidence.of(GRADIENT):
        return None
    return Cause(
        "learning rate scaled",
        f"{rates[0].name} is {rates[0].ratio:.3g} times its value on one device, and gradients are "
        "equal: it depends on the number of replicas.",
    )


def _metric(evidence: Evidence) -> Cause | None:
    found = evidence.of(RESULT, METRIC)
    if not found or evidence.updates or evidence.of(WEIGHT):
        return None
    replicas, first = evidence.replicas, found[0]
    if first.kind == RESULT and abs(first.ratio * replicas - 1) <= NEAR:
        return Cause(
            "mean of sums",
            f"weights are equal, and the reported number is 1/{replicas} of one device's: each "
            "replica returns a sum over its own rows, or a loss already divided by the global "
            'batch size, and reduce("MEAN") divides it once more, by the number of replicas. Use '
            'reduce("SUM").',
        )
    if first.kind == RESULT and abs(first.ratio - replicas) <= NEAR * replicas:
        return Cause(
            "sum of means",
            f"weights are equal, and the reported number is {replicas} times one device's: each "
            'replica returns a mean of its own rows, and reduce("SUM") adds the means up. Use '
            'reduce("MEAN"), or divide by the global batch size in each replica.',
        )
    return Cause(
        "metric not merged",
        f"weights are equal, and only {found[0].name} differs ({found[0].ratio:.3g} times): it is "
        "stale, of one replica, or reduced in another way than it was made.",
    )


def _order(evidence: Evidence) -> Cause:
    return Cause(
        "order-dependent operation",
        f"{evidence.found[0].name} differs, from the same rows and weights: an operation looks at "
        "other rows of its batch, or at their order (a statistic, a softmax, a roll or a sort over "
        "the batch), and a replica has its own rows only.",
    )


_RULES: tuple[Rule, ...] = (
    _error,
    start,
    steps,
    batches,
    _copies,
    _random,
    _statistic,
    _not_summed,
    _clipped,
    _scaled,
    _uneven,
    _rate,
    _metric,
    _order,
)
