"""Slurm's notation, and ranks laid over hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicax import errors
from replicax.cluster_resolver._ranks import (
    Place,
    check_place,
    expand_hostlist,
    expand_tasks_per_node,
    place_ranks,
)


@pytest.mark.parametrize(
    ("notation", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-2],m5,o[3-4,6,7-9]", ["n1", "n2", "m5", "o3", "o4", "o6", "o7", "o8", "o9"]),
        ("t02n13,t02n41,t02n43", ["t02n13", "t02n41", "t02n43"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[9-10]", ["n9", "n10"]),
        ("n[1,1]", ["n1", "n1"]),
        ("a[1-2]-ib", ["a1-ib", "a2-ib"]),
        ("a-b.c,d", ["a-b.c", "d"]),
        ("r[0-1]n[1-2]", ["r0n1", "r0n2", "r1n1", "r1n2"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_hostlists(notation, hosts):
    assert expand_hostlist(notation) == hosts


@pytest.mark.parametrize("notation", ["", "n[1-2", "n1,,n2", "n[a]", "n[]", "n[1-]", "n1,", "n]1["])
def test_what_is_no_hostlist(notation):
    with pytest.raises(errors.ClusterSpecError, match="no list of hosts"):
        expand_hostlist(notation)


@pytest.mark.parametrize(
    ("notation", "counts"), [("3(x2),2,1", [3, 3, 2, 1]), ("4", [4]), ("1(x1),2", [1, 2])]
)
def test_tasks_per_node(notation, counts):
    assert expand_tasks_per_node(notation) == counts


@pytest.mark.parametrize("notation", ["", "2(x)", "2x3", "2,,1", "two"])
def test_what_is_no_tasks_per_node(notation):
    with pytest.raises(errors.ClusterSpecError, match="no list of tasks per node"):
        expand_tasks_per_node(notation)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.booleans())
def test_every_rank_has_a_place_of_its_own(counts, cyclic):
    places = place_ranks([(f"n{i}", count) for i, count in enumerate(counts)], cyclic=cyclic)
    assert len(set(places)) == len(places) == sum(counts)
    for node, count in enumerate(counts):
        here = [place.local_rank for place in places if place.host == f"n{node}"]
        assert here == list(range(count))  # a node numbers its ranks in the order of the ranks


def test_nodes_that_take_turns():
    places = place_ranks([("a", 1), ("b", 3), ("c", 2)], cyclic=True)
    assert "".join(place.host for place in places) == "abcbcb"


PLACES = [Place("a", 0), Place("a", 1), Place("b", 0)]


@pytest.mark.parametrize(("host", "local_rank"), [(None, None), ("b", None), (None, 0), ("b", 0)])
def test_a_rank_where_it_is_expected(host, local_rank):
    check_place(PLACES, 2, host=host, local_rank=local_rank, fix="Mend it.")


@pytest.mark.parametrize(("host", "local_rank"), [("a", None), (None, 1), ("a", 1)])
def test_a_rank_elsewhere(host, local_rank):
    with pytest.raises(errors.ClusterSpecError, match="Rank 2.*Mend it") as e:
        check_place(PLACES, 2, host=host, local_rank=local_rank, fix="Mend it.")
    assert "number 0 on b." in str(e.value)
    assert str(e.value).endswith("Mend it.")


def test_a_rank_that_is_too_high():
    with pytest.raises(errors.ClusterSpecError, match=r"Rank 3 .*Mend it"):
        check_place(PLACES, 3, host=None, local_rank=None, fix="Mend it.")
