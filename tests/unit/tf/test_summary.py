"""`tf.summary`: what TensorBoard finds in the files."""

import contextvars
import io

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

import replicax as rx
import replicax.tf as tf
from replicax._core import event_files

from helpers import run_python


@pytest.fixture
def writer(tmp_path):
    writer = tf.summary.create_file_writer(tmp_path)
    yield writer
    writer.close()


def read(writer, path, tag):
    """The steps and values of a tag, and the plugin that shows it."""
    writer.flush()
    found = EventAccumulator(str(path))
    found.Reload()
    if tag not in found.Tags()["tensors"]:
        return None, []
    plugin = found.SummaryMetadata(tag).plugin_data.plugin_name
    return plugin, [(e.step, make_ndarray(e.tensor_proto)) for e in found.Tensors(tag)]


def test_numbers(writer, tmp_path):
    with writer.as_default():
        assert tf.summary.scalar("loss", 0.5, step=3)
        tf.summary.scalar("loss", jnp.float32(0.25), step=keras.Variable(4))
    assert not tf.summary.scalar("loss", 9.0, step=5)
    plugin, values = read(writer, tmp_path, "loss")
    assert (plugin, [(step, float(value)) for step, value in values]) == (
        "scalars",
        [(3, 0.5), (4, 0.25)],
    )


def test_histograms(writer, tmp_path):
    with writer.as_default(step=1):
        tf.summary.histogram("h", [0.0, 1.0, 1.0, 4.0], buckets=4)
        tf.summary.histogram("same", jnp.ones(3), buckets=2)
        tf.summary.histogram("none", [], buckets=1)
    assert read(writer, tmp_path, "h")[0] == "histograms"
    ((_, rows),) = read(writer, tmp_path, "h")[1]
    assert rows.tolist() == [[0, 1, 1], [1, 2, 2], [2, 3, 0], [3, 4, 1]]
    ((_, rows),) = read(writer, tmp_path, "same")[1]
    assert rows.tolist() == [[1, 1, 0], [1, 1, 3]]
    ((_, rows),) = read(writer, tmp_path, "none")[1]
    assert rows.tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images(writer, tmp_path, channels):
    images = np.random.default_rng(0).integers(0, 255, (5, 2, 3, channels), dtype=np.uint8)
    with writer.as_default(step=1):
        tf.summary.image("i", images, max_outputs=2)
        tf.summary.image("f", jnp.array([[[[0.0], [0.5], [1.0]]]]))
    plugin, ((_, (width, height, *pngs)),) = read(writer, tmp_path, "i")
    assert (plugin, width, height, len(pngs)) == ("images", b"3", b"2", 2)
    for png, image in zip(pngs, images, strict=False):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(png))), image.squeeze())
    ((_, (*_, png)),) = read(writer, tmp_path, "f")[1]
    assert np.asarray(Image.open(io.BytesIO(png))).tolist() == [[0, 127, 255]]


def test_images_are_a_batch(writer):
    with writer.as_default(step=1), pytest.raises(rx.errors.UsageError, match=r"image\[None\]"):
        tf.summary.image("i", np.zeros((2, 2, 3)))


def test_texts(writer, tmp_path):
    with writer.as_default(step=1):
        tf.summary.text("one", "**bold**")
        tf.summary.text("more", [["a", b"b"]], description="words")
    plugin, ((_, value),) = read(writer, tmp_path, "one")
    assert (plugin, value.item()) == ("text", b"**bold**")
    assert read(writer, tmp_path, "more")[1][0][1].tolist() == [[b"a", b"b"]]


def test_the_step_of_summaries_that_have_none(writer, tmp_path):
    tf.summary.experimental.set_step(7)
    with writer.as_default():
        tf.summary.scalar("a", 1.0)
    with writer.as_default(step=8):
        tf.summary.scalar("a", 1.0)
    assert tf.summary.experimental.get_step() == 7
    tf.summary.experimental.set_step(None)
    with writer.as_default(), pytest.raises(rx.errors.UsageError, match="No step"):
        tf.summary.scalar("a", 1.0)
    assert [step for step, _ in read(writer, tmp_path, "a")[1]] == [7, 8]


def test_recording_on_a_condition(writer, tmp_path):
    with writer.as_default():
        for step in range(4):
            with tf.summary.record_if(lambda step=step: step % 2 == 0):
                tf.summary.scalar("a", 1.0, step=step)
        assert tf.summary.should_record_summaries()
    assert not tf.summary.should_record_summaries()
    assert [step for step, _ in read(writer, tmp_path, "a")[1]] == [0, 2]


def test_no_writer(tmp_path):
    writer = tf.summary.create_noop_writer()
    with writer.as_default():
        assert not tf.summary.scalar("a", 1.0, step=1)
    writer.flush()


def test_no_writer_leaves_the_step_as_it_is():
    def step_after():
        tf.summary.experimental.set_step(7)
        tf.summary.create_noop_writer().set_as_default()
        return tf.summary.experimental.get_step()

    assert contextvars.copy_context().run(step_after) == 7


def test_compiled_code_records_at_each_call(writer, tmp_path):
    steps = keras.Variable(0, dtype="int32")

    @rx.function
    def train(x):
        steps.assign_add(1)
        with tf.summary.record_if(steps != 2):
            tf.summary.scalar("sum", x.sum(), step=steps)
        tf.summary.histogram("x", x, step=steps, buckets=2)
        tf.summary.text("t", "here", step=steps)

    with writer.as_default():
        for _ in range(3):
            train(jnp.arange(3.0))
    assert [(s, float(v)) for s, v in read(writer, tmp_path, "sum")[1]] == [(1, 3), (3, 3)]
    assert [v.tolist() for _, v in read(writer, tmp_path, "x")[1]] == [[[0, 1, 1], [1, 2, 2]]] * 3
    assert len(read(writer, tmp_path, "t")[1]) == 3


def test_the_first_replica_records(writer, tmp_path, mirrored):
    with writer.as_default(step=2):
        for batch in mirrored.experimental_distribute_dataset([np.arange(4.0), np.arange(4.0) + 9]):
            mirrored.run(lambda x: tf.summary.scalar("x", x[0]), args=(batch,))
    assert [float(value) for _, value in read(writer, tmp_path, "x")[1]] == [0, 9]


def test_the_end_of_a_program_loses_nothing(tmp_path):
    run_python(f"""
        import replicax.tf as tf, replicax as rx, jax.numpy as jnp
        writer = tf.summary.create_file_writer({str(tmp_path)!r})
        with writer.as_default():
            rx.function(lambda x: tf.summary.scalar("a", x, step=1))(jnp.float32(3))
    """)
    found = EventAccumulator(str(tmp_path))
    found.Reload()
    assert found.Tags()["tensors"] == ["a"]


def test_a_profile(tmp_path):
    tf.summary.trace_on(profiler=True)
    with pytest.raises(rx.errors.UsageError, match="No folder for the profile"):
        tf.summary.trace_export("a", step=0)
    jax.block_until_ready(jnp.ones(3) + 1)
    tf.summary.trace_export("a", step=0, profiler_outdir=tmp_path)
    assert list(tmp_path.rglob("*.xplane.pb"))
    tf.summary.trace_on(profiler=True, profiler_outdir=tmp_path)
    tf.summary.trace_off()


def test_tensorboard_is_optional(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(event_files.importlib, "import_module", missing)
    with pytest.raises(rx.errors.UsageError, match=r"replicax\[tensorboard\]"):
        tf.summary.create_file_writer("logs")
