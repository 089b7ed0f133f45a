"""Scripts with one fault each, which make them slow: the doctor names it.

What is slow is so by far: sleeps of a tenth of a second in steps of a few milliseconds.
"""

import json
import textwrap
from pathlib import Path

import pytest

from replicax._core.errors import UsageError
from replicax._tools.commands import main
from replicax._tools.doctor import examination
from replicax._tools.doctor.conclusions import advice, findings
from replicax._tools.doctor.examination import Script, failed
from replicax._tools.profile.recorder import Plan, profile_script
from replicax._tools.profile.result import PARTS

MODEL = """
import keras, time, numpy as np
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x, y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
"""
LOOP = """
import time, jax, numpy as np
import replicax as rx
strategy = rx.MirroredStrategy()
data = rx.data.Dataset.from_tensor_slices(np.ones((256, 2), "float32")).batch(64).repeat()
def forever(fn):
    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(fn, args=(batch,))
"""
PLANTED = {
    "slow input": """
        def batches():
            while True:
                time.sleep(0.1)  # a batch that takes longer than its step, on any machine
                yield x, y
        model.fit(batches(), steps_per_epoch=50, shuffle=False, verbose=0)
    """,
    "slow worker": """
        def step(batch):
            context = rx.get_replica_context()
            busy = lambda: jax.lax.fori_loop(0, 60, lambda i, a: a @ a, jax.numpy.eye(512)).sum()
            extra = jax.lax.cond(
                context.replica_id_in_sync_group == 1, busy, lambda: jax.numpy.float32(0)
            )
            return context.all_reduce("SUM", batch.sum() + extra)
        forever(step)
    """,
    "tiny batch": """
        model.fit(x, y, batch_size=2, epochs=9, verbose=0)
    """,
    "recompilation": """
        def batches():
            for rows in range(2, 60, 2):
                yield x[:rows], y[:rows]
        model.fit(batches(), steps_per_epoch=29, shuffle=False, verbose=0)
    """,
    "huge logging": """
        class Log(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                time.sleep(0.1)  # a slow disk
        model.fit(x, y, batch_size=8, epochs=9, verbose=0, callbacks=[Log()])
    """,
    "unknown wait": """
        def step(batch):
            return batch.sum()
        for batch in strategy.experimental_distribute_dataset(data):
            time.sleep(0.1)  # neither data nor devices
            strategy.run(step, args=(batch,))
    """,
}


def written(folder, text):
    path = folder / "train.py"
    start = LOOP if "step(batch)" in text else MODEL
    path.write_text(start + textwrap.dedent(text))
    return str(path)


@pytest.mark.parametrize("cause", PLANTED)
def test_what_makes_it_slow_is_named(cause, tmp_path):
    # A tiny batch has no sleeps: it takes many steps to see that it is no accident.
    plan = Plan(warm_up=2, steps=60 if cause == "tiny batch" else 5, traced=2)
    path = written(tmp_path, PLANTED[cause])
    named = []
    while cause not in named and len(named) < 3:  # on a machine that does much else besides
        profile = profile_script(path, plan=plan, folder=tmp_path / "trace", replicas=2)
        named.append(advice(findings(profile), profile).cause)
    assert named[-1] == cause


def test_a_script_is_examined_on_several_numbers_of_replicas(tmp_path, monkeypatch, capsys):
    def in_this_process(arguments, environment):
        options = json.loads(arguments[4])
        assert (environment["JAX_NUM_CPU_DEVICES"], environment["NPROC"]) == ("8", "8")
        return main(["profile", json.dumps(options | {"log": None})])

    monkeypatch.setattr(examination, "run_child", in_this_process)
    options = {
        "script": written(tmp_path, PLANTED["slow input"]),
        "args": [],
        "replicas": [1, 2],
        "warm_up": 2,
        "steps": 2,
        "workers": None,
        "json": str(tmp_path / "doctor.json"),
    }
    main(["doctor", json.dumps(options)])
    assert "slow input: A step waits" in " ".join(capsys.readouterr().out.split())
    found = json.loads((tmp_path / "doctor.json").read_text())["examination"]
    rows = {kind: [point["rows"] for point in found["scaling"][kind]] for kind in found["scaling"]}
    assert rows == {"strong": [64, 64], "weak": [64, 128]}
    assert set(found["scaling"]["strong"][1]["lost"]) == set(PARTS)
    assert found["advice"]["cause"] == "slow input"


@pytest.mark.timeout(400)
def test_a_worker_with_slow_data_is_named(tmp_path):
    path = tmp_path / "train.py"
    slow = """
    import jax
    def batches():
        while True:
            time.sleep(0.2 * jax.process_index())  # only the second worker's data are slow
            yield x, y
    model.fit(batches(), steps_per_epoch=50, shuffle=False, verbose=0)
    """
    path.write_text(MODEL + textwrap.dedent(slow))
    first, second = Script(str(path), [], warm_up=2, steps=3).of_workers(2)
    assert (first.replicas, first.rows, len(first.devices)) == (2, 64, 1)
    assert first.parts["collectives"] > 0.1  # where the first waits for the batch of the other
    found = findings(first, (first, second))[0]
    assert found.cause == "slow worker"
    assert "Worker 1 takes" in found.number
    assert "its input wait takes" in found.number


def test_a_script_that_fails_is_shown(tmp_path, monkeypatch):
    def fail(arguments, _environment):
        Path(json.loads(arguments[-1])["log"]).write_text("first\nlast")
        return 7

    monkeypatch.setattr(examination, "run_child", fail)
    with pytest.raises(UsageError, match=r"(?s)exit code 7.*first"):
        Script("train.py", [], warm_up=1, steps=1).profile(1)


def test_only_the_last_lines_of_what_failed_are_shown():
    error = str(failed("train.py", 2, 1, "\n".join(f"line {i}." for i in range(100))))
    assert "line 99." in error
    assert "line 84." not in error
