"""The private names of torch: all are there at both ends of the supported range, and the ways without them compute the same."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from foreshape.core.values import torch_private
from foreshape.core.values.torch_private import NAMES, find, has, private, private_into
from foreshape.errors import ExecutionError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", NAMES)
def test_this_torch_has_it(name: str) -> None:
    assert find(NAMES[name].path) is not None
    assert name == "schema" or getattr(private, name) is find(NAMES[name].path)


def rows(*dims: int) -> torch.Tensor:
    return torch.randn(*dims, generator=torch.Generator().manual_seed(3))


def mode(make: Callable[..., Any], *args: Any) -> tuple[bool, bool]:
    """Whether what runs within it can have a gradient, and whether autocast is on there."""
    with torch.autocast("cpu"), make(*args):
        return torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")


def within(context: Any, ask: Callable[[], Any]) -> Any:
    with context:
        return ask()


def multiplied(multiply: Callable[..., None]) -> list[torch.Tensor]:
    tensors = [rows(1), rows(3)]
    multiply(tensors, 0.9)
    return tensors


CASES: dict[str, Callable[[Any], Any]] = {
    "InferenceMode": lambda f: mode(f, True),
    "BelowAutograd": lambda f: within(f(), lambda: (made := rows(2).requires_grad_() * 2.0).requires_grad or made.is_inference()),
    "saved_hooks": lambda f: f(False) is None,
    "DisableAutocast": lambda f: mode(f),
    "is_any_autocast_enabled": lambda f: within(torch.autocast("cpu"), f),
    "len_torch_function_stack": lambda f: within(torch.device("cpu"), f) > 0,
    "is_functorch_active": lambda f: f(),
    "storage_users": lambda f: (lambda whole, part: f(whole.untyped_storage()._cdata) > 2 and part.numel())(whole := rows(2), whole[1:]),
    "is_functorch_wrapped_tensor": lambda f: f(rows(2)),
    "foreach_mul_": multiplied,
    "softmax_gradient": lambda f: f(rows(2, 5), rows(2, 5).softmax(1), 1, torch.float32),
    "log_softmax_gradient": lambda f: f(rows(2, 5), rows(2, 5).log_softmax(0), 0, torch.float32),
    "bag_sums": lambda f: f(rows(7, 3), torch.arange(7), torch.tensor([0, 2, 2, 7]), False, 0, False, None, True, -1)[0],
}


def test_each_way_without_a_name_is_compared() -> None:
    assert set(CASES) == {name for name, entry in NAMES.items() if entry.otherwise}


@pytest.mark.parametrize("name", CASES)
def test_the_way_without_it_does_the_same(name: str) -> None:
    without = NAMES[name].otherwise
    torch.testing.assert_close(CASES[name](without), CASES[name](find(NAMES[name].path)))


@pytest.mark.parametrize("name", ["softmax_gradient", "log_softmax_gradient"])
def test_a_kernel_writes_into_what_is_given(name: str) -> None:
    d, out = rows(2, 5), rows(2, 5).softmax(1)
    into = torch.zeros(2, 5)
    assert getattr(private_into, name)(d, out, 1, torch.float32, into=into) is into
    torch.testing.assert_close(into, getattr(private, name)(d, out, 1, torch.float32))


def test_what_a_torch_has_not_is_an_error_that_says_so_or_goes_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {name: entry._replace(path=entry.path + "_of_another_release") for name, entry in NAMES.items()}
    monkeypatch.setattr(torch_private, "NAMES", gone)
    has.cache_clear()
    try:
        fresh, into = type(private)(), type(private_into)()
        assert not has("linear_pointwise")
        with pytest.raises(ExecutionError, match=r"^momentum in one pass on the CPU: torch\._fused_sgd__of_another_release is needed, .* since 2\.4; "):
            _ = fresh.fused_sgd_
        with pytest.raises(ExecutionError, match="warpctc's gradient"):
            _ = into.ctc_loss_gradient
        assert fresh.softmax_gradient is NAMES["softmax_gradient"].otherwise
        place, d, out = torch.zeros(2, 5), rows(2, 5), rows(2, 5).softmax(1)
        torch.testing.assert_close(into.softmax_gradient(d, out, 1, torch.float32, into=place), private.softmax_gradient(d, out, 1, torch.float32))
    finally:
        has.cache_clear()


LOOK = "from foreshape.core.values.torch_private import NAMES, has; print([name for name in NAMES if not has(name)])"


@pytest.mark.longest
def test_the_least_torch_that_is_supported_has_them_all(tmp_path: Path) -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["run"]
    least = next(n for n in needed if n.startswith("torch>=")).replace(">=", "==") + ".0"
    python = tmp_path / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path)], check=True)
    made = subprocess.run([python, "-m", "pip", "install", "-q", "--no-compile", least, str(ROOT)], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"pip has no {least} here: {made.stderr[-300:]}")
    assert subprocess.run([python, "-c", LOOK], capture_output=True, text=True, check=True).stdout.strip() == "[]"
