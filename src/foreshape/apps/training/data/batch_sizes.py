"""The sizes of batches: their number, the examples of each, and networks described for batches of one size."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Protocol

from foreshape.apps.training.checkpoint.resume_check import Scalar
from foreshape.errors import FeedError
from foreshape.language.program import Program


class Ordered(Protocol):
    """Examples in an order, divided into batches."""

    count: int
    batch_size: int
    shuffle: bool
    seed: int
    drop_last: bool
    batches: int | None


def batches_of(count: int, batch_size: int, drop_last: bool) -> int:
    """Return the number of batches of an epoch. Raises `FeedError` if ``drop_last`` leaves none."""
    if drop_last and count < batch_size:
        raise FeedError(f"drop_last leaves none of the {count} examples: a batch_size of {batch_size} is larger")
    return count // batch_size if drop_last else -(-count // batch_size)


def chosen(data: Ordered, number: int, skip: int) -> Iterator[Any]:
    """Yield the numbers of the examples of each batch of an epoch: in order without shuffling."""
    import numpy

    order = numpy.random.Generator(numpy.random.PCG64([data.seed, number])).permutation(data.count) if data.shuffle else numpy.arange(data.count)
    for start in range(skip * data.batch_size, (data.batches or 0) * data.batch_size, data.batch_size):
        yield order[start : start + data.batch_size]


def order_facts(data: Ordered) -> dict[str, Scalar]:
    """Return the facts of the order of the examples for a resumed run."""
    facts: dict[str, Scalar] = {"examples": data.count, "batch_size": data.batch_size, "shuffle": data.shuffle, "seed": data.seed if data.shuffle else None}
    return facts | {"drop_last": True} if data.drop_last else facts


def check_sizes(data: Ordered, fed: Collection[str], program: Program, advice: str) -> None:
    """Refuse batches of another size than a network was described for, before the first of them runs.

    Args:
        data: the examples.
        fed: the inputs with data.
        program: the network.
        advice: the remedy for a smaller last batch, besides another batch size and a description for any.

    Raises:
        FeedError: an input is of a fixed number of examples, and some batch has another.
    """
    last = 0 if data.drop_last else data.count % data.batch_size
    for variable in (v for name in fed if (v := program.global_block.find(name)) is not None and v.need_check_feed):
        spec = variable.spec
        if spec.lod is not None or not spec.dims or not isinstance(size := spec.dims[0], int):
            continue
        site = variable.call_site
        description = f"{variable.name} is {spec.text()}{f', described at {site.short()},' if site is not None else ''} for batches of exactly {size}"
        anew = f"layer.data({variable.name!r}, {['batch', *spec.dims[1:]]}) takes any"
        if data.count >= data.batch_size != size:
            raise FeedError(f"{description}; batch_size is {data.batch_size}: batch_size={size} fits, or {anew}").told(
                slot="batch_size", required=size, seen=data.batch_size
            )
        if last and last != size:
            raise FeedError(
                f"{description}, and {data.count} examples in batches of {data.batch_size} leave a last batch of {last}: {advice}, a batch_size that divides "
                f"{data.count} has none, or {anew}"
            ).told(slot=variable.name, required=size, seen=last)
