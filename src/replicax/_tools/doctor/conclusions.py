"""Conclusions from profiles: the slow parts of a program, its scaling, and the first advice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from replicax._core.events import COMPILE, COMPUTE, COPY, INPUT
from replicax._tools.profile.result import COLLECTIVES, LAUNCH, PARTS, Profile
from replicax._tools.profile.times import CALLBACKS, OTHER, PYTHON
from replicax._tools.text import milliseconds

# A smaller share of a step is not worth a change.
WORTH = 0.2
# A replica that computes this many times as long as others is slow; less may be chance.
SLOW_FACTOR = 2.0
# With fewer rows a replica is done before the next step can be started.
FEW_ROWS = 16


@dataclass(frozen=True)
class Finding:
    """Something that takes a share of a step, with a sentence of what was measured."""

    cause: str
    share: float
    number: str
    advice: str


def findings(profile: Profile, workers: Sequence[Profile] = ()) -> list[Finding]:
    """Everything that takes a share of a step worth a change, the largest first."""
    late = slow_worker(workers)
    found = [*(rule(profile) for rule in RULES), late]
    if late is not None:  # the others wait for it in collective operations
        found = [_less(one, late) if one and one.cause == "communication" else one for one in found]
    large = [one for one in found if one is not None and one.share >= WORTH]
    return sorted(large, key=lambda one: -one.share)


def advice(found: Sequence[Finding], last: Profile) -> Finding:
    """The one thing to do first."""
    if found:
        return found[0]
    share = last.share(COMPUTE)
    return Finding(
        "nothing",
        share,
        f"On {last.replicas} replicas, computing is {share:.0%} of a step of "
        f"{milliseconds(last.seconds)}.",
        "Nothing else stands out: only a faster model or more devices would help.",
    )


def _less(finding: Finding, late: Finding) -> Finding:
    return replace(finding, share=max(0.0, finding.share - late.share))


@dataclass(frozen=True)
class _Rule:
    """A part of a step that takes too long, by itself: what was measured, and advice."""

    cause: str
    part: str
    number: str
    advice: str

    def __call__(self, profile: Profile) -> Finding:
        taken = _of(profile, [self.part])
        number = self.number.format(taken=taken, of=profile)
        return Finding(self.cause, profile.share(self.part), number, self.advice)


def slow_replica(profile: Profile) -> Finding | None:
    slowest = profile.slowest
    if slowest is None or slowest.factor < SLOW_FACTOR:
        return None
    return Finding(
        "slow worker",
        # The seconds are of a traced step, which takes longer than a measured one.
        min(1.0, slowest.seconds / profile.seconds),
        f"{slowest.name} computes {slowest.factor:.1f} times as long as the others, which wait "
        f"{milliseconds(slowest.seconds)} in a step.",
        "See what else runs there, whether it is throttled, and whether it has more rows or work "
        "than the others.",
    )


def slow_worker(workers: Sequence[Profile]) -> Finding | None:
    """The worker that takes longest for its own part of a step, beside the others' median."""
    if len(workers) < 2:
        return None
    *others, last = sorted(range(len(workers)), key=lambda worker: workers[worker].own)
    usual, slow = workers[others[len(others) // 2]], workers[last]
    if slow.own < SLOW_FACTOR * usual.own:
        return None
    part = max(PARTS, key=lambda part: slow.parts[part] - usual.parts[part])
    return Finding(
        "slow worker",
        (slow.own - usual.own) / slow.seconds,
        f"Worker {last} takes {slow.own / usual.own:.1f} times as long as the others for its own "
        f"part of a step, and they wait {milliseconds(slow.own - usual.own)}; its {PARTS[part]} "
        f"takes {milliseconds(slow.parts[part])}, theirs {milliseconds(usual.parts[part])}.",
        "See what else runs on that machine, whether it reads its files more slowly than the "
        "others, and whether it has more rows.",
    )


def tiny_batch(profile: Profile) -> Finding:
    rows = None if profile.rows is None else profile.rows / profile.replicas
    parts = [LAUNCH, PYTHON]
    if rows is not None and rows <= FEW_ROWS:
        parts += [COLLECTIVES, COPY]  # these would take no longer for a few more rows
    each = "" if rows is None else f" for {rows:.3g} rows on each replica"
    return Finding(
        "tiny batch",
        _share(profile, parts),
        f"The cost of a step with any batch is {_of(profile, parts)}; computing{each} "
        f"takes {milliseconds(profile.parts[COMPUTE])}.",
        "Use a larger batch, or `compile(steps_per_execution=10)`; with so little to compute, "
        "one device may be faster than several.",
    )


RULES: Sequence[Callable[[Profile], Finding | None]] = (
    _Rule(
        "slow input",
        INPUT,
        "A step waits {taken} for data.",
        "Read ahead and in parallel: `dataset.map(fn, num_parallel_calls=4).prefetch(2)`, or "
        "`PyDataset(workers=4)`; cache the part that does not change.",
    ),
    _Rule(
        "slow copy",
        COPY,
        "Copies of batches to the devices take {taken}.",
        "Send less: uint8 or bfloat16 in place of float32, and convert in the model.",
    ),
    _Rule(
        "recompilation",
        COMPILE,
        "{of.compiled_in} of {of.steps} steps compiled {of.compiled} programs, which takes "
        "{taken}.",
        "Give all batches one shape: `drop_remainder=True`, padding to a few lengths, and numbers "
        "that change as arrays, not as Python's.",
    ),
    _Rule(
        "huge logging",
        CALLBACKS,
        "Callbacks, printing and logging take {taken}.",
        "Log less often, such as every hundredth step or at the end of an epoch; "
        "`TensorBoard(update_freq=100)`.",
    ),
    slow_replica,
    tiny_batch,
    _Rule(
        "communication",
        COLLECTIVES,
        "Collective operations, with nothing computed beside them, take {taken}.",
        "Use a larger batch, add gradients up over several steps, or compress them: "
        "`communication_options`, docs/multi_worker.md.",
    ),
    _Rule(
        "unknown wait",
        OTHER,
        "The main thread waits {taken} for something that is neither data nor devices.",
        "Look for sleeps, locks, files and requests in the loop around the step.",
    ),
)


def _of(profile: Profile, parts: Iterable[str]) -> str:
    names = list(parts)
    seconds = sum(profile.parts[part] for part in names)
    return (
        f"{milliseconds(seconds)} of {milliseconds(profile.seconds)} ({_share(profile, names):.0%})"
    )


def _share(profile: Profile, parts: Iterable[str]) -> float:
    return sum(map(profile.share, parts))


STRONG, WEAK = "strong", "weak"


@dataclass(frozen=True)
class Point:
    """A number of replicas, beside the smallest one.

    The ideal step is the one in which all replicas do as well as the fewest.
    """

    replicas: int
    rows: int | None  # of the whole batch
    seconds: float
    efficiency: float  # seconds of the ideal step / seconds
    lost: dict[str, float]  # seconds of each part beyond the ideal step's
    is_steady: bool = True  # whether the steps of both took about as long as each other


def points(kind: str, profiles: Sequence[Profile]) -> tuple[Point, ...]:
    """Compare profiles, from the fewest replicas to the most, with the first of them.

    `STRONG`: the batch stays the same, and the ideal step is shorter. `WEAK`: each replica's part
    stays the same, and the ideal step takes as long.
    """
    return tuple(_point(kind, profiles[0], one) for one in profiles)


def _point(kind: str, first: Profile, now: Profile) -> Point:
    factor = first.replicas / now.replicas if kind == STRONG else 1.0
    return Point(
        now.replicas,
        now.rows,
        now.seconds,
        first.seconds * factor / now.seconds,
        {part: now.parts[part] - first.parts[part] * factor for part in now.parts},
        first.is_steady and now.is_steady,
    )


def wanted_rows(kind: str, first: Profile, replicas: int) -> int | None:
    """The rows that a batch needs on this many replicas; None if they cannot be seen."""
    if first.rows is None:
        return None
    return first.rows if kind == STRONG else first.rows * replicas // first.replicas
