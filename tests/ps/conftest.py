"""Strategies of parameter servers whose servers and workers are threads of this process."""

import pytest

import replicax as rx


@pytest.fixture
def started():
    """Makes strategies, and ends them with the test."""
    made = []

    def start(partitioner=None, *, workers=1, servers=2, **options):
        strategy = rx.ParameterServerStrategy(
            variable_partitioner=partitioner,
            engine="threads",
            num_workers=workers,
            num_ps=servers,
            **options,
        )
        made.append(strategy)
        return strategy

    yield start
    for strategy in made:
        strategy.close()
