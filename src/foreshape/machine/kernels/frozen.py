"""Convolutions and products with a constant weight: it has oneDNN's layout, and the following functions are applied while the result is written.

oneDNN reads images with the channels innermost in memory as they are; others are copied first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import prod
from typing import Any, Literal, NamedTuple

from foreshape.core.values.torch_private import has, private
from foreshape.core.values.torch_proxy import F, Tensor, aten, torch
from foreshape.machine.kernels import pointwise
from foreshape.machine.kernels.kept_kernels import MOST
from foreshape.machine.kernels.onednn_chain import Series
from foreshape.machine.kernels.onednn_library import Function, Library, library
from foreshape.machine.kernels.onednn_packed import PackedConvolution, PackedProduct, Paddings
from foreshape.machine.kernels.onednn_packed_bytes import ByteConvolution, ByteProduct, ByteWeight
from foreshape.machine.kernels.onednn_ragged import RaggedProduct
from foreshape.machine.kernels.onednn_stages import Each
from foreshape.machine.kernels.onednn_steps import ChainKernel
from foreshape.machine.kernels.onednn_transposed import PackedSpread, PackedTransposedConvolution, lies_apart
from foreshape.machine.kernels.window_steps import behind, is_unsound, settle


class Following(NamedTuple):
    """The activation behind a product, in oneDNN's words (see `foreshape.language.operator.computations.Activation`), "none" for none. Its result is multiplied
    by ``scale``, and ``shift`` is added.
    """

    name: str = "none"
    numbers: tuple[float, ...] = ()
    form: str = ""
    scale: float = 1.0
    shift: float = 0.0

    @property
    def moves(self) -> bool:
        """Return True if a scale or shift follows the activation."""
        return self.scale != 1.0 or self.shift != 0.0


NOTHING, RELU = Following(), Following("relu")


@cache
def has_onednn() -> bool:
    """Return True if this torch has oneDNN's kernels for packed weights."""
    names = ("convolution_pointwise", "convolution_pointwise_binary", "linear_pointwise", "reorder_linear_weight", "reorder_convolution_weight")
    return torch.backends.mkldnn.is_available() and has(*names)


_FEW = 1 << 13
"""For so many elements torch's kernel of gelu is done before oneDNN's begins."""


def activated(x: Tensor, following: Following) -> Tensor:
    """Return the activation of a tensor without other readers, with its scale and shift."""
    if following.moves:
        return activated(x, following._replace(scale=1.0, shift=0.0)).mul_(following.scale).add_(following.shift)
    name, numbers, form = following[:3]
    if name == "none":
        return x
    if name == "gelu":
        alone = x.numel() <= max(_FEW, x.shape[-1] if x.dim() else 1)  # a single row is worked on in place, as the plan has it
        return gelu_by_tanh(x) if form == "tanh" and not alone else aten.gelu_(x, approximate=form)
    if name == "hardtanh":
        return x.clamp_(*numbers)
    if name == "leaky_relu":
        return F.leaky_relu(x, *numbers, inplace=True)
    if name == "hardsigmoid":
        slope, offset = numbers
        return x.mul_(slope).add_(offset).clamp_(0.0, 1.0)
    functions: dict[str, Any] = {"relu": torch.relu_, "sigmoid": torch.sigmoid_, "tanh": torch.tanh_}
    in_place: dict[str, Any] = {"swish": F.silu, "hardswish": F.hardswish}
    return functions[name](x) if name in functions else in_place[name](x, inplace=True)


def gelu_by_tanh(x: Tensor) -> Tensor:
    """Return gelu in its approximation by tanh: by oneDNN's own library if installed, in a third of the time of torch's kernel."""
    engine = library()
    if engine is None or x.dtype is not torch.float32 or not x.is_cpu or not x.numel():
        return F.gelu(x, approximate="tanh")
    if x.is_contiguous():
        return _gelu_by_tanh(engine)(x.view(-1)).view(x.shape)
    transposed = x.mT if x.dim() > 1 else x  # images whose channels are innermost, without their width, among others
    return _gelu_by_tanh(engine)(transposed.view(-1)).view(transposed.shape).mT if transposed.is_contiguous() else F.gelu(x, approximate="tanh")


