"""Questions about sizes that a network's code answers in two ways with the same results, as padding by nothing and no padding.

A trace goes one way, and so takes a part of the sizes: multiples of a window, say. The network is imported without these demands, as it was traced and as
traced at sizes of the other way. An import whose results at sizes of both ways are the module's own is kept; otherwise the first one, with its demands.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from foreshape.core.dims import Size, evaluate, symbols_of
from foreshape.errors import ForeshapeError, ShapeError
from foreshape.interop.torch.exporting import LARGER, resized
from foreshape.interop.torch.torch_importer import TorchImporter
from foreshape.interop.torch.traced_guards import demands_of
from foreshape.interop.torch.untyped_torch import pytree, torch
from foreshape.interop.torch.with_loss import mode_of_test
from foreshape.language.program.call_site import Site

_FAR: Final = 130
"""A question whose answer depends on a remainder has each answer twice within so many sizes."""
_TRIED: Final = 1000
_RUNS: Final = 9
_NEAR: Final = 1e-4


Demand = tuple[Size, str, Size]


class Questions(NamedTuple):
    """Questions about remainders.

    Attributes:
        demands: the answers of the trace, each as left, relation and right; and its line.
        sizes: name -> sizes near the example's, of both answers.
    """

    demands: dict[Demand, Site]
    sizes: dict[str, list[int]]

    @property
    def sites(self) -> frozenset[Site]:
        """Return the lines."""
        return frozenset(self.demands.values())

    def elsewhere(self, example: Mapping[str, int], times: int) -> tuple[dict[str, int], Questions]:
        """Return sizes to trace at, of most other answers, and the questions with these.

        Sizes are given as name -> what is added to a size so many times the example's.
        """
        found: dict[frozenset[Demand], dict[str, int]] = {}
        for more in itertools.islice(itertools.product(*(range(1 + max(of) - example[name]) for name, of in self.sizes.items())), _TRIED):
            added = dict(zip(self.sizes, more, strict=True))
            sizes = {name: n * times + added.get(name, 0) for name, n in example.items()}
            found.setdefault(frozenset(one for one in self.demands if not holds(one, sizes)), added)
        some = max(found, key=len)
        return found[some], _questions({one: site for one, site in self.demands.items() if one in some}, example)


def holds(demand: Demand, sizes: Mapping[str, int]) -> bool:
    """Tell whether a demand holds for sizes; one without a value does not."""
    left, relation, right = demand
    try:
        a, b = evaluate(left, sizes), evaluate(right, sizes)
    except ShapeError:  # as a division by a size that is zero
        return False
    return b % a == 0 if relation == "divides" else a == b if relation == "==" else a <= b


def questions(importer: TorchImporter) -> Questions | None:
    """Return the questions about remainders of a trace; None without any."""
    example = importer.sizes
    demands: dict[Demand, Site] = {}
    for guard in importer.given_guards:
        for demand in (demands_of(guard, importer.symbols) or []) if guard.own and guard.site is not None else []:
            names = symbols_of(demand[0]) | symbols_of(demand[2])
            if names <= example.keys() and demand not in demands and any(_alternates(demand, example, name) for name in names):
                demands[demand] = guard.site
    return _questions(demands, example) if demands else None


def _questions(demands: dict[Demand, Site], example: Mapping[str, int]) -> Questions:
    of = {name: [one for one in demands if name in symbols_of(one[0]) | symbols_of(one[2])] for name in example}
    return Questions(demands, {name: _near(some, example, name) for name, some in of.items() if some})


def _alternates(demand: Demand, example: Mapping[str, int], name: str) -> bool:
    answers = [holds(demand, {**example, name: example[name] + more}) for more in range(_FAR)]
    return sum(a != b for a, b in itertools.pairwise(answers)) >= 3


def _near(demands: Sequence[Demand], example: Mapping[str, int], name: str) -> list[int]:
    """Return sizes near the example's: the next one, one of other answers to all questions, and one of the example's answers."""
    first = example[name]

    def answers(size: int) -> list[bool]:
        return [holds(one, {**example, name: size}) for one in demands]

    sizes = range(first + 1, first + _FAR)
    others = max(sizes, key=lambda size: (sum(a != b for a, b in zip(answers(size), answers(first), strict=True)), -size))
    again = next((size for size in sizes if answers(size) == answers(first)), first)
    return list(dict.fromkeys((first, others, again, first + 1)))


def of_either_way(
    first: TorchImporter,
    imported: Callable[[dict[str, int], Collection[Site]], tuple[Any, TorchImporter]],
    module: Any,
    inputs: Sequence[Any],
    as_test: Callable[[Any, TorchImporter], Callable[..., Any]],
) -> tuple[Any, TorchImporter] | None:
    """Return a graph and its import without demands on remainders; None if there are none, or results differ.

    Args:
        first: with all demands.
        imported: gives the import of a trace at larger sizes, without the demands of some lines; by the first trace where nothing is added to sizes.
        as_test: makes a network of an import, to be called as the module in torch's ``eval`` mode.
    """
    asked = questions(first)
    if asked is None:
        return None
    for more, some in (({}, asked), asked.elsewhere(first.sizes, LARGER[0])):
        if not some.demands:  # no size near these has other answers
            continue
        try:
            exported, importer = imported(more, some.sites)
        except ForeshapeError:  # the module takes no sizes of the other way
            continue
        opened = importer.sizes.keys() == first.sizes.keys()
        if opened and not importer.missing and _agrees(module, inputs, some, importer, as_test(exported, importer)):
            return exported, importer
    return None


def _agrees(module: Any, inputs: Sequence[Any], asked: Questions, importer: TorchImporter, run: Callable[..., Any]) -> bool:
    """Tell whether an import gives the module's results for sizes of all answers."""
    example, alone = importer.sizes, copy.deepcopy(module)
    answered: set[tuple[int, bool]] = set()
    compared = 0
    limits = [guard.condition for guard in importer.program.guard_list()]
    for chosen in itertools.islice(itertools.product(*asked.sizes.values()), 4**3):
        sizes = {**example, **dict(zip(asked.sizes, chosen, strict=True))}
        answers = {(at, holds(one, sizes)) for at, one in enumerate(asked.demands)}
        if compared >= _RUNS:
            break
        if answers <= answered and compared >= len(asked.sizes) + 2:
            continue
        given = _of_sizes(inputs, importer.axes, example, sizes)
        try:
            with mode_of_test(alone), torch.no_grad():
                wanted = alone(*copy.deepcopy(given))
        except Exception:  # the module's own: it takes no such sizes
            continue
        if any(one.answer(sizes) is False for one in limits if one.symbols <= sizes.keys()):
            return False
        try:
            found = run(*given)
        except ForeshapeError:
            return False
        if not _equal(wanted, found):
            return False
        compared, answered = compared + 1, answered | answers
    return answered == {(at, answer) for at in range(len(asked.demands)) for answer in (True, False)}


