"""Planted faults: `rx.verify` names each, and finds nothing in programs that are right."""

import pytest
import verify_faults as faults

import replicax as rx

# program → (cause, step, what differs first)
PLANTED = {
    faults.loss_scaled_twice: ("loss scaled twice", 1, "gradient"),
    faults.loss_not_divided: ("loss not divided", 1, "gradient"),
    faults.normalisation_per_replica: ("per-replica statistic", 1, "statistic"),
    faults.dropped_remainder: ("rows dropped", 3, "steps"),
    faults.dropped_rows: ("rows dropped", 3, "rows"),
    faults.wrong_shard: ("wrong shard", 1, "rows"),
    faults.shuffled_by_rank: ("wrong shard", 1, "rows"),
    faults.seed_by_replicas: ("seed by replica", 0, "initial value"),
    faults.batch_of_each_replica: ("batch too large", 1, "rows"),
    faults.shuffled_by_strategy: ("different data", 1, "rows"),
    faults.same_mask: ("same random numbers on all replicas", 1, "gradient"),
    faults.draws_more_often: ("random streams part", 1, "random state"),
    faults.noise_of_each_replica: ("random numbers of each replica", 1, "gradient"),
    faults.gradients_not_summed: ("missing all-reduce", 1, "gradient"),
    faults.first_replica_kept: ("missing all-reduce", 1, "weight"),
    faults.mean_kept: ("written per replica", 1, "weight"),
    faults.written_by_each: ("missing all-reduce", 1, "steps"),
    faults.clipped_before_the_sum: ("clipped before the sum", 1, "gradient"),
    faults.mean_of_means: ("mean of means", 3, "gradient"),
    faults.stale_metric: ("metric not merged", 1, "metric"),
    faults.reported_as_mean: ("mean of sums", 1, "result"),
    faults.rate_times_replicas: ("learning rate scaled", 1, "weight"),
    faults.rows_depend_on_their_neighbours: ("order-dependent operation", 1, "gradient"),
}


@pytest.mark.parametrize("program", PLANTED, ids=lambda program: program.__name__)
def test_a_planted_fault_is_named(program):
    _, step, _ = PLANTED[program]
    steps = max(step, 2)  # the third is compiled for an uneven batch
    found = rx.verify(program, strategies=["mirrored"], replicas=2, steps=steps, repeat=False)
    (row,) = found.rows
    first = row.differences[0]
    assert row.cause is not None
    assert (row.cause.name, first.step, first.kind) == PLANTED[program], found.table()
    with pytest.raises(rx.errors.ResultsDiffer, match="does not train as one device does") as error:
        found.check()
    assert row.cause.name in str(error.value)


@pytest.mark.parametrize(
    ("program", "first"), [(faults.unseeded_map, "rows"), (faults.unseeded_start, "initial value")]
)
def test_what_is_not_deterministic_is_named_on_one_device(program, first):
    again, mirrored = rx.verify(program, strategies=["mirrored"], replicas=2, steps=1).rows
    assert again.cause is not None and mirrored.cause is not None
    assert again.strategy == "one_device again"
    assert again.differences[0].kind == first
    assert again.cause.name == mirrored.cause.name == "not deterministic"


@pytest.mark.parametrize("program", [faults.train, faults.right_shard])
def test_a_right_program_is_equal(program):
    found = rx.verify(program, strategies=["mirrored", "central_storage"], replicas=4)
    assert found.is_equal, found.table()
    found.check()
    assert [row.strategy for row in found.rows] == [
        "one_device again",
        "mirrored",
        "central_storage",
    ]
    assert all(row.compared > 30 for row in found.rows)


def test_replicas_draw_the_rows_of_what_one_device_draws():
    found = rx.verify(faults.right_draws, strategies=["mirrored"], replicas=2, repeat=False)
    assert found.is_equal, found.table()


def test_a_batch_may_grow_with_the_replicas():
    found = rx.verify(
        faults.right_batch_that_grows, strategies=["mirrored"], replicas=2, repeat=False
    )
    assert found.is_equal, found.table()
    assert found.rows[0].told == 2
    assert "mirrored: the batch grows with the number of replicas" in found.table()