@cache
def _gelu_by_tanh(of: Library) -> Series:
    return Series(of, [ChainKernel(Each(("gelu_tanh", 0.0, 0.0)), partial(F.gelu, approximate="tanh"), (0,), None)], 1)


SMALL = 4 << 20
"""A convolution by windows of one pixel with fewer multiplications is a plain product: torch's oneDNN takes some 40 microseconds to begin."""


def _in_torch(following: Following) -> tuple[Following, Following]:
    """Split an activation into the part in torch's kernels and the part behind them. They have one hardsigmoid (Howard et al., 2019)."""
    behind = Following(scale=following.scale, shift=following.shift)
    if following.name != "hardsigmoid":
        return following._replace(scale=1.0, shift=0.0), behind
    slope, offset = following.numbers
    usual = abs(6.0 * slope - 1.0) < 1e-5 and offset == 0.5
    return (Following("hardsigmoid"), behind) if usual else (NOTHING, following)


def in_library(following: Following) -> list[Function]:
    """Return the following functions in the words of oneDNN's library."""
    name, numbers, form = following[:3]
    behind = [("linear", following.scale, following.shift)] if following.moves else []
    if name == "none":
        return behind
    if name == "hardswish":
        return [(name, 1 / 6, 0.5), *behind]
    if name == "swish":
        return [(name, 1.0, 0.0), *behind]
    if name == "gelu":
        return [("gelu_tanh" if form == "tanh" else "gelu", 0.0, 0.0), *behind]
    first, second = (*numbers, 0.0, 0.0)[:2]
    return [(name, first, second), *behind]


