"""Networks that are slow, lossy or behind a firewall, and machines that share little."""

import shutil

import numpy as np
import pytest

from replicax._control import EXIT_CODE

from .conftest import assert_trained, by_hand, ended, expected

pytestmark = pytest.mark.timeout(120)

SECOND_PORT = 23456
FEW_PORTS = range(40000, 41000)


@pytest.mark.parametrize(
    "weather",
    [{"loss": 0.01}, {"rate": 100e6}, {"delay": 0.05}],
    ids=["one packet of a hundred is lost", "100 Mbit/s", "50 ms each way"],
)
def test_a_poor_network_changes_no_number(machines, launch, program, weather):
    with machines("a", "b") as net:
        net.change(**weather)
        code, said = ended(launch(net, "train.py"))
    assert code == 0, said
    assert_trained(program, 2)


def test_without_a_shared_folder_all_go_on_from_what_the_chief_saved(machines, launch, program):
    with machines("a", "b", hidden=[program]) as net:
        places = [net.path(name, program) for name in net.addresses]
        for place in places:
            shutil.copytree(program, place, dirs_exist_ok=True)
        code, said = ended(launch(net, "--max-restarts", "1", "keep.py"))
        assert code == 0, said
        assert "restart 1 of 1" in said
        for number, place in enumerate(places):
            with np.load(place / f"weights-{number}.npz") as found:
                for name, weight in zip(found.files, expected(4), strict=True):
                    np.testing.assert_allclose(found[name], weight, rtol=2e-5, atol=2e-6)
        assert [(place / "saved.keras").exists() for place in places] == [True, False]


def test_clocks_ten_minutes_apart_change_nothing(machines, launch, program, skewed):
    with machines("a", "b", **skewed) as net:
        code, said = ended(launch(net, "--max-restarts", "1", "keep.py"))
    assert code == 0, said
    assert_trained(program, 2, epochs=4)


def test_the_ports_of_the_docs_are_all_that_a_firewall_has_to_open(machines, launch, program):
    with machines("a", "b", RX_SECOND_PORT=str(SECOND_PORT)) as net:
        for name in net.addresses:
            first, last = FEW_PORTS[0], FEW_PORTS[-1]
            setting = f"echo {first} {last} > /proc/sys/net/ipv4/ip_local_port_range"
            ended(net.popen(name, "sh", "-c", setting, folder="/"))
        net.change(ports=[12345, SECOND_PORT, *FEW_PORTS])
        code, said = ended(launch(net, "train.py"))
    assert code == 0, said
    assert_trained(program, 2)


def test_a_firewall_with_one_port_too_few_is_named_on_both_sides(machines, program):
    variables = {"RX_SECOND_PORT": str(SECOND_PORT), "TIMEOUT": "6"}
    with machines("a", "b", **variables) as net:
        net.change(ports=[2222])
        for expected, (code, said) in zip(
            (EXIT_CODE, 1), map(ended, by_hand(net, program)), strict=True
        ):
            assert code == expected, said
            assert f":{SECOND_PORT}" in said, said
