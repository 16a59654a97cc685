"""Augmentation: random changes of the examples of a batch, each in its own way, in training only (`in_training`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from foreshape.errors import SchemaError, ShapeError, TypeMismatchError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.scopes import name_scope
from foreshape.language.program.variable import Variable
from foreshape.layer.creation import fill_constant, gaussian_random, randint, uniform_random
from foreshape.layer.creation import range as numbers_before
from foreshape.layer.images import affine_grid, grid_sample
from foreshape.layer.logic import greater_equal, less_than, logical_and, where
from foreshape.layer.manipulation import concat, expand_as, flip, pad, reshape, roll, shape, slice
from foreshape.layer.math import cast, clip, cos, reciprocal, scale, sin
from foreshape.layer.positions import size_of
from foreshape.layer.reductions import reduce_mean
from foreshape.layer.training_only import in_training
from foreshape.layer.vision import Pair
from foreshape.layer.vision import pair as two

Range: TypeAlias = tuple[float, float]


@tells_line
def random_flip(x: Variable, axis: int = -1, probability: float = 0.5) -> Variable:
    """Return each example with the order along ``axis`` reversed, with this probability, in training: mirrored by the last axis, upside down by -2.

    Args:
        x: ``[batch, ...]``, as images ``[batch, channels, height, width]``.
        axis: the reversed axis.
        probability: of a reversal of an example.

    Returns:
        As ``x``.

    Raises:
        SchemaError: a probability outside of [0, 1]. ShapeError: an axis outside of an example.
    """
    _check_share("random_flip", "probability", probability)
    if x.spec.lod is not None or not (-x.spec.rank < axis < 0 or 0 < axis < x.spec.rank):
        raise ShapeError(
            f"random_flip({x.name}): axis must be one of an example's, from 1 to {x.spec.rank - 1} or below 0, of dense x; "
            f"seen {axis}, and x is {x.spec.text()}"
        )
    with name_scope("random_flip"):
        return _changed(x, lambda x: where(_spread(_chance(x, probability), x), flip(x, axis), x))


@tells_line
def random_crop(x: Variable, size: Pair, padding: Pair = 0) -> Variable:
    """Return a part of each image, ``size`` high and wide, at a place of its own in training; in a test the middle part.

    Args:
        x: ``[batch, channels, height, width]``, height and width known; float.
        size: one number, or height and width.
        padding: the zeros around an image before the cut: one number, or height and width.

    Returns:
        ``[batch, channels, *size]``.

    Raises:
        ShapeError: a part larger than the padded image.
    """
    parts, around = two(size, "size"), two(padding, "padding")
    image = _image("random_crop", x)
    for n, part, zeros in zip(image, parts, around, strict=True):
        if zeros < 0 or not 1 <= part <= n + 2 * zeros:
            raise ShapeError(
                f"random_crop({x.name}): the part must fit in the padded image: padding at least 0, and size from 1 to that of the image "
                f"with twice the padding; seen size {parts}, padding {around}, and x is {x.spec.text()}"
            )
    with name_scope("random_crop"):
        middle = _middle(x, image, parts)

        def cut(x: Variable) -> Variable:
            places = [_whole_numbers(x, -zeros, n + zeros - part) for n, part, zeros in zip(image, parts, around, strict=True)]
            return _read(x, parts, places)

        return _changed(x, cut, middle)


@tells_line
def random_translation(x: Variable, height: float, width: float | None = None, fill: str = "zeros") -> Variable:
    """Return each image moved up or down by at most ``height`` and to a side by at most ``width``, in training.

    Args:
        x: ``[batch, channels, height, width]``, height and width known; float.
        height, width: whole numbers are pixels, and keep the image's pixels as they are. Fractions (``0.1``) are shares of the image's size, and pixels
            are means of their neighbours. One number is both.
        fill: the new pixels: "zeros", "border" (the nearest pixel) or "reflection".

    Returns:
        As ``x``.
    """
    far = (height, height if width is None else width)
    _check_fill("random_translation", fill)
    high, wide = _image("random_translation", x)
    if any(isinstance(n, bool) or not (math.isfinite(n) and n >= 0) for n in far):
        raise SchemaError.must(f"random_translation({x.name}): height and width", "numbers of at least 0", f"{far[0]!r} and {far[1]!r}")
    with name_scope("random_translation"):
        if all(isinstance(n, int) for n in far):
            return _changed(x, lambda x: _read(x, [high, wide], [_whole_numbers(x, -int(n), int(n)) for n in far], fill))
        share = [n / size if isinstance(n, int) else n for n, size in zip(far, (high, wide), strict=True)]
        return _affine(x, 0.0, (1.0, 1.0), (share[0], share[1]), fill)


@tells_line
def random_rotation(x: Variable, degrees: float, fill: str = "zeros") -> Variable:
    """Rotate each image about its middle by at most so many degrees to either side, in training.

    Args:
        x, fill: as for `random_affine`.
        degrees: of a whole turn's 360.
    """
    with name_scope("random_rotation"):
        return _affine(x, degrees, (1.0, 1.0), (0.0, 0.0), fill)


@tells_line
def random_zoom(x: Variable, amount: float | Range, fill: str = "zeros") -> Variable:
    """Zoom each image about its middle, in training, within the same size.

    Args:
        x, fill: as for `random_affine`.
        amount: 0.2 is from 0.8 to 1.2 times as large; ``(0.8, 1.5)`` gives both ends.
    """
    with name_scope("random_zoom"):
        return _affine(x, 0.0, _factors("random_zoom", "amount", amount), (0.0, 0.0), fill)


@tells_line
def random_affine(x: Variable, degrees: float = 0.0, zoom: float | Range = 0.0, translation: float | Range = 0.0, fill: str = "zeros") -> Variable:
    """Rotate, zoom and move each image, in training: read once between its pixels, better than one step after the other.

    The point ``p`` of the result, from the middle, is read at ``R(-angle) p / zoom - move``, with numbers drawn uniformly for each image.

    Args:
        x: ``[batch, channels, height, width]``, height and width known; float.
        degrees: at most so many to either side.
        zoom: as for the amount of `random_zoom`.
        translation: at most this share of the height and of the width; or one for each.
        fill: the new pixels: "zeros", "border" (the nearest pixel) or "reflection".

    Returns:
        As ``x``.
    """
    shifts = (translation, translation) if isinstance(translation, (int, float)) else tuple(translation)
    if len(shifts) != 2:
        raise SchemaError.must(f"random_affine({x.name}): translation", "one number or two (height, width)", f"{translation!r}")
    with name_scope("random_affine"):
        return _affine(x, degrees, _factors("random_affine", "zoom", zoom), shifts, fill)


@tells_line
def gaussian_noise(x: Variable, std: float) -> Variable:
    """Return ``x`` with normal numbers of this standard deviation added, in training; float, of any shape.

    Args:
        x: floats.
        std: the standard deviation, at least 0.

    Raises:
        SchemaError: a deviation below 0.
    """
    with name_scope("gaussian_noise"):
        return _changed(x, lambda x: x + gaussian_random(shape(x), 0.0, std, dtype=x.dtype))


@tells_line
def random_brightness(x: Variable, amount: float, limits: Range | None = None) -> Variable:
    """Return each example with one number between ``-amount`` and ``amount`` added, in training.

    Args:
        x: ``[batch, ...]``, float.
        amount: the largest change, as a part of the range.
        limits: the bounds of the results, as ``(0, 1)``.
    """
    low, high = _around_zero("random_brightness", amount)
    with name_scope("random_brightness"):
        return _changed(x, lambda x: _limited(x + _uniform(x, low, high), limits))


@tells_line
def random_contrast(x: Variable, amount: float | Range, limits: Range | None = None) -> Variable:
    """Return each example with its distances from the mean of their channel multiplied by one number, in training.

    Args:
        x: ``[batch, channels, ...]``, float.
        amount: 0.2 is a number from 0.8 to 1.2; ``(0.5, 1.1)`` gives both ends.
        amount: the largest change of the distance from the mean, as a part of it.
        limits: the bounds of the results, as ``(0, 1)``.
    """
    low, high = _factors("random_contrast", "amount", amount)
    if x.spec.lod is not None or x.spec.rank < 3:
        raise ShapeError.must(f"random_contrast({x.name}): x", "[batch, channels, ...]", f"{x.spec.text()}")

    def contrast(x: Variable) -> Variable:
        mean = reduce_mean(x, list(range(2, x.spec.rank)), keepdim=True)
        return _limited(mean + (x - mean) * _uniform(x, low, high), limits)

    with name_scope("random_contrast"):
        return _changed(x, contrast)


@tells_line
def cutout(x: Variable, size: Pair, probability: float = 1.0, value: float = 0.0) -> Variable:
    """Return each image with a rectangle about one of its pixels set to ``value``, in training (DeVries and Taylor, 2017: parts may lie outside).

    Args:
        x: ``[batch, channels, height, width]``, height and width known.
        size: of the rectangle: one number, or height and width.
        probability: of an image to have one.
        value: the value of the rectangle's elements.
    """
    parts = two(size, "size")
    _check_share("cutout", "probability", probability)
    image = _image("cutout", x)

    def cut(x: Variable) -> Variable:
        inside = _chance(x, probability)
        for axis, (n, part) in enumerate(zip(image, parts, strict=True)):
            pixels = reshape(numbers_before(n), [1, 1, n, 1] if axis == 0 else [1, 1, 1, n])
            first = reshape(_whole_numbers(x, -(part // 2), n - 1 - part // 2, "int64"), [-1, 1, 1, 1])
            inside = logical_and(inside, logical_and(greater_equal(pixels, first), less_than(pixels, first + part)))
        return where(_spread(inside, x), _spread(fill_constant([1] * x.spec.rank, x.dtype, value), x), x)

    with name_scope("cutout"):
        return _changed(x, cut)


@tells_line
def mixup(x: Variable, label: Variable, share: float = 0.5) -> tuple[Variable, Variable]:
    """Return each example mixed with another one of its batch, and its label likewise, in training (Zhang et al., "mixup", 2018).

    ``(1 - s) x[i] + s x[i - 1]`` with ``s`` drawn uniformly from 0 to ``share`` for each example; 0.5 equals the paper's alpha 1, since the order of
    the two does not count. Batches must be shuffled, or only neighbours mix.

    Args:
        x: ``[batch, ...]``, float.
        label: ``[batch, classes]``, float: shares of classes, such as from ``layer.one_hot``; or regression targets.
        share: the largest share of the other example.

    Raises:
        TypeMismatchError: class numbers: they cannot be mixed.
    """
    _check_share("mixup", "share", share)
    for variable in (x, label):
        if variable.dtype is None or not variable.dtype.is_floating:
            hint = "; make shares of numbers of classes: layer.one_hot(label, classes)" if variable is label else ""
            raise TypeMismatchError(f"mixup mixes floats; seen {variable}{hint}")

    def mix(x: Variable, label: Variable) -> tuple[Variable, Variable]:
        s = _draw(x, 0.0, share)
        return _mixed(x, s), _mixed(label, s)

    with name_scope("mixup"):
        out: tuple[Variable, Variable] = in_training((x, label), mix)
        return out


# --- numbers for each example


def _changed(x: Variable, function: Callable[[Variable], Variable], otherwise: Variable | None = None) -> Variable:
    out: Variable = in_training(x, function, otherwise)
    return out


def _draw(x: Variable, low: float, high: float) -> Variable:
    """Return ``[batch]`` uniform numbers of fp32."""
    return uniform_random([size_of(x, 0)], "fp32", low, high)


def _beside(numbers: Variable, x: Variable) -> Variable:
    """Return a number for each example, of the element type of ``x``, as ``[batch, 1, ...]``."""
    return cast(reshape(numbers, [-1] + [1] * (x.spec.rank - 1)), x.dtype)


def _uniform(x: Variable, low: float, high: float) -> Variable:
    return _beside(_draw(x, low, high), x)


def _chance(x: Variable, probability: float) -> Variable:
    """Return bool ``[batch, 1, ...]``, true with this probability."""
    return reshape(_draw(x, 0.0, 1.0) < probability, [-1] + [1] * (x.spec.rank - 1))


def _whole_numbers(x: Variable, low: int, high: int, dtype: str = "fp32") -> Variable:
    """Return ``[batch]`` whole numbers from low to high, both included."""
    drawn = randint(low, high + 1, [size_of(x, 0)])
    return drawn if dtype == "int64" else cast(drawn, dtype)


def _constant(x: Variable, number: float) -> Variable:
    return fill_constant([size_of(x, 0)], "fp32", float(number))


def _spread(x: Variable, like: Variable) -> Variable:
    """Repeat a variable to the dims of another: PaddlePaddle's operator of ``where`` broadcasts nothing."""
    return expand_as(x, like)


