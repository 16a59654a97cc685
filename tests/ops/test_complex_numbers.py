"""Complex numbers in whole programs: fed, fetched, saved, refused, and differentiated as PyTorch does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import COMPLEX64, COMPLEX128
from foreshape.transforms.backward import append_backward

RNG = np.random.RandomState(3)
X = RNG.standard_normal((3, 4, 6)).astype("float32")
Z = (RNG.standard_normal((3, 5)) + 1j * RNG.standard_normal((3, 5))).astype("complex64")


def apply(type: str, inputs: dict[str, Any], attrs: dict[str, Any] | None = None) -> Any:
    return fs.default_main_program().global_block.apply(type, inputs, attrs or {})


def run(feed: dict[str, Any], fetch: list[Any]) -> list[Any]:
    return fs.Executor().run(fs.default_main_program(), feed, fetch, fs.Scope())


def test_complex_numbers_are_described_fed_and_fetched() -> None:
    z = layer.data("z", shape=["batch", 5], dtype="complex64")
    assert z.dtype is COMPLEX64
    assert z.spec.text() == "c64[batch, 5]"
    assert z.spec.with_dims([3, 5]).nbytes == 3 * 5 * 8
    out = apply("conj", {"X": z})
    (given,) = run({"z": Z}, [out])
    assert given.dtype == np.complex64
    np.testing.assert_array_equal(given, Z.conj())
    (wide,) = run({"z": torch.from_numpy(Z)}, [apply("abs", {"X": z})])
    np.testing.assert_allclose(wide, np.abs(Z), rtol=1e-6)


def test_what_is_fed_must_be_complex_and_no_wider() -> None:
    z = layer.data("z", shape=["batch", 5], dtype=COMPLEX64)
    out = apply("real", {"X": z})
    with pytest.raises(fs.FeedError, match="z must be complex64; fed is fp32"):
        run({"z": Z.real}, [out])
    with pytest.raises(fs.FeedError, match="z must be complex64; fed is complex128"):
        run({"z": Z.astype("complex128")}, [out])
    x = layer.data("x", shape=["batch", 5])
    with pytest.raises(fs.FeedError, match="x must be fp32; fed is complex64"):
        run({"x": Z}, [layer.relu(x)])


def test_operators_that_do_not_say_so_take_no_complex_numbers() -> None:
    z = layer.data("z", shape=["batch", 5], dtype=COMPLEX128)
    for refused in (lambda: layer.relu(z), lambda: layer.mean(z), lambda: layer.sigmoid(z), lambda: apply("gather", {"X": z, "Index": z})):
        with pytest.raises(fs.TypeMismatchError, match="not complex128"):
            refused()


def test_a_program_of_them_is_saved_printed_and_read_back(tmp_path: Path) -> None:
    x = layer.data("x", shape=["batch", 6])
    spectrum = apply("fft_r2c", {"X": x}, {"axes": [1], "normalization": "backward", "forward": True, "onesided": True})
    assert str(spectrum).endswith("c64[batch, 4]")
    fs.save_inference_model(tmp_path / "model", [x], [apply("abs", {"X": spectrum})])
    executor, scope = fs.Executor(), fs.Scope()
    program, names, fetches = fs.load_inference_model(tmp_path / "model", executor, scope)
    assert str(fs.Program.parse(str(program))) == str(program)
    (given,) = executor.run(program, {names[0]: X[0]}, fetches, scope)
    np.testing.assert_allclose(given, np.abs(np.fft.rfft(X[0])), rtol=1e-5, atol=1e-6)


def gradient_here(out: Any, x: Any) -> Any:
    weight = np.linspace(-1.0, 1.0, 3 * 4 * 6).astype("float32").reshape(3, 4, 6)
    fed = layer.data("weight", shape=["batch", 4, 6])
    pairs = {v.name: g for v, g in append_backward(layer.reduce_sum(layer.multiply(out, fed)), [x.name])}
    return weight, run({"x": X, "weight": weight}, [out, pairs[x.name]])


def test_the_mixing_of_fnet_trains() -> None:
    x = layer.data("x", shape=["batch", 4, 6])
    x.stop_gradient = False
    once = apply("fft_r2c", {"X": x}, {"axes": [2], "normalization": "backward", "forward": True, "onesided": False})
    twice = apply("fft_c2c", {"X": once}, {"axes": [1], "normalization": "backward", "forward": True})
    weight, (given, gradient) = gradient_here(apply("real", {"X": twice}), x)
    there = torch.from_numpy(X).requires_grad_()
    out = torch.fft.fft2(there).real
    (out * torch.from_numpy(weight)).sum().backward()
    np.testing.assert_allclose(given, out.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, there.grad.numpy(), rtol=1e-4, atol=1e-5)  # pyright: ignore[reportOptionalMemberAccess]


def test_gradients_of_a_number_that_is_used_twice_are_summed() -> None:
    """|z|, the angle, real and imaginary part of a spectrum, brought back to a signal: each way gives its part."""
    x = layer.data("x", shape=["batch", 4, 6])
    x.stop_gradient = False
    half = {"axes": [1, 2], "normalization": "ortho", "forward": True, "onesided": True}
    z = apply("fft_r2c", {"X": x}, half)
    pair = apply("as_real", {"X": apply("transpose2", {"X": apply("conj", {"X": z})}, {"axis": [0, 2, 1]})[0]})
    back = apply("transpose2", {"X": apply("as_complex", {"X": pair})}, {"axis": [0, 2, 1]})[0]
    sizes, turns = (apply(type, {"X": z}) for type in ("abs", "angle"))
    polar = apply("complex", {"X": layer.multiply(sizes, apply("real", {"X": back})), "Y": layer.add(turns, apply("imag", {"X": z}))})
    out = apply("fft_c2r", {"X": polar}, {"axes": [1, 2], "normalization": "backward", "forward": False})
    weight, (given, gradient) = gradient_here(out, x)
    there = torch.from_numpy(X).requires_grad_()
    w = torch.fft.rfft2(there, norm="ortho")
    want = torch.fft.irfft2(torch.complex(w.abs() * w.conj().real, w.angle() + w.imag))
    (want * torch.from_numpy(weight)).sum().backward()
    np.testing.assert_allclose(given, want.detach().numpy(), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(gradient, there.grad.numpy(), rtol=1e-3, atol=1e-5)  # pyright: ignore[reportOptionalMemberAccess]


def test_arithmetic_of_spectra_trains() -> None:
    """A filter over the spectrum, with every operator of complex arithmetic, and a product of rows, whose gradient is two kernels of real numbers."""
    x = layer.data("x", shape=["batch", 4, 6])
    w = layer.data("w", shape=[4, 6], dtype="complex64")
    x.stop_gradient = w.stop_gradient = False
    z = apply("fft_r2c", {"X": x}, {"axes": [2], "normalization": "backward", "forward": True, "onesided": True})
    mixed = apply("matmul_v2", {"X": z, "Y": w})  # [batch, 4, 6]
    bias = apply("cast", {"X": x}, {"in_dtype": 5, "out_dtype": 23})
    both = apply("elementwise_div", {"X": apply("elementwise_add", {"X": mixed, "Y": bias}), "Y": apply("exp", {"X": w})})
    both = apply("elementwise_mul", {"X": both, "Y": apply("elementwise_sub", {"X": mixed, "Y": w})})
    both = apply("scale", {"X": both}, {"scale": 0.5, "bias": 1.0})
    whole = apply("concat", {"X": [both, apply("elementwise_sub", {"X": both, "Y": bias})]}, {"axis": 2})
    out = layer.add(apply("real", {"X": whole}), layer.square(apply("imag", {"X": whole})))
    pairs = {v.name: g for v, g in append_backward(layer.reduce_sum(out), ["x", "w"])}
    rng = np.random.RandomState(5)
    weight = (rng.standard_normal((4, 6)) + 1j * rng.standard_normal((4, 6))).astype("complex64")
    given = run({"x": X, "w": weight}, [out, pairs["x"], pairs["w"]])
    a, b = torch.from_numpy(X).requires_grad_(), torch.from_numpy(weight).requires_grad_()
    product = torch.fft.rfft(a) @ b
    there = (product + a) / b.exp() * (product - b) * 0.5 + 1.0
    there = torch.cat([there, there - a], 2)
    want = there.real + there.imag.square()
    want.sum().backward()
    for here, other in zip(given, (want.detach(), a.grad, b.grad), strict=True):
        assert isinstance(other, torch.Tensor)
        np.testing.assert_allclose(here, other.numpy(), rtol=2e-4, atol=2e-4 * float(other.abs().max()))


@pytest.mark.parametrize("onesided", [True, False])
def test_an_stft_is_that_of_torch(onesided: bool) -> None:
    x, window = layer.data("x", shape=["batch", "time"]), layer.data("window", shape=[6])
    x.stop_gradient = False
    z = apply("stft", {"X": x, "Window": window}, {"n_fft": 6, "hop_length": 4, "normalized": True, "onesided": onesided})
    out = layer.add(layer.square(apply("real", {"X": z})), apply("imag", {"X": z}))
    pairs = {v.name: g for v, g in append_backward(layer.reduce_sum(out), ["x"])}
    rng = np.random.RandomState(4)
    signals, by = rng.standard_normal((2, 21)).astype("float32"), rng.standard_normal(6).astype("float32")
    given, gradient = run({"x": signals, "window": by}, [z, pairs["x"]])
    there = torch.from_numpy(signals).requires_grad_()
    want = torch.stft(there, 6, 4, window=torch.from_numpy(by), center=False, normalized=True, onesided=onesided, return_complex=True)
    (want.real.square() + want.imag).sum().backward()
    assert there.grad is not None
    np.testing.assert_allclose(given, want.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(gradient, there.grad.numpy(), rtol=1e-4, atol=1e-5)
