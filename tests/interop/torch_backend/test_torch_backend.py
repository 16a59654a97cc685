"""The backend of ``torch.compile``: programs by sizes, memory, options, threads, and what runs by eager torch."""

import copy
import gc
import threading
from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.compiled_modules import Physics
from torch import library as operators
from torch import nn
from torch.profiler import ProfilerActivity, profile

import foreshape as fs


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Words(nn.Module):
    """A small language model."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(60, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 2, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(layers))
        self.head = nn.Linear(width, 60)

    def forward(self, x: Any) -> Any:
        h = self.words(x)
        for layer in self.layers:
            h = layer(h)
        return F.cross_entropy(self.head(h).flatten(0, 1), x.flatten())


class Images(nn.Module):
    def __init__(self, layers: int = 5) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 32, 3, padding=1), nn.Linear(32, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()) for _ in range(layers))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean((2, 3))).square().mean()


def measured(step: Any) -> int:
    """Return the most bytes of torch's allocator above those at the beginning."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step()
    events: list[Any] = record.profiler.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


def step_of(network: Any, call: Any, *inputs: Any) -> Any:
    network.zero_grad(set_to_none=True)
    return lambda: call(*inputs).backward()


def peaks(network: nn.Module, *inputs: Any, **options: Any) -> tuple[int, int, Any]:
    """Return the measured peaks of eager torch and of the compiled network, and its report."""
    reference, compiled = copy.deepcopy(network), torch.compile(network, backend="foreshape", **options)
    out: list[int] = []
    for module, call in ((reference, reference), (network, compiled)):
        step_of(module, call, *inputs)()
        out.append(measured(step_of(module, call, *inputs)))
    for p, q in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)
    return out[0], out[1], fs.torch_report(compiled)


CASES = {"words": (Words, lambda: torch.randint(0, 60, (8, 24))), "images": (Images, lambda: torch.randn(8, 3, 20, 20))}


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_what_is_measured_and_less_than_eagers(name: str) -> None:
    network, inputs = CASES[name]
    eager, ours, report = peaks(network(), inputs())
    (graph,) = report.graphs
    assert abs(graph.peak() / ours - 1) < 0.05
    assert ours < 0.9 * eager
    assert graph.recomputed.names and "computed again" in str(report)


def test_values_are_kept_or_computed_again_as_asked() -> None:
    x = torch.randint(0, 60, (8, 24))
    found = {wish: peaks(Words(), x, options={"recompute": wish})[1] for wish in ("never", "auto", 450_000)}
    assert found[450_000] < found["auto"] < found["never"]
    assert found[450_000] <= 450_000


def test_a_step_past_its_memory_is_refused_before_it_is_run() -> None:
    network = Words()
    compiled = torch.compile(network, backend="foreshape", options={"memory": "40 KB"})
    with pytest.raises(fs.MemoryPlanError, match="it may take 39"):
        compiled(torch.randint(0, 60, (8, 24)))


def test_sixty_four_batches_and_two_hundred_lengths_make_two_programs() -> None:
    network = Words(8, 1)
    compiled = torch.compile(network, backend="foreshape")
    for batch in range(2, 66):
        compiled(torch.randint(0, 60, (batch, 6))).backward()
    assert len(fs.torch_report(compiled).graphs) == 2
    torch._dynamo.reset()
    compiled = torch.compile(Words(8, 1), backend="foreshape")
    for length in range(2, 202):
        compiled(torch.randint(0, 60, (3, length))).backward()
    assert len(fs.torch_report(compiled).graphs) == 2


def test_open_sizes_give_one_program_at_once() -> None:
    compiled = torch.compile(Words(8, 1), backend="foreshape", dynamic=True)
    for batch, length in ((3, 5), (4, 9), (2, 6)):
        compiled(torch.randint(0, 60, (batch, length))).backward()
    report = fs.torch_report(compiled)
    assert len(report.graphs) == 1 and len(report.graphs[0].symbols()) == 2
    small, large = (report.graphs[0].peak(**dict.fromkeys(report.graphs[0].symbols(), n)) for n in (4, 8))
    assert 2 * small < large


