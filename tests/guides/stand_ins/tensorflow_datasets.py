"""`tfds.load` of made-up pictures, as data sets of whichever `tf` runs."""

from __future__ import annotations

import collections
import sys
from types import SimpleNamespace

import made_up_data

Split = SimpleNamespace(TRAIN="train", TEST="test")


def disable_progress_bar():
    pass


def load(name, split=None, with_info=False, as_supervised=False, **_options):
    assert as_supervised
    tf = sys.modules.get("tensorflow") or sys.modules["replicax.tf"]
    (x, y), (test_x, test_y) = made_up_data.mnist() if "mnist" in name else made_up_data.photos()
    if x.ndim == 3:
        x, test_x = x[..., None], test_x[..., None]
    letters = "AB" if "cycle_gan" in name else [""]
    parts = {f"train{letter}": (x, y) for letter in letters}
    parts |= {f"test{letter}": (test_x, test_y) for letter in letters}
    found = {
        key: tf.data.Dataset.from_tensor_slices((images, labels.astype("int64")))
        for key, (images, labels) in parts.items()
    }
    splits = {key: SimpleNamespace(num_examples=len(part[1])) for key, part in parts.items()}
    chosen = found[split] if split else found
    return (chosen, SimpleNamespace(splits=splits)) if with_info else chosen


def ReadConfig(**options):
    return options


def builder(name, **_options):
    """The pictures of `load` by a builder, as dicts."""
    parts = dict(zip(("train", "test"), made_up_data.cifar10(), strict=True))
    images = SimpleNamespace(num_classes=10)

    def source(split, **_options):
        x, y = parts[split]
        return [
            {"image": image, "label": int(label)} for image, label in zip(x, y[:, 0], strict=True)
        ]

    return SimpleNamespace(
        name=name,
        download_and_prepare=lambda **_options: None,
        as_data_source=source,
        info=SimpleNamespace(
            splits={key: SimpleNamespace(num_examples=len(part[1])) for key, part in parts.items()},
            features={"label": images},
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
