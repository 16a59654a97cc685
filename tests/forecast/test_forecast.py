"""`fs.forecast`: figures that can be worked out by hand, choices of CUDA, lengths, cards, and wrong inputs."""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.small_texts import Texts, batch, entropy
from torch import nn

import foreshape as fs
from foreshape.apps.forecast.caching_allocator import AllocatorConfig, CachingAllocator, PlainMemory
from foreshape.apps.forecast.cards import CARDS, card_of
from foreshape.apps.forecast.forecasting import modelled
from foreshape.apps.forecast.parallel import parallel_settings
from foreshape.apps.forecast.size_formulas import NearestSize
from foreshape.apps.forecast.traced_step import Settings, trace

MIB = 1 << 20


def settings(module: Any, optimizer: Any = "AdamW", card: str | None = "A100-80GB", precision: str = "fp32", **changes: Any) -> Settings:
    parts = {"checkpointing": False, "accumulate": 1, "zero_grad": "start", "clip": False, "keep_outputs": False, "parallel": None}
    return Settings(module, batch, entropy, optimizer, card_of(card) if card else None, precision, **{**parts, **changes})


def peak(module: Any, *, rows: int = 4, length: int = 64, memory: Any = None, **options: Any) -> int:
    model = modelled(settings(module, **options), [(rows, length)], is_resizable=False)
    return model.run([(rows, length)] * 3, memory or PlainMemory()).allocated


# --- figures by hand


def test_one_layer_is_as_counted_by_hand() -> None:
    """A linear layer of 1 MiB without bias, SGD: in the update there are the weight, its gradient, the batch, the target."""
    net = nn.Linear(512, 512, bias=False)
    forecast = fs.forecast(net, (torch.zeros(512, 512), torch.zeros(512, 512)), loss=lambda y, t: (y * t).sum(), optimizer="SGD", device="A100-80GB")
    # the weight, the batch, the target, y, its gradient, and the weight's gradient: 1 MiB each; y * t is dropped; the sum's gradient is expanded.
    # Two workspaces of cuBLAS: 8 519 680 bytes each. The sum, its gradient: 512 each.
    assert forecast.allocated == 6 * MIB + 2 * 8_519_680 + 2 * 512
    assert forecast.reserved == 20 * MIB + 6 * MIB + 2 * MIB
    assert {tensor.kind for tensor in forecast.peak_tensors} >= {"parameter", "input", "workspace", "backward"}


@pytest.mark.parametrize(
    ("optimizer", "states", "copies"),
    [
        ("SGD", 0, 0),
        ("AdamW", 2, 1),
        ("Adagrad", 1, 2),
        (lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), 1, 0),
        (lambda p: torch.optim.AdamW(p, fused=True), 2, 0),
    ],
    ids=["SGD", "AdamW", "Adagrad", "momentum", "fused"],
)
def test_states_and_lists_of_an_optimizer(optimizer: Any, states: int, copies: int) -> None:
    """Where the layers are much larger than their batch, the peak is in the update: parameters, gradients, states, and lists as large."""
    net = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Linear(1024, 1024, bias=False))
    forecast = fs.forecast(net, torch.zeros(1, 1024), optimizer=optimizer, device="A100-80GB")
    expected = 8 * MIB * (2 + states + copies) + 2 * 8_519_680
    assert abs(forecast.allocated - expected) < 64 * 1024


def test_gradients_are_freed_by_zero_grad_at_its_place() -> None:
    net = nn.Linear(2048, 2048, bias=False)
    peaks = {
        place: fs.forecast(net, torch.zeros(2048, 2048), optimizer="SGD", device="24GiB", zero_grad=place).steps[1].allocated for place in ("start", "keep")
    }
    assert peaks["keep"] - peaks["start"] == 16 * MIB  # the old gradient lies beside the new one


def test_dropout_keeps_a_byte_for_each_number_on_a_card_and_a_float_on_the_processor() -> None:
    wide = {"rows": 8, "length": 256}
    kept = {card: peak(Texts(rate=0.5), card=card, **wide) - peak(Texts(), card=card, **wide) for card in ("A100-80GB", None)}
    numbers = 8 * 256 * 64
    assert kept == {"A100-80GB": numbers, None: 4 * numbers}