def test_the_report_tells_breaks_with_their_lines() -> None:
    def halves(x: Any) -> Any:
        y = x.sin()
        print("here")
        return y.cos() + x

    compiled = torch.compile(halves, backend="foreshape")
    compiled(torch.ones(3))
    report = fs.torch_report(compiled)
    text = str(report)
    assert "2 graphs, 1 break in the code" in text and 'print("here")' in text and "test_torch_backend.py" in text
    assert "print" in report.graphs[0].ended and report.graphs[0].site is not None
    assert "aten.sin" in str(report.graphs[0].programs()[0])
    assert "2 graphs" in report._repr_html_()


def test_a_module_compiled_in_place_and_one_of_the_same_class_have_reports() -> None:
    for _ in range(2):
        network = Images(1)
        network.compile(backend="foreshape")
        network(torch.randn(2, 3, 8, 8))
        assert len(fs.torch_report(network).graphs) == 1


def test_the_report_tells_what_torch_leaves_to_python() -> None:
    class Halting(nn.Module):
        def forward(self, x: Any) -> Any:
            for _ in range(2):
                x = x.sin() * x.sum().item()
            return x

    compiled = torch.compile(nn.Sequential(Halting()), backend="foreshape")
    compiled(torch.ones(3))
    report = fs.torch_report(compiled)
    (code,) = report.skipped
    assert "item()" in code.reason and code.site.source_line() == "x = x.sin() * x.sum().item()"
    assert "no graph of forward, which torch leaves to Python at x = x.sin()" in str(report)
    torch._dynamo.reset()
    compiled = torch.compile(nn.Sequential(Halting(), nn.ReLU()), backend="foreshape")
    with pytest.raises(fs.SchemaError, match="call the network once"):
        fs.torch_report(compiled)


def test_a_gradient_within_the_forward_pass_is_traced_as_torch_is_told() -> None:
    network, x = Physics(), torch.randn(4, 2)
    reference = copy.deepcopy(network)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        compiled = torch.compile(network, backend="foreshape")
        compiled(x).square().sum().backward()
    assert any("tanh_backward" in str(graph.programs()[0]) for graph in fs.torch_report(compiled).graphs)
    reference(x).square().sum().backward()
    for p, q in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)


def test_wrong_calls_of_the_report_are_refused() -> None:
    with pytest.raises(fs.SchemaError, match="seen Linear"):
        fs.torch_report(nn.Linear(2, 2))
    with pytest.raises(fs.SchemaError, match="call the network once"):
        fs.torch_report(torch.compile(nn.Sequential(nn.Linear(2, 2)), backend="foreshape"))


@pytest.mark.parametrize(
    ("options", "mode", "says"),
    [
        ({"memry": 3}, None, "did you mean 'memory'"),
        ({"precision": "fp8"}, None, "must be one of 'fp32', 'eager', 'bf16'; seen 'fp8'"),
        ({"recompute": "often"}, None, "a number of bytes .*; seen 'often'"),
        ({"memory": -1}, None, "at least 0"),
        (None, "max-autotune", "the mode 'max-autotune' of torch.compile is inductor's"),
    ],
)
def test_unknown_options_are_refused(options: Any, mode: Any, says: str) -> None:
    from foreshape.interop.torch_backend.backend import foreshape_backend

    with pytest.raises((fs.SchemaError, fs.MemoryPlanError), match=says):
        foreshape_backend(None, [], mode=mode, options=options)


def test_bf16_is_as_under_autocast() -> None:
    network, x = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)), torch.randn(5, 8)
    compiled = torch.compile(copy.deepcopy(network), backend="foreshape", options={"precision": "bf16"})
    with torch.autocast("cpu", torch.bfloat16):
        wanted = network(x)
    torch.testing.assert_close(compiled(x), wanted)


@pytest.mark.parametrize("around", ["forward", "backward", "both"])
def test_autocast_around_a_pass_is_as_eagers(around: str) -> None:
    network, x = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2)), torch.randn(5, 8)
    found: list[list[Any]] = []
    for call in (network, torch.compile(network, backend="foreshape")):
        network.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=around != "backward"):
            loss = call(x).square().mean()
        with torch.autocast("cpu", torch.bfloat16, enabled=around != "forward"):
            loss.backward()
        found.append([p.grad.clone() for p in network.parameters()])
    for got, want in zip(*found, strict=True):
        assert got.dtype == want.dtype
        torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-7)


