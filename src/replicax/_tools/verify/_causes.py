"""From differences to the likely cause: small rules, each a pure function of the evidence.

`_causes_of_data.py` has the rules about data.
"""

from __future__ import annotations

import numpy as np

from replicax._core.errors import VariableNotReduced
from replicax._tools.verify._causes_of_data import batches, start, steps
from replicax._tools.verify._compare import COPIES, RESULT, ROWS, START, STEPS
from replicax._tools.verify._evidence import NEAR, Cause, Evidence, Rule
from replicax._tools.verify._record import GRADIENT, METRIC, SEED, SLOT, STATISTIC, WEIGHT

NOT_DETERMINISTIC = "not deterministic"


def cause_of(evidence: Evidence) -> Cause:
    """The cause that the first fitting rule gives."""
    found = (rule(evidence) for rule in _RULES)
    return next(cause for cause in found if cause is not None)


def cause_of_chance(evidence: Evidence) -> Cause:
    """Why two runs on one device differ."""
    if evidence.of(START):
        which = f"the initial value of {evidence.found[0].name}"
    elif evidence.of(ROWS, STEPS):
        which = "the data, such as those that an unseeded map or shuffle makes,"
    else:
        which = f"what the step computes, first {evidence.found[0].name},"
    return Cause(
        NOT_DETERMINISTIC,
        f"on one device, too, {which} is another one each time: seed it. Python's, NumPy's and "
        "Keras' global generators are seeded here; generators of your own are not.",
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
            "cannot have them. Verify without it.",
        )
    return None


def _statistic(evidence: Evidence) -> Cause | None:
    found = evidence.of(STATISTIC)
    if not found:
        return None
    return Cause(
        "per-replica statistic",
        f"{found[0].name} is computed from each replica's own rows, from the same weights as on "
        "one device, as in tf.distribute. fit has those of the whole batch; LayerNormalization and "
        "GroupNormalization have none; or all-reduce it.",
    )


def _copies(evidence: Evidence) -> Cause | None:
    found = evidence.of(COPIES)
    if not found:
        return None
    return Cause(
        "missing all-reduce",
        f"the copies of {found[0].name} on the devices are not equal: replicas applied what was "
        "not summed.",
    )


def _clipped(evidence: Evidence) -> Cause | None:
    local = evidence.norms
    if not evidence.of(GRADIENT) or not local.size or evidence.replicas < 2:
        return None
    whole = np.linalg.norm(local, axis=1)
    alike = np.ptp(whole) <= NEAR * whole.max() or np.all(
        np.ptp(local, axis=0) <= NEAR * local.max(axis=0)
    )
    applied = _size_of(evidence, 1)
    if not alike or abs(applied - whole[0]) <= NEAR * whole[0]:
        return None
    return Cause(
        "clipped before the sum",
        f"each replica's gradient has the norm {whole[0]:.3g}: it is clipped or normalised before "
        "the replicas' are summed. Use clipnorm or global_clipnorm of the optimizer.",
    )


def _size_of(evidence: Evidence, run: int) -> float:
    """The norm of all applied gradients."""
    steps = evidence.steps
    found = steps[run].of(GRADIENT).values() if steps else ()
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
    local, applied = evidence.norms, _size_of(evidence, 1)
    if local.size and evidence.of(GRADIENT):
        whole = np.linalg.norm(local, axis=1)
        parted = np.ptp(whole) > NEAR * whole.max()
        if parted and np.any(np.abs(whole - applied) <= 1e-4 * applied):
            return Cause(
                "missing all-reduce",
                "the gradients that are applied are those of one replica: they are not summed.",
            )
    return None


def _scaled(evidence: Evidence) -> Cause | None:
    found, replicas = evidence.updates, evidence.replicas
    factor = evidence.factor(found) if found and not evidence.is_uneven else None
    if factor is None:
        return None
    of_what = f"gradients are {factor:.3g} times those of one device"
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
        f"{rates[0].name} is {rates[0].ratio:.3g} times that of one device, and gradients are "
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
