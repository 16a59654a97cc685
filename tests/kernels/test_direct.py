"""oneDNN's own library: what it computes, what it is never asked, and who may ask it at the same time."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import pytest
import torch

from foreshape.errors import ShapeError
from foreshape.machine.kernels import frozen, kept_kernels, onednn_library
from foreshape.machine.kernels import onednn_packed as direct
from foreshape.machine.kernels.frozen import Following, FrozenConvolution, FrozenLinear, convolution, linear, transposed_convolution
from foreshape.machine.kernels.onednn_library import After, LibraryError, Memory, Primitive, Unimplemented, library
from foreshape.machine.kernels.onednn_ragged import PART
from foreshape.machine.kernels.onednn_transposed import PackedTransposedConvolution

needs_library = pytest.mark.skipif(library() is None, reason="oneDNN's library is not installed for this machine")
RELU = Following("relu")


def numbers(*dims: int) -> Any:
    return torch.randn(dims, generator=torch.Generator().manual_seed(sum(dims)))


def made(out: int = 6, channels: int = 4) -> tuple[Any, Any]:
    """A convolution by the library, and the same by torch."""
    weight, bias = numbers(out, channels, 3, 3), numbers(out)
    settings = ((1, 1), (1, 1), (1, 1), 1)
    return convolution(weight, bias, *settings, RELU), FrozenConvolution(weight, bias, *settings, RELU)


@needs_library
def test_many_sizes_and_back_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_kernels, "_counts", WeakKeyDictionary())
    ours, plain = made()
    assert isinstance(ours, direct.PackedConvolution)
    for size in [*range(1, kept_kernels.MOST + 4), 1]:
        x = numbers(1, 4, size, 3)
        torch.testing.assert_close(ours(x), plain(x))
        torch.testing.assert_close(ours.add(x, numbers(1, 6, size, 3)), plain.add(x, numbers(1, 6, size, 3)))
    assert len(ours._kernels) == kept_kernels.MOST  # pyright: ignore[reportPrivateUsage]


@needs_library
def test_many_weights_keep_kernels_of_fewer_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder of hundreds of products met a new number of rows with each prompt: its kernels took more memory than its weights."""
    monkeypatch.setattr(kept_kernels, "_counts", WeakKeyDictionary())
    monkeypatch.setattr(kept_kernels, "KERNELS", 40)
    both = [(linear(numbers(8, 5), numbers(5), RELU), FrozenLinear(numbers(8, 5), numbers(5), RELU)) for _ in range(4)]
    for rows in [*range(2, 30), 2]:
        for ours, plain in both:
            torch.testing.assert_close(ours(numbers(rows, 8)), plain(numbers(rows, 8)))
    kept = [len(ours._kernels) for ours, _ in both]  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
    assert kept == [10] * 4
    del both[1:], ours, plain
    gc.collect()
    assert kept_kernels.sizes_kept() == 40
    monkeypatch.setattr(kept_kernels, "KERNELS", 1)
    assert kept_kernels.sizes_kept() == kept_kernels.LEAST


@needs_library
def test_many_threads_at_once() -> None:
    ours, plain = made()
    rows, rows_plain = linear(numbers(8, 5), numbers(5), RELU), FrozenLinear(numbers(8, 5), numbers(5), RELU)
    images = [numbers(1 + k % 2, 4, 8, 5 + k % 3) for k in range(64)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda x: (ours(x), rows(x[:, 0])) if x.shape[3] == 8 else (ours(x),), images * 4))
    for x, got in zip(images * 4, found, strict=True):
        torch.testing.assert_close(got[0], plain(x))
    torch.testing.assert_close(rows(numbers(3, 8)), rows_plain(numbers(3, 8)))


@needs_library
@pytest.mark.parametrize("x", [numbers(1, 5, 4, 4), numbers(1, 4, 4, 4).double(), numbers(4, 4, 4)], ids=["channels", "element type", "dims"])
def test_images_that_do_not_fit_are_refused_before_the_library_sees_them(x: Any) -> None:
    with pytest.raises(ShapeError, match=r"images must be fp32 \[n, 4, height, width\]"):
        made()[0](x)