@pytest.mark.filterwarnings("ignore::foreshape.ForeshapeWarning")
def test_what_has_no_form_runs_by_eager_and_is_said() -> None:
    def graph(x: Any) -> Any:
        return x.to(torch.float8_e4m3fn).float() * 2

    compiled, x = torch.compile(graph, backend="foreshape"), torch.randn(4)
    with pytest.warns(fs.ForeshapeWarning, match="runs by eager torch"):
        torch.testing.assert_close(compiled(x), graph(x))
    assert fs.torch_report(compiled).graphs[0].by_eager


def test_operators_from_elsewhere_run_as_they_are_and_are_counted() -> None:
    @operators.custom_op("foreshape_tests::doubled", mutates_args=())
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    doubled.register_fake(torch.empty_like)
    compiled = torch.compile(lambda x: doubled(x) + 1, backend="foreshape")
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 3.0))
    assert "foreshape_tests.doubled.default 1" in str(fs.torch_report(compiled))


def test_an_error_of_a_kernel_keeps_its_kind_and_tells_the_line() -> None:
    def picked(x: Any, i: Any) -> Any:
        return x.sin()[i]

    compiled = torch.compile(picked, backend="foreshape")
    with pytest.raises(IndexError) as caught:
        compiled(torch.ones(3), torch.tensor([7]))
    assert any("return x.sin()[i]" in note for note in caught.value.__notes__)


def test_a_second_derivative_is_refused_as_by_torchs_own_backends() -> None:
    compiled = torch.compile(Physics(), backend="foreshape")
    with pytest.raises(RuntimeError, match="double backward"):
        compiled(torch.randn(4, 2)).sum().backward()


def test_backward_twice_and_accumulated_gradients() -> None:
    network, x = Words(), torch.randint(0, 60, (3, 5))
    reference = copy.deepcopy(network)
    compiled = torch.compile(network, backend="foreshape")
    for call in (compiled, reference):
        loss = call(x)
        loss.backward(retain_graph=True)
        loss.backward()
        call(x).backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
    for p, q in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-6)


def test_changed_requires_grad_and_modes_are_noticed() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    compiled, x = torch.compile(network, backend="foreshape"), torch.randn(6, 4)
    compiled(x).sum().backward()
    network[0].weight.requires_grad_(False)
    network.zero_grad(set_to_none=True)
    compiled(x).sum().backward()
    assert network[0].weight.grad is None and network[2].weight.grad is not None
    network.eval()
    torch.testing.assert_close(compiled(x), network(x))
    with torch.inference_mode():
        assert compiled(x).is_inference()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_whole_step_with_its_optimizer(optimizer: Any) -> None:
    network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    reference = copy.deepcopy(network)
    updates = [optimizer(module.parameters(), lr=0.05) for module in (network, reference)]

    @torch.compile(backend="foreshape")
    def step(x: Any) -> Any:
        loss = network(x).square().mean()
        loss.backward()
        updates[0].step()
        updates[0].zero_grad()
        return loss

    for seed in range(4):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed))
        loss = reference(x).square().mean()
        loss.backward()
        updates[1].step()
        updates[1].zero_grad()
        torch.testing.assert_close(step(x), loss)
    for p, q in zip(network.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-6)


def test_threads_have_their_own_results() -> None:
    network = Words(16, 1)
    compiled = torch.compile(network, backend="foreshape", dynamic=True)
    inputs = [torch.randint(0, 60, (2 + n % 3, 4 + n), generator=torch.Generator().manual_seed(n)) for n in range(6)]
    wanted = [network(x).item() for x in inputs]
    found: list[float] = [0.0] * len(inputs)

    def run(at: int) -> None:
        for _ in range(5):
            found[at] = compiled(inputs[at]).item()

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == pytest.approx(wanted, rel=1e-4)