def _mixed(x: Variable, shares: Variable) -> Variable:
    s = _beside(shares, x)
    return x * (1.0 - s) + roll(x, 1, 0) * s


def _limited(x: Variable, limits: Range | None) -> Variable:
    return x if limits is None else clip(x, limits[0], limits[1])


# --- images read elsewhere


def _image(layer: str, x: Variable) -> list[int]:
    """Return the height and the width of images. Raises `ShapeError` for anything else, or where they are open."""
    image = x.spec.known_dims[2:]
    if x.spec.lod is not None or x.spec.rank != 4 or not all(isinstance(n, int) for n in image):
        raise ShapeError(f"{layer}({x.name}): x must be images [batch, channels, height, width] whose height and width are numbers; it is {x.spec.text()}")
    return [n for n in image if isinstance(n, int)]


def _middle(x: Variable, image: list[int], size: list[int]) -> Variable:
    """Return the middle part of this size, with zeros around a smaller image."""
    borders = [max(0, part - n) for n, part in zip(image, size, strict=True)]
    if any(borders):
        x = pad(x, [0, 0, 0, 0, *(n for border in borders for n in ((border + 1) // 2, border // 2))])
    first = [max(0, n - part) // 2 for n, part in zip(image, size, strict=True)]
    less = [axis for axis in (0, 1) if image[axis] > size[axis]]
    return slice(x, [2 + a for a in less], [first[a] for a in less], [first[a] + size[a] for a in less]) if less else x


def _theta(rows: list[Variable]) -> Variable:
    return reshape(concat([reshape(n, [-1, 1]) for n in rows], 1), [-1, 2, 3])


def _read(x: Variable, size: list[int], first: list[Variable], fill: str = "zeros") -> Variable:
    """Return a part of this size of each image, at its own whole pixel."""
    (high, wide), (h, w) = _image("", x), size
    zero = _constant(x, 0.0)
    down, right = (scale(start, 2.0 / n, (part - n) / n) for start, part, n in zip(first, size, (high, wide), strict=True))
    theta = _theta([_constant(x, w / wide), zero, right, zero, _constant(x, h / high), down])
    grid = affine_grid(theta, [-1, x.dims[1], h, w], align_corners=False)
    return grid_sample(x, cast(grid, x.dtype), "nearest", fill, align_corners=False)


def _affine(x: Variable, degrees: float, zoom: Range, shifts: Any, fill: str) -> Variable:
    high, wide = _image("random_affine", x)
    _check_fill("random_affine", fill)
    if not all(math.isfinite(n) and n >= 0 for n in (degrees, *shifts)):
        raise SchemaError(f"an image ({x.name}) is turned and moved by at most numbers of at least 0; seen {degrees} degrees and {shifts}")

    def turned(x: Variable) -> Variable:
        angle = _draw(x, -math.radians(degrees), math.radians(degrees)) if degrees else _constant(x, 0.0)
        larger = _draw(x, *zoom) if zoom[0] < zoom[1] else _constant(x, zoom[0])
        down, right = (_draw(x, -2.0 * n, 2.0 * n) if n else _constant(x, 0.0) for n in shifts)
        less = reciprocal(larger)
        c, s = cos(angle) * less, sin(angle) * less
        grid = affine_grid(_theta([c, s * (high / wide), right, s * (-wide / high), c, down]), [-1, x.dims[1], high, wide], align_corners=False)
        return grid_sample(x, cast(grid, x.dtype), "bilinear", fill, align_corners=False)

    return _changed(x, turned)


# --- the arguments


def _check_share(layer: str, name: str, share: float) -> None:
    if not 0.0 <= share <= 1.0:
        raise SchemaError.must(f"{layer}: {name}", "from 0 to 1", f"{share!r}")


def _check_fill(layer: str, fill: str) -> None:
    if fill not in ("zeros", "border", "reflection"):
        raise SchemaError.one_of(f"{layer}: fill", ("zeros", "border", "reflection"), fill)


def _around_zero(layer: str, amount: float) -> Range:
    if not (math.isfinite(amount) and amount >= 0):
        raise SchemaError.must(f"{layer}: amount", "a number of at least 0", f"{amount!r}")
    return -float(amount), float(amount)


def _factors(layer: str, name: str, amount: float | Range) -> Range:
    """Return the least and the largest factor."""
    low, high = (1.0 - amount, 1.0 + amount) if isinstance(amount, (int, float)) else (float(amount[0]), float(amount[1])) if len(amount) == 2 else (1.0, 0.0)
    if not (0.0 < low <= high < math.inf):
        raise SchemaError.must(f"{layer}: {name}", "a number from 0 to below 1, or two, the smaller one first and above 0", f"{amount!r}")
    return low, high