def test_halves_keep_fewer_bytes_of_scores_than_bf16_under_autocast() -> None:
    """Logits, log-softmax, the loss's gradient, the logits' gradient: 14 bytes a logit in bf16 (2 + 4 + 4 + 4), 12 in fp16 (2 + 4 + 4 + 2)."""
    net = nn.Linear(8, 4096, bias=False)
    peaks: dict[str, int] = {}
    for precision in ("amp-bf16", "amp-fp16", "bf16"):
        example = torch.zeros(1024, 8), torch.zeros(1024, dtype=torch.int64)
        peaks[precision] = fs.forecast(net, example, loss=F.cross_entropy, optimizer="SGD", precision=precision, device="A100-80GB").allocated - 2 * 8_519_680
    logits = 1024 * 4096
    assert [round(peaks[precision] / logits) for precision in peaks] == [14, 12, 8]


def test_attention_takes_the_first_kernel_of_the_card() -> None:
    shapes: dict[str, set[str]] = {}
    for card, precision in (("A100-80GB", "bf16"), ("H100-80GB", "bf16"), ("A100-80GB", "fp32"), ("V100-16GB", "fp16")):
        record = trace(settings(Texts(), card=card, precision=precision), [(2, 64)])
        shapes[f"{card} {precision}"] = {note.name for note in record.notes if note.name.startswith("_scaled") and "backward" not in note.name}
    assert list(shapes.values()) == [
        {"_scaled_dot_product_flash_attention"},
        {"_scaled_dot_product_cudnn_attention"},
        {"_scaled_dot_product_efficient_attention"},
        {"_scaled_dot_product_efficient_attention"},
    ]


def test_a_choice_of_the_users_code_is_followed() -> None:
    def chosen(net: nn.Module) -> nn.Module:
        forward = net.forward

        def call(ids: torch.Tensor) -> torch.Tensor:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
                return forward(ids)

        net.forward = call
        return net

    record = trace(settings(lambda: chosen(Texts()), precision="bf16"), [(2, 64)])
    assert not [note for note in record.notes if "flash" in note.name or "efficient" in note.name]


def test_recurrent_layers_are_one_operator_with_a_reserve() -> None:
    class Spoken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True), nn.Linear(128, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x)[0])

    x = torch.zeros(4, 50, 32)
    forecast = fs.forecast(Spoken(), x, device="A100-80GB", optimizer="SGD")
    reserve = 6 * 4 * 50 * 64 * 2 * 2 * 4
    assert any(tensor.bytes >= reserve and tensor.kind == "activation" for tensor in forecast.peak_tensors)
    assert any("cuDNN" in note for note in forecast.notes) and forecast.range[0] <= forecast.reserved <= forecast.range[1]


# --- changes of the loop


@pytest.mark.long
def test_checkpointing_accumulation_and_buckets_change_the_peak_as_they_should() -> None:
    shape = {"rows": 16, "length": 64}
    net = Texts(64, layers=4)
    base = peak(net, **shape)
    assert peak(net, checkpointing=True, **shape) < 0.9 * base
    size = sum(p.numel() * 4 for p in net.parameters())
    assert size <= peak(net, parallel=parallel_settings(True, None), **shape) - base <= 1.1 * size
    views, copies = (
        peak(net, parallel=parallel_settings({"gradient_as_bucket_view": are_views}, None), optimizer="SGD", rows=1, length=2) for are_views in (True, False)
    )
    assert 0.7 * size < copies - views <= size


@pytest.mark.long
def test_ranks_share_parameters_gradients_and_states() -> None:
    net = Texts(256, layers=4, words=64)
    size = sum(p.numel() * 4 for p in net.parameters())
    peaks = [peak(net, parallel=parallel_settings(None, ranks), rows=1, length=8) - 2 * 8_519_680 for ranks in (1, 4, 64)]
    assert peaks[0] > 4 * size  # parameters, gradients, two states; the list of the update
    assert peaks[0] > peaks[1] > peaks[2] and peaks[2] < peaks[0] / 2


def test_the_module_and_its_optimizer_are_left_as_they_were() -> None:
    net = Texts()
    optimizer = torch.optim.AdamW([{"params": net.words.parameters(), "weight_decay": 0.0}, {"params": [*net.blocks.parameters(), *net.head.parameters()]}])
    values = {name: p.detach().clone() for name, p in net.named_parameters()}
    random = torch.get_rng_state()
    fs.forecast(net, batch(2, 16), loss=entropy, optimizer=optimizer, precision="amp-fp16")
    assert all(torch.equal(p, values[name]) and p.grad is None and type(p) is nn.Parameter for name, p in net.named_parameters())
    assert not optimizer.state and torch.equal(random, torch.get_rng_state())
    assert torch.equal(net(batch(1, 4)[0]), net(batch(1, 4)[0]))