@needs_library
@pytest.mark.parametrize("of", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_another_element_type_in_a_size_that_came_before_is_refused(of: torch.dtype) -> None:
    images, rows = made()[0], linear(numbers(8, 5), None, RELU)
    for kernel, x in ((images, numbers(1, 4, 8, 8)), (rows, numbers(3, 8))):
        kernel(x)
        with pytest.raises(ShapeError, match="must be fp32"):
            kernel(x.to(of))
    with pytest.raises(ShapeError, match="must be fp32"):
        rows(torch.empty(3, 8, device="meta"))


@needs_library
@pytest.mark.parametrize("far", [7, 2**31 - 1])
def test_steps_that_end_behind_the_image_are_taken_however_long_they_are(far: int) -> None:
    x, weight, bias, image = numbers(2, 4, 5, 6), numbers(6, 4, 3, 1), numbers(6), numbers(2, 4, 1, 3)
    settings = ((far, 1), (1, 0), (1, far), 1)
    ours = convolution(weight, bias, *settings, RELU)
    torch.testing.assert_close(ours(x), torch.relu(torch.conv2d(x, weight, bias, (7, 1), (1, 0))))
    back = transposed_convolution(weight.transpose(0, 1).contiguous(), bias, (far, 2), (0, 0), (0, 0), (1, far), RELU)
    wanted = torch.nn.functional.conv_transpose2d(image, weight.transpose(0, 1), bias, (1, 2))
    torch.testing.assert_close(back(image), torch.relu(wanted))
    for kernel in (ours, back):
        assert isinstance(kernel, (direct.PackedConvolution, PackedTransposedConvolution))


WEIGHTS = [(320, 24, 4, 2), (320, 24, 4, 4), (16, 64, 16, 8), (96, 24, 8, 4), (128, 24, 4, 2), (64, 24, 2, 2)]


@pytest.mark.parametrize(("channels", "out", "window", "step"), WEIGHTS)
def test_a_transposed_convolution_of_many_weights_has_its_bias_and_function_once(channels: int, out: int, window: int, step: int) -> None:
    x, weight, bias = numbers(1, channels, 5, 7), numbers(channels, out, window, window) / channels, numbers(out)
    wanted = torch.nn.functional.conv_transpose2d(x, weight, bias, step)
    for following, what in ((Following(), wanted), (RELU, torch.relu(wanted))):
        kernel = transposed_convolution(weight.clone(), bias, (step, step), (0, 0), (0, 0), (1, 1), following)
        torch.testing.assert_close(kernel(x.contiguous(memory_format=torch.channels_last)), what, rtol=1e-4, atol=1e-5)


@needs_library
def test_what_does_not_fit_is_refused() -> None:
    weight = numbers(6, 4, 3, 3)
    with pytest.raises(ShapeError, match="do not fit into images"):
        convolution(weight, None, (1, 1), (0, 0), (1, 1), 1, RELU)(numbers(1, 4, 2, 2))
    with pytest.raises(ShapeError, match="what is added must be fp32"):
        made()[0].add(numbers(1, 4, 5, 5), numbers(1, 6, 5, 4))
    with pytest.raises(ShapeError, match=r"rows must be fp32 \[..., 8\]"):
        linear(numbers(8, 5), None, RELU)(numbers(3, 7))


@needs_library
def test_sizes_without_a_kernel_and_without_elements_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, plain = made()
    first = numbers(1, 4, 5, 5)
    torch.testing.assert_close(ours(first), plain(first))  # and the weight lies as the library wants it

    def none(*given: Any) -> Any:
        raise Unimplemented("no kernel")

    monkeypatch.setattr(onednn_library.Library, "convolution", none)
    for x in (numbers(2, 4, 7, 6), numbers(0, 4, 5, 5)):
        torch.testing.assert_close(ours(x), plain(x))
        torch.testing.assert_close(ours.add(x, torch.ones(x.shape[0], 6, *x.shape[2:])), plain.add(x, torch.ones(x.shape[0], 6, *x.shape[2:])))


@needs_library
def test_a_large_scratchpad_is_made_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "SMALL", 0)
    ours, plain = made(64, 64)
    x = numbers(1, 64, 9, 9)
    for _ in range(3):
        torch.testing.assert_close(ours(x), plain(x), rtol=1e-4, atol=1e-4)


