"""`replicax profile` of real scripts, in this process: what the child does with its options."""

import gzip
import json
import textwrap

import jax
import pytest

import replicax as rx
from replicax._core import events
from replicax._tools.commands import main
from replicax._tools.profile import text as profile_text
from replicax._tools.profile.recorder import Plan, Recorder, profile_script
from replicax._tools.profile.result import PARTS, Profile

FIT = """
    import keras, numpy as np
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = np.ones((96, 4), "float32"), np.ones((96, 1), "float32")
    model.fit(x, y, batch_size=32, epochs=9, verbose=0, validation_data=(x, y))
    raise AssertionError("it has not been ended")
"""
LOOP = """
    import keras, numpy as np, sys
    import replicax as rx
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        weight = keras.Variable(1.0)
    @rx.function
    def step(batch):
        def replica(x):
            weight.assign(rx.get_replica_context().all_reduce("MEAN", x.mean()))
        strategy.run(replica, args=(batch,))
    data = rx.data.Dataset.from_tensor_slices(np.ones((40, 2), "float32")).batch(4).repeat(3)
    for batch in strategy.experimental_distribute_dataset(data):
        step(batch)
"""


@pytest.fixture
def script(tmp_path):
    def write(text):
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


@pytest.fixture(scope="module")
def of_fit(tmp_path_factory):
    """A profile of `fit` on two devices, made once, and the folder of its trace."""
    folder = tmp_path_factory.mktemp("fit")
    path = folder / "train.py"
    path.write_text(textwrap.dedent(FIT))
    plan = Plan(warm_up=2, steps=5, traced=4)
    return profile_script(str(path), plan=plan, folder=folder / "logs", replicas=2), folder


def test_the_parts_of_a_step_are_the_step(of_fit):
    profile, _ = of_fit
    assert (profile.kind, profile.replicas, profile.rows) == ("train step", 2, 32)
    assert list(profile.parts) == list(PARTS)
    assert sum(profile.parts.values()) == pytest.approx(profile.seconds)
    assert all(profile.parts[part] > 0 for part in ("input", "copy", "compute", "python"))
    assert min(profile.parts.values()) >= 0
    # Of the steps 2 to 6, counted from 0, 2 and 5 have a validation behind them.
    assert profile.steps == 3
    assert (profile.compiled, profile.compiled_in) == (0, 0)
    assert profile.warm_up_compiling > 0


def test_the_program_says_what_it_sends_and_needs(of_fit):
    program = of_fit[0].program
    # Gradients of 4 * 3 + 3 and 3 + 1 numbers, and the loss with its rows, all of 4 bytes.
    assert sum(one.bytes for one in program.collectives) >= (15 + 4) * 4
    assert {one.kind for one in program.collectives} == {"all-reduce"}
    assert program.arguments >= (15 + 4) * 4 + 32 // 2 * (4 + 1) * 4
    assert of_fit[0].host_peak_bytes > 2**20


def test_each_device_was_seen(of_fit):
    profile, _ = of_fit
    assert profile.is_traced
    assert [one.name for one in profile.devices] == ["CPU:0", "CPU:1"]
    assert all(one.own > 0 and 0 < one.busy <= 1 for one in profile.devices)
    assert any(one.waiting > 0 for one in profile.devices)
    assert profile.slowest.factor >= 1


def test_tensorboard_finds_a_trace_with_our_steps(of_fit):
    profile, folder = of_fit
    assert profile.trace == str(folder / "logs")
    (run,) = (folder / "logs" / "plugins" / "profile").iterdir()
    (planes,) = run.glob("*.xplane.pb")
    assert {plane.name for plane in jax.profiler.ProfileData.from_file(str(planes)).planes}
    (events,) = run.glob("*.trace.json.gz")
    found = json.loads(gzip.decompress(events.read_bytes()))["traceEvents"]
    steps = {event["args"]["step_num"] for event in found if event.get("name") == "train"}
    assert steps >= {"7", "8", "9", "10"}