def test_a_module_on_meta_and_one_by_a_function_have_the_same_figures() -> None:
    with torch.device("meta"):
        empty = Texts()
    figures = {fs.forecast(net, batch(2, 16), loss=entropy).allocated for net in (empty, Texts)}
    assert len(figures) == 1


@pytest.mark.long
def test_layers_copied_within_a_function_are_counted_once() -> None:
    def layers() -> nn.Module:
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 2, 256, batch_first=True), 2, enable_nested_tensor=False)

    x = torch.zeros(1, 2, 32)
    assert fs.forecast(layers, x, optimizer="SGD").allocated == fs.forecast(layers(), x, optimizer="SGD").allocated


# --- lengths


PLANS = {
    "both": [(8, 16), (8, 100), (8, 40), (3, 77), (8, 101), (16, 33), (1, 9)],
    "lengths": [(4, length) for length in (5, 80, 31, 64, 20)],
}


@pytest.mark.parametrize(
    ("plan", "precision"),
    [("both", "amp-bf16"), *(pytest.param(*case, marks=pytest.mark.long) for case in (("both", "fp32"), ("lengths", "fp32"), ("lengths", "amp-bf16")))],
)
def test_formulas_agree_with_steps_traced_at_each_size(plan: str, precision: str) -> None:
    batches = PLANS[plan]
    run = settings(Texts(layers=1, rate=0.1), precision=precision)
    model = modelled(run, batches, is_resizable=True)
    result = model.run(batches, CachingAllocator())
    allocator, blocks, peaks = CachingAllocator(), dict[int, Any](), list[tuple[int, int]]()
    record = trace(run, batches)
    for number, event in enumerate(record.events):
        if number in record.marks:
            peaks.append((allocator.allocated_peak, allocator.reserved_peak))
            allocator.reset_peaks()
        if event >= 0:
            blocks[event] = allocator.allocate(record.sizes[event])
        else:
            allocator.free(blocks.pop(~event))
    assert [(step.allocated, step.reserved) for step in result.steps] == [*peaks[1:], *[(allocator.allocated_peak, allocator.reserved_peak)]][: len(batches)]
    assert len(model.steady.formulas) < 60 and not any(isinstance(rule, NearestSize) for rule in model.steady.formulas)


def test_many_lengths_are_close_to_a_replay_of_each() -> None:
    plan = [(8, 16 + (37 * n * n) % 240) for n in range(900)]
    model = modelled(settings(Texts(layers=1)), plan, is_resizable=True)
    quick = model.run(plan, CachingAllocator())
    parts = model.run(plan[:350], CachingAllocator())
    assert len(quick.steps) == 900
    assert abs(max(s.reserved for s in quick.steps[:350]) / parts.reserved - 1) < 0.02
    assert abs(max(s.allocated for s in quick.steps[:350]) / parts.allocated - 1) < 0.01


@pytest.mark.long
def test_the_first_batch_that_dies_is_told_with_the_largest_that_fits() -> None:
    plan = [(8, 32), (8, 64), (8, 400), (8, 32), (8, 500)]
    free = fs.forecast(Texts(words=4000), batch, lengths=plan, loss=entropy, device="A100-80GB")
    limit = (free.steps[1].reserved + free.steps[2].reserved) // 2
    tight = fs.forecast(Texts(words=4000), batch, lengths=plan, loss=entropy, device="A100-80GB", limit=limit)
    assert free.fits and free.dies_at is None and not free.advice
    assert tight.dies_at == 2 and not tight.fits and tight.available == limit
    assert tight.largest is not None and free.largest is not None
    assert tight.largest.length == 500 and 1 <= tight.largest.batch < 8 < free.largest.batch
    model = modelled(settings(Texts(words=4000)), plan, is_resizable=True)
    died = [model.run([(rows, 500)] * 3, CachingAllocator(AllocatorConfig(limit))).died for rows in (tight.largest.batch, 2 * tight.largest.batch + 2)]
    assert died[0] is None and died[1] is not None
    assert tight.advice and all(advice.fits or advice.reserved < tight.reserved for advice in tight.advice)
    assert "batch 2 dies first: 8 examples of length 400" in str(tight)
    assert json.loads(json.dumps(tight.to_dict()))["dies_at"] == 2