def test_it_can_be_left_to_torch() -> None:
    ask = "from foreshape.machine.kernels.onednn_library import library; print(library())"
    told = subprocess.run([sys.executable, "-c", ask], env={**os.environ, onednn_library.SWITCH: "torch"}, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "None"


@needs_library
@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
def test_the_users_default_element_type_is_not_that_of_results(default: torch.dtype) -> None:
    ours, plain = made()
    x, rows, weight = numbers(1, 4, 5, 5), numbers(3, 8), numbers(8, 5)
    torch.set_default_dtype(default)
    try:
        found, product, empty = ours(x), linear(weight, None, RELU)(rows), ours(x[:0])
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, plain(x))
    torch.testing.assert_close(product, torch.relu(rows @ weight))
    assert empty.dtype is torch.float32


@needs_library
def test_weights_and_biases_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="one number for each of 6 results"):
        convolution(numbers(6, 4, 3, 3), numbers(5), (1, 1), (1, 1), (1, 1), 1, RELU)
    with pytest.raises(ShapeError, match="must be fp32"):
        linear(numbers(8, 5).double(), None, RELU)


@needs_library
def test_a_small_weight_is_packed_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that others keep from running are waited for at each weight, of which a network has hundreds."""
    found, seen = library(), list[int]()
    assert found is not None
    run = found.run

    def watched(*given: Any) -> None:
        seen.append(found.threads())
        run(*given)

    monkeypatch.setattr(found, "run", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ours, plain = made(out=32, channels=32)
        x = numbers(1, 32, 9, 11)  # enough for two threads
        torch.testing.assert_close(ours(x), plain(x))
        assert seen == [1] and found.threads() == 2
    finally:
        torch.set_num_threads(before)


@needs_library
@pytest.mark.parametrize(("channels", "window", "more"), [(1024, 3, 1), (512, 4, 0), (64, 3, 1), (1024, 2, 0)])
@pytest.mark.parametrize("following", [Following(), RELU])
def test_what_follows_a_transposed_convolution_is_done_once(channels: int, window: int, more: int, following: Following) -> None:
    """Of many channels the library divides windows that overlap, and would add the bias for each part."""
    x, bias = numbers(1, channels, 5, 4), numbers(24)
    weight = numbers(channels, 24, window, window) / channels**0.5
    pad = 0 if window == 2 else 1
    for given in (bias, None):
        ours = transposed_convolution(weight, given, (2, 2), (pad, pad), (more, more), (1, 1), following)
        wanted = torch.nn.functional.conv_transpose2d(x, weight, given, 2, pad, more)
        torch.testing.assert_close(ours(x), torch.relu(wanted) if following is RELU else wanted, rtol=1e-4, atol=1e-4)


BEHIND = {
    "one pixel across": (((1, 4, 5, 1), (3, 2), (2, 3), (1, 0), (1, 2), (1, 1)), True),
    "one pixel": (((2, 4, 1, 1), (2, 3), (5, 3), (1, 0), (4, 2), (1, 1)), True),
    "one pixel, dilated": (((1, 4, 1, 3), (3, 1), (1, 2), (0, 0), (2, 1), (4, 1)), True),
    "more than a stride": (((1, 4, 2, 2), (3, 1), (3, 1), (0, 0), (2, 1), (1, 2)), False),
}


@needs_library
@pytest.mark.parametrize("name", BEHIND)
def test_rows_and_columns_behind_a_transposed_convolution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library takes none for valid, torch computes it."""
    (dims, window, strides, paddings, more, dilations), by_library = BEHIND[name]
    x, weight, bias, asked = numbers(*dims), numbers(4, 6, *window), numbers(6), list[int]()
    right = frozen.FrozenTransposedConvolution.__call__
    monkeypatch.setattr(frozen.FrozenTransposedConvolution, "__call__", lambda self, x: (asked.append(1), right(self, x))[1])
    kernel = transposed_convolution(weight.clone(), bias, strides, paddings, more, dilations, RELU)
    wanted = torch.nn.functional.conv_transpose2d(x, weight, bias, strides, paddings, more, 1, dilations)
    for _ in range(2):
        torch.testing.assert_close(kernel(x), torch.relu(wanted), rtol=1e-4, atol=1e-5)
    assert bool(asked) is not by_library


