"""`tf.signal`: Fourier and cosine transforms, frames and windows, and features of sound.

NumPy arrays, as in pipelines, stay on the host. Complex numbers are complex64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import max_dim

from replicax._core.errors import UsageError
from replicax.tf._calls import (
    array,
    array_function,
    axes_of,
    numpy_dtype,
    numpy_or_jax,
    published,
    static_shape,
    static_size,
)
from replicax.tf._dtypes import float32

# Mel frequencies, as HTK computes them: 1127 * log(1 + hertz / 700).
_MEL_BREAK, _MEL_SCALE = 700.0, 1127.0


def _transform(name: str, axes: int, text: str) -> Callable[..., Any]:
    """A transform of complex numbers over the last axes."""

    def function(input: Any, name: str | None = None) -> Any:
        xp, x = array(input)
        return getattr(xp.fft, numpys)(x, axes=range(-axes, 0)).astype(_complex(x))

    numpys = name[:3] + "n" if name[0] == "f" else "ifftn"
    return array_function(published(function, name, text))


def _complex(x: Any) -> str:
    return "c16" if x.dtype in (np.float64, np.complex128) else "c8"


fft = _transform("fft", 1, "The discrete Fourier transform of the last axis.")
ifft = _transform("ifft", 1, "The inverse of `fft`.")
fft2d = _transform("fft2d", 2, "The discrete Fourier transform of the last two axes.")
ifft2d = _transform("ifft2d", 2, "The inverse of `fft2d`.")
fft3d = _transform("fft3d", 3, "The discrete Fourier transform of the last three axes.")
ifft3d = _transform("ifft3d", 3, "The inverse of `fft3d`.")


def _real_transform(name: str, axes: int, text: str) -> Callable[..., Any]:
    def function(input_tensor: Any, fft_length: Any = None, name: str | None = None) -> Any:
        xp, x = array(input_tensor)
        sizes = None if fft_length is None else static_shape(fft_length)
        found = getattr(xp.fft, numpys)(x, sizes, axes=tuple(range(-axes, 0)))
        kind = _complex(x)
        return found.astype(kind if numpys == "rfftn" else {"c16": "f8", "c8": "f4"}[kind])

    numpys = "rfftn" if name[0] == "r" else "irfftn"
    return array_function(published(function, name, text))


rfft = _real_transform("rfft", 1, "The non-negative frequencies of real numbers.")
irfft = _real_transform("irfft", 1, "The inverse of `rfft`; of an even length by default.")
rfft2d = _real_transform("rfft2d", 2, "The non-negative frequencies of two axes.")
irfft2d = _real_transform("irfft2d", 2, "The inverse of `rfft2d`.")


@array_function
def fftshift(x: Any, axes: Any = None, name: str | None = None) -> Any:
    """Frequency 0 in the middle."""
    xp, x = array(x)
    return xp.fft.fftshift(x, axes_of(axes))


@array_function
def ifftshift(x: Any, axes: Any = None, name: str | None = None) -> Any:
    """The inverse of `fftshift`."""
    xp, x = array(x)
    return xp.fft.ifftshift(x, axes_of(axes))


@array_function
def dct(
    input: Any,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Any:
    """The cosine transform of the last axis, of type 1 to 4; with `n`, of its first numbers."""
    xp, x = array(input)
    if type not in (1, 2, 3, 4) or norm not in (None, "ortho") or axis not in (-1, x.ndim - 1):
        raise UsageError(
            "`type` must be 1 to 4, `norm` None or 'ortho', `axis` the last, got "
            f"type={type}, norm={norm!r}, axis={axis}."
        )
    if type == 1 and norm:
        raise UsageError.of("norm", "None for type 1", norm)
    if n is not None:
        x = x[..., :n]
        x = xp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, n - x.shape[-1])])
    # As a product of matrices: the lengths are those of frames of sound.
    return xp.matmul(x, _cosines(type, x.shape[-1], norm == "ortho").astype(x.dtype))


def _cosines(type: int, size: Any, orthogonal: bool) -> Any:
    """The matrix of a cosine transform, a row for each input; JAX has type 2 alone."""
    xp = np if isinstance(size, int) else jnp  # Keras asks for shapes with a size that is no number
    at, frequency = xp.arange(size)[:, None], xp.arange(size)
    if type == 3:
        return _cosines(2, size, orthogonal).T * xp.where(at == 0, 1 if orthogonal else 0.5, 1)
    if type == 1:
        is_edge = (at == 0) | (at == size - 1)
        return 2 * xp.cos(np.pi * at * frequency / (size - 1)) * xp.where(is_edge, 0.5, 1)
    if type == 2:
        found = 2 * xp.cos(np.pi * (2 * at + 1) * frequency / (2 * size))
        if orthogonal:
            found *= xp.where(frequency == 0, 0.5, np.sqrt(0.5)) / xp.sqrt(xp.asarray(size))
        return found
    found = 2 * xp.cos(np.pi * (2 * at + 1) * (2 * frequency + 1) / (4 * size))
    return found / xp.sqrt(xp.asarray(2 * size)) if orthogonal else found


@array_function
def idct(
    input: Any,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Any:
    """The inverse of `dct`; without a norm, times twice the length, as in TensorFlow."""
    return dct(input, {1: 1, 2: 3, 3: 2, 4: 4}[type], n, axis, norm)


@array_function
def frame(
    signal: Any,
    frame_length: Any,
    frame_step: Any,
    pad_end: bool = False,
    pad_value: Any = 0,
    axis: int = -1,
    name: str | None = None,
) -> Any:
    """Windows of an axis, one every `frame_step` numbers, along an axis before that of a window."""
    xp, x = array(signal)
    length, step = static_size(frame_length), static_size(frame_step)
    axis = range(x.ndim)[axis]
    if min(length, step) < 1:
        raise UsageError.of("frame_length and frame_step", "at least 1", (length, step))
    size = x.shape[axis]
    count = -(-size // step) if pad_end else max_dim(1 + (size - length) // step, 0)
    if pad_end:
        missing = max_dim((count - 1) * step + length - size, 0)
        edges = [(0, missing if one == axis else 0) for one in range(x.ndim)]
        x = xp.pad(x, edges, constant_values=pad_value)
    return xp.take(x, _windows(count, length, step), axis=axis)


def _windows(count: Any, length: int, step: int) -> Any:
    """The places of windows. Keras asks for shapes with a count that is no number."""
    xp = np if isinstance(count, int) else jnp
    return xp.arange(count)[:, None] * step + np.arange(length)


@array_function
def overlap_and_add(signal: Any, frame_step: Any, name: str | None = None) -> Any:
    """The sum of windows, each `frame_step` numbers behind the one before."""
    xp, x = array(signal)
    step, (count, length) = static_size(frame_step), x.shape[-2:]
    if step < 1:
        raise UsageError.of("frame_step", "at least 1", step)
    places = _windows(count, length, step)
    found = xp.zeros((*x.shape[:-2], (count - 1) * step + length), x.dtype)
    if xp is jnp:
        return found.at[..., places].add(x)
    for number in range(count):
        found[..., places[number]] += x[..., number, :]
    return found


def _cosine(name: str, a: float, text: str) -> Callable[..., Any]:
    def function(
        window_length: Any, periodic: bool = True, dtype: Any = float32, name: str | None = None
    ) -> Any:
        length = static_size(window_length)
        # As in TensorFlow, one of an odd length is symmetric always.
        around = length + (bool(periodic) and length % 2 == 0) - 1
        turns = 2 * np.pi * np.arange(length) / max(around, 1)
        window = np.ones(1) if length == 1 else a - (1 - a) * np.cos(turns)
        return _made(window, dtype)

    return array_function(published(function, name, text))


hann_window = _cosine("hann_window", 0.5, "A window of the shape of a cosine, with ends of 0.")
hamming_window = _cosine("hamming_window", 0.54, "A cosine window, with ends of 0.08.")


@array_function
def kaiser_window(
    window_length: Any, beta: Any = 12.0, dtype: Any = float32, name: str | None = None
) -> Any:
    """A Kaiser window, the narrower, the larger beta is."""
    return _made(np.kaiser(static_size(window_length), beta), dtype)


def _windowed(xp: Any, frames: Any, window_fn: Callable[..., Any] | None) -> Any:
    if window_fn is None:
        return frames
    window = window_fn(frames.shape[-1], dtype=frames.dtype)
    return frames * (np.asarray(window) if xp is np else jnp.asarray(window))


@array_function
def stft(
    signals: Any,
    frame_length: Any,
    frame_step: Any,
    fft_length: Any = None,
    window_fn: Callable[..., Any] | None = hann_window,
    pad_end: bool = False,
    name: str | None = None,
) -> Any:
    """The frequencies of windows of a signal, by `rfft`, of a power of 2 by default."""
    xp, x = array(signals)
    length = static_size(frame_length)
    size = 1 << (length - 1).bit_length() if fft_length is None else static_size(fft_length)
    frames = _windowed(xp, array(frame(x, length, frame_step, pad_end))[1], window_fn)
    return rfft(frames, [size])


@array_function
def inverse_stft(
    stfts: Any,
    frame_length: Any,
    frame_step: Any,
    fft_length: Any = None,
    window_fn: Callable[..., Any] | None = hann_window,
    name: str | None = None,
) -> Any:
    """Signals of what `stft` gives; exact with the window of `inverse_stft_window_fn`."""
    length = static_size(frame_length)
    size = 1 << (length - 1).bit_length() if fft_length is None else static_size(fft_length)
    xp, frames = array(irfft(stfts, [size]))
    frames = frames[..., :length]
    missing = length - frames.shape[-1]
    frames = xp.pad(frames, [(0, 0)] * (frames.ndim - 1) + [(0, missing)])
    return overlap_and_add(_windowed(xp, frames, window_fn), frame_step)


def inverse_stft_window_fn(
    frame_step: Any, forward_window_fn: Callable[..., Any] = hann_window, name: str | None = None
) -> Callable[..., Any]:
    """The function of a window with which `inverse_stft` undoes an `stft`."""

    def window(frame_length: Any, dtype: Any = float32) -> Any:
        length, step = static_size(frame_length), static_size(frame_step)
        xp, forward = array(forward_window_fn(length, dtype=dtype))
        count = -(-length // step)
        squares = xp.pad(forward**2, (0, count * step - length)).reshape(count, step)
        return forward / xp.tile(squares.sum(axis=0), count)[:length]

    return window


@array_function
def vorbis_window(window_length: Any, dtype: Any = float32, name: str | None = None) -> Any:
    """A window for `mdct`: where two overlap by half, their squares add up to 1."""
    size = static_size(window_length)
    window = np.sin(np.pi / 2 * np.sin(np.pi / size * (np.arange(size) + 0.5)) ** 2)
    return _made(window, dtype)


@array_function
def kaiser_bessel_derived_window(
    window_length: Any, beta: Any = 12.0, dtype: Any = float32, name: str | None = None
) -> Any:
    """A window for `mdct`, of the sums of a Kaiser window; the narrower, the larger beta is."""
    sums = np.cumsum(np.kaiser(static_size(window_length) // 2 + 1, beta))
    half = np.sqrt(sums[:-1] / sums[-1])
    return _made(np.concatenate([half, half[::-1]]), dtype)


def _made(window: np.ndarray, dtype: Any) -> Any:
    xp = numpy_or_jax()
    return xp.asarray(window.astype(numpy_dtype(dtype, xp)))


@array_function
def mdct(
    signals: Any,
    frame_length: Any,
    window_fn: Callable[..., Any] | None = vorbis_window,
    pad_end: bool = False,
    norm: str | None = None,
    name: str | None = None,
) -> Any:
    """The cosine transform of windows that overlap by half, each of half as many numbers."""
    length = static_size(frame_length)
    if length % 4:
        raise UsageError.of("frame_length", "a multiple of 4", frame_length)
    xp, frames = array(frame(signals, length, length // 2, pad_end))
    frames = frames * 0.5**0.5 if window_fn is None else _windowed(xp, frames, window_fn)
    a, b, c, d = xp.split(frames, 4, axis=-1)
    return dct(xp.concatenate([-c[..., ::-1] - d, a - b[..., ::-1]], axis=-1), 4, norm=norm)


@array_function
def inverse_mdct(
    mdcts: Any,
    window_fn: Callable[..., Any] | None = vorbis_window,
    norm: str | None = None,
    name: str | None = None,
) -> Any:
    """Signals of what `mdct` gives, but for the ends that lie in one window alone."""
    xp, x = array(dct(mdcts, 4, norm=norm))
    size = x.shape[-1]
    first, second = xp.split(x if norm else x * (0.5 / size), 2, axis=-1)
    frames = [second, -second[..., ::-1], -first[..., ::-1], -first]
    whole = xp.concatenate(frames, axis=-1)
    whole = whole * 0.5**0.5 if window_fn is None else _windowed(xp, whole, window_fn)
    return overlap_and_add(whole, size)


@array_function
def linear_to_mel_weight_matrix(
    num_mel_bins: Any = 20,
    num_spectrogram_bins: Any = 129,
    sample_rate: Any = 8000,
    lower_edge_hertz: Any = 125.0,
    upper_edge_hertz: Any = 3800.0,
    dtype: Any = float32,
    name: str | None = None,
) -> Any:
    """The matrix by which a spectrogram is multiplied to have mel frequencies."""
    bins, edges = static_size(num_spectrogram_bins), (lower_edge_hertz, upper_edge_hertz)
    if not 0 <= lower_edge_hertz < upper_edge_hertz <= sample_rate / 2 or num_mel_bins < 1:
        raise UsageError(
            "`num_mel_bins` must be at least 1, and the edges ascend from 0 to half of "
            f"sample_rate={sample_rate}, got num_mel_bins={num_mel_bins} and edges {edges}."
        )
    low, high = (_MEL_SCALE * np.log1p(float(edge) / _MEL_BREAK) for edge in edges)
    between = np.linspace(low, high, static_size(num_mel_bins) + 2)
    lower, center, upper = between[:-2], between[1:-1], between[2:]
    hertz = np.linspace(0.0, float(sample_rate) / 2, bins)[1:, None]
    mels = _MEL_SCALE * np.log1p(hertz / _MEL_BREAK)
    slopes = np.minimum((mels - lower) / (center - lower), (upper - mels) / (upper - center))
    matrix = np.pad(np.maximum(slopes, 0), ((1, 0), (0, 0)))  # frequency 0 goes nowhere
    return _made(matrix, dtype)


@array_function
def mfccs_from_log_mel_spectrograms(log_mel_spectrograms: Any, name: str | None = None) -> Any:
    """Cepstral coefficients of the logarithm of mel spectrograms, as HTK scales them."""
    _, x = array(log_mel_spectrograms)
    return dct(x) * np.asarray(1 / np.sqrt(2 * x.shape[-1]), x.dtype)
