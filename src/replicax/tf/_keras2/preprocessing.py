"""Names of `keras.preprocessing` of Keras 2, which Keras 3 has but does not publish."""

from __future__ import annotations

from replicax._keras import _compat

_images, _sequences, _texts = map(_compat.older_preprocessing, ("image", "sequence", "text"))

DirectoryIterator = _images.DirectoryIterator
ImageDataGenerator = _images.ImageDataGenerator
Iterator = _images.Iterator
NumpyArrayIterator = _images.NumpyArrayIterator
TimeseriesGenerator = _sequences.TimeseriesGenerator
Tokenizer = _texts.Tokenizer
hashing_trick = _texts.hashing_trick
one_hot = _texts.one_hot
text_to_word_sequence = _texts.text_to_word_sequence
tokenizer_from_json = _texts.tokenizer_from_json
