"""Folders of images, decoding, and sizes."""

import os
import pickle

import numpy as np
import pytest
from PIL import Image

import replicax as rx
from replicax.data._directories import LoadImage, decoded, image_dataset_from_directory
from replicax.data._pixels import METHODS, resize

FILES = [
    "a/0.png",
    "a/1.PNG",
    "a/deep/2.png",
    "b/0.png",
    "b/1.png",
    "b/2.png",
    "b/3.png",
    "c/0.png",
]
# The order of keras.utils.image_dataset_from_directory of Keras 3.15 for FILES and seed=7.
KERAS_ORDER = [2, 5, 0, 6, 3, 1, 4, 7]


@pytest.fixture
def folder(tmp_path):
    """Images of one grey each, ten times its number in FILES."""
    for number, name in enumerate(FILES):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 3), (10 * number,) * 3).save(path)
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    return tmp_path


def read(folder, **options):
    """The data set, the numbers of its files in FILES, and its labels."""
    options = {"image_size": (2, 2), **options}
    dataset = image_dataset_from_directory(folder, **options)
    found, labels = [], []
    for images, label in dataset:
        assert images.shape[1:] == (2, 2, 3)
        assert images.dtype == np.float32
        found += (images[:, 0, 0, 0] / 10).astype(int).tolist()
        labels += label.tolist()
    return dataset, found, labels


def names_of(dataset, folder):
    return [FILES.index(os.path.relpath(path, folder)) for path in dataset.file_paths]


def test_folders_are_classes(folder):
    dataset, found, labels = read(folder, shuffle=False, batch_size=3)
    assert found == list(range(8))
    assert labels == [0, 0, 0, 1, 1, 1, 1, 2]
    assert dataset.class_names == ["a", "b", "c"]
    assert names_of(dataset, folder) == found
    assert len(dataset) == 3
    assert dataset.element_spec[1].dtype == np.int32


def test_an_epoch_is_shuffled_over_all_files(folder):
    dataset, found, labels = read(folder, seed=1)
    assert sorted(found) == list(range(8))
    assert [dataset.class_names.index(FILES[number][0]) for number in found] == labels
    second = [int(image[0, 0, 0] / 10) for images, _ in dataset for image in images]
    assert sorted(second) == sorted(found)
    assert second != found
    assert read(folder, seed=1)[1] == found
    assert sorted(read(folder)[1]) == sorted(found)


def test_a_seed_brings_files_into_the_order_of_keras(folder):
    assert names_of(read(folder, seed=7)[0], folder) == KERAS_ORDER


def test_a_split_is_that_of_keras(folder):
    # int(0.3 · 8) = 2 files are for validation, the last ones.
    options = {"validation_split": 0.3, "seed": 7, "image_size": 2}
    training = image_dataset_from_directory(folder, subset="training", **options)
    validation = image_dataset_from_directory(folder, subset="validation", **options)
    both = image_dataset_from_directory(folder, subset="both", **options)
    for found, wanted in [(training, KERAS_ORDER[:6]), (validation, KERAS_ORDER[6:])]:
        assert names_of(found, folder) == wanted
    assert [part.file_paths for part in both] == [training.file_paths, validation.file_paths]
    assert [part.class_names for part in both] == [["a", "b", "c"]] * 2
    images, _ = next(iter(both[1]))
    assert (images[:, 0, 0, 0] / 10).tolist() == KERAS_ORDER[6:]


def test_a_split_without_shuffling_needs_no_seed(folder):
    options = {"validation_split": 0.5, "shuffle": False}
    assert read(folder, subset="training", **options)[1] == [0, 1, 2, 3]
    assert read(folder, subset="validation", **options)[1] == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("int", np.array([0, 0, 0, 1, 1, 1, 1], np.int32)),
        ("binary", np.array([[0], [0], [0], [1], [1], [1], [1]], np.float32)),
        ("categorical", np.eye(2, dtype=np.float32)[[0, 0, 0, 1, 1, 1, 1]]),
    ],
)
def test_labels_have_the_form_asked_for(folder, mode, wanted):
    options = {"label_mode": mode, "class_names": ["a", "b"], "shuffle": False, "image_size": 2}
    ((_, labels),) = image_dataset_from_directory(folder, **options)
    np.testing.assert_array_equal(labels, wanted)
    assert labels.dtype == wanted.dtype


def test_classes_can_be_named_in_another_order(folder):
    dataset, found, labels = read(folder, class_names=["c", "a"], shuffle=False)
    assert found == [7, 0, 1, 2]
    assert labels == [0, 1, 1, 1]
    assert dataset.class_names == ["c", "a"]


