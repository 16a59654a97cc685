"""Classes and rows of which each rank has a part give what the whole gives. Ranks are threads here."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.language.operator import get
from foreshape.language.ops.collective.elsewhere import ELSEWHERE


class Threads:
    """Ranks that are threads: what one gives, all have."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.given: dict[int, torch.Tensor] = {}
        self.meeting = threading.Barrier(ranks, timeout=60)
        self.own = threading.local()

    @property
    def rank(self) -> int:
        return self.own.rank

    def sum(self, tensor: torch.Tensor, what: str) -> None:
        self.reduce(tensor, "sum", what)

    def reduce(self, tensor: torch.Tensor, how: str, what: str) -> None:
        self.given[self.rank] = tensor.clone()
        self.meeting.wait()
        all_of = torch.stack([self.given[r] for r in range(self.ranks)])
        self.meeting.wait()
        tensor.copy_(all_of.sum(0) if how == "sum" else all_of.amax(0))

    def run(self, one: Any) -> list[Any]:
        """What each rank makes."""
        made: list[Any] = [None] * self.ranks

        def go(rank: int) -> None:
            self.own.rank = rank
            try:
                made[rank] = one(rank)
            except fs.ExecutionError as error:
                made[rank] = error
                self.meeting.abort()

        threads = [threading.Thread(target=go, args=(rank,)) for rank in range(self.ranks)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        return made


def bound(type: str, **attributes: Any) -> Any:
    cls = get(type)
    return cls.with_values({name: attributes.get(name, a.default) for name, a in cls.schema.attributes.items()})


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("shift", [0.0, 1e4])
def test_the_loss_over_parts_of_the_classes_is_that_over_all(ranks: int, shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    logits = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    label = torch.tensor([[0], [5], [3], [-7], [2]])
    d = torch.randn(5, 1, dtype=torch.float64)
    want = torch.nn.functional.cross_entropy(logits, label[:, 0], ignore_index=-7, reduction="none")
    (want_gradient,) = torch.autograd.grad(want, logits, d[:, 0])
    forward, backward = (bound(f"c_softmax_with_cross_entropy{e}", ignore_index=-7) for e in ("", "_grad"))
    team = Threads(ranks)
    for one in (forward, backward):
        monkeypatch.setattr(type(one), "_team", lambda self: team)
    parts = (logits.detach() + shift).chunk(ranks, 1)

    def rank(number: int) -> Any:
        softmax, loss = forward.kernel(parts[number], label)
        return softmax, loss, backward.kernel(softmax, label, d)

    found = team.run(rank)
    near = {"rtol": 1e-9, "atol": 1e-9 * max(1.0, shift * 1e-3)}
    for _, loss, _ in found:
        torch.testing.assert_close(loss[:, 0], want.detach(), **near)
    torch.testing.assert_close(torch.cat([one[0] for one in found], 1), torch.softmax(logits.detach(), 1), **near)
    torch.testing.assert_close(torch.cat([one[2] for one in found], 1), want_gradient, **near)


def test_a_label_that_no_rank_has_is_refused() -> None:
    with pytest.raises(fs.ExecutionError, match=r"Label must be in \[0, 4\), the classes of all ranks, or -100; seen 0 to 4"):
        bound("c_softmax_with_cross_entropy").kernel(torch.zeros(2, 4), torch.tensor([[0], [4]]))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_rows_of_all_ranks_add_up_to_the_lookup(ranks: int) -> None:
    table, ids = torch.randn(8, 3), torch.tensor([[0, 7], [3, 4], [3, 1]])
    d = torch.randn(3, 2, 3)
    each = 8 // ranks
    lookups = [bound("c_embedding", start_index=r * each, vocab_size=8) for r in range(ranks)]
    found = sum(one.kernel(part, ids) for one, part in zip(lookups, table.chunk(ranks), strict=True))
    torch.testing.assert_close(found, table[ids])
    gradients = [bound("c_embedding_grad", start_index=r * each).kernel(ids, d, part) for r, part in enumerate(table.chunk(ranks))]
    want = torch.zeros(8, 3).index_add_(0, ids.reshape(-1), d.reshape(-1, 3))
    torch.testing.assert_close(torch.cat(gradients), want)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_what_has_no_place_here_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(fs.SchemaError) as error:
        get(name)
    assert str(error.value) == f"there can be no operator {name!r} here: {ELSEWHERE[name]}"


def test_a_program_with_stages_says_why_it_does_not_run() -> None:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        program.global_block.apply("c_split", {"X": layer.data("x", input_size=2)})
    read = fs.Program.from_bytes(program.to_bytes().replace(b"c_split", b"send_v2"))
    with pytest.raises(fs.ExecutionError, match="'send_v2' cannot run here: it is of a program that is cut into stages for ranks"):
        fs.Executor().run(read, {"x": np.zeros((1, 2), np.float32)}, [next(iter(read.global_block.ops[0].output_names()))])