def _of_sizes(inputs: Sequence[Any], axes: Sequence[Mapping[int, str]], example: Mapping[str, int], sizes: Mapping[str, int]) -> tuple[Any, ...]:
    leaves, tree = pytree().tree_flatten(tuple(inputs))
    left = list(axes)
    return pytree().tree_unflatten([resized(one, left.pop(0), sizes) if isinstance(one, torch.Tensor) else one for one in leaves], tree)


def _equal(wanted: Any, found: Any) -> bool:
    """Tell whether results are equal, within the rounding of their largest numbers."""
    pairs = zip(*(pytree().tree_leaves(one) for one in (wanted, found)), strict=False)
    for a, b in pairs:
        if not isinstance(a, torch.Tensor):
            continue
        if a.shape != b.shape:
            return False
        a, b = a.to(torch.complex128 if a.is_complex() else torch.float64), b.to(torch.complex128 if b.is_complex() else torch.float64)
        finite = a[a.isfinite()].abs()
        near = _NEAR * (float(finite.max()) if finite.numel() else 0.0)
        if not torch.allclose(a, b, rtol=0.0, atol=near, equal_nan=True):
            return False
    return True


def is_plain(inputs: Sequence[Any]) -> bool:
    """Tell whether all tensors are dense ones of one place each."""
    leaves: Collection[Any] = pytree().tree_leaves(tuple(inputs))
    return all(type(one) in (torch.Tensor, torch.nn.Parameter) and not one.is_nested for one in leaves if isinstance(one, torch.Tensor))
