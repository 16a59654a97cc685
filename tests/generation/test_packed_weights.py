"""Decoders with weights of 8 and 4 bits: their rounding, their words by the executor and in machine code, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import decoders
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.some import each, examples

import foreshape as fs
from foreshape import layer
from foreshape.apps.generation import word_step
from foreshape.machine.kernels import grouped_weights, word_loop
from foreshape.machine.kernels.instructions import SWITCH

TOLD = json.loads(decoders.FILE.read_text())
needs_numba = pytest.mark.skipif(not word_loop.can_compile(), reason="numba is not installed")


def model_of(name: str, **options: Any) -> fs.LanguageModel:
    told = TOLD[name]
    state = {key: decoders.value_of(key, dims) for key, dims in told["state"].items()}
    return fs.language_model(told["config"], state, **{"users": 5, "context": 40, **options})


# --- the rounding


@settings(max_examples=examples(60), deadline=None)
@given(rows=st.integers(1, 20), columns=st.integers(1, 150), group=st.integers(1, 8), bits=st.sampled_from([8, 4]), seed=st.integers(0, 99))
def test_each_number_is_within_half_a_step_of_its_group(rows: int, columns: int, group: int, bits: Any, seed: int) -> None:
    torch.manual_seed(seed)
    weight = torch.randn(4 * rows * group, columns) * torch.rand(columns)
    packed, scales = grouped_weights.pack(weight, bits, 4 * group)
    unpacked = grouped_weights.unpack(packed, scales, bits).transpose(0, 1).reshape(4 * rows * group, -1)
    assert not unpacked[:, columns:].any()
    steps = scales.transpose(0, 1).reshape(rows, -1)[:, :columns].abs().repeat_interleave(4 * group, 0)
    largest = weight.view(rows, 4 * group, columns).abs().amax(1).repeat_interleave(4 * group, 0)
    cut_off = torch.zeros(()) if bits == 8 else (largest - 7 * steps).clamp_min(0)  # of 4 bits the greatest may be cut off for finer steps
    assert bool(((unpacked[:, :columns] - weight).abs() <= 0.5001 * steps + cut_off + 1e-7).all())
    x = torch.randn(3, 4 * rows * group)
    expected = x @ unpacked[:, :columns]
    torch.testing.assert_close(grouped_weights.product(x, packed, scales, bits, columns), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max() + 1))


def test_numbers_on_the_grid_stay() -> None:
    """As those of a file of 8 or 4 bits, whose scales come over."""
    numbers = torch.randint(-7, 8, (64, 70)).float()
    numbers[::32] = 7.0
    packed, scales = grouped_weights.pack(numbers * 0.25, 4, 32)
    assert torch.equal(grouped_weights.unpack(packed, scales, 4).transpose(0, 1).reshape(64, -1)[:, :70], numbers * 0.25)
    numbers = torch.randint(-127, 128, (64, 70)).float()
    numbers[::32] = 127.0
    packed, scales = grouped_weights.pack(numbers * 0.25, 8, 32)
    torch.testing.assert_close(grouped_weights.unpack(packed, scales, 8).transpose(0, 1).reshape(64, -1)[:, :70], numbers * 0.25)


# --- rounded rows


@st.composite
def products(draw: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None, int, int]:
    """Return rows, a packed weight with its scales and offsets or none, its bits and its columns; with some extreme groups of rows."""
    bits, group, groups = draw(st.sampled_from([8, 4])), 4 * draw(st.integers(1, 33)), draw(st.integers(1, 4))
    rows, columns = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 31, 96, 97, 101, 193])), draw(st.integers(1, 140))
    torch.manual_seed(draw(st.integers(0, 99)))
    packed, scales = grouped_weights.pack(torch.randn(group * groups, columns), bits, group)
    if bits == 8:
        packed[:, ::3] = draw(st.sampled_from([-128, 127, 3]))  # of files of 8 bits the least number may be there
    offsets = torch.randn_like(scales) if draw(st.booleans()) else None
    x = torch.randn(rows, group * groups)
    for row, size in enumerate((0.0, 1e-42, 1e-30, 1e30)):
        x[row % rows, :group] *= size
    x[-1, 0] = 1000.0  # the others of its group are a few steps
    return x, packed, scales, offsets, bits, columns


@settings(max_examples=examples(60), deadline=None)
@given(case=products(), threads=st.integers(1, 3))
def test_rounded_rows_have_the_products_of_their_numbers(case: Any, threads: int) -> None:
    x, packed, scales, offsets, bits, columns = case
    rounded = grouped_weights.rounded(x, scales.shape[1])
    parts, rounded_parts = (value.view(x.shape[0], scales.shape[1], -1).double() for value in (x, rounded))
    largest = parts.abs().amax(2, keepdim=True)
    assert bool(((rounded_parts - parts).abs() <= largest / 253 + 1e-43).all())  # half of a 127th; a step below 1e-38 has few bits
    weight = grouped_weights.unpack(packed, scales, bits, offsets).transpose(0, 1).reshape(x.shape[1], -1)[:, :columns]
    expected = rounded.double() @ weight.double()
    tiles = grouped_weights.unpack(packed, scales, bits, offsets).abs()
    if offsets is not None:  # an offset may cancel nearly all of a number
        tiles += 2 * offsets.abs().repeat_interleave(x.shape[1] // scales.shape[1], 1)
    sizes = rounded.abs().double() @ tiles.transpose(0, 1).reshape(x.shape[1], -1)[:, :columns].double()
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        result = grouped_weights.product(x, packed, scales, bits, columns, offsets, rounds_rows=True)
    finally:
        torch.set_num_threads(before)
    assert bool(((result - expected).abs() <= 1e-5 * sizes + 1e-40).all())


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_a_row_with_a_number_that_is_not_finite_is_nan_alone(bits: Any, wrong: float) -> None:
    torch.manual_seed(0)
    packed, scales = grouped_weights.pack(torch.randn(64, 70), bits, 32)
    x = torch.randn(6, 64)
    plain = grouped_weights.product(x, packed, scales, bits, 70, rounds_rows=True)
    x[2, 37] = wrong
    result = grouped_weights.product(x, packed, scales, bits, 70, rounds_rows=True)
    others = [0, 1, 3, 4, 5]
    assert bool(result[2].isnan().all()) and torch.equal(result[others], plain[others])


@needs_numba
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("offsets", [False, True])
def test_rounded_rows_have_the_same_bits_beside_others(bits: Any, offsets: bool) -> None:
    torch.manual_seed(0)
    packed, scales = grouped_weights.pack(torch.randn(96, 150), bits, 32)
    shifts = torch.randn_like(scales) if offsets else None
    x = torch.randn(103, 96)
    together = grouped_weights.product(x, packed, scales, bits, 150, shifts, rounds_rows=True)
    for first, count in ((0, 1), (5, 2), (7, 7), (90, 13), (3, 98)):
        part = grouped_weights.product(x[first : first + count], packed, scales, bits, 150, shifts, rounds_rows=True)
        assert torch.equal(part, together[first : first + count])


@needs_numba
def test_products_of_bytes_and_of_their_numbers_in_fp32_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without instructions for bytes rounds the rows in fp32, also in the step of a word."""
    torch.manual_seed(0)
    packed, scales = grouped_weights.pack(torch.randn(64, 70), 8, 32)
    x = torch.randn(9, 64)
    as_bytes = grouped_weights.product(x, packed, scales, 8, 70, rounds_rows=True)
    scores = scores_of(model_of("Llama, linear", weights="int4", rows="int8"))
    for module in (grouped_weights, word_step):
        monkeypatch.setattr(module, "multiplies_bytes", lambda group: False)
    torch.testing.assert_close(grouped_weights.product(x, packed, scales, 8, 70, rounds_rows=True), as_bytes)
    for in_floats, in_bytes in zip(scores_of(model_of("Llama, linear", weights="int4", rows="int8")), scores, strict=True):
        assert np.abs(in_floats - in_bytes).max() < 0.02 * np.abs(in_bytes).max()


