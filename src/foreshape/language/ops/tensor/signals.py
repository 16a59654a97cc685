"""Signals cut into frames, overlapping or not, and frames added up to a signal."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import COMPLEX, FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import require, require_at_most, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.math.complex_numbers import COMPLEX_OF, REAL, c64
from foreshape.language.ops.math.fourier import from_real, transformed
from foreshape.language.ops.rules.gradient_dims import check_made


def _axis() -> Any:
    return attribute(AttrType.INT, -1, choices=(0, -1), doc="-1: time is the last axis; 0: the first")


def _added(frames: Tensor, hop: int, first: bool, samples: Any) -> Tensor:
    """Return frames ``[..., length, count]``, or with ``first`` ``[count, length, ...]``, added up to signals of ``samples`` samples."""
    ordered = frames.movedim((0, 1), (-2, -1)) if first else frames.transpose(-1, -2)  # [..., count, length]
    count, length = ordered.shape[-2:]
    out = frames.new_zeros((*ordered.shape[:-2], samples))
    places = (torch.arange(count, device=frames.device).unsqueeze(1) * hop + torch.arange(length, device=frames.device)).view(-1)
    out.index_add_(-1, places, ordered.reshape(*ordered.shape[:-2], count * length))
    return out.movedim(-1, 0).contiguous() if first else out


class Frame(Operator):
    """Out = the frames of ``frame_length`` samples from every ``hop_length``-th sample on, as many as fit: [..., frame_length, frames].

    With ``axis`` 0: [frames, frame_length, ...].
    """

    type = "frame"
    gradient_reads_dims = ("X",)
    X = operand((*FLOATING, *COMPLEX), doc="[..., samples], or with axis 0 [samples, ...]")
    Out = result(layout="row", doc="[..., frame_length, frames], or [frames, frame_length, ...]")
    frame_length = attribute(AttrType.INT, low=1)
    hop_length = attribute(AttrType.INT, low=1)
    axis = _axis()

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank >= 1, "X must have at least 1 dim, not 0", X=None)
        dims = X.known_dims
        axis = 0 if self.axis == 0 else X.rank - 1
        require_at_most(self.frame_length, dims[axis], f"X must have at least one frame of {self.frame_length} samples, not {dims[axis]}", X=axis)
        count = (dims[axis] - self.frame_length) // self.hop_length + 1
        if self.axis == 0:
            return X.dense((count, self.frame_length, *dims[1:]))
        frames = (*dims[:-1], self.frame_length, count)
        return X.with_dims(frames) if X.rank > 1 else X.dense(frames)

    def kernel(self, X: Tensor) -> Tensor:
        windows = X.unfold(self.axis, self.frame_length, self.hop_length)  # the samples of a window last
        return (windows.movedim(-1, 1) if self.axis == 0 else windows.transpose(-1, -2)).clone(memory_format=torch.contiguous_format)

    def _infer_gradient(self, X: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, Frame.infer_shape(self, X)))
        return X.like()

    def _gradient_workspace(self, X: Spec, d_out: Spec) -> Size:
        return 2 * d_out.nbytes + 16 * d_out.elements + 2 * X.nbytes

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        return _added(d_out, self.hop_length, self.axis == 0, X.shape[self.axis])

    samples = [
        sample(X=f32(2, 7), frame_length=3, hop_length=2),
        sample(X=f32(7, 2), frame_length=3, hop_length=1, axis=0),
        sample(X=f32(9), frame_length=4, hop_length=3),
        sample(X=f32(2, 3, 8), frame_length=3, hop_length=4),
        sample(X=c64(2, 7), frame_length=3, hop_length=2),
    ]
    rejects = [
        reject(X=f32(2, 3), frame_length=4, hop_length=1, says="at least one frame of 4 samples"),
        reject(X=f32(), frame_length=4, hop_length=1, says="at least 1 dim"),
    ]


class OverlapAdd(Operator):
    """Out = the frames of X, each ``hop_length`` samples after the one before, added up: [..., (frames - 1) hop_length + length]."""

    type = "overlap_add"
    gradient_reads_dims = ("X",)
    X = operand((*FLOATING, *COMPLEX), doc="[..., length, frames], or with axis 0 [frames, length, ...]")
    Out = result(layout="row", doc="[..., samples], or with axis 0 [samples, ...]")
    hop_length = attribute(AttrType.INT, low=1)
    axis = _axis()

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank >= 2, f"X must have at least 2 dims, not {X.rank}", X=None)
        dims = X.known_dims
        count, length = dims[:2] if self.axis == 0 else (dims[-1], dims[-2])
        require_at_most(1, count, "X must have at least one frame", X=0 if self.axis == 0 else X.rank - 1)
        samples = (count - 1) * self.hop_length + length
        if self.axis == 0:
            return X.dense((samples, *dims[2:]))
        return X.with_dims((*dims[:-2], samples)) if X.rank > 2 else X.dense((samples,))

    def workspace(self, X: Spec) -> Size:
        return 2 * X.nbytes + 16 * X.elements + 2 * self.infer_shape(X).nbytes

    def kernel(self, X: Tensor) -> Tensor:
        count, length = (X.shape[0], X.shape[1]) if self.axis == 0 else (X.shape[-1], X.shape[-2])
        return _added(X, self.hop_length, self.axis == 0, (count - 1) * self.hop_length + length)

    def _infer_gradient(self, X: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, OverlapAdd.infer_shape(self, X)))
        return X.like()

    @gradient("X", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        windows = d_out.unfold(self.axis, X.shape[1 if self.axis == 0 else -2], self.hop_length)
        return (windows.movedim(-1, 1) if self.axis == 0 else windows.transpose(-1, -2)).clone(memory_format=torch.contiguous_format)

    samples = [
        sample(X=f32(2, 3, 4), hop_length=2),
        sample(X=f32(4, 3, 2), hop_length=1, axis=0),
        sample(X=f32(3, 2), hop_length=4),
        sample(X=c64(2, 3, 4), hop_length=2),
    ]
    rejects = [
        reject(X=f32(3), hop_length=1, says="at least 2 dims"),
        reject(X=f32(3, 0), hop_length=1, says="at least one frame"),
    ]


class Stft(Operator):
    """Out = the Fourier transforms of the frames of each signal, of ``n_fft`` samples from every ``hop_length``-th on, times Window.

    With ``onesided`` the first n_fft // 2 + 1 numbers of each: the others are their conjugates. ``normalized``: divided by the root of n_fft.
    """

    type = "stft"
    X = operand(REAL, doc="[signals, samples]")
    Window = operand(REAL, same_type_as="X", doc="[n_fft]")
    Out = result(layout="row", doc="complex [signals, n_fft // 2 + 1, frames], or [signals, n_fft, frames]")
    n_fft = attribute(AttrType.INT, low=1)
    hop_length = attribute(AttrType.INT, low=1)
    normalized = attribute(AttrType.BOOLEAN)
    onesided = attribute(AttrType.BOOLEAN)

    def infer_shape(self, X: Spec, Window: Spec) -> Spec:
        require_rank(2, X, "X")
        require_rank(1, Window, "Window")
        require_equal(Window.known_dims[0], self.n_fft, f"Window must have n_fft = {self.n_fft} numbers", Window=0)
        signals, samples = X.known_dims
        require_at_most(self.n_fft, samples, f"X must have at least one frame of {self.n_fft} samples, not {samples}", X=1)
        numbers = self.n_fft // 2 + 1 if self.onesided else self.n_fft
        return X.with_dims((signals, numbers, self._frames(samples))).with_dtype(COMPLEX_OF[X.known_dtype])

    def _frames(self, samples: Any) -> Any:
        return (samples - self.n_fft) // self.hop_length + 1

    def _bytes(self, X: Spec) -> Size:
        """Return the bytes of all frames."""
        return X.known_dims[0] * self._frames(X.known_dims[1]) * self.n_fft * X.known_dtype.itemsize

    def work(self, X: Spec, Window: Spec) -> Size:
        return 4 * self._bytes(X)

    def workspace(self, X: Spec, Window: Spec) -> Size:
        return 9 * self._bytes(X)

    def kernel(self, X: Tensor, Window: Tensor) -> Tensor:
        frames = X.unfold(1, self.n_fft, self.hop_length) * Window
        return from_real(frames, (2,), int(self.normalized), self.onesided).transpose(1, 2).contiguous()

    def _infer_gradient(self, X: Spec, Window: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, Stft.infer_shape(self, X, Window)))
        return X.like()

    def _gradient_workspace(self, X: Spec, Window: Spec, d_out: Spec) -> Size:
        return 16 * self._bytes(X) + 8 * self.n_fft * self._frames(X.known_dims[1]) + 2 * X.nbytes

    @gradient("X", "Window", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, Window: Tensor, d_out: Tensor) -> Tensor:
        d = d_out.new_zeros((X.shape[0], d_out.shape[2], self.n_fft))  # absent numbers have no gradient
        d[..., : d_out.shape[1]] = d_out.transpose(1, 2)
        frames = transformed(d, (2,), int(self.normalized), False).real * Window
        return _added(frames.transpose(1, 2), self.hop_length, False, X.shape[1])

    samples = [
        sample(X=f32(2, 9), Window=f32(4), n_fft=4, hop_length=2, normalized=False, onesided=True),
        sample(X=f32(3, 11), Window=f32(5), n_fft=5, hop_length=3, normalized=True, onesided=False),
        sample(X=f32(2, 7), Window=f32(5), n_fft=5, hop_length=1, normalized=True, onesided=True),
        sample(X=f32(2, 9), Window=f32(4), n_fft=4, hop_length=5, normalized=False, onesided=False),
        sample(X=f32(0, 9), Window=f32(4), n_fft=4, hop_length=2, normalized=False, onesided=True),
    ]
    rejects = [
        reject(X=f32(2, 9), Window=f32(3), n_fft=4, hop_length=2, normalized=False, onesided=True, says="Window must have n_fft = 4 numbers"),
        reject(X=f32(2, 3), Window=f32(4), n_fft=4, hop_length=2, normalized=False, onesided=True, says="at least one frame of 4 samples"),
    ]
