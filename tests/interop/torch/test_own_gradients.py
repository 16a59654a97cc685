"""Gradients that torch.export does not see: of `torch.autograd.Function`, and of hooks. Each equals torch's own, or is refused by its name."""

from __future__ import annotations

import contextlib
import functools
import warnings
from typing import Any

import pytest

import foreshape as fs
from foreshape.errors import SchemaError

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional
Function = torch.autograd.Function
modules = torch.nn.modules.module


class Reverse(Function):
    @staticmethod
    def forward(ctx, x, by=1.0):
        ctx.by = by
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return -ctx.by * g, None


class Step(Function):
    @staticmethod
    def forward(ctx, x):
        return (x > 0).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        return g


class Clipped(Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-0.01, 0.01)


class Swish(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch.no_grad():
            return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return g * s * (1 + x * (1 - s)) * 0.5


class Sum(Function):
    """The gradients are not summed over the broadcast axis: torch does it."""

    @staticmethod
    def forward(x, y):
        return x + y, x.argmax(), 7

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[1].shape

    @staticmethod
    def backward(ctx, g, of_index, of_number):
        return 2 * g, 3 * g


class Both(Function):
    @staticmethod
    def forward(ctx, x):
        a, b = x * 2, x * 3
        ctx.mark_non_differentiable(b)
        return a, b

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g, h):
        return g * 5 + h


class Several(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g * x - h


class Exponent(Function):
    """It keeps its own result."""

    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g * y * 0.7


class Again(Function):
    """Its backward computes the forward again, and torch's gradient of it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin().exp()

    @staticmethod
    def backward(ctx, g):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_(True)
            y = x.sin().exp()
        return 3 * torch.autograd.grad(y, x, g)[0]


class Asks(Function):
    """Its backward depends on what needs a gradient."""

    @staticmethod
    def forward(ctx, x, y):
        return x * y

    @staticmethod
    def backward(ctx, g, *_):
        return g * (1 if ctx.needs_input_grad[1] else 50), None


class Unused(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        return h * 5 if g is None else g * 7


class Hidden(Function):
    """A backward in NumPy."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return torch.from_numpy(g.numpy() * 2)


class Linear(Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.T + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight if ctx.needs_input_grad[0] else None, g.T @ x * 0.1, g.sum(0) * 0.2


class Net(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.one, self.two, self.f = nn.Linear(3, 4), nn.Linear(4, 2), f

    def forward(self, x):
        h = self.f(self.one(x))
        return self.two(h).square().mean()


class Inner(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, x):
        return self.f(x)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = Net(Inner(Swish.apply)), Net(Inner(Clipped.apply))

    def forward(self, x):
        return self.a(x) + self.b(x) * self.a(2 * x)


class OwnLinear(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(3, 4)

    def forward(self, x):
        return Linear.apply(Linear.apply(x, self.l.weight, self.l.bias).tanh(), self.l.weight.T.contiguous(), self.l.bias[:3]).square().mean()


def compare(net, x=None, **more):
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1)) if x is None else x
    net(x).backward()
    want = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    model = fs.from_torch(net, x, **more)
    got = model.gradients(x)
    torch.testing.assert_close(model(x), net(x).detach())
    assert want
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-4, atol=1e-6, msg=lambda words, name=name: f"{name}: {words}")
    return model


FUNCTIONS = {
    "reverse": Reverse.apply, "reverse by a number": lambda x: Reverse.apply(x, 0.3), "step": Step.apply, "clipped": Clipped.apply, "swish": Swish.apply,
    "broadcast": lambda x: Sum.apply(x, x[:1].exp())[0] * Sum.apply(x, x[:1])[2], "not differentiable": lambda x: sum(Both.apply(x)),
    "several": lambda x: Several.apply(x)[0] * Several.apply(x)[1], "one of several": lambda x: Several.apply(x)[1],
    "in another": lambda x: Reverse.apply(Step.apply(Swish.apply(x))),
    "in a checkpoint": lambda x: torch.utils.checkpoint.checkpoint(Swish.apply, x, use_reentrant=True),
    "in torch.func": lambda x: torch.func.vmap(torch.sin)(Clipped.apply(x)),
    "again": lambda x: Again.apply(Swish.apply(x)),
    "asks what needs a gradient": lambda x: Asks.apply(x, x.detach()),
    "a result kept, in a gradient": lambda x: x + torch.autograd.grad(Exponent.apply(x).sum(), x, create_graph=True)[0],
    "in a gradient": lambda x: torch.autograd.grad(Swish.apply(x).square().sum(), x, create_graph=True)[0].detach() + Reverse.apply(x),
}  # fmt: skip


LONG = ("reverse by a number", "step", "swish", "one of several", "in another", "in a gradient")
"""What others of them have parts of."""


@pytest.mark.quick_cases("several", "clipped")
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in FUNCTIONS])
def test_function(name):
    torch.manual_seed(0)
    compare(Net(FUNCTIONS[name]))


