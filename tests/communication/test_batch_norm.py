"""sync_batch_norm over the parts of a batch is batch_norm over the whole: values, moving statistics and gradients. Ranks are threads here."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from foreshape.language.operator import get
from foreshape.language.operator.operator import Operator

CHANNELS = 3


class Threads:
    """Ranks that are threads: each adds what all of them give."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.given: dict[int, torch.Tensor] = {}
        self.meeting = threading.Barrier(ranks)
        self.own = threading.local()

    def sum(self, tensor: torch.Tensor, what: str) -> None:
        self.given[self.own.rank] = tensor.clone()
        self.meeting.wait()
        total = torch.stack([self.given[r] for r in range(self.ranks)]).sum(0)
        self.meeting.wait()
        tensor.copy_(total)

    def run(self, one: Any) -> list[Any]:
        """What each rank makes."""
        made: list[Any] = [None] * self.ranks

        def go(rank: int) -> None:
            self.own.rank = rank
            made[rank] = one(rank)

        threads = [threading.Thread(target=go, args=(rank,)) for rank in range(self.ranks)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return made


def bound(type: str, **attributes: Any) -> tuple[Operator, Operator]:
    """An operator and its gradient."""
    cls = get(type)
    values = {name: attributes.get(name, a.default) for name, a in cls.schema.attributes.items()}
    assert cls.grad_class is not None
    return cls.with_values(values), cls.grad_class.with_values(values)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("mean", [0.0, 1e4])
@pytest.mark.parametrize(("parts", "affine"), [((2, 4), True), ((1, 0, 5), True), ((6, 0), True), ((1, 0, 5), False)])
def test_parts_are_normalised_as_the_whole(parts: tuple[int, ...], affine: bool, mean: float, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    dims = (6, CHANNELS, 4, 2) if layout == "NCHW" else (6, 4, 2, CHANNELS)
    x, d = torch.randn(dims, dtype=torch.float64) + mean, torch.randn(dims, dtype=torch.float64)
    given = [torch.rand(CHANNELS, dtype=torch.float64) for _ in range(4)]
    moving, variance, *learned = given
    scale, bias = learned if affine else (None, None)
    moving += mean
    forward, backward = bound("batch_norm", data_layout=layout, momentum=0.7)
    held = moving.clone(), variance.clone()
    want = forward.kernel(x, scale, bias, *held, None, requested=(True,) * 6)
    want_gradients = backward.kernel(x, scale, bias, *held, want[3], want[4], None, d, None, None, requested=(True,) * 3)

    ranks = Threads(len(parts))
    over, over_backward = bound("sync_batch_norm", data_layout=layout, momentum=0.7)
    for one in (type(over), type(over_backward)):
        monkeypatch.setattr(one, "_team", lambda self: ranks)
    starts = [sum(parts[:k]) for k in range(len(parts))]

    def rank(number: int) -> Any:
        part = slice(starts[number], starts[number] + parts[number])
        counts = torch.ones(1)
        own_x, own_d = x[part], d[part]
        if not parts[number]:  # an example that counts nothing, whatever it is
            counts, own_x, own_d = torch.zeros(1), torch.full_like(x[:1], 7.0), torch.zeros_like(d[:1])
        own = moving.clone(), variance.clone()
        made = over.kernel(own_x, scale, bias, *own, None, counts, requested=(True,) * 6)
        return made, over_backward.kernel(own_x, scale, bias, *own, made[3], made[4], counts, own_d, requested=(True,) * 3)

    found = ranks.run(rank)
    near: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-9 * max(1.0, mean * 1e-3)}
    counting = [made for made, n in zip(found, parts, strict=True) if n]
    torch.testing.assert_close(torch.cat([made[0][0] for made in counting]), want[0], **near)
    torch.testing.assert_close(torch.cat([made[1][0] for made in counting]), want_gradients[0], **near)
    for at in range(1, 5):  # moving and saved statistics are alike on all ranks
        for made, _ in found:
            torch.testing.assert_close(made[at], want[at], **near)
    for at in (1, 2) if affine else ():
        torch.testing.assert_close(sum(gradients[at] for _, gradients in found), want_gradients[at], **near)
    for (_, gradients), n in zip(found, parts, strict=True):
        assert n or not gradients[0].any(), "what is in no mean has no part in its gradient"
