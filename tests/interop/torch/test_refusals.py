"""Refusals of modules and inputs in words: the line, the size by its name, and what to change; and what a trace leaves in a module."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foreshape as fs
from foreshape.interop.torch.torch_model import from_torch

X = torch.ones(4, 3)
PLACES = torch.tensor([[0, 1, 2], [3, 0, 1]])


def module(forward: Callable[..., Any]) -> nn.Module:
    return type("Network", (nn.Module,), {"forward": lambda self, *given: forward(*given)})()


class Keyword(nn.Module):
    def forward(self, x: torch.Tensor, *, scale: float) -> torch.Tensor:
        return x * scale


class Pair(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def sparse(x: torch.Tensor) -> torch.Tensor:
    return torch.sparse_coo_tensor(PLACES, x[0], (4, 4))


def rounds(x: torch.Tensor) -> torch.Tensor:
    for _ in range(int(x[0, 0])):
        x = x + 1
    return x


def halves(x: torch.Tensor) -> torch.Tensor:
    while x.norm() > 1:
        x = x / 2
    return x


def drawn(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand(3, generator=torch.Generator().manual_seed(random.randrange(9)))


VALUES = "depends on values, which are not known before a run: torch.cond or torch.where"
TAKEN = "tensors, numbers, texts and None, in tuples, lists and dicts"
CASES: dict[str, tuple[Any, Any, Any, str]] = {
    "nested": (nn.Linear(3, 2), torch.nested.nested_tensor([X, X[:2]]), None, r"layout torch\.jagged.*of the layout torch\.strided"),
    "loop": (module(rounds), X, None, rf"(?s)at for _ in range\(int\(x\[0, 0\]\)\):    test_refusals.py:\d+.*{VALUES}"),
    "while": (module(halves), X, None, rf"(?s)at while x.norm\(\) > 1:    test_refusals.py.*{VALUES}"),
    "wrong sizes": (module(lambda x: x @ torch.ones(5, 2)), X, None, r"(?s)got \[batch, 3\] X \[5, 2\].*test_refusals.py"),
    "numpy": (module(lambda x: torch.from_numpy(np.sin(x.numpy()))), X, None, r"(?s)test_refusals.py.*NumPy's functions are not recorded"),
    "name": (module(lambda x: x + unknown), X, None, r"(?s)name 'unknown' is not defined\s+at .*test_refusals.py"),  # type: ignore[name-defined]  # noqa: F821
    "object result": (module(lambda x: object()), X, None, r"(?s)in output.*inputs and results are tensors, in tuples, lists and dicts"),
    "generator": (module(drawn), X, None, r"an object of Python, as a torch.Generator, which has no form here"),
    "keyword": (Keyword(), X, None, r"arguments of forward\(.*by place; seen 1, and missing.*'scale'; scale can be given by name alone"),
    "missing": (Pair(), X, None, r"arguments of forward\(.*seen 1, and missing a required argument: 'y'"),
    "too many": (Pair(), (X, X, X), None, r"seen 3, and too many positional arguments"),
    "object": (Pair(), (X, random), None, rf"{TAKEN}; seen a module"),
    "set": (Pair(), (X, {X}), None, rf"{TAKEN}; seen a set"),
    "array": (Pair(), (X, np.ones(3)), None, rf"{TAKEN}; torch.as_tensor makes one of an array; seen a numpy.ndarray"),
    "sparse": (Pair(), (X, X.to_sparse()), None, r"dense tensors: x.to_dense\(\) makes one; seen one of the layout torch.sparse_coo"),
    "function": (torch.relu, X, None, r"an nn.Module, an ExportedProgram or the path of a .pt2; seen a builtin"),
    "device": (nn.Linear(3, 3, device="meta"), X, None, r"must lie on one device"),
    "text for axes": (Pair(), (X, X), ("batch", None), r"None or a mapping of axes to names for the input 0.*seen batch"),
    "axis": (Pair(), (X, X), ({2: "batch"}, None), r"the input 0 has 2 dims; seen axis 2"),
    "two sizes": (Pair(), (X, X[:1]), ({0: "n"}, {0: "n"}), r"n is 4 at axis 0 of the input 0, and 1 at axis 0 of the input 1"),
    "sum of sparse": (module(lambda x: torch.sparse.sum(sparse(x), 1)), X, None, r"the sum of a sparse matrix along an axis"),
    "function of sparse": (module(lambda x: torch.sparse.softmax(sparse(x), 1)), X, None, r"torch.sparse_softmax has no form here for a sparse matrix"),
    "product of sparse": (module(lambda x: sparse(x) @ sparse(x)), X, None, r"with a dense matrix or vector; seen a sparse matrix of \[4, 4\]"),
    "size of sparse": (module(lambda x: torch.sparse_coo_tensor(PLACES, x[0]) @ x), X, None, r"sparse_coo_tensor without a size"),
    "changed": (module(lambda x: x[:, 0].mul_(2)), X, None, r"the network changes .* in each call, an input or a parameter: give it a copy"),
}


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize("name", CASES)
def test_a_refusal_says_where_and_what_to_change(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    network, inputs, dynamic, words = CASES[name]
    with pytest.raises(fs.SchemaError, match=words):
        from_torch(network, inputs, dynamic)
    assert capfd.readouterr() == ("", ""), "torch prints nothing beside it"


class Counting(nn.Module):
    """Keeps in Python what a call leaves: a count, lists, and its last tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.kept, self.by_name = 0, [1], {"a": 2}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.kept.append(x)  # type: ignore[arg-type]
        self.by_name["a"] = self.last = x  # type: ignore[assignment]
        return x * self.calls


