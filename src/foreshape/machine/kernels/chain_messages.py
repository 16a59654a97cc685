"""Forward and backward messages of linear chains, over all sequences at once, a time step at a time while the batch shrinks.

Rows stand in the order of `Offsets.by_time`. Messages are normalised probabilities in fp64, one matrix product a step; if even that underflows (the only path
is nearly impossible), they are computed again as logarithms. This costs ``tags * tags`` exponentials a row. `Chains.log` tells the two apart.
"""

from __future__ import annotations

from itertools import pairwise

from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch

_SMALLEST_NORM = -600.0
"""The logarithm of the smallest norm of an fp64 message whose flushed elements cannot matter."""


class Chains:
    """The potentials of a minibatch of chains: ``emission`` of each row by time, ``transition`` ``[tags + 2, tags]``. The latter has the weights of starting
    in row 0, of ending in row 1, and of tag i followed by tag j at ``[i + 2, j]``.

    Each is divided by its largest element against overflow; `emission_scale` (of each row) and `scales` (start, end, transition) are the logarithms of these.
    """

    def __init__(self, emission: Tensor, transition: Tensor, offsets: Offsets, log: bool = False) -> None:
        self.offsets, self.log = offsets, log
        x, w = emission.double(), transition.double()
        self.emission_scale = x.amax(1)
        parts = (w[0], w[1], w[2:])
        self.scales = [p.amax() for p in parts]
        x = x - self.emission_scale.unsqueeze(1)
        start, end, inner = (p - s for p, s in zip(parts, self.scales, strict=True))
        self.x, self.start, self.end, self.inner = (x, start, end, inner) if log else (x.exp(), start.exp(), end.exp(), inner.exp())
        starts = [0]
        for alive in offsets.alive:
            starts.append(starts[-1] + alive)
        self.spans = list(pairwise(starts))
        """The range of the rows of each time step."""

    def forward(self) -> tuple[Tensor, Tensor]:
        """Return of every row the message from the rows before it and its own emission, normalised ``[rows, tags]``, and the logarithm of its norm
        ``[rows]``.
        """
        out = torch.empty_like(self.x)
        norms = self.x.new_empty(len(self.x))
        before = 0
        for t, (a, b) in enumerate(self.spans):
            came = self._product(out[before : before + b - a], self.inner) if t else self.start
            self._normalise(self._combined(came, self.x[a:b]), out[a:b], norms[a:b])
            before = a
        return out, norms

    def backward(self) -> tuple[Tensor, Tensor]:
        """Return of every row the message from the rows after it, normalised ``[rows, tags]``, and the logarithm of its norm ``[rows]``."""
        out = torch.empty_like(self.x)
        norms = self.x.new_empty(len(self.x))
        after = (0, 0)
        for a, b in reversed(self.spans):
            goes_on = after[1] - after[0]
            if goes_on:
                next_rows = slice(*after)
                came = self._product(self._combined(out[next_rows], self.x[next_rows]), self.inner.t())
                self._normalise(came, out[a : a + goes_on], norms[a : a + goes_on])
            if a + goes_on < b:
                self._normalise(self.end.expand(b - a - goes_on, -1), out[a + goes_on : b], norms[a + goes_on : b])
            after = (a, b)
        return out, norms

    def total(self, last: Tensor) -> Tensor:
        """Return the logarithm of the sum over the end tags of a forward message."""
        return torch.logsumexp(last + self.end, 1) if self.log else (last @ self.end).log()

    def safe(self, norms: Tensor) -> bool:
        """Return True if no message lost significant weight."""
        return self.log or bool((norms > _SMALLEST_NORM).all())

    def marginals(self, forward: Tensor, backward: Tensor) -> tuple[Tensor, Tensor]:
        """Return of every row the probability of each tag ``[rows, tags]``, and the logarithm of the norm ``[rows]``."""
        out, norms = torch.empty_like(self.x), self.x.new_empty(len(self.x))
        self._normalise(self._combined(forward, backward), out, norms)
        return (out.exp_() if self.log else out), norms

    def pairs(self, forward: Tensor, backward: Tensor, norms: Tensor, weight: Tensor) -> Tensor:
        """Return the expected number of times that tag i is followed by tag j ``[tags, tags]``, each row counted ``weight`` times.

        Args:
            norms: of every row the logarithm of the norm of forward * backward * (the norm of ``backward``).
        """
        if len(self.spans) < 2:
            return self.x.new_zeros(self.inner.shape)
        first = self.spans[1][0]
        before = self.offsets.kept("row before, by time", self._rows_before)
        goes = self._combined(self.x[first:], backward[first:])
        norms, weight = norms[before], weight[first:]
        if not self.log:
            came = forward[before] * (weight * (-norms).exp()).unsqueeze(1)
            return (came.t() @ goes).mul_(self.inner)
        out = self.x.new_zeros(self.inner.shape)
        came = forward[before] - norms.unsqueeze(1)
        for a, b in self.spans[1:]:
            step = slice(a - first, b - first)
            part = came[step].unsqueeze(2) + self.inner + goes[step].unsqueeze(1)
            out += (part.exp_() * weight[step, None, None]).sum(0)
        return out

    def _rows_before(self) -> Tensor:
        alive = torch.tensor(self.offsets.alive, device=self.x.device)
        return torch.arange(int(alive[0]), len(self.x), device=self.x.device) - alive[:-1].repeat_interleave(alive[1:])

    def _product(self, a: Tensor, matrix: Tensor) -> Tensor:
        return torch.logsumexp(a.unsqueeze(2) + matrix, 1) if self.log else a @ matrix

    def _combined(self, a: Tensor, b: Tensor) -> Tensor:
        return a + b if self.log else a * b

    def _normalise(self, a: Tensor, out: Tensor, norms: Tensor) -> None:
        if self.log:
            norm = torch.logsumexp(a, 1, keepdim=True)
            torch.sub(a, norm, out=out)
            norms.copy_(norm.squeeze(1))
        else:
            norm = a.sum(1, keepdim=True)
            torch.div(a, norm, out=out)
            torch.log(norm.squeeze(1), out=norms)


def best_paths(emission: Tensor, transition: Tensor, offsets: Offsets) -> Tensor:
    """Return the tags of the path with the largest sum of weights (Viterbi), by time: int64 ``[rows]``. Of equal ones the first tag."""
    rows = len(emission)
    out = torch.empty(rows, dtype=torch.int64, device=emission.device)
    if not rows:
        return out
    alive = offsets.alive
    inner = transition[2:]
    score = transition[0] + emission[: alive[0]]
    came: list[Tensor] = []
    at = alive[0]
    for n in alive[1:]:
        best, tag = (score[:n].unsqueeze(2) + inner).max(1)
        torch.add(best, emission[at : at + n], out=score[:n])
        came.append(tag)
        at += n
    tag = (score + transition[1]).argmax(1)
    for n, before in zip(reversed(alive[1:]), reversed(came), strict=True):
        at -= n
        out[at : at + n] = tag[:n]
        tag[:n] = before.gather(1, tag[:n].unsqueeze(1)).squeeze(1)
    out[:at] = tag
    return out