class FrozenConvolution:
    """``activation(convolution(x, weight) + bias [+ other])`` of images, with a constant weight.

    Args:
        weight: [out, channels / groups, *window], fp32. It is packed for the sizes of the first images.
        bias: [out], or None.
        paddings: unequal ones at both ends are put around a copy of the images.
    """

    __slots__ = ("_after", "_bias", "_following", "_matrix", "_packed", "_pads", "_settings", "_sizes", "_weight", "_window", "_within")

    def __init__(
        self, weight: Tensor, bias: Tensor | None, strides: Sequence[int], paddings: Paddings, dilations: Sequence[int], groups: int, following: Following
    ) -> None:
        self._pads = paddings if callable(paddings) else None
        paddings = (0,) * len(strides) if callable(paddings) else paddings
        self._weight: Tensor | None = weight
        self._window, self._bias, self._following = weight.shape[2:], bias, following
        self._within, self._after = _in_torch(following)
        self._settings = (list(paddings), list(strides), list(dilations), groups)
        self._sizes: dict[Sequence[int], tuple[Any, ...]] = {}
        self._packed: Any = None
        plain = groups == 1 and all(n == 1 for n in (*weight.shape[2:], *strides)) and not any(paddings) and self._pads is None
        self._matrix = weight.flatten(1).t().contiguous() if plain and weight.numel() < SMALL else None

    def __call__(self, x: Tensor) -> Tensor:
        matrix = self._matrix
        x = x if self._pads is None else _padded(x, *self._pads(x.shape[2:]))
        if matrix is not None and x.numel() * matrix.shape[1] < SMALL:
            return self._product(x, matrix)
        settings = self._sizes.get(x.shape) or self._settle(x)
        if settings is None:
            return activated(self._plain(x), self._following)
        name, numbers, form = self._within[:3]
        out = private.convolution_pointwise(x, self._packed, self._bias, *settings, name, numbers, form)
        return activated(out, self._after)

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the result, with ``other``, of its shape, added before the activation."""
        x = x if self._pads is None else _padded(x, *self._pads(x.shape[2:]))
        settings = self._sizes.get(x.shape) or self._settle(x)
        if settings is None:
            return activated(self._plain(x).add_(other), self._following)
        rectifies = self._following == RELU
        last = other.contiguous(memory_format=torch.channels_last)
        unary = "relu" if rectifies else None
        out = private.convolution_pointwise_binary(x, last, self._packed, self._bias, *settings, "add", 1.0, unary, [], "")
        return out if rectifies else activated(out, self._following)

    def _product(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Return the result of windows of one pixel: every pixel is a row of channels."""
        n, c, height, width = x.shape
        rows = x.permute(0, 2, 3, 1).reshape(n * height * width, c)
        out = torch.mm(rows, matrix) if self._bias is None else torch.addmm(self._bias, rows, matrix)
        return activated(out, self._following).view(n, height, width, matrix.shape[1]).permute(0, 3, 1, 2)

    def _settle(self, x: Tensor) -> tuple[Any, ...] | None:
        """Return the settings for images of a new size, with the weight packed; None if another kernel must do."""
        paddings, strides, dilations, groups = self._settings
        image, window, weight = x.shape[2:], self._window, self._weight
        reach = behind(image, window, strides, paddings, dilations)
        strides, dilations = settle(image, window, strides, paddings, dilations)
        if not has_onednn() or not x.numel() or any(reach) or is_unsound(x.shape[1], image, window, strides, paddings, dilations):
            return None
        if self._packed is None and weight is not None:  # another thread may do the same: the packed weight exists before the other goes
            self._packed = private.reorder_convolution_weight(weight, paddings, strides, dilations, groups, list(x.shape))
            self._weight = None
        if len(self._sizes) >= MOST:
            self._sizes.clear()
        self._sizes[x.shape] = settings = (paddings, strides, dilations, groups)
        return settings

    def _plain(self, x: Tensor) -> Tensor:
        paddings, strides, dilations, groups = self._settings
        weight = self._weight
        weight = weight if weight is not None else self._packed.to_dense()
        if not x.numel() and all(n == 1 for n in (*weight.shape[2:], *strides)) and not any(paddings):  # torch refuses images without pixels
            return x.new_empty((x.shape[0], weight.shape[0], *x.shape[2:]))
        return pointwise.convolve(x, weight, self._bias, strides, paddings, dilations, groups)


def _padded(x: Tensor, before: Sequence[int], behind: Sequence[int]) -> Tensor:
    """Return images with so many rows and columns of zeros around."""
    return F.pad(x, [n for ends in zip(reversed(before), reversed(behind), strict=True) for n in ends])


class FrozenTransposedConvolution:
    """``activation(transposed convolution(x, weight) + bias)`` of images, with a constant weight ``[channels, out, *window]``, by torch."""

    __slots__ = ("_following", "_settings", "_weight")

    def __init__(
        self, weight: Tensor, bias: Tensor | None, strides: Sequence[int], paddings: Sequence[int], more: Sequence[int], dilations: Sequence[int],
        following: Following,
    ) -> None:  # fmt: skip
        self._weight, self._following = weight, following
        self._settings = (bias, list(strides), list(paddings), list(more), 1, list(dilations))

    def __call__(self, x: Tensor) -> Tensor:
        out = pointwise.transpose(x, self._weight, *self._settings)
        return activated(out, self._following).contiguous(memory_format=torch.channels_last)


class Apart:
    """``activation(kernel(x) + bias)`` of images, the bias and the activation behind the kernel."""

    __slots__ = ("_bias", "_following", "_kernel")

    def __init__(self, kernel: Callable[[Tensor], Tensor], bias: Tensor | None, following: Following) -> None:
        self._kernel, self._bias, self._following = kernel, None if bias is None else bias.view(-1, 1, 1), following

    def __call__(self, x: Tensor) -> Tensor:
        out = self._kernel(x)
        return activated(out if self._bias is None else out.add_(self._bias), self._following)