@needs_library
def test_what_the_library_calls_invalid_has_no_kernel_and_memory_that_it_does_is_an_error() -> None:
    found = library()
    assert found is not None
    lying = Memory((1, 2, 3, 3), (18, 1, 6, 2))
    with pytest.raises(Unimplemented, match="invalid arguments"):
        found.pooling("max", lying, lying, (1, 1), (9, 9), (0, 0), (0, 0), After())
    with pytest.raises(LibraryError, match="invalid arguments") as caught:
        found.strided((-1,), (1,))
    assert type(caught.value) is LibraryError
    with pytest.raises(Unimplemented, match="at most 12 dims, not 13"):
        found.strided((1,) * 13, (1,) * 13)


@needs_library
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("following", [Following(), RELU, Following("hardswish", scale=2.0)], ids=str)
def test_what_follows_a_transposed_convolution_is_not_done_number_by_number(bias: bool, following: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 3 by steps of 2 are the gradient of a convolution to the library, which computes that alone."""
    x, weight, by = numbers(1, 8, 9, 7), numbers(8, 5, 3, 3), numbers(5) if bias else None
    described, found = list[str](), library()
    assert found is not None
    finish = PackedTransposedConvolution._finish  # pyright: ignore[reportPrivateUsage]

    def watched(self: Any, primitive: Any, *given: Any) -> Any:
        described.append(f"{found.implementation(primitive)}{' and more' if self._bias is not None or self._functions else ''}")
        return finish(self, primitive, *given)

    monkeypatch.setattr(PackedTransposedConvolution, "_finish", watched)
    kernel = transposed_convolution(weight.clone(), by, (2, 2), (1, 1), (0, 0), (1, 1), following)
    wanted = torch.nn.functional.conv_transpose2d(x, weight, by, 2, 1)
    for _ in range(2):
        torch.testing.assert_close(kernel(x), frozen.activated(wanted.clone(), following), rtol=1e-4, atol=1e-4)
    assert len(described) == 1 and not (described[0].startswith("conv:") and described[0].endswith("and more"))


@needs_library
@pytest.mark.parametrize("transposed", [False, True])
def test_one_filter_to_a_group_is_computed_by_a_kernel_that_takes_the_same_time_each_time(transposed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor with AVX2: its kernels by products multiply what is left from before, which may be denormal."""
    implementation, another, asked = onednn_library.Library.implementation, onednn_library.Library.another, list[str]()

    def named(self: Any, description: Any) -> str:
        return implementation(self, description).replace("avx512_core", "avx2")

    def next_one(self: Any, description: Any) -> Any:
        asked.append(named(self, description))
        return another(self, description)

    monkeypatch.setattr(onednn_library.Library, "implementation", named)
    monkeypatch.setattr(onednn_library.Library, "another", next_one)
    x, weight, bias = numbers(1, 24, 9, 7), numbers(24, 1, 2, 2) if transposed else numbers(1, 24, 3, 3), numbers(1)
    if transposed:
        kernel, wanted = transposed_convolution(weight.clone(), bias, (2, 2), (0, 0), (0, 0), (1, 1), RELU), torch.conv_transpose2d(x, weight, bias, 2)
    else:
        kernel, wanted = convolution(weight.clone(), bias, (1, 1), (0, 0), (1, 1), 1, RELU), torch.conv2d(x, weight, bias)
    torch.testing.assert_close(kernel(x), torch.relu(wanted), rtol=1e-4, atol=1e-4)
    assert all("brgconv" in name and name.endswith("avx2") for name in asked)
    two = convolution(numbers(2, 24, 3, 3), None, (1, 1), (0, 0), (1, 1), 1, RELU)
    before = len(asked)
    torch.testing.assert_close(two(x), torch.relu(torch.conv2d(x, numbers(2, 24, 3, 3))), rtol=1e-4, atol=1e-4)
    assert len(asked) == before, "of two filters every kernel is taken"


@needs_library
@pytest.mark.parametrize("following", [Following(), RELU, Following("gelu", form="tanh"), Following("swish", (1.0,), scale=2.0, shift=0.5)], ids=str)
@pytest.mark.parametrize("kept", [True, False])
def test_a_single_row_reads_the_weight_as_it_was_given(following: Following, kept: bool) -> None:
    """It is the first one of many rows, whether the given weight is still there or only the packed one."""
    weight, bias, rows, added = numbers(24, 40), numbers(40), numbers(5, 24), numbers(5, 40)
    ours = linear(weight, bias, following)
    many, more = ours(rows), ours.add(rows, added)
    at = weight.data_ptr()
    if not kept:
        del weight
    torch.testing.assert_close(ours(rows[:1]), many[:1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(ours.add(rows[:1].view(1, 1, 24), added[:1].view(1, 1, 40)), more[:1].view(1, 1, 40), atol=1e-5, rtol=1e-5)
    assert isinstance(ours, direct.PackedProduct)
    assert (ours._given() is not None) is (kept or ours._value.data_ptr() == at), "some kernels read a weight as it is"


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_gelu_of_a_single_row_needs_no_other_memory(form: str) -> None:
    row = numbers(1, 9000)
    want = torch.nn.functional.gelu(row, approximate=form)
    found = frozen.activated(row, Following("gelu", form=form))
    torch.testing.assert_close(found, want)
    assert found.data_ptr() == row.data_ptr()


@pytest.mark.parametrize("added", [False, True])
def test_ragged_rows_of_any_number_are_computed_by_few_kernels(added: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_kernels, "_counts", WeakKeyDictionary())  # weights that other tests leave would have their share
    weight, bias, rows, other = numbers(24, 40), numbers(40), numbers(300, 24), numbers(300, 40)
    ours = frozen.linear(weight, bias, RELU, ragged=True)
    assert isinstance(ours, direct.PackedProduct)
    made: list[int] = []
    described = ours._described
    monkeypatch.setattr(ours, "_described", lambda dims, adds: (made.append(dims[0]), described(dims, adds))[1])
    for count in range(0, 301):
        x, y = rows[:count], other[:count]
        want = torch.relu(x @ weight + bias + (y if added else 0.0))
        torch.testing.assert_close(ours.add(x, y) if added else ours(x), want, atol=1e-5, rtol=1e-5)
    assert len(made) <= 2 * PART + 300 // PART, "made again and again"
    if added:
        with pytest.raises(ShapeError, match="what is added must be"):
            ours.add(rows[:33], other[:32])


@needs_library
def test_equal_kernels_are_one_primitive() -> None:
    """Each of a network's equal layers had code of its own, and a description of 100 KB, for every size."""
    engine = library()
    assert engine is not None
    records = [Primitive("product", (Memory((5, 8), (8, 1)), Memory((8, width), None), None, Memory((5, width), (width, 1)), After())) for width in (6, 6, 7)]
    descriptions = [engine.described(record) for record in records]
    first, second, other = (engine.primitive(description) for description in descriptions)
    assert first is second is not other
    assert all(description.held is primitive for description, primitive in zip(descriptions, (first, second, other), strict=True))
    again = engine.described(records[0])
    assert again.held is first and engine.same(engine.wanted_weights(again), engine.wanted_weights(descriptions[0]))
    name = engine.implementation(again)
    try:
        following = engine.another(again)
    except Unimplemented:
        following = None
    assert following is None or (following.held is None and engine.primitive(following) is not first)
    assert engine.implementation(again) == engine.implementation(descriptions[0]) == name


@needs_library
def test_a_primitive_goes_with_its_last_owner() -> None:
    engine = library()
    assert engine is not None
    description = engine.described(Primitive("product", (Memory((3, 8), (8, 1)), Memory((8, 11), None), None, Memory((3, 11), (11, 1)), After())))
    primitive = weakref.ref(engine.primitive(description))
    assert primitive() is not None
    del description
    gc.collect()
    assert primitive() is None


@needs_library
def test_equal_products_compute_with_their_own_weights() -> None:
    both = [(linear(w, b, RELU), FrozenLinear(w, b, RELU)) for w, b in ((numbers(8, 5), numbers(5)), (numbers(8, 5) * 2, numbers(5) - 1))]
    rows = [numbers(3, 8), numbers(9, 8)]
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda index: both[index % 2][0](rows[index % 3 == 0]), range(200)))
    for index, result in enumerate(results):
        torch.testing.assert_close(result, both[index % 2][1](rows[index % 3 == 0]))