@pytest.mark.parametrize(("options", "words"), [
    ({"rows": "int8"}, "rows= is for products with packed weights"),
    ({"weights": "float", "rows": "int8"}, "rows= is for products with packed weights"),
    ({"weights": "int8", "rows": "int4"}, "rows must be"),
])  # fmt: skip
def test_rows_are_rounded_beside_packed_weights_alone(options: Any, words: str) -> None:
    with pytest.raises(fs.SchemaError, match=words):
        model_of("Qwen 3", **options)


def test_other_rows_are_refused_by_quantize_too(tmp_path: Any) -> None:
    with pytest.raises(fs.SchemaError, match="rows must be"):
        fs.quantize(model_of("Qwen 3"), weights="int8", rows="fp16")  # pyright: ignore[reportCallIssue, reportArgumentType]
    model = opened_network(tmp_path)
    with pytest.raises(fs.SchemaError, match="rows= is for products with packed weights"):
        fs.quantize(model, rows="int8")


# --- words


def scores_of(model: fs.LanguageModel) -> list[np.ndarray]:
    """Return scores behind prompts, and behind one further word of one, two, three and five texts."""
    random = np.random.RandomState(3)
    rows = [random.randint(8, 50, n).tolist() for n in (9, 1, 17, 4, 30)]
    out = [model.run(rows, range(5), [0] * 5).numpy().copy()]
    held = list(map(len, rows))
    for slots in ([2], [4, 0], [1, 3, 2], [4, 3, 2, 1, 0]):
        out.append(model.run([[9 + slot] for slot in slots], slots, [held[slot] for slot in slots]).numpy().copy())
        for slot in slots:
            held[slot] += 1
    return out