class FrozenLinear:
    """``activation(x weight + bias [+ other])`` of rows ``[..., k]``, with a constant weight ``[k, n]``."""

    __slots__ = ("_after", "_bias", "_following", "_packed", "_weight", "_within")

    def __init__(self, weight: Tensor, bias: Tensor | None, following: Following) -> None:
        self._weight, self._bias, self._following = weight, bias, following
        self._within, self._after = _in_torch(following)
        self._packed: Any = None

    def add(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the result, with ``other``, of its shape, added before the activation."""
        return activated(self._product(x, NOTHING).add_(other), self._following)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, self._following)

    def unpacked(self, x: Tensor, other: Tensor | None) -> Tensor:
        """Return the result over the weight as it is."""
        out = self._over_weight(x)
        return activated(out if other is None else out.add_(other), self._following)

    def _over_weight(self, x: Tensor) -> Tensor:
        rows = x.reshape(prod(x.shape[:-1]), x.shape[-1])  # of no columns there may be rows
        out = rows @ self._weight if self._bias is None else torch.addmm(self._bias, rows, self._weight)
        return out.view(*x.shape[:-1], out.shape[1])

    def _product(self, x: Tensor, following: Following) -> Tensor:
        """Return the result with its activation, or with none."""
        if not has_onednn() or not x.numel():
            return activated(self._over_weight(x), following)
        if self._packed is None:
            self._packed = private.reorder_linear_weight(self._weight.t().contiguous(), None)
        within, after = (NOTHING, NOTHING) if following is NOTHING else (self._within, self._after)
        name, numbers, form = within[:3]
        return activated(private.linear_pointwise(x, self._packed, self._bias, name, numbers, form), after)


def convolution(
    weight: Tensor | ByteWeight,
    bias: Tensor | None,
    strides: Sequence[int],
    paddings: Paddings,
    dilations: Sequence[int],
    groups: int,
    following: Following,
    columns: bool = False,
) -> PackedConvolution | FrozenConvolution:
    """Return a convolution with a constant weight and its activation (see `FrozenConvolution`), by oneDNN's own library if installed.

    ``weight``: also of bytes, for images of bytes. ``columns``: the images are one pixel wide.
    """
    shape = (weight.whole if isinstance(weight, ByteWeight) else weight).shape
    found, turns = library(), columns and shape[2] > 1 == shape[3] and not callable(paddings) and paddings[1] == 0

    def otherwise(weight: Tensor) -> FrozenConvolution:
        return FrozenConvolution(weight.transpose(2, 3).contiguous() if turns else weight, bias, strides, paddings, dilations, groups, following)

    if found is None:
        numbers = weight.numbers(0) if isinstance(weight, ByteWeight) else weight
        return FrozenConvolution(numbers, bias, strides, paddings, dilations, groups, following)
    settings = (strides, paddings, dilations, groups, in_library(following), otherwise)
    if turns and not callable(paddings):
        settings = (strides[::-1], paddings[::-1], dilations[::-1], *settings[3:])
    if isinstance(weight, ByteWeight):
        weight = weight._replace(whole=weight.whole.transpose(2, 3).contiguous()) if turns else weight
        return ByteConvolution(found, weight, bias, *settings, columns=turns)
    return PackedConvolution(found, weight.transpose(2, 3).contiguous() if turns else weight, bias, *settings, columns=turns)


def transposed_convolution(
    weight: Tensor, bias: Tensor | None, strides: Sequence[int], paddings: Sequence[int], more: Sequence[int], dilations: Sequence[int], following: Following
) -> PackedTransposedConvolution | FrozenTransposedConvolution:
    """Return a transposed convolution and its activation (see `FrozenTransposedConvolution`), by oneDNN's own library if installed."""
    settings = (strides, paddings, more, dilations)
    found = library()
    if found is None:
        return FrozenTransposedConvolution(weight, bias, *settings, following)
    alone = bias is None and following == NOTHING

    def otherwise(weight: Tensor) -> Callable[[Tensor], Tensor]:
        if alone:
            return FrozenTransposedConvolution(weight, None, *settings, NOTHING)
        return Apart(transposed_convolution(weight, None, *settings, NOTHING), bias, following)

    arguments = (found, weight, bias, *settings, in_library(following), otherwise)
    channels, out, *window = weight.shape
    if not lies_apart(window, out, strides, paddings, more):
        return PackedTransposedConvolution(*arguments)
    filters = weight.permute(2, 3, 1, 0).reshape(-1, channels, 1, 1)
    biases = None if bias is None else bias.repeat(prod(window))
    pixels = convolution(filters, biases, (1, 1), (0, 0), (1, 1), 1, following)
    return PackedSpread(pixels, *arguments) if isinstance(pixels, PackedConvolution) else PackedTransposedConvolution(*arguments)


def linear(weight: Tensor | ByteWeight, bias: Tensor | None, following: Following, ragged: bool = False) -> PackedProduct | FrozenLinear:
    """Return a product of rows with a constant weight and its activation (see `FrozenLinear`), by oneDNN's own library if installed.

    ``weight``: also of bytes, for rows of bytes. ``ragged``: the number of rows is another in most calls.
    """
    found = library()
    if found is None:
        return FrozenLinear(weight.numbers(1) if isinstance(weight, ByteWeight) else weight, bias, following)
    after, otherwise = in_library(following), partial(FrozenLinear, bias=bias, following=following)
    if isinstance(weight, ByteWeight):
        return ByteProduct(found, weight, bias, after, otherwise)
    return (RaggedProduct if ragged else PackedProduct)(found, weight, bias, after, otherwise)


Fold = float | tuple[float, float] | Literal["add", "multiply"]
"""A step after a product: a normalization by fixed statistics with this epsilon, a factor and a number to add, or a number for each channel to add, or to
multiply by.
"""


def folded(weight: Tensor, steps: Sequence[tuple[Fold, int]], values: Sequence[Tensor], axis: int = 0) -> tuple[Tensor, Tensor | None]:
    """Return the weight and bias of a product with its following steps folded in.

    In fp64, since the variances of trained networks are spread over many powers of ten.

    Args:
        weight: with the channels of the result at ``axis``.
        steps: the following steps in turn, with the count of ``values`` for each: one, none, or scale, shift, mean and variance. Each is a number for each
            channel, or one for all.
    """
    import numpy

    channels = weight.shape[axis]
    factor, bias = numpy.ones(channels), numpy.zeros(channels)
    left = [v.numpy().reshape(-1).astype(numpy.float64) for v in values]
    with numpy.errstate(all="ignore"):  # the checks find numbers that are not finite
        for how, count in steps:
            numbers, left = left[:count], left[count:]
            if how == "add":
                bias = bias + numbers[0]
            elif how == "multiply":
                factor, bias = factor * numbers[0], bias * numbers[0]
            elif isinstance(how, tuple):
                factor, bias = factor * how[0], bias * how[0] + how[1]
            else:
                scale, shift, mean, variance = numbers
                scaling = scale / numpy.sqrt(variance + how)
                factor, bias = factor * scaling, (bias - mean) * scaling + shift
        out = weight
        if any(how != "add" for how, _ in steps):  # otherwise as it is, and not another one
            out = torch.empty_like(weight)
            wide = [-1 if k == axis else 1 for k in range(weight.dim())]
            numpy.multiply(weight.numpy(), factor.reshape(wide), out=out.numpy(), dtype=numpy.float64, casting="same_kind")  # no copy in fp64
        if not steps:
            return out, None
        total = torch.empty(channels, dtype=weight.dtype)
        total.numpy()[...] = bias
        return out, total
