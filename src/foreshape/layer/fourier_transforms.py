"""Complex numbers, and Fourier transforms of signals."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.errors import ShapeError
from foreshape.language.operator.attributes import several
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.creation import fill_constant
from foreshape.layer.functions import of_one_tensor, unary
from foreshape.layer.manipulation import pad, squeeze, unsqueeze

Axes = Sequence[int] | int


def complex(x: Variable, y: Variable) -> Variable:
    """Return x + i y.

    Args:
        x: floats of any shape.
        y: of the element type of x, and broadcast against it.
    """
    return current_block().apply("complex", {"X": x, "Y": y})


@of_one_tensor
def real(x: Variable) -> Variable:
    """Return the real parts of the complex numbers x."""
    ...


@of_one_tensor
def imag(x: Variable) -> Variable:
    """Return the imaginary parts of the complex numbers x."""
    ...


@of_one_tensor
def conj(x: Variable) -> Variable:
    """Return the conjugates of the complex numbers x; real ones are their own."""
    ...


@of_one_tensor
def angle(x: Variable) -> Variable:
    """Return the angles of the numbers x to the positive half of the real line, in (-pi, pi]."""
    ...


@of_one_tensor
def as_complex(x: Variable) -> Variable:
    """Return the pairs along the last axis of x, ``[..., 2]``, as complex numbers ``[...]``."""
    ...


@of_one_tensor
def as_real(x: Variable) -> Variable:
    """Return the complex numbers x, ``[...]``, as pairs along a new last axis, ``[..., 2]``."""
    ...


def _transform(x: Variable, axes: Axes, norm: str, forward: bool) -> Variable:
    attrs = {"axes": several(axes), "normalization": norm, "forward": forward}
    if x.spec.known_dtype.is_floating:
        return unary(x, "fft_r2c", onesided=False, **attrs)
    return unary(x, "fft_c2c", **attrs)


def fft(x: Variable, axis: Axes = -1, norm: str = "backward") -> Variable:
    """Return the Fourier transform along an axis, or several.

    Args:
        x: real or complex numbers of any shape.
        axis: one, or several; negative ones count from the end.
        norm: "backward" divides nothing, "forward" by the number of elements, "ortho" by its root.
    """
    return _transform(x, axis, norm, forward=True)


def ifft(x: Variable, axis: Axes = -1, norm: str = "backward") -> Variable:
    """Return the inverse of `fft`.

    Args:
        x: real or complex numbers of any shape.
        axis: one, or several; negative ones count from the end.
        norm: as for the inverted `fft`.
    """
    return _transform(x, axis, norm, forward=False)


def rfft(x: Variable, axis: Axes = -1, norm: str = "backward") -> Variable:
    """Return the first n // 2 + 1 numbers of the Fourier transform of real numbers; the others are their conjugates.

    Args:
        x: floats of any shape.
        axis: one, or several with the last shortened so.
        norm: as for `fft`.
    """
    return unary(x, "fft_r2c", axes=several(axis), normalization=norm, forward=True, onesided=True)


def irfft(x: Variable, n: int | None = None, axis: Axes = -1, norm: str = "backward") -> Variable:
    """Return the inverse of `rfft`: real numbers.

    Args:
        x: complex numbers of any shape.
        n: the size along the last of the axes; by default 2 (size - 1).
        axis: one, or several; negative ones count from the end.
        norm: as for the inverted `rfft`.
    """
    return unary(x, "fft_c2r", axes=several(axis), normalization=norm, forward=False, last_dim_size=n or 0)


def frame(x: Variable, frame_length: int, hop_length: int, axis: int = -1) -> Variable:
    """Return the frames of a signal from every ``hop_length``-th sample on, as many as fit: ``[..., frame_length, frames]``.

    Args:
        x: numbers ``[..., samples]``, or ``[samples, ...]`` with axis 0.
        frame_length: the samples of a frame.
        hop_length: the samples from one frame's begin to the next.
        axis: -1, or 0 for ``[frames, frame_length, ...]``.
    """
    return unary(x, "frame", frame_length=frame_length, hop_length=hop_length, axis=axis)


def overlap_add(x: Variable, hop_length: int, axis: int = -1) -> Variable:
    """Return the sum of frames, each ``hop_length`` samples after the one before.

    Args:
        x: numbers ``[..., frame_length, frames]``, or ``[frames, frame_length, ...]`` with axis 0.
        hop_length: the samples from one frame's begin to the next.
        axis: -1 or 0, as for `frame`.
    """
    return unary(x, "overlap_add", hop_length=hop_length, axis=axis)


def stft(
    x: Variable, n_fft: int, hop_length: int | None = None, window: Variable | None = None, center: bool = True, normalized: bool = False, onesided: bool = True
) -> Variable:
    """Return the Fourier transforms of the frames of each signal: complex ``[signals, n_fft // 2 + 1, frames]``.

    Args:
        x: floats ``[signals, samples]``, or one signal ``[samples]``.
        n_fft: the samples of a frame.
        hop_length: the samples from one frame's begin to the next; by default a quarter of a frame.
        window: ``[n_fft]``, the factors of a frame's samples; by default ones.
        center: reflect half a frame at both ends, so frame t is around sample t * hop_length.
        normalized: divide by the root of n_fft.
        onesided: give the first n_fft // 2 + 1 numbers of each transform; the others are their conjugates.

    Raises:
        ShapeError: x has other dims, or fewer samples than a frame.
    """
    rank = x.spec.rank
    if rank not in (1, 2):
        raise ShapeError(f"stft({x.name}): x must be [samples] or [signals, samples]; it is {x.spec.text()}")
    signals = unsqueeze(x, [0]) if rank == 1 else x
    if center:
        signals = squeeze(pad(unsqueeze(signals, [1]), [n_fft // 2, n_fft // 2], mode="reflect"), [1])
    factors = fill_constant([n_fft], x.spec.known_dtype, 1.0) if window is None else window
    attrs = {"n_fft": n_fft, "hop_length": n_fft // 4 if hop_length is None else hop_length, "normalized": normalized, "onesided": onesided}
    out = current_block().apply("stft", {"X": signals, "Window": factors}, attrs)
    return squeeze(out, [0]) if rank == 1 else out
