"""A step of one of many ranks on a clock: when kernels run, when messages start, how long the rank waits for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from foreshape.compiler.cost.calls import NumericSizes
from foreshape.compiler.cost.collectives import Message
from foreshape.compiler.cost.device import Device, step_time
from foreshape.compiler.cost.events import Compute, Item, Start, TimedStep, Wait, run
from foreshape.compiler.cost.network import Network
from foreshape.compiler.cost.predict import StepTime
from foreshape.compiler.lowering import Step


@dataclass(frozen=True, slots=True)
class Timeline:
    """The predicted step of one rank.

    ``items``: the rank's work, in order. ``durations``: the seconds of each message on the links; ``members``: the number of ranks of each.
    """

    step: StepTime
    items: list[Item]
    durations: list[float]
    members: list[int]
    run: TimedStep

    @property
    def seconds(self) -> float:
        """Return the whole step."""
        return self.run.seconds

    @property
    def computing(self) -> float:
        """Return the seconds of kernels, and of the rest of a step."""
        return self.step.seconds

    @property
    def communicating(self) -> float:
        """Return the seconds with messages on the links."""
        return sum(self.durations)

    @property
    def exposed(self) -> float:
        """Return the rank's seconds of waiting for messages."""
        return self.run.waited

    @property
    def hidden(self) -> float:
        """Return the share of the communication that passes while the rank computes."""
        return max(0.0, 1 - self.exposed / self.communicating) if self.communicating else 1.0


def timeline(lowered: Step, messages: Sequence[Message], values: Mapping[str, int], members: Sequence[int], device: Device, network: Network) -> Timeline:
    """Predict a step on ranks of equal speed.

    Args:
        values: of the symbols, each rank's part of divided ones.
        members: for each message, its number of ranks.
    """
    step = step_time(lowered, values, device)
    sizes = NumericSizes(dict(values))
    counts = [sizes.number(m.size) for m in messages]
    rated = list(zip([m.way for m in messages], counts, members, strict=True))
    items = items_of(step, messages, [network.occupying(*message) for message in rated])
    durations = [network.seconds(*message) for message in rated]
    return Timeline(step, items, durations, list(members), run(items, durations))


def items_of(step: StepTime, messages: Sequence[Message], occupied: Sequence[float]) -> list[Item]:
    """Return a step as computing, starting messages and waiting for them. Successive computing is one item.

    Args:
        occupied: for each message its seconds of the rank's computing, unless the rank waits for it anyway.
    """
    started: dict[int, list[int]] = {}
    for index, m in enumerate(messages):
        started.setdefault(id(m.op), []).append(index)
    makers = {name: index for index, m in enumerate(messages) for name in m.op.output_names() if name}
    out: list[Item] = []
    begun: set[int] = set()
    come: set[int] = set()
    together = step.besides

    def then(item: Item) -> None:
        nonlocal together
        if together:
            out.append(Compute(together))
            together = 0.0
        out.append(item)

    for timed in step.calls:
        op = timed.instruction.op
        for name in op.input_names():
            index = makers.get(name, -1)
            if index in begun and index not in come:
                come.add(index)
                then(Wait(index))
        together += timed.seconds
        for index in started.pop(id(op.whole), ()):
            begun.add(index)
            then(Start(index))
            if messages[index].waits:
                come.add(index)
                then(Wait(index))
            else:
                together += occupied[index]
    if together:
        out.append(Compute(together))
    out += [Wait(index) for index in sorted(begun - come)]
    return out
