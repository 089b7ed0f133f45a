"""Headlines that are made up: sober ones, and ones that shout. Not one of them is real news.

They are drawn from the few phrases below, by a seed, so that nothing has to be downloaded and
everybody gets the same. One in five has a phrase of the other kind in it, and one in twenty has the
wrong label, so that no model can be right about all.
"""

from __future__ import annotations

import re

import numpy as np

COUNT = 2000
SOBER, SHRILL = 0, 1

_PHRASES = (
    (  # sober
        ("Parliament", "The council", "The central bank", "A committee", "The ministry"),
        ("approves", "postpones", "publishes", "reviews", "rejects", "discusses"),
        ("a budget", "the annual report", "new rules for banks", "a climate plan", "a treaty"),
        ("after a long debate", "on Tuesday", "by a narrow vote", "as expected", "in part"),
    ),
    (  # shrill
        ("Doctors", "Aliens", "Secret agents", "Your neighbours", "The elites", "Scientists"),
        ("hate", "confess", "do not want you to know", "are hiding", "finally admit", "fear"),
        ("this one trick", "a miracle cure", "the truth", "a shocking plot", "a magic fruit"),
        ("and you will not believe it", "share this now", "says a leaked memo", "exposed"),
    ),
)
EXAMPLES = (
    "Parliament approves a budget after a long debate",
    "Aliens finally admit a shocking plot says a leaked memo",
)


def headlines(seed: int) -> tuple[list[str], np.ndarray]:
    """`COUNT` headlines, and for each whether it is shrill.

    Example:
        >>> from replicax._tools.compare._headlines import headlines
        >>> texts, labels = headlines(seed=0)
        >>> len(texts), sorted(set(labels.tolist()))
        (2000, [0, 1])
    """
    draw = np.random.default_rng(seed)
    kinds = draw.integers(2, size=COUNT)
    texts = [_headline(int(kind), draw) for kind in kinds]
    is_wrong = draw.random(COUNT) < 0.05
    return texts, np.where(is_wrong, 1 - kinds, kinds)


def vocabulary() -> dict[str, int]:
    """A number for each word; 0 is for no word."""
    words = {w for kind in _PHRASES for part in kind for phrase in part for w in _words(phrase)}
    return {word: number for number, word in enumerate(sorted(words), start=1)}


def as_numbers(texts: list[str]) -> np.ndarray:
    """The numbers of the words: an int32 array of shape (texts, words of the longest phrases)."""
    number_of = vocabulary()
    length = sum(max(len(_words(p)) for kind in _PHRASES for p in kind[i]) for i in range(4))
    numbers = np.zeros((len(texts), length), np.int32)
    for row, text in zip(numbers, texts, strict=True):
        found = [number_of[word] for word in _words(text)]
        row[: len(found)] = found
    return numbers


def _headline(kind: int, draw: np.random.Generator) -> str:
    kinds = [kind] * 4
    if draw.random() < 0.2:
        kinds[draw.integers(4)] = 1 - kind
    parts = [_PHRASES[k][position] for position, k in enumerate(kinds)]
    return " ".join(part[draw.integers(len(part))] for part in parts)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())
