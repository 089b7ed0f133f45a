"""`tf.signal` against SciPy, NumPy and values that are known of TensorFlow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft
import scipy.signal

import replicax as rx
import replicax.tf as tf

s = tf.signal
RNG = np.random.default_rng(0)
REAL = RNG.normal(size=(2, 12)).astype("float32")
COMPLEX = (REAL + 1j * REAL[::-1]).astype("complex64")


def same(found, expected, kind=None):
    np.testing.assert_allclose(np.asarray(found), expected, rtol=2e-5, atol=2e-5)
    assert kind is None or found.dtype == kind


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_transforms_are_those_of_numpy(make):
    whole = make(COMPLEX)
    same(s.fft(whole), np.fft.fft(COMPLEX), "complex64")
    same(s.ifft(whole), np.fft.ifft(COMPLEX), "complex64")
    same(s.fft2d(whole), np.fft.fft2(COMPLEX), "complex64")
    same(s.ifft2d(s.fft2d(whole)), COMPLEX, "complex64")
    same(s.ifft3d(s.fft3d(whole[None])), COMPLEX[None], "complex64")
    same(s.rfft(make(REAL), [16]), np.fft.rfft(REAL, 16), "complex64")
    same(s.irfft(s.rfft(make(REAL))), REAL, "float32")
    same(s.irfft2d(s.rfft2d(make(REAL))), REAL, "float32")
    same(s.ifftshift(s.fftshift(make(REAL), axes=1), axes=[1]), REAL, "float32")
    kind = np.ndarray if make is np.asarray else jax.Array
    assert isinstance(s.stft(make(REAL), 4, 2), kind)


# TensorFlow has no orthogonal transform of type 1.
@pytest.mark.parametrize(
    ("type", "norm"), [*((t, None) for t in (1, 2, 3, 4)), *((t, "ortho") for t in (2, 3, 4))]
)
def test_cosine_transforms_are_those_of_scipy(type, norm):
    same(s.dct(REAL, type, norm=norm), scipy.fft.dct(REAL, type, norm=norm), "float32")
    scale = 1 if norm else 2 * (12 - (type == 1))
    same(s.idct(s.dct(jnp.asarray(REAL), type, norm=norm), type, norm=norm), scale * REAL)


def test_a_cosine_transform_takes_a_length():
    same(s.dct(REAL, n=16), scipy.fft.dct(REAL, n=16))
    same(s.dct(REAL, n=8), scipy.fft.dct(REAL, n=8))


def test_windows():
    same(s.hann_window(8), scipy.signal.get_window("hann", 8), "float32")
    same(s.hamming_window(8, periodic=False), np.hamming(8), "float32")
    same(s.hann_window(7), np.hanning(7))  # of an odd length it is symmetric in TensorFlow
    same(s.kaiser_window(9, beta=5.0), np.kaiser(9, 5.0), "float32")
    same(s.hann_window(1), [1.0])


def test_frames():
    x = np.arange(7, dtype="float32")
    same(s.frame(x, 3, 2), [[0, 1, 2], [2, 3, 4], [4, 5, 6]])
    same(s.frame(x, 3, 3, pad_end=True, pad_value=9), [[0, 1, 2], [3, 4, 5], [6, 9, 9]])
    assert s.frame(x, 9, 2).shape == (0, 9)
    assert s.frame(np.zeros([2, 7, 3]), 3, 2, axis=1).shape == (2, 3, 3, 3)
    same(s.overlap_and_add(np.ones([2, 3, 4], "float32"), 2), [[1, 1, 2, 2, 2, 2, 1, 1]] * 2)
    same(s.overlap_and_add(jnp.ones([3, 4]), 2), [1, 1, 2, 2, 2, 2, 1, 1])


def test_stft_is_windows_then_rfft_and_its_inverse_gives_the_signal():
    signal = RNG.normal(size=64).astype("float32")
    frames = np.stack([signal[i : i + 12] for i in range(0, 53, 4)])
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(12) / 12)
    found = s.stft(signal, 12, 4)
    same(found, np.fft.rfft(frames * window, 16), "complex64")
    assert s.stft(signal, 12, 4, pad_end=True).shape == (16, 9)
    back = s.inverse_stft(found, 12, 4, window_fn=s.inverse_stft_window_fn(4))
    same(back[12:-12], signal[12:-12], "float32")
    compiled = rx.function(lambda x: s.inverse_stft(s.stft(x, 12, 4), 12, 4))
    same(compiled(signal), s.inverse_stft(found, 12, 4))


def test_mel_frequencies():
    matrix = np.asarray(s.linear_to_mel_weight_matrix(3, 5, 8000, 0.0, 4000.0))
    mel = lambda hertz: 1127 * np.log(1 + hertz / 700)  # noqa: E731
    width = mel(4000) / 4
    expected = [
        [max(0.0, 1 - abs(mel(hertz) / width - place)) for place in (1, 2, 3)]
        for hertz in (0, 1000, 2000, 3000, 4000)
    ]
    same(matrix, expected, "float32")
    logs = RNG.normal(size=(4, 20)).astype("float32")
    same(s.mfccs_from_log_mel_spectrograms(logs), scipy.fft.dct(logs) / np.sqrt(40), "float32")


@pytest.mark.parametrize(
    ("compute", "given", "shape"),  # of Keras 2 in TensorFlow 2.21
    [
        (lambda x: s.frame(x, 512, 128), (None,), (None, None, 512)),
        (lambda x: s.frame(x, 512, 128, pad_end=True), (None,), (None, None, 512)),
        (lambda x: s.overlap_and_add(x, 128), (None, 512), (None, None)),
    ],
)
def test_a_model_may_have_sounds_of_any_length(compute, given, shape):
    inputs = tf.keras.Input(given)
    found = tf.keras.layers.Lambda(compute)(inputs)
    assert found.shape == shape
    size = [2, *(1024 if length is None else length for length in given)]
    sound = np.arange(np.prod(size), dtype="float32").reshape(size)
    same(tf.keras.Model(inputs, found)(sound), compute(sound))


@pytest.mark.parametrize("norm", [None, "ortho"])
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
def test_cosines_of_any_length_in_a_model(kind, norm):
    def compute(x):
        return s.dct(x, kind, norm=None if kind == 1 else norm)

    inputs = tf.keras.Input((None,))
    found = tf.keras.layers.Lambda(compute)(inputs)
    assert found.shape == (None, None)
    same(tf.keras.Model(inputs, found)(REAL), compute(REAL))


def test_short_sounds_have_no_frames_but_padded_ones():
    assert s.frame(jnp.ones(100), 512, 128).shape == (0, 512)
    assert s.frame(np.ones(0, "float32"), 4, 2, pad_end=True).shape == (0, 4)
