"""`tf.io`: files, images and records."""

import io
import sys
import types

import numpy as np
import pytest
from PIL import Image

import replicax as rx
import replicax.tf as tf

gfile = tf.io.gfile
PIXELS = np.random.default_rng(0).integers(0, 255, (3, 4, 3), dtype=np.uint8)


def test_folders_and_files(tmp_path):
    base = gfile.join(str(tmp_path), "a")
    gfile.makedirs(f"{base}/b")
    gfile.makedirs(f"{base}/b")
    gfile.mkdir(f"{base}/c")
    with gfile.GFile(f"{base}/one.txt", "w") as file:
        file.write("hello")
    gfile.copy(f"{base}/one.txt", f"{base}/two.txt")
    gfile.rename(f"{base}/two.txt", f"{base}/b/three.txt")
    assert gfile.listdir(base) == ["b", "c", "one.txt"]
    assert gfile.exists(f"{base}/one.txt") and not gfile.exists(f"{base}/two.txt")
    assert gfile.isdir(base) and not gfile.isdir(f"{base}/one.txt")
    assert gfile.glob([f"{base}/*.txt", f"{base}/b/*"]) == [
        f"{base}/b/three.txt",
        f"{base}/one.txt",
    ]
    assert tf.io.matching_files(f"{base}/*.txt").tolist() == [f"{base}/one.txt"]
    assert [folder for folder, *_ in gfile.walk(base)][0] == base
    assert gfile.stat(f"file://{base}/one.txt").length == 5
    gfile.remove(f"{base}/one.txt")
    gfile.rmtree(base)
    assert not gfile.exists(base)
    assert gfile.get_registered_schemes()[0] == ""