class Masked(nn.Module):
    """Attention with a mask, which its kernel pads to a multiple of 16."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.qkv, self.head = nn.Embedding(100, 64), nn.Linear(64, 192), nn.Linear(64, 100)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        n, t = ids.shape
        q, k, v = self.qkv(self.words(ids)).view(n, t, 3, 4, 16).transpose(1, 3).unbind(2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(n, 1, t, t, dtype=torch.bool))
        return self.head(y.transpose(1, 2).reshape(n, t, 64))


@pytest.mark.parametrize("longest", [512, 511])
def test_lengths_are_told_apart_where_a_kernel_pads_some_alone(longest: int) -> None:
    """All traced lengths but the longest have other operators."""
    lengths = [longest, 300 + longest % 2 * 4, 200 + longest % 2 * 8, 111 + longest % 2, 33]
    options: dict[str, Any] = {"loss": entropy, "precision": "amp-bf16", "device": "A100-80GB", "advice": False}
    forecast = fs.forecast(Masked, batch, lengths=[(4, length) for length in lengths * 2], **options)
    alone = [fs.forecast(Masked, batch(4, length), **options).allocated for length in lengths]
    assert [step.allocated for step in forecast.steps[5:]] == pytest.approx(alone, rel=0.05)
    assert any("other operators" in note for note in forecast.notes)


def test_tensors_are_made_longer_where_lengths_are_asked_for() -> None:
    ids = torch.ones(4, 32, dtype=torch.int64)
    by_tensors = fs.forecast(Texts(), (ids, ids), loss=entropy, lengths=[16, 64], batch=2)
    by_function = fs.forecast(Texts(), batch, loss=entropy, lengths=[(2, 16), (2, 64)])
    assert by_tensors.steps == by_function.steps


def test_sparse_gradients_have_an_entry_for_each_id() -> None:
    """Beside torch's allocator of the processor in a real run, all ids differing."""

    class Tables(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.table = nn.EmbeddingBag(16384, 64, mode="sum", sparse=True), nn.Embedding(16384, 64, sparse=True)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return (self.bag(ids) + self.table(ids).sum(1)).square().mean()

    forecast = fs.forecast(Tables, torch.zeros(1024, 16, dtype=torch.int64), optimizer="SGD", device="cpu", advice=False)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        net = Tables()
        optimizer = torch.optim.SGD(net.parameters())
        for _ in range(3):
            ids = torch.arange(16384).view(1024, 16)
            optimizer.zero_grad()
            net(ids).backward()
            optimizer.step()
    events: Any = record.profiler.kineto_results.events()
    real = max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))
    assert forecast.allocated == pytest.approx(real, rel=0.05)


def test_coalesced_gradients_are_as_large() -> None:
    def taken(optimizer: str) -> int:
        net = nn.EmbeddingBag(16384, 64, sparse=True)
        return fs.forecast(net, torch.zeros(1024, 16, dtype=torch.int64), optimizer=optimizer, device="cpu", advice=False).allocated

    values = 16384 * 64 * 4
    assert taken("Adagrad") >= taken("SGD") + 3 * values  # the sums, the coalesced gradient, its squares


def test_rms_norm_keeps_its_input_and_a_number_of_each_row() -> None:
    """As CUDA's kernel does; of a weight of another type it is composed of operators."""

    def names(precision: str) -> set[str]:
        net = nn.Sequential(nn.Linear(64, 64), nn.RMSNorm(64), nn.Linear(64, 500))
        plain = settings(net, precision=precision)._replace(example=lambda rows, _: (torch.zeros(rows, 64), torch.zeros(rows, dtype=torch.int64)))
        return {note.name for note in trace(plain._replace(loss=F.cross_entropy), [(8, None)]).notes}

    assert "rms_norm" in names("fp32") and "rsqrt" not in names("fp32")
    assert "rms_norm" not in names("amp-bf16") and "rsqrt" in names("amp-bf16")