@needs_numba
@pytest.mark.parametrize("weights", ["int8", "int4"])
@pytest.mark.parametrize("name", each(6, TOLD))
def test_scores_in_machine_code_are_the_executors(name: str, weights: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(name, weights=weights, group=16)
    found = scores_of(model)
    assert model._step is not None
    monkeypatch.setenv(SWITCH, "torch")
    for ours, theirs in zip(found, scores_of(model_of(name, weights=weights, group=16)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=3e-5 * float(np.abs(theirs).max()))


@pytest.mark.parametrize("name", ["Llama, linear", "Gemma 2", "OPT"])
def test_eight_bits_are_close_to_fp32_and_four_less_so(name: str) -> None:
    """These networks have heads of 8 columns and random weights: nothing averages the roundings out."""
    plain = scores_of(model_of(name))
    for weights, most in (("int8", 0.08), ("int4", 0.9)):
        packed = scores_of(model_of(name, weights=weights))
        errors = [float(np.sqrt(np.square(a - b).mean()) / np.std(b)) for a, b in zip(packed, plain, strict=True)]
        assert 0 < max(errors) < most, (weights, errors)


@needs_numba
@pytest.mark.parametrize(("weights", "rows"), [("int8", "fp32"), ("int4", "fp32"), (None, "fp32"), ("int8", "int8"), ("int4", "int8")])
def test_no_text_changes_the_bits_of_another(weights: Any, rows: Any) -> None:
    """A word's scores are the same alone, beside one text and beside four, on one thread and on three."""
    outcomes: list[np.ndarray] = []
    for threads, slots in ((1, [2]), (1, [2, 0]), (1, [4, 1, 2, 3, 0]), (3, [0, 2, 1])):
        model = model_of("Mistral", weights=weights, threads=threads, rows=rows)
        for slot in range(5):
            model.run([[9 + slot, 11]], [slot], [0])
        outcomes.append(model.run([[20 + slot] for slot in slots], slots, [2] * len(slots)).numpy()[slots.index(2)].copy())
    assert all(np.array_equal(outcome, outcomes[0]) for outcome in outcomes)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_model_is_packed_as_it_is_read_and_afterwards_alike(weights: Any) -> None:
    plain = model_of("Qwen 3")
    before = fs.generate(plain, decoders.prompts(), 8)
    later = fs.quantize(plain, weights=weights)
    assert isinstance(later, fs.LanguageModel) and fs.generate(plain, decoders.prompts(), 8) == before
    assert fs.generate(later, decoders.prompts(), 8) == fs.generate(model_of("Qwen 3", weights=weights), decoders.prompts(), 8)
    assert later.users == plain.users and later.context == plain.context and later.settings == plain.settings
    sizes = {v.name: model.scope.tensor(v.name).nbytes for model in (plain, later) for v in model.program.parameters() if v.name in model.scope}
    packed = sum(later.scope.tensor(v.name).nbytes for v in later.program.global_block.vars.values() if "bits" in v.name and v.name in later.scope)
    products = sum(size for name, size in sizes.items() if name not in {v.name for v in later.program.parameters()})
    assert packed < products * (0.6 if weights == "int8" else 0.45)  # matrices of 40 columns fill two thirds of a tile


def test_names_of_layers_can_be_left_out_and_groups_chosen() -> None:
    model = fs.quantize(model_of("Qwen 3"), weights="int8", group=8, exclude=["head*", "*query*"])
    packed = [v.name for v in model.program.global_block.vars.values() if v.name.endswith("8_bits")]
    assert packed and not any("query" in name or "head" in name for name in packed)
    assert all(
        model.program.global_block.var(f"{name}@scale").spec.known_dims[1] == model.program.global_block.var(name).spec.known_dims[1] // 8 for name in packed
    )


def opened_network(folder: Any) -> Any:
    fs.reset()
    x = layer.data("x", ["batch", 32])
    y = layer.fc(layer.fc(x, 48, activation="relu"), 10)
    fs.Executor(seed=1).run(fs.default_startup_program())
    fs.save_inference_model(folder / "net", ["x"], [y])
    return fs.load_inference_model(folder / "net")


def test_an_opened_network_has_packed_weights_too(tmp_path: Any) -> None:
    plain = opened_network(tmp_path)
    feed = {"x": np.random.RandomState(0).randn(7, 32).astype("float32")}
    expected = plain.run(feed)[0]
    for weights, most in (("int8", 0.02), ("int4", 0.2)):
        packed = fs.quantize(plain, weights=weights)
        found = packed.run(feed)[0]
        assert 0 < np.abs(found - expected).max() < most * np.abs(expected).max()
        fs.save_inference_model(tmp_path / weights, packed.feeds, packed.fetches, scope=packed.scope, program=packed.program)
        np.testing.assert_array_equal(fs.load_inference_model(tmp_path / weights).run(feed)[0], found)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"weights": "int2"}, "weights must be 'int8' or 'int4'"),
        ({"weights": "int8", "group": 6}, "group must be a multiple of 4"),
        ({"weights": "int8", "group": True}, "group must be a multiple of 4"),
        ({"weights": "int8", "exclude": "nothing_like_it*"}, "nothing_like_it"),
        ({"weights": "int8", "exclude": "*"}, "nothing to quantize"),
    ],
)
def test_wrong_settings_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(fs.SchemaError, match=says):
        fs.quantize(model_of("Mistral"), **options)


def test_weights_with_nan_are_refused_by_name() -> None:
    model = model_of("Mistral")
    name = next(v.name for v in model.program.parameters() if v.name.endswith("mlp.outer.weight"))
    broken = model.scope.get(name).copy()
    broken[3, 1] = np.nan
    model.scope.set(name, broken)
    with pytest.raises(fs.SchemaError, match=rf"{name} has numbers that are not finite"):
        fs.quantize(model, weights="int4")


def test_other_objects_and_data_are_refused() -> None:
    with pytest.raises(fs.SchemaError, match="a LanguageModel is quantized by its weights alone"):
        fs.quantize(model_of("Mistral"))  # pyright: ignore
    with pytest.raises(fs.SchemaError, match="model must be an InferenceModel"):
        fs.quantize(3, weights="int8")  # pyright: ignore
