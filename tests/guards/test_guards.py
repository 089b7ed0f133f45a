"""The figures of `measured.py` do not rise, and the public API changes only on purpose.

After a change that is meant: `python tests/guards/measured.py --lower` for figures that sank, and
`python tests/guards/recorded.py` for the names, signatures and operations.
"""

import json

import measured
import pytest
import recorded

pytestmark = pytest.mark.timeout(300)

FIGURES = json.loads(measured.FIGURES.read_text())


def assert_not_above(figures):
    above = {what: (figure, FIGURES.get(what, 0)) for what, figure in figures.items()}
    above = {what: pair for what, pair in above.items() if pair[0] > pair[1]}
    assert not above, f"measured, recorded: {above}"


@pytest.mark.parametrize("kind", ["run", "fit"])
def test_a_steady_step_passes_through_few_files(kind):
    files = measured.files_of_a_step(kind)
    assert len(files) <= FIGURES[f"files in a step of {kind}"], files


def test_a_steady_closure_passes_through_few_files():
    files = measured.files_of_a_closure()
    assert {"coordinator/_coordinator.py", "_ps/worker.py", "_ps/server/server.py"} <= {*files}
    assert len(files) <= FIGURES["files in a closure"], files


def test_a_strategy_replaces_few_attributes_of_other_libraries():
    for library, names in zip(("Keras", "JAX"), measured.replaced_attributes(), strict=True):
        assert len(names) <= FIGURES[f"attributes of {library} replaced"], names


@pytest.mark.parametrize("module", ["replicax", "replicax.strategies", "replicax.tf"])
def test_an_import_changes_nothing(module):
    changed = measured.effects_of_importing(module)
    assert len(changed) <= FIGURES[f"effects of importing {module}"], changed


def test_the_source_grows_nowhere():
    assert_not_above({"context variables": measured.context_variables(), **measured.sizes()})


@pytest.mark.core
def test_the_public_names_and_signatures_are_the_recorded_ones():
    found = json.loads(
        measured.in_a_process("import json, recorded; print(json.dumps(recorded.public_api()))")
    )
    assert found == recorded.PUBLIC.read_text().splitlines()


@pytest.mark.parametrize("step", recorded.RECORDED_STEPS, ids=" on ".join)
def test_a_step_compiles_to_the_recorded_operations(step):
    kind, replicas = step
    found = measured.operations_of_steps(int(replicas))[kind]
    assert found == json.loads(recorded.STEPS.read_text())[" on ".join(step)]