def test_a_profile_is_written_and_read_again(of_fit):
    profile, _ = of_fit
    assert Profile.of_data(json.loads(profile_text.to_json(profile))) == profile
    text, page = profile_text.to_text(profile), profile_text.to_markdown(profile)
    for name in (*PARTS.values(), "all-reduce", "temporaries", "CPU:1", "tensorboard --logdir"):
        assert name in text
        assert name in page
    assert "32 rows" in " ".join(text.split())
    assert "| input wait | " in page


def test_a_custom_loop_with_larger_batches(script):
    plan = Plan(warm_up=2, steps=3, traced=0)
    profile = profile_script(script(LOOP), plan=plan, replicas=2, scale=2.5)
    assert profile.kind == "call of step"
    assert (profile.rows, profile.steps) == (10, 3)  # 2 of each replica, 2.5 times: 5
    assert (profile.is_traced, profile.devices, profile.trace) == (False, (), None)
    assert profile.slowest is None
    assert "not traced (`--no-trace`" in profile_text.to_text(profile)


OPTIONS = {
    "args": [],
    "replicas": None,
    "warm_up": 1,
    "steps": 2,
    "traced": 0,
    "output": "profile",
    "json": None,
    "markdown": None,
    "scale": 1.0,
    "of_workers": False,
    "log": None,
}


def test_the_command_prints_a_page_and_writes_files(script, tmp_path, capsys):
    files = {name: str(tmp_path / name) for name in ("json", "markdown")}
    assert (
        main(["profile", json.dumps(OPTIONS | files | {"script": script(LOOP), "replicas": 1})])
        == 0
    )
    assert "together" in capsys.readouterr().out
    assert json.loads((tmp_path / "json").read_text())["rows"] == 4
    assert (tmp_path / "markdown").read_text().startswith("/")


def test_a_script_without_such_steps(script, capsys):
    assert (
        main(
            ["profile", json.dumps(OPTIONS | {"script": script(FIT.replace("raise", "exit() #"))})]
        )
        == 2
    )
    assert "--replicas" in capsys.readouterr().err


def test_the_folder_of_the_trace_is_made_before_the_script_runs(script, tmp_path, capsys):
    (tmp_path / "file").touch()
    wanted = {"script": script(LOOP), "output": str(tmp_path / "file"), "traced": 5}
    assert main(["profile", json.dumps(OPTIONS | wanted)]) == 2
    assert "--output" in capsys.readouterr().err


def test_a_step_whose_end_is_not_known_is_left_out():
    recorder = Recorder(Plan(warm_up=1, steps=9, traced=0), None)
    with recorder.recording():
        for _ in range(3):
            events.begin_step("train step")
    assert [step.number for step in recorder.steps] == [0, 1]


@pytest.mark.parametrize(("when", "found"), [("== 9", (18, 0, 0)), ("% 5 == 0", (19, 4, 4))])
def test_a_single_step_that_compiles_is_not_measured(script, when, found):
    once = f"""\
    calls = 0
    for batch in strategy.experimental_distribute_dataset(data):
        step(batch)
        calls += 1
        if calls {when}:
            jax.jit(lambda rows: rows + calls)(np.ones(2))
"""
    start, _ = LOOP.split("    for batch in")
    text = start.replace("import keras,", "import jax, keras,") + once
    plan = Plan(warm_up=3, steps=19, traced=0)
    profile = profile_script(script(text), plan=plan, replicas=1)
    assert (profile.steps, profile.compiled, profile.compiled_in) == found


def test_parameter_servers_are_refused_before_they_start(script):
    path = script("import replicax as rx\nrx.ParameterServerStrategy()\n")
    with pytest.raises(rx.errors.UsageError, match="ParameterServerStrategy"):
        profile_script(path, plan=Plan())


def test_too_few_steps(script):
    plan = Plan(warm_up=50, steps=1, traced=0)
    with pytest.raises(rx.errors.UsageError, match=r"30 training steps.*first 50"):
        profile_script(script(LOOP), plan=plan, replicas=1)