def test_labels_can_be_given(folder):
    given = [7, 5, 7, 5, 7, 5, 7, 5]
    dataset, found, labels = read(folder, labels=given, shuffle=False)
    assert found == list(range(8))
    assert labels == given
    assert dataset.class_names == ["5", "7"]


@pytest.mark.parametrize("options", [{"labels": None}, {"label_mode": None}])
def test_images_can_come_without_labels(folder, options):
    dataset = image_dataset_from_directory(folder, shuffle=False, image_size=np.int64(2), **options)
    (images,) = dataset
    assert (images[:, 0, 0, 0] / 10).tolist() == list(range(8))
    assert dataset.class_names is None


def test_links_are_followed_if_asked(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    Image.new("RGB", (4, 3), (80, 80, 80)).save(elsewhere / "x.png")
    os.symlink(elsewhere, folder / "a" / "linked")
    assert read(folder, shuffle=False)[1] == list(range(8))
    assert sorted(read(folder, follow_links=True)[1]) == list(range(9))


def test_a_size_may_be_of_numpys_integers():
    for size in (np.int64(2), np.array([2, 2])):
        load = LoadImage(size, "rgb", "area", True)
        assert load.size == (2, 2) and {type(n) for n in load.size} == {int}


def test_the_function_that_loads_can_go_to_another_process():
    load = LoadImage((2, 3), "rgb", "area", True)
    assert pickle.loads(pickle.dumps(load)) == load


class TestDecoding:
    @pytest.mark.parametrize("ending", ["bmp", "gif", "jpeg", "jpg", "png"])
    def test_every_format_is_read(self, tmp_path, ending):
        Image.new("L", (4, 3), 200).save(tmp_path / f"image.{ending}")
        dataset = image_dataset_from_directory(tmp_path, labels=None, image_size=2)
        (images,) = dataset
        np.testing.assert_allclose(images, np.full((1, 2, 2, 3), 200), atol=2)

    @pytest.mark.parametrize(
        ("mode", "pixel"), [("grayscale", [76]), ("rgb", [255, 0, 0]), ("rgba", [255, 0, 0, 255])]
    )
    def test_colors_are_converted(self, tmp_path, mode, pixel):
        Image.new("RGB", (4, 3), (255, 0, 0)).save(tmp_path / "a.png")
        load = LoadImage(1, mode, "bilinear", False)
        assert load(str(tmp_path / "a.png")).tolist() == [[pixel]]

    def test_transparent_palettes_are_read(self, tmp_path):
        image = Image.new("P", (2, 2), 1)
        image.putpalette([0, 0, 0, 9, 8, 7])
        image.save(tmp_path / "a.png", transparency=b"\x00\x80")
        assert decoded(str(tmp_path / "a.png"), 3)[0, 0].tolist() == [9, 8, 7]
        assert decoded(str(tmp_path / "a.png"), 4)[0, 0].tolist() == [9, 8, 7, 128]

    def test_sixteen_bits_become_eight(self, tmp_path):
        Image.fromarray(np.array([[0, 256, 65535]], np.uint16)).save(tmp_path / "a.png")
        assert decoded(str(tmp_path / "a.png"), 1)[0, :, 0].tolist() == [0, 1, 255]

    def test_an_animation_is_its_first_frame(self, tmp_path):
        first, second = Image.new("L", (4, 3), 0), Image.new("L", (4, 3), 255)
        first.save(tmp_path / "a.gif", save_all=True, append_images=[second])
        assert decoded(str(tmp_path / "a.gif"), 1).max() == 0

    def test_borders_can_be_cut_off(self, tmp_path):
        Image.fromarray(np.arange(12, dtype=np.uint8).reshape(2, 6)).save(tmp_path / "a.png")
        path = str(tmp_path / "a.png")
        found = LoadImage((2, 2), "grayscale", "nearest", True)(path)
        assert found[..., 0].tolist() == [[2, 3], [8, 9]]
        found = LoadImage((1, 6), "grayscale", "nearest", True)(path)
        assert found[..., 0].tolist() == [[0, 1, 2, 3, 4, 5]]

    @pytest.mark.parametrize("kept", [5, 60, None])
    def test_a_file_that_is_no_image_is_an_error(self, tmp_path, kept):
        path = tmp_path / "a.png"
        Image.fromarray(np.random.randint(0, 255, (20, 20), np.uint8)).save(path)
        path.write_bytes(path.read_bytes()[:kept] if kept else b"text")
        dataset = image_dataset_from_directory(tmp_path, labels=None)
        with pytest.raises(rx.errors.CorruptRecord, match=r"a\.png") as error:
            list(dataset)
        assert repr(str(path)) in str(error.value)

    def test_a_file_that_is_gone_is_named(self, folder):
        dataset = image_dataset_from_directory(folder)
        (folder / FILES[0]).unlink()
        with pytest.raises(rx.errors.UsageError, match=r"0\.png"):
            list(dataset)


@pytest.mark.parametrize("labels", ["inferred", None])
def test_a_folder_without_images_is_refused(tmp_path, labels):
    (tmp_path / "a").mkdir()
    with pytest.raises(rx.errors.UsageError, match=r"\.jpg or \.png"):
        image_dataset_from_directory(tmp_path, labels)
    with pytest.raises(rx.errors.UsageError, match="missing"):
        image_dataset_from_directory(tmp_path / "missing", labels)


# fmt: off
REFUSED = {
    "`color_mode`": [{"color_mode": "cmyk"}],
    "`interpolation`": [{"interpolation": "linear"}],
    "`image_size`": [{"image_size": size} for size in ((1, 2, 3), (0, 2), (2.5, 2))],
    "`label_mode`.*3 classes": [{"label_mode": "float"}, {"label_mode": "binary"}],
    "`labels`.* 8 files": [{"labels": [1, 2]}, {"labels": "folders"}],
    "`class_names`": [{"class_names": ["a", "z"]}],
    "`class_names`.*inferred": [
        {"class_names": ["a"], **more}
        for more in ({"labels": None}, {"labels": [0] * 8}, {"label_mode": None})
    ],
    "between 0 and 1": [
        {"validation_split": 0.5}, {"subset": "training"},
        {"validation_split": 1.5, "subset": "training"},
        {"validation_split": 0.0, "subset": "training"},
    ],
    "`subset`": [{"subset": "test", "validation_split": 0.5}],
    "`seed`": [{"subset": "both", "validation_split": 0.5, "seed": None}],
    # a part without images
    "`validation_split`": [
        {"subset": subset, "validation_split": 0.01} for subset in ("validation", "both")
    ],
}  # fmt: on


@pytest.mark.parametrize(
    ("match", "options"), [(match, one) for match, many in REFUSED.items() for one in many]
)
def test_refused(folder, match, options):
    with pytest.raises(rx.errors.UsageError, match=match):
        image_dataset_from_directory(folder, **{"seed": 1, **options})


IMAGE = np.array([[0, 50, 100, 30], [150, 200, 250, 9], [77, 3, 255, 128]], np.uint8)
# tf.image.resize of TensorFlow 2.21 of IMAGE to (2, 5).
FROM_TENSORFLOW = {
    "bilinear": [[37.5, 72.5, 112.5, 103.68, 24.75], [95.25, 65.15, 153.0, 207.1, 98.25]],
    "nearest": [[0.0, 50.0, 100.0, 100.0, 30.0], [77.0, 3.0, 255.0, 255.0, 128.0]],
    "bicubic": [[27.79, 64.75, 115.42, 102.17, 18.88], [96.32, 42.6, 156.87, 229.83, 98.39]],
    "area": [[50.0, 87.5, 125.0, 118.25, 23.0], [101.33, 76.83, 161.0, 212.08, 88.33]],
    "lanczos3": [[29.68, 64.83, 132.53, 95.53, 11.74], [106.77, 37.89, 171.48, 237.33, 91.49]],
    "lanczos5": [[30.87, 64.36, 145.21, 88.24, 7.75], [114.8, 37.21, 182.46, 239.53, 89.01]],
    "gaussian": [[44.5, 76.63, 115.34, 104.0, 34.0], [93.25, 73.65, 154.82, 200.71, 109.11]],
    "mitchellcubic": [
        [37.21, 71.13, 117.44, 102.74, 25.04],
        [95.69, 59.18, 157.67, 214.59, 102.03],
    ],
}


@pytest.mark.parametrize("method", METHODS)
def test_the_result_is_tensorflows(method):
    # TensorFlow takes the weights of "bicubic" from a table of 1024 entries.
    tolerance = 0.2 if method == "bicubic" else 0.01
    found = resize(IMAGE[..., None], (2, 5), method)
    np.testing.assert_allclose(found[..., 0], FROM_TENSORFLOW[method], atol=tolerance)
    assert found.dtype == np.float32


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_channels_do_not_mix(method, kernel, monkeypatch):
    if not kernel:
        monkeypatch.setattr("replicax.data._pixels.resized", lambda *_: None)
    channels = [IMAGE, IMAGE[::-1], 255 - IMAGE]
    together = resize(np.stack(channels, axis=2), (5, 3), method)
    for number, channel in enumerate(channels):
        alone = resize(channel[..., None], (5, 3), method)
        np.testing.assert_allclose(together[..., number], alone[..., 0], atol=1e-4)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"gaussian", "mitchellcubic"}))
def test_the_same_size_is_the_same_image(method):
    # Not so of the two that are left out: they blur.
    np.testing.assert_allclose(resize(IMAGE[..., None], (3, 4), method)[..., 0], IMAGE, atol=1e-4)