@pytest.mark.long
def test_functions_within_modules():
    torch.manual_seed(0)
    compare(Twice())
    compare(Twice().eval(), dynamic=[None])
    compare(OwnLinear())
    compare(OwnLinear(), dynamic=[None])


def test_program_is_saved_with_its_gradients(tmp_path):
    torch.manual_seed(0)
    net, x = Net(Swish.apply), torch.randn(5, 3)
    model = compare(net, x)
    assert str(fs.Program.parse(str(model.program))) == str(model.program)
    step = fs.training_program(model.loss, fs.optimizer.SGD(0.1))
    executor, before = fs.Executor(), float(net(x))
    executor.run(step.startup, scope=model.scope)
    losses = [float(executor.run(step.program, {model.feeds[0]: x.numpy()}, [step.loss], model.scope)[0]) for _ in range(20)]
    assert losses[0] == pytest.approx(before, rel=1e-5)
    assert losses[-1] < losses[0]


def test_module_of_the_program():
    net, x = Net(lambda x: Several.apply(x)[0]), torch.randn(5, 3)
    model = fs.from_torch(net, x)
    net(x).backward()
    module = fs.to_torch(model)
    module(x).backward()
    torch.testing.assert_close(dict(module.named_parameters())["one.weight"].grad, net.one.weight.grad)
    with pytest.warns(fs.ForeshapeWarning, match=r"no gradient is written .* for with_gradient \(test_own_gradients.py:\d+\): .* without plain=True") as warned:
        plain = fs.to_torch(model, plain=True)
    assert warned[0].filename == __file__
    torch.testing.assert_close(plain(x), net(x))
    with pytest.raises(RuntimeError, match=r"the gradient of with_gradient is not written in torch code: .*, without plain=True"):
        plain(x).backward()


def test_backward_that_no_trace_goes_through():
    net, x = Net(Hidden.apply), torch.randn(5, 3)
    model = fs.from_torch(net, x)
    torch.testing.assert_close(model(x), net(x).detach())
    with pytest.raises(SchemaError, match=r"gradient of the autograd.Function Hidden at test_own_gradients.py:\d+ cannot be imported"):
        model.gradients(x)


# --- hooks


def masked(mask, gradient):
    return gradient * mask


class Hooked(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.l, self.m, self.n, self.how = nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2), how
        if how == "parameter":
            self.l.weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
            self.l.weight.register_hook(lambda g: g + 1)
            self.m.bias.register_hook(functools.partial(masked, torch.tensor([1.0, 0.0, 1.0, 0.0])))
        if how == "shared parameter":
            self.n = nn.Linear(4, 4)
            self.n.weight = self.m.weight
            self.m.weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
        if how == "pre":
            self.m.register_full_backward_pre_hook(lambda m, o: tuple(g * 3 for g in o))
        if how in ("full", "both"):
            self.m.register_full_backward_hook(lambda m, i, o: tuple(g.clamp(-0.001, 0.001) for g in i))
        if how == "both":
            self.m.register_full_backward_pre_hook(lambda m, o: (o[0] * 3,))
            self.register_full_backward_pre_hook(lambda m, o: (o[0] * 2,))

    def forward(self, x):
        h = self.l(x)
        before = h.sin() if self.how == "used before" else h
        if self.how in ("tensor", "used before"):
            h.register_hook(lambda g: g.clamp(-0.01, 0.01))
        if self.how == "tensor":
            h.register_hook(lambda g: 2 * g)
        return (self.n(self.m(h)) * (before.sum() + 1)).square().mean()


@pytest.mark.quick_cases("parameter")
@pytest.mark.parametrize(
    "how", ["parameter", "both", "tensor", "used before", *(pytest.param(h, marks=pytest.mark.long) for h in ("shared parameter", "pre", "full"))]
)
def test_hook(how):
    torch.manual_seed(0)
    compare(Hooked(how))