def test_files_are_not_replaced_unless_asked(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(tf.errors.AlreadyExistsError, match="overwrite=True"):
        gfile.copy(tmp_path / "a", tmp_path / "b")
    gfile.copy(tmp_path / "a", tmp_path / "b", overwrite=True)
    assert (tmp_path / "b").read_text() == "a"
    with pytest.raises(tf.errors.NotFoundError):
        gfile.remove(tmp_path / "c")


def test_files_of_other_places_need_fsspec(monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(rx.errors.UsageError, match="pip install fsspec"):
        gfile.exists("gs://bucket/file")


def test_files_of_other_places(monkeypatch):
    class Elsewhere:
        """A file system with one folder."""

        files = {"mem://f/a": b"abc"}

        def exists(self, path):
            return path in self.files

        def isdir(self, path):
            return path == "mem://f"

        def open(self, path, mode):
            if "r" in mode:
                return io.BytesIO(self.files[path])
            out = io.BytesIO()
            out.close = lambda: self.files.setdefault(path, out.getvalue())
            return out

        def ls(self, path, detail):
            return [name.removeprefix("mem://") for name in self.files]

        def glob(self, path):
            return ["f/a"]

        def walk(self, path):
            return iter([("f", [], ["a"])])

        def info(self, path):
            return {"size": 3, "type": "file"}

        def rm_file(self, path):
            self.files.pop(path)

    there = Elsewhere()
    module = types.SimpleNamespace(url_to_fs=lambda path: (there, path))
    monkeypatch.setitem(sys.modules, "fsspec.core", module)
    assert tf.io.read_file("mem://f/a").numpy() == b"abc"
    gfile.copy("mem://f/a", "mem://f/b")
    assert there.files["mem://f/b"] == b"abc"
    assert gfile.listdir("mem://f") == ["a", "b"] and gfile.isdir("mem://f")
    assert gfile.glob("mem://f/*") == ["mem://f/a"]
    assert list(gfile.walk("mem://f")) == [("f", [], ["a"])]
    assert gfile.stat("mem://f/a").length == 3
    gfile.remove("mem://f/a")
    assert not gfile.exists("mem://f/a")


def test_whole_files(tmp_path):
    path = tmp_path / "new" / "file"
    tf.io.write_file(str(path), "text")
    assert tf.io.read_file(np.array(str(path), object)).numpy() == b"text"


@pytest.mark.parametrize(("channels", "mode"), [(0, "RGB"), (1, "L"), (3, "RGB"), (4, "RGBA")])
def test_images_are_decoded(channels, mode):
    expected = np.asarray(Image.fromarray(PIXELS).convert(mode)).reshape(3, 4, -1)
    png = tf.io.encode_png(PIXELS)
    assert np.array_equal(tf.io.decode_png(png, channels), expected)
    assert np.array_equal(tf.image.decode_image(png.numpy(), channels), expected)


def test_gray_images_and_types():
    gray = tf.io.encode_png(PIXELS[:, :, :1], compression=9)
    assert np.array_equal(tf.io.decode_png(gray), PIXELS[:, :, :1])
    floats = tf.io.decode_image(gray, dtype="float32")
    np.testing.assert_allclose(floats, PIXELS[:, :, :1] / 255, rtol=1e-6)
    assert tf.io.decode_png(gray, dtype="uint16").max() == int(PIXELS[:, :, 0].max()) * 257


def test_jpegs():
    flat = np.full((8, 8, 3), 100, np.uint8)
    found = tf.io.decode_jpeg(tf.io.encode_jpeg(flat, quality=90))
    assert np.abs(found.astype(int) - 100).max() <= 2
    with pytest.raises(rx.errors.UsageError, match="`ratio` must be 1"):
        tf.io.decode_jpeg(tf.io.encode_jpeg(flat), ratio=2)


@pytest.mark.parametrize(
    ("options", "size"),  # of tf.io.encode_jpeg of TensorFlow 2.21
    [
        ({}, 735),
        ({"chroma_downsampling": False}, 857),
        ({"progressive": True}, 592),
        ({"optimize_size": True}, 359),
        ({"density_unit": "cm", "x_density": 3, "y_density": 3}, 735),
    ],
)
def test_jpegs_are_as_small_as_tensorflows(options, size):
    square = np.zeros((16, 16, 3), np.uint8) + np.array([0, 0, 255], np.uint8)
    square[4:12, 4:12] = [255, 0, 0]
    assert len(tf.io.encode_jpeg(square, quality=80, **options).numpy()) == size


def test_pixels_of_a_jpeg_are_tensorflows():
    pytest.importorskip("simplejpeg")
    # tf.io.decode_jpeg of TensorFlow 2.21: the corner of a red square on blue, 4:2:0.
    square = np.zeros((16, 16, 3), np.uint8) + np.array([0, 0, 255], np.uint8)
    square[4:12, 4:12] = [255, 0, 0]
    jpeg = tf.io.encode_jpeg(square, quality=80)
    assert tf.io.decode_jpeg(jpeg)[2:6, 3].tolist() == [
        [0, 4, 253],
        [2, 0, 224],
        [44, 1, 205],
        [45, 0, 174],
    ]
    assert tf.io.decode_jpeg(jpeg, channels=1)[2:6, 3, 0].tolist() == [31, 20, 37, 25]


def test_what_is_no_image():
    with pytest.raises(tf.errors.DataLossError, match="as an image"):
        tf.io.decode_image(b"text")


def test_bytes_as_numbers():
    text = np.array([1, 2], "<i2").tobytes()
    assert tf.io.decode_raw(text, "int16").tolist() == [1, 2]
    assert tf.io.decode_raw(text, "int16", little_endian=False).tolist() == [256, 512]
    rows = tf.io.decode_raw([b"\1", b"\2\3\4"], "uint8", fixed_length=2)
    assert rows.tolist() == [[1, 0], [2, 3]]


# What TensorFlow 2.21 gives for [[0, -1], [0.5, 1], [0.25, 2], [-0.3, 1e-5]] at 16,000 a second.
WAV = bytes.fromhex(
    "524946463400000057415645666d74201000000001000200803e000000fa0000040010006461746110000000"
    "000000800040ff7f0020ff7f9ad90000"
)
HEARD = [[0.0, -1.0], [0.5, 32767 / 32768], [0.25, 32767 / 32768], [-9830 / 32768, 0.0]]


def test_sounds_are_written_and_read_as_in_tensorflow():
    x = np.array([[0, -1], [0.5, 1], [0.25, 2], [-0.3, 1e-5]], "float32")
    assert bytes(tf.audio.encode_wav(x, 16000).numpy()) == WAV
    audio, rate = tf.audio.decode_wav(WAV)
    assert (audio.tolist(), int(rate), rate.dtype) == (HEARD, 16000, "int32")
    three = tf.audio.decode_wav(WAV, desired_channels=3, desired_samples=2).audio
    assert three.tolist() == [[first, second, second] for first, second in HEARD[:2]]
    longer = tf.audio.decode_wav(WAV, desired_channels=1, desired_samples=5).audio
    assert longer.tolist() == [*[row[:1] for row in HEARD], [0.0]]
    ds = tf.data.Dataset.from_tensors(WAV).map(lambda wav: tf.audio.decode_wav(wav, 1).audio)
    assert [one.numpy().tolist() for one in ds] == [[row[:1] for row in HEARD]]


@pytest.mark.parametrize("contents", [b"abc", WAV[:50]])
def test_bytes_that_are_no_sound(contents):
    with pytest.raises(rx.errors.UsageError, match="16 bits"):
        tf.audio.decode_wav(contents)


def test_lines_of_csv():
    number, text, real = tf.io.decode_csv('3,"a,b",', [[0], [""], [0.5]])
    assert (int(number), str(text), float(real)) == (3, "a,b", 0.5)
    (column,) = tf.io.decode_csv(
        np.array(["1;2", "3;NA"], object), [[7]], ";", na_value="NA", select_cols=[1]
    )
    assert column.tolist() == [2, 7]
    with pytest.raises(rx.errors.UsageError, match="record_defaults"):
        tf.io.decode_csv("1,2", [[0]])


def test_records(tmp_path):
    path = str(tmp_path / "records")
    with tf.io.TFRecordWriter(path, tf.io.TFRecordOptions("GZIP")) as writer:
        for number in range(3):
            writer.write(rx.data.make_example({"n": number}))
    features = {"n": tf.io.FixedLenFeature([], "int64")}
    records = list(rx.data.TFRecordDataset(path, "GZIP"))
    assert [int(tf.io.parse_single_example(r, features)["n"]) for r in records] == [0, 1, 2]
    assert tf.io.parse_example(records, features)["n"].tolist() == [0, 1, 2]
