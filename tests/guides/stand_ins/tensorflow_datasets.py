"""`tfds.load` of made-up pictures, as data sets of whichever `tf` runs."""

import collections
import sys
from types import SimpleNamespace

import made_up_data

Split = SimpleNamespace(TRAIN="train", TEST="test")
download = SimpleNamespace(DownloadConfig=dict)


def disable_progress_bar():
    pass


def _parts(name):
    """The made-up pictures of a data set, with their labels, by split."""
    if "cifar" in name:
        (x, y), (test_x, test_y) = made_up_data.cifar10()
        y, test_y = y[:, 0], test_y[:, 0]
    else:
        (x, y), (test_x, test_y) = (
            made_up_data.mnist() if "mnist" in name else made_up_data.photos()
        )
    if x.ndim == 3:
        x, test_x = x[..., None], test_x[..., None]
    letters = "AB" if "cycle_gan" in name else [""]
    parts = {f"train{letter}": (x, y.astype("int64")) for letter in letters}
    return parts | {f"test{letter}": (test_x, test_y.astype("int64")) for letter in letters}


def load(name, split=None, with_info=False, as_supervised=False, **_options):
    assert as_supervised
    tf = sys.modules.get("tensorflow") or sys.modules["replicax.tf"]
    found = {key: tf.data.Dataset.from_tensor_slices(part) for key, part in _parts(name).items()}
    chosen = found[split] if split else found
    return (chosen, builder(name).info) if with_info else chosen


def ReadConfig(**options):
    return options


class _Source:
    """Rows of pictures, as the library's data sources give them."""

    def __init__(self, images, labels):
        self._images, self._labels = images, labels

    def __len__(self):
        return len(self._labels)

    def __getitem__(self, index):
        return {"image": self._images[index], "label": int(self._labels[index])}


def builder(name, **_options):
    """The pictures of `load` by a builder, as dicts."""
    parts = _parts(name)

    def source(split=None, **_options):
        found = {key: _Source(*part) for key, part in parts.items()}
        return found[split] if split else found

    return SimpleNamespace(
        name=name,
        download_and_prepare=lambda **_options: None,
        as_data_source=source,
        info=SimpleNamespace(
            splits={key: SimpleNamespace(num_examples=len(part[1])) for key, part in parts.items()},
            features={"label": SimpleNamespace(num_classes=10)},
            supervised_keys=("image", "label"),
        ),
    )


class _Words:
    """Each word of the texts is a number, from 1; the larger are the special ones of a program."""

    def __init__(self, words):
        self._words = list(words)
        self._numbers = {word: number for number, word in enumerate(self._words, 1)}
        self.vocab_size = len(self._words) + 1

    @classmethod
    def build_from_corpus(cls, texts, target_vocab_size):
        count = collections.Counter(word for text in texts for word in text.split())
        return cls(word for word, _ in count.most_common(target_vocab_size))

    def encode(self, text):
        return [self._numbers[word] for word in text.split() if word in self._numbers]

    def decode(self, numbers):
        return " ".join(self._words[number - 1] for number in numbers if number)


deprecated = SimpleNamespace(text=SimpleNamespace(SubwordTextEncoder=_Words))