def test_an_import_leaves_the_module_as_it_was_and_tells_of_numbers_that_it_counts() -> None:
    network = Counting()
    with pytest.warns(fs.ForeshapeWarning, match=r"changes numbers or tensors of Python in its calls.*Counting.calls from 0 to 1    test_refusals.py:\d+"):
        from_torch(network, X)
    assert (network.calls, network.kept, network.by_name, hasattr(network, "last")) == (0, [1], {"a": 2}, False)


def test_a_value_kept_for_a_reader_is_not_told_beside_a_count() -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count, self.last = 0, None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last: Any = x.mean()
            self.count += 1
            return x * self.count

    with pytest.warns(fs.ForeshapeWarning) as warned:
        from_torch(Kept(), X)
    words = " ".join(str(one.message) for one in warned)
    assert "Kept.count from 0 to 1" in words and "Kept.last" not in words


class Inner(nn.Module):
    """Puts another tensor into its attributes in each call."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times, self.kept = times, torch.zeros(3)
        self.register_buffer("held", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.kept + self.held
        self.held = (self.held + 1.0).repeat(self.times)
        self.kept = self.kept + 1.0
        return y


def test_tensors_put_into_attributes_are_buffers_of_the_same_shape_or_told() -> None:
    network = nn.Sequential(nn.Identity(), Inner(1))
    with pytest.warns(fs.ForeshapeWarning, match=r"Inner.kept, a tensor that is no buffer    test_refusals.py:\d+"):
        model = from_torch(network, X)
    assert [float(model(torch.zeros(1, 3)).mean()) for _ in range(3)] == [0.0, 1.0, 2.0]
    with pytest.raises(fs.SchemaError, match=r"the buffer 1.held must be torch.float32 of \[3\] in each call; seen torch.float32 of \[6\]"):
        from_torch(nn.Sequential(nn.Identity(), Inner(2)), X)


def test_an_input_that_is_no_tensor_is_fixed_and_another_one_is_refused() -> None:
    class Scaled(nn.Module):
        def forward(self, x: torch.Tensor, times: int, mode: str, more: Any) -> torch.Tensor:
            return x * times if mode == "up" else x / times

    model = from_torch(Scaled(), (X, 3, "up", None))
    torch.testing.assert_close(model(X, 3, "up", None), X * 3)
    torch.testing.assert_close(model(X), X * 3)
    assert [value for _, value in model.constants] == [3, "up", None]
    for given, words in (((X, 4, "up", None), "times = 3; seen 4"), ((X, 3, "down", None), "mode = 'up'; seen 'down'"), ((X, 3.0, "up", None), "seen 3.0")):
        with pytest.raises(fs.FeedError, match=words):
            model(*given)


def test_a_list_of_names_is_one_for_each_axis() -> None:
    model = from_torch(Pair(), (X, X), (["batch", None], {0: "batch"}))
    assert repr(model) == "TorchModel(x: f32[batch, 3], y: f32[batch, 3] -> add: f32[batch, 3])"


@pytest.mark.long
def test_a_size_by_a_number_of_floats_is_missing_with_its_line() -> None:
    model = fs.from_torch(module(lambda x: torch.zeros(int(x.sum().item()))), X)
    with pytest.raises(fs.ExecutionError, match=r"test_refusals\.py:\d+\): a number of a tensor of floats"):
        model(X)