@pytest.mark.long
@pytest.mark.parametrize("with_loss", [False, pytest.param(True, marks=pytest.mark.long)])
def test_hooks_of_all_modules(with_loss):
    torch.manual_seed(0)
    net, x = Hooked("none"), torch.randn(5, 3)
    with contextlib.ExitStack() as stack:
        for handle in (
            modules.register_module_full_backward_pre_hook(lambda m, o: tuple(g * 2 for g in o)),
            modules.register_module_full_backward_hook(lambda m, i, o: tuple(None if g is None else g * 3 for g in i) if i[0] is not None else None),
        ):
            stack.callback(handle.remove)
        if not with_loss:
            compare(net, x)
            return
        (net(x) * 2).backward()
        got = fs.from_torch(net, x, loss=lambda y, scale: y * scale.sum(), targets=torch.tensor([2.0])).gradients(x, torch.tensor([2.0]))
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(got[name], parameter.grad)


def with_hook(how, x):
    """Put a hook on a tensor that only an example with a gradient has one of."""
    if how == "tensor" and x.requires_grad:
        x.register_hook(lambda g: g * 3)
    return x


class OfInputs(nn.Module):
    """What becomes of the gradient of its input depends on there being one."""

    def __init__(self, how):
        super().__init__()
        self.how, self.layer = how, nn.Linear(3, 1)
        if how == "module":
            self.layer.register_full_backward_hook(lambda m, i, o: tuple(None if g is None else g * 5 for g in i))

    def forward(self, x):
        if self.how == "inner":  # with a copy cut off before the input itself is read
            weight = self.layer.weight
            (slope,) = torch.autograd.grad((weight.tanh() * x.detach()).sum() + (weight * x).sum(), weight, create_graph=True)
            return slope.square().sum() + self.layer(x).sum()
        x = Asks.apply(x * 1, x) if self.how == "function" else with_hook(self.how, x * 1)
        return self.layer(x).sin().sum()


@pytest.mark.filterwarnings("error::foreshape.ForeshapeWarning")
@pytest.mark.parametrize("how", ["function", "module", "tensor", "inner"])
def test_gradients_of_inputs_without_one_in_the_example(how):
    torch.manual_seed(0)
    net, x = OfInputs(how), torch.randn(5, 3)
    module = fs.to_torch(fs.from_torch(net, x))
    outcomes = []
    for call in (net, module):
        given = x.clone().requires_grad_()
        call(given).backward()
        outcomes.append([given.grad, *(p.grad for p in call.parameters() if p.grad is not None)])
    for got, want in zip(*reversed(outcomes), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


def refused_or_told(net, words):
    """Check that a network comes over with a warning, or that its gradient is refused."""
    x = torch.randn(5, 3)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        model = fs.from_torch(net, x, dynamic=[None])
        try:
            model.gradients(x)
            told = " ".join(str(one.message) for one in record)
        except SchemaError as error:
            told = str(error)
    assert words in told, told


def legacy(net):
    net.m.register_backward_hook(lambda m, i, o: (i[0], i[1] * 3, i[2]))


CASES: dict[str, Any] = {
    "reads grad_output": (lambda net: net.m.register_full_backward_hook(lambda m, i, o: (i[0] + o[0],)), "the hook reads grad_output"),
    "only watches": (lambda net: net.m.register_full_backward_hook(lambda m, i, o: None), "changes nothing, and is not called"),
    "only watches a parameter": (lambda net: net.m.weight.register_hook(lambda g: None), "changes nothing, and is not called"),
    "behind the sum": (lambda net: net.m.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(0.5)), "gradient of m.weight (register_post_acc"),
    "of former times": (legacy, "register_backward_hook"),
    "in NumPy": (lambda net: net.l.weight.register_hook(lambda g: torch.from_numpy(g.numpy() * 2)), "the parameter l.weight with the hook"),
}


def test_results_that_are_not_used_are_told():
    refused_or_told(Net(lambda x: Unused.apply(x)[1]), "zeros for unused ones, and set_materialize_grads(False) asks for none")


def test_hook_that_is_removed_again_is_refused():
    def removed(x):
        y = x * 1.0
        y.register_hook(lambda g: g * 2).remove()
        return y

    with pytest.raises(SchemaError, match=r"the hook .*<lambda> \(test_own_gradients.py:\d+\) on the tensor at .* is removed again in the forward pass"):
        fs.from_torch(Net(removed), torch.randn(5, 3))


@pytest.mark.quick_cases("in NumPy", "behind the sum")
@pytest.mark.parametrize("name", CASES)
def test_hook_that_is_told(name):
    change, words = CASES[name]
    net = Hooked("none")
    change(net)
    refused_or_told(net, words)


def test_forward_hooks():
    net, x = Hooked("none"), torch.randn(5, 3)
    net.m.register_forward_hook(lambda m, i, o: o * 2)
    net.l.register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    net.register_forward_hook(lambda m, i, o: o + 3)
    compare(net, x)
