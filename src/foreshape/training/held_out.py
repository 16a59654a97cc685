"""Examples that are held out of the data of a training, to validate it with."""

from __future__ import annotations

from foreshape.errors import FeedError
from foreshape.program import Program
from foreshape.training.data import Arrays, Data, rows_of


def split(data: Data, share: float, program: Program) -> tuple[Data, Data]:
    """Divide examples into those to train on and those to validate with.

    Args:
        data: arrays, columns or a table.
        share: of the examples that are held out, rounded, at least one: drawn by the seed of the data, or the last ones where these are not shuffled.
        program: whose inputs the data are for.

    Raises:
        FeedError: a share that is not between 0 and 1 or leaves no examples; data that are batches, or a data set that is read as it is needed.
    """
    import numpy

    if isinstance(share, bool) or not 0 < share < 1:
        raise FeedError(f"validation= as a share of the examples must be between 0 and 1; seen {share!r}")
    if not isinstance(data, Arrays):
        raise FeedError("a share of the examples can be held out for validation= where the data are arrays or a table; these come in batches, or are read as "
                        "they are needed: give validation data of their own")  # fmt: skip
    count = max(1, round(share * data.count))
    if count == data.count:
        raise FeedError(f"validation={share!r} leaves none of the {data.count} examples to train on")
    order = numpy.random.Generator(numpy.random.PCG64(data.seed)).permutation(data.count) if data.shuffle else numpy.arange(data.count)

    def part(rows: numpy.ndarray, shuffle: bool) -> Arrays:
        return Arrays({name: rows_of(a, numpy.sort(rows)) for name, a in data.arrays.items()}, data.batch_size, shuffle, data.seed, program)

    return part(order[:-count], data.shuffle), part(order[-count:], False)
