"""Examples held out of the training data for validation."""

from __future__ import annotations

from foreshape.errors import FeedError
from foreshape.program import Program
from foreshape.training.data.batches import Arrays, Data, rows_of


def split(data: Data, share: float, program: Program) -> tuple[Data, Data]:
    """Divide examples into training and validation data.

    Args:
        data: arrays, columns or a table.
        share: the fraction of examples held out, rounded, at least one.
            They are drawn by the seed of the data, or are the last ones of data without shuffling.
        program: has the inputs.

    Raises:
        FeedError: a share not between 0 and 1 or leaving no examples; batches, or a data set read on demand.
    """
    import numpy

    if isinstance(share, bool) or not 0 < share < 1:
        raise FeedError.must("validation= as a share of the examples", "between 0 and 1", f"{share!r}")
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
