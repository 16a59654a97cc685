"""The ranges of a network's values, measured on examples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from foreshape.errors import FeedError, SchemaError
from foreshape.interop import InferenceModel
from foreshape.interop.results import feed_of
from foreshape.language.ops.quantization.grid import largest_level
from foreshape.runtime.engine import Executor, LoDTensor

Activations: TypeAlias = Literal["measured", "min_max", "percentile", "entropy"]
METHODS: tuple[Activations, ...] = ("percentile", "entropy", "min_max")
_BINS, _STEP = 2048, 16
"""The bins of a histogram of sizes, and the bins between two tried ranges."""
LEVELS = largest_level(8)


def feeds_of(model: InferenceModel, data: Any) -> list[dict[str, Any]]:
    """Return calibration data as one feed after the other.

    Args:
        data: a mapping from inputs to arrays, or an array: one feed; or an iterable of such.

    Raises:
        FeedError: there are none, or an empty one.
    """
    single = isinstance(data, (Mapping, LoDTensor)) or hasattr(data, "__array__")
    if not single and not isinstance(data, Iterable):
        raise FeedError(f"calibration data must be a feed, or an iterable of feeds; seen {type(data).__name__}")
    feeds: list[Any] = [data] if single else list(cast("Iterable[Any]", data))
    out = [feed_of(model.feeds, (feed,)) for feed in feeds]
    if not out:
        raise FeedError("calibration data must have at least one feed; there is none")
    for index, feed in enumerate(out):
        for name, value in feed.items():
            if getattr(value, "size", 1) == 0:
                raise FeedError(f"calibration data: feed {index} has no elements for {name}, of {list(value.shape)}")
    return out


def run_over(model: InferenceModel, feeds: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Iterator[tuple[int, str, Any]]:
    """Yield the values of these names for each feed, with the feed's number. Raises `FeedError` for feeds of other shapes, or results other than numbers."""
    import numpy

    runs = Executor() if model.executor is None else model.executor
    for index, feed in enumerate(feeds):
        try:
            results = runs.run(model.program, dict(feed), list(names), model.scope)
        except FeedError as error:
            error.add_note(f"in feed {index} of the calibration data")
            raise
        for name, value in zip(names, results, strict=True):
            array: Any = numpy.asarray(value.data if isinstance(value, LoDTensor) else value)
            if not numpy.isfinite(array).all():
                raise FeedError(f"calibration data: feed {index} makes numbers of {name} that are not finite")
            yield index, name, array


def scales_of(
    model: InferenceModel, feeds: Sequence[Mapping[str, Any]], names: Sequence[str], activations: Activations, percentile: float
) -> dict[Activations, dict[str, float]]:
    """Return the scale of each value, the size for the largest whole number, by method.

    Args:
        activations: "min_max": the largest size; "percentile": a share of the sizes is at most so large; "entropy": the one whose rounded distribution says
            most about the true one (the least Kullback-Leibler divergence). "measured": by all three.
        percentile: the share, in percent.

    Raises:
        SchemaError: another method or percentile. FeedError: see `run_over`.
    """
    import numpy

    if activations not in ("measured", *METHODS):
        raise SchemaError.one_of("activations", ("measured", *METHODS), activations)
    if not 0.0 < percentile <= 100.0:
        raise SchemaError(f"percentile must be more than 0 and at most 100; seen {percentile}")
    largest = dict.fromkeys(names, 0.0)
    for _, name, array in run_over(model, feeds, names):
        largest[name] = max(largest[name], float(numpy.abs(array).max(initial=0.0)))
    if activations == "min_max":
        return {activations: largest}
    counts: dict[str, Any] = {name: numpy.zeros(_BINS, numpy.int64) for name in names}
    for _, name, array in run_over(model, feeds, names):
        if largest[name]:
            sizes: Any = numpy.abs(array)
            counts[name] += numpy.histogram(sizes, _BINS, (0.0, largest[name]))[0]
    ways: dict[Activations, Callable[[Any], int]] = {
        "percentile": lambda counts: _by_share(counts, percentile),
        "entropy": _by_entropy,
        "min_max": lambda _counts: _BINS,
    }
    return {
        how: {name: largest[name] * ways[how](counts[name]) / _BINS if largest[name] else 0.0 for name in names}
        for how in (METHODS if activations == "measured" else (activations,))
    }


def _by_share(counts: Any, percentile: float) -> int:
    """Return the bins with so many percent of the numbers."""
    import numpy

    below = counts.cumsum()
    return int(cast("Any", numpy.searchsorted)(below, below[-1] * percentile / 100.0)) + 1


def _by_entropy(counts: Any) -> int:
    """Return the number of bins whose range loses least (Migacz, 2017): numbers beyond are clipped, the others rounded to `LEVELS` sizes.

    Ranges with more squared error than the whole one are left out: where many numbers are equal, as in margins, their rounding looks like a loss.
    """
    import numpy

    counts = counts.astype(numpy.float64)
    errors = _squared_errors(counts)
    best, least = _BINS, float("inf")
    counts[0] = counts[1]  # the zeros of rectified values are exact on every grid
    for bins in range(LEVELS + 1, _BINS + 1, _STEP):
        if errors[bins - 1] > errors[-1]:
            continue
        true = counts[:bins].copy()
        occupied = true > 0
        true[-1] += counts[bins:].sum()
        level = (numpy.arange(bins) * (LEVELS + 1)) // bins
        sums, members = numpy.bincount(level, counts[:bins]), numpy.bincount(level, occupied)
        rounded = numpy.where(occupied, (sums / numpy.maximum(members, 1))[level], 0.0)
        nonzero = true > 0
        if not nonzero.any() or not rounded.any():
            continue
        p, q = true[nonzero] / true.sum(), numpy.maximum(rounded[nonzero] / rounded.sum(), 1e-12)
        loss = float((p * numpy.log(p / q)).sum())
        if loss < least:
            best, least = bins, loss
    return best


def _squared_errors(counts: Any) -> Any:
    """Return for 1, 2, ... bins as a range the sum of squared errors, in bins: of clipping the sizes beyond, and of rounding the others to `LEVELS` sizes."""
    import numpy

    middles, ends = numpy.arange(_BINS) + 0.5, numpy.arange(1.0, _BINS + 1)
    beyond = [sums.sum() - sums.cumsum() for sums in (counts, counts * middles, counts * middles**2)]
    clipped = beyond[2] - 2 * ends * beyond[1] + ends**2 * beyond[0]
    return clipped + counts.cumsum() * (ends / LEVELS) ** 2 / 12
