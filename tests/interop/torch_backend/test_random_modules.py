"""Random graphs of torch's operators by ``torch.compile(..., backend="foreshape")`` against eager torch.

Compared are results, gradients, strides, memory in common and random numbers. A graph refused by eager torch is passed over. Nothing is asked of a graph that
torch's own backend "aot_eager" computes otherwise than eager torch.
"""

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from interop.torch_backend.test_compiled_modules import same, storages

Operator = tuple[int, Callable[..., Any]]
"""The number of operands, and the function."""
SHAPES: tuple[Callable[[int], tuple[int, ...]], ...] = (
    lambda b: (b, 5), lambda b: (b, 4, 6), lambda b: (b, 3, 6, 6), lambda b: (5, 6), lambda b: (), lambda b: (b,), lambda b: (b, 1), lambda b: (4, 4),
)  # fmt: skip


def in_place(write: Callable[..., Any]) -> Callable[..., Any]:
    def function(x: Any, *others: Any) -> Any:
        write(x, *others)
        return x

    return function


def places(x: Any, count: int) -> Any:
    """Return places below a count, by the numbers of a tensor."""
    numbers = x.detach().real if x.is_complex() else x.detach()
    return numbers.double().nan_to_num().abs().mul(7).long() % count


def weight(x: Any, *sizes: int) -> Any:
    return torch.full(sizes, 0.2, dtype=x.dtype)