def test_the_peak_is_told_by_the_users_lines() -> None:
    forecast = fs.forecast(Texts(words=5000), batch(8, 64), loss=entropy)
    lines = {tensor.line for tensor in forecast.peak_tensors}
    assert any(line.startswith("small_texts.py:") for line in lines)
    entropy_line = entropy.__code__.co_firstlineno + 1
    assert f"small_texts.py:{entropy_line}" in lines
    sizes = [tensor.bytes for tensor in forecast.peak_tensors]
    assert sizes == sorted(sizes, reverse=True) and len(sizes) == 10


# --- wrong inputs


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y[: int(y.sum())]  # needs numbers


def test_a_module_that_needs_numbers_is_refused_with_its_line() -> None:
    line = Failing.forward.__code__.co_firstlineno + 2
    with pytest.raises(fs.MemoryPlanError, match=rf"test_forecast\.py:{line}: "):
        fs.forecast(Failing(), torch.zeros(2, 4))


def test_shapes_that_do_not_fit_are_refused_with_the_line() -> None:
    line = Failing.forward.__code__.co_firstlineno + 1
    with pytest.raises(fs.MemoryPlanError, match=rf"test_forecast\.py:{line}: "):
        fs.forecast(Failing(), torch.zeros(2, 5))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "H999"}, "device must be a card, or bytes.*seen 'H999' .cards: B200"),
        ({"device": "4090"}, "device must be a card, or bytes with their unit.*: did you mean 'RTX4090'"),
        ({"device": "24"}, "seen '24': did you mean '24GiB'"),
        ({"device": "0GiB"}, "device must be"),
        ({"precision": "fp8"}, "precision must be one of"),
        ({"optimizer": "Adamm"}, "optimizer must be one of.*Adam"),
        ({"optimizer": 3}, "optimizer must be a name"),
        ({"optimizer": torch.optim.SGD(nn.Linear(2, 2).parameters())}, "parameters that are not of this module"),
        ({"lengths": []}, "lengths must be at least one batch"),
        ({"lengths": [(2, 0)]}, r"lengths\[0\] must be sizes of at least 1"),
        ({"lengths": [(2, 8), (2, -1)]}, r"lengths\[1\] must be sizes of at least 1"),
        ({"lengths": [(2, 8), "x"]}, r"lengths\[1\] must be a length, or a pair"),
        ({"accumulate": 0}, "accumulate must be at least 1"),
        ({"zero_grad": "never"}, "zero_grad must be one of"),
        ({"checkpointing": ["nowhere"]}, "checkpointing must be names of modules"),
        ({"ddp": True, "fsdp": 2}, "not by both"),
        ({"ddp": {"buckets": 2}}, "ddp must be settings among"),
        ({"fsdp": -1}, "fsdp must be a number of ranks"),
        ({"allocator": "max_split_size:3"}, "allocator must be settings among"),
        ({"limit": "much"}, "a number of bytes"),
        ({"batch": 0}, "batch must be at least 1"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(fs.ForeshapeError, match=words):
        fs.forecast(Texts(), batch(2, 8), **{"loss": entropy, **options})


@pytest.mark.parametrize("example", [(), {"x": 3}, "text", (1, 2)])
def test_an_example_without_tensors_is_refused(example: Any) -> None:
    with pytest.raises(fs.SchemaError, match="example must be a batch with tensors"):
        fs.forecast(Texts(), example)


def test_an_example_is_needed_and_a_loss_takes_a_pair() -> None:
    with pytest.raises(fs.SchemaError, match="needs an example"):
        fs.forecast(Texts())
    with pytest.raises(fs.SchemaError, match="needs batch="):
        fs.forecast(Texts(), batch)
    with pytest.raises(fs.SchemaError, match="a pair of inputs and a target"):
        fs.forecast(Texts(), torch.ones(2, 8, dtype=torch.int64), loss=entropy)
    with pytest.raises(fs.MemoryPlanError, match="the loss must be one number"):
        fs.forecast(Texts(), batch(2, 8), loss=lambda scores, target: scores)


def test_cards_by_their_names() -> None:
    assert card_of("h100").name == "H100-80GB" and card_of("NVIDIA A100 80GB").name == "A100-80GB" and card_of("rtx 4090").name == "RTX4090"
    assert card_of("24GiB").total == 24 << 30 and card_of(16 << 30).total == 16 << 30
    assert all(0 < card.available < card.total and set(card.certainty.values()) <= {"certain", "modelled", "unknown"} for card in CARDS.values())
    assert CARDS["H100-80GB"].blas_workspace == 33_554_432 and CARDS["A100-40GB"].blas_workspace == 8_519_680