ELEMENTWISE: tuple[Callable[..., Any], ...] = (
    torch.sin, torch.tanh, torch.sigmoid, torch.relu, torch.abs, torch.neg, torch.square, torch.erf, torch.floor, torch.sgn, torch.isnan, torch.logical_not,
    torch.clone, torch.detach, torch.angle, F.gelu, F.silu, F.mish, F.softplus, F.elu, F.hardswish, F.logsigmoid, F.leaky_relu, F.hardtanh, F.glu,
    lambda x: x * 2, lambda x: 1.5 - x, lambda x: 2 / (x.abs() + 1), lambda x: x.clamp(-1, 0.7), lambda x: torch.pow(2.0, x.clamp(-2, 2)), lambda x: x**2,
    lambda x: x // 2, lambda x: (x.abs() + 0.1).log(), lambda x: (x.abs() + 0.1).rsqrt(), lambda x: x.masked_fill(x > 0.3, 0.5),
)  # fmt: skip
BROADCAST: tuple[Callable[..., Any], ...] = (
    torch.add, torch.sub, torch.mul, torch.maximum, torch.atan2, torch.hypot, torch.logaddexp, torch.copysign, torch.eq, torch.lt, torch.logical_and,
    lambda x, y: torch.where(x > 0, x, y), lambda x, y: torch.lerp(x, y, 0.3), lambda x, y: torch.addcmul(x, x, y, value=2),
    lambda x, y: x / (y.abs() + 1), lambda x, y: torch.remainder(x, y.abs() + 1), lambda x, y: torch.add(x, y, alpha=2),
)  # fmt: skip
VIEWS: tuple[Callable[..., Any], ...] = (
    lambda x: x.transpose(0, -1), lambda x: x.t(), lambda x: x.unsqueeze(1), lambda x: x.squeeze(), lambda x: x.flatten(), lambda x: x.view(-1),
    lambda x: x.reshape(x.shape[0], -1), lambda x: x[1:], lambda x: x[..., ::2], lambda x: x[..., -1], lambda x: x.expand(3, *x.shape),
    lambda x: x.unfold(-1, 2, 1), lambda x: x.diagonal(0, -2, -1), lambda x: x.as_strided((2, 2), (1, 1)), lambda x: x.movedim(0, -1),
    lambda x: x.chunk(2, -1)[1], lambda x: torch.unsafe_chunk(x, 2, 0)[0], lambda x: x.unbind(0)[0], lambda x: x.chunk(1, 0)[0], lambda x: sum(x.unbind(-1)),
    lambda x: x.conj(), lambda x: x.real, lambda x: torch.view_as_real(torch.complex(x, x * 2)), lambda x: torch.complex(x, x.sin()).conj(),
    lambda x: x.detach().view(torch.int32) > 0,
)  # fmt: skip
COPIES: tuple[Callable[..., Any], ...] = (
    lambda x: x.flip(-1), lambda x: x.roll(1, 0), lambda x: x.rot90(), lambda x: x.repeat(2, *[1] * (x.dim() - 1)), lambda x: x.tril(),
    lambda x: torch.cat([x, x], -1), lambda x: torch.stack([x, x * 2], 1), lambda x: F.pad(x, (1, 0)), lambda x: x.mT.contiguous(),
    lambda x: x.double(), lambda x: x.float(), lambda x: x.bfloat16(), lambda x: x.long(), lambda x: x.bool(),
    lambda x: torch.fft.irfft(torch.fft.rfft(x)), lambda x: torch.fft.fft(x, dim=0).abs(),
)  # fmt: skip
ALONG_AXES: tuple[Callable[..., Any], ...] = (
    lambda x: x.sum(-1), lambda x: x.mean(0, keepdim=True), lambda x: x.amax(-1), lambda x: x.max(0)[0], lambda x: x.std(-1), lambda x: x.prod(-1),
    lambda x: x.logsumexp(0), lambda x: x.norm(dim=-1), lambda x: x.sum(), lambda x: x.mean(), lambda x: x.argmax(-1), lambda x: x.any(0),
    lambda x: x.median(-1)[0], lambda x: x.cumsum(0), lambda x: x.cumprod(-1), lambda x: x.cummax(0)[0], lambda x: x.softmax(-1), lambda x: x.log_softmax(0),
    lambda x: x.sort(-1)[0], lambda x: x.argsort(0), lambda x: x.topk(1, -1)[0], lambda x: F.normalize(x, dim=-1), lambda x: x.diff(dim=-1),
    lambda x: F.layer_norm(x, x.shape[-1:]), lambda x: F.batch_norm(x, None, None, training=True), lambda x: F.group_norm(x, 1),
)  # fmt: skip
WRITES: tuple[Callable[..., Any], ...] = (
    lambda x: x.mul_(0.5), lambda x: x[1:].mul_(2), lambda x: x[..., 0].fill_(0.3), lambda x: x.relu_(), lambda x: x.t().add_(0.1), lambda x: x.sin_(),
    lambda x: x.transpose(0, -1).tanh_(), lambda x: x.masked_fill_(x > 0.5, 0.2), lambda x: x[::2].sub_(x[:1]), lambda x: x.view(-1)[:2].neg_(),
    lambda x: x.copy_(x.flip(-1)), lambda x: x.cumsum_(0), lambda x: x.zero_(), lambda x: x.unsqueeze_(0), lambda x: x.diagonal().add_(1),
)  # fmt: skip
WRITES_OF_OTHERS: tuple[Callable[..., Any], ...] = (
    lambda x, y: x.add_(y), lambda x, y: x.copy_(y), lambda x, y: x[0].add_(y[0]), lambda x, y: x.masked_scatter_(y > 0, y),
    lambda x, y: x.index_add_(0, torch.tensor([1, 0]), y[:2]),
)  # fmt: skip
PRODUCTS: tuple[Callable[..., Any], ...] = (
    lambda x, y: x @ y, lambda x, y: x @ y.mT, lambda x, y: F.linear(x, y) * 0.3, lambda x, y: torch.addmm(x.sum(0), x, y), lambda x, y: torch.cdist(x, y),
    lambda x, y: torch.outer(x.flatten()[:4], y.flatten()[:5]),
    lambda x, y: x[places(y, x.shape[0])], lambda x, y: x.gather(0, places(x, x.shape[0])), lambda x, y: x.scatter_add(0, places(x, x.shape[0]), x),
    lambda x, y: x.index_put((places(y.flatten()[:2], x.shape[0]),), x[:2], accumulate=True), lambda x, y: F.embedding(places(y, x.shape[0]), x),
    lambda x, y: x.slice_scatter(y[:1], 0, 1, 2), lambda x, y: x.index_copy(0, torch.tensor([1, 0]), y[:2]),
)  # fmt: skip
LAYERS: tuple[Callable[..., Any], ...] = (
    lambda x: F.linear(x, weight(x, 3, x.shape[-1]), weight(x, 3)), lambda x: x.flatten(0, -2) @ weight(x, 6, x.shape[-1]).t(),
    lambda x: F.conv1d(x, weight(x, 2, x.shape[1], 2), padding=1), lambda x: F.conv2d(x, weight(x, 4, x.shape[1], 2, 2), stride=2),
    lambda x: F.conv_transpose2d(x, weight(x, x.shape[1], 2, 2, 2)), lambda x: F.max_pool2d(x, 2, 1), lambda x: F.adaptive_avg_pool2d(x, 2),
    lambda x: F.conv2d(x.to(memory_format=torch.channels_last), weight(x, 2, x.shape[1], 1, 1)),
    lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), lambda x: F.scaled_dot_product_attention(x, x * 0.5, x, is_causal=True),
    lambda x: F.dropout(x, 0.3), lambda x: x + torch.rand_like(x), lambda x: torch.bernoulli(x.sigmoid()), lambda x: x[torch.randperm(x.shape[0])],
)  # fmt: skip
GROUPS: tuple[tuple[Operator, ...], ...] = (
    *(tuple((1, f) for f in functions) for functions in (ELEMENTWISE, VIEWS, VIEWS, COPIES, ALONG_AXES, LAYERS)),
    *(tuple((2, f) for f in functions) for functions in (BROADCAST, PRODUCTS)),
    tuple((1, in_place(f)) for f in WRITES),
    tuple((2, in_place(f)) for f in WRITES_OF_OTHERS),
)


class RandomGraph:
    """A random graph of some operators, with as many as eager torch takes.

    Args:
        seed: of all choices.
        length: the number of its operators.
    """

    def __init__(self, seed: int, length: int) -> None:
        self.seed, self.choices = seed, random.Random(seed)
        self.inputs = self.choices.randrange(2, 5)
        self.calls: list[tuple[Callable[..., Any], list[int]]] = []
        values, tries = self.leaves(4), 0
        while len(self.calls) < length and tries < 12 * length:
            tries += 1
            count, function = self.choices.choice(self.choices.choice(GROUPS))
            operands = [max(0, len(values) - 1 - int(self.choices.expovariate(0.35))) for _ in range(count)]
            versions = [value._version for value in values]
            try:
                result = function(*[values[n] for n in operands])
                is_taken = isinstance(result, torch.Tensor) and result.numel() <= 4000 and result.dim() <= 5 and bool(torch.isfinite(result).all())
            except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
                is_taken = False
            if is_taken:
                self.calls.append((function, operands))
                values.append(result)
            elif [value._version for value in values] != versions:
                break  # half a write
        self.results = sorted({self.choices.randrange(self.inputs, len(values)) for _ in range(4)}) if self.calls else []
        self.dynamic = self.choices.random() < 0.4
        self.options = self.choices.choice([{}, {"recompute": "never"}, {"recompute": 1}, {"recompute": 2000}])
        self.mode = self.choices.choice(["train"] * 5 + ["no_grad", "inference_mode"])

    def leaves(self, batch: int) -> list[Any]:
        """Return the inputs: of several element types and layouts."""
        choices, generator = random.Random(self.seed + 1), torch.Generator().manual_seed(self.seed + batch)
        out: list[Any] = []
        for _ in range(self.inputs):
            shape, dtype = choices.choice(SHAPES)(batch), choices.choice([torch.float32, torch.float64, torch.float64, torch.bfloat16, torch.complex64])
            x, layout = torch.randn(shape, generator=generator, dtype=dtype), choices.randrange(4)
            if layout == 0 and x.dim() > 1:
                x = x.transpose(0, -1).contiguous().transpose(0, -1)
            elif layout == 1 and x.dim() == 4:
                x = x.to(memory_format=torch.channels_last)
            elif layout == 2 and x.dim():
                x = torch.cat([x, x], -1)[..., ::2]
            out.append(x.requires_grad_(choices.random() < 0.7))
        return out

    def __call__(self, *inputs: Any) -> list[Any]:
        values = [*inputs]
        for function, operands in self.calls:
            values.append(function(*[values[n] for n in operands]))
        return [values[n] for n in self.results]

    def outcome(self, call: Callable[..., Any], batch: int) -> list[Any]:
        """Return results, gradients, inputs and the next random number of a step."""
        inputs = self.leaves(batch)
        torch.manual_seed(self.seed)
        if self.mode != "train":
            with getattr(torch, self.mode)():
                return [*call(*inputs), *inputs]
        results = call(*inputs)
        losses = [(torch.view_as_real(r.resolve_conj()) if r.is_complex() else r).double().sin().sum() for r in results if r.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()
        return [*results, *(x.grad for x in inputs), *inputs, torch.rand(2)]


def difference(graph: RandomGraph, backend: str, wanted: dict[int, list[Any]]) -> Exception | AssertionError | None:
    """Return how a compiled graph differs from eager torch; None where it does not."""
    torch._dynamo.reset()
    options: Any = {"options": graph.options} if backend == "foreshape" else {}
    compiled = torch.compile(graph.__call__, backend=backend, dynamic=graph.dynamic, **options)
    try:
        for batch, want in wanted.items():
            results = graph.outcome(compiled, batch)
            for x, y in zip(results, want, strict=True):
                if isinstance(y, torch.Tensor) and y.dtype in (torch.bfloat16, torch.complex64):
                    torch.testing.assert_close(x, y, rtol=2e-2, atol=2e-2, equal_nan=True)
                else:
                    same(x, y)
            dense = [[v for v in values if isinstance(v, torch.Tensor) and not v._is_zerotensor()] for values in (results, want)]
            assert storages(dense[0]) == storages(dense[1])
    except Exception as error:
        return error
    return None


def check(seed: int, length: int) -> None:
    graph, wanted = RandomGraph(seed, length), dict[int, list[Any]]()
    for batch in (4, 6, 7) if graph.dynamic else (4,):
        try:
            wanted[batch] = graph.outcome(graph, batch)
        except (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError):
            break
    if not graph.calls or not wanted:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        error = difference(graph, "foreshape", wanted)
        if error is not None and difference(graph, "aot_eager", wanted) is None:
            raise AssertionError(f"the graph of seed {seed} and {length} operators, {graph.mode}, {graph.options}, dynamic={graph.dynamic}") from error


@pytest.mark.parametrize("seed", range(16))
def test_random_graphs_are_eagers(seed: int) -> None:
    check(seed, 6 + seed)


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 1400, 20))
def test_many_random_graphs_are_eagers(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed, 6 + seed % 24)
