"""The optimizers' updates, clips and decays, written out as the formulas say, for tensors of any precision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from drawn.program import Optimizer, Parameter


class Gradient(NamedTuple):
    """A gradient, and the rows that it has where it is sparse; zeros elsewhere."""

    value: Any
    rows: Any | None

    def with_value(self, value: Any) -> Gradient:
        if self.rows is None:
            return Gradient(value, None)
        kept = torch.zeros_like(value)
        kept[self.rows] = value[self.rows]
        return Gradient(kept, self.rows)


class Updates:
    """An optimizer with its state."""

    def __init__(self, of: Optimizer, parameters: Mapping[str, Parameter]) -> None:
        self.of, self.parameters = of, parameters
        self.held: dict[str, dict[str, Any]] = {}

    def apply(self, state: dict[str, Any], gradients: Mapping[str, Gradient], rate: float) -> None:
        """One update of all parameters that have a gradient."""
        gradients = self._clipped(gradients)
        for name, gradient in gradients.items():
            p = self.parameters[name]
            if self.of.decay is not None and p.decays:
                gradient = self._decayed(state[name], gradient)
            held = self.held.setdefault(name, {})
            one = getattr(self, self.of.kind.lower())
            scaled = rate * p.rate
            if gradient.rows is not None and (self.of.settings.get("lazy_mode") or self.of.kind == "Ftrl"):
                rows = gradient.rows
                if not len(rows) and self.of.kind in ("Adam", "AdamW"):
                    continue
                part = {k: v[rows] if isinstance(v, torch.Tensor) and v.dim() else v for k, v in held.items()}
                new = one(state[name][rows], gradient.value[rows], scaled, part, p)
                state[name] = state[name].index_copy(0, rows, new)
                for k, v in part.items():
                    whole = held.get(k, torch.full_like(state[name], self._first(k)))
                    held[k] = whole.index_copy(0, rows, v) if isinstance(v, torch.Tensor) and v.dim() else v
            else:
                state[name] = one(state[name], gradient.value, scaled, held, p)

    def _first(self, k: str) -> float:
        return self.of.settings.get("initial_accumulator_value", 0.0) if k == "moment" else 0.0

    def _clipped(self, gradients: Mapping[str, Gradient]) -> dict[str, Gradient]:
        if self.of.clip is None:
            return dict(gradients)
        how, limit = self.of.clip
        if how == "ClipByValue":
            return {n: g.with_value(g.value.clamp(-limit, limit)) for n, g in gradients.items()}
        norms = {n: (g.value**2).sum().sqrt() for n, g in gradients.items()}
        if how == "ClipByGlobalNorm":
            whole = sum(v**2 for v in norms.values()) ** 0.5
            norms = dict.fromkeys(norms, whole)
        return {n: g.with_value(g.value * limit / norms[n].clamp(min=limit)) for n, g in gradients.items()}

    def _decayed(self, parameter: Any, gradient: Gradient) -> Gradient:
        assert self.of.decay is not None
        how, coefficient = self.of.decay
        whole = gradient.value + coefficient * (parameter.sign() if how == "L1Decay" else parameter)
        exact = self.of.kind == "Momentum" and how == "L2Decay" and not self.of.settings["lazy_mode"]
        return Gradient(whole, gradient.rows) if exact else gradient.with_value(whole)

    # --- the formulas: from a parameter, its gradient, the rate and the state to the new parameter

    def sgd(self, p: Any, g: Any, rate: float, held: dict[str, Any], of: Parameter) -> Any:
        return p - rate * g

    def momentum(self, p: Any, g: Any, rate: float, held: dict[str, Any], of: Parameter) -> Any:
        mu = self.of.settings["momentum"]
        held["velocity"] = v = mu * held.get("velocity", torch.zeros_like(p)) + g
        return p - rate * (g + mu * v) if self.of.settings["use_nesterov"] else p - rate * v

    def adam(self, p: Any, g: Any, rate: float, held: dict[str, Any], of: Parameter) -> Any:
        s = self.of.settings
        b1, b2 = s["beta1"], s["beta2"]
        held["t"] = t = held.get("t", 0) + 1
        held["m"] = m = b1 * held.get("m", torch.zeros_like(p)) + (1 - b1) * g
        held["v"] = v = b2 * held.get("v", torch.zeros_like(p)) + (1 - b2) * g * g
        return p - rate * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + s["epsilon"])

    def adamw(self, p: Any, g: Any, rate: float, held: dict[str, Any], of: Parameter) -> Any:
        kept = p * (1 - rate * self.of.settings["weight_decay"]) if of.decays else p
        return self.adam(kept, g, rate, held, of)

    def adagrad(self, p: Any, g: Any, rate: float, held: dict[str, Any], of: Parameter) -> Any:
        s = self.of.settings
        held["moment"] = m = held.get("moment", torch.full_like(p, s["initial_accumulator_value"])) + g * g
        return p - rate * g / (m.sqrt() + s["epsilon"])

    def rmsprop(self, p: Any, g: Any, rate: float, held: dict[str, Any], of: Parameter) -> Any:
        s = self.of.settings
        rho, zeros = s["rho"], torch.zeros_like(p)
        held["square"] = square = rho * held.get("square", zeros) + (1 - rho) * g * g
        held["mean"] = mean = rho * held.get("mean", zeros) + (1 - rho) * g
        root = (square - (mean * mean if s["centered"] else 0.0) + s["epsilon"]).sqrt()
        held["step"] = step = s["momentum"] * held.get("step", zeros) + rate * g / root
        return p - step

    def ftrl(self, p: Any, g: Any, rate: float, held: dict[str, Any], of: Parameter) -> Any:
        s = self.of.settings
        l1, l2 = s["l1"] + 1e-10, s["l2"] + 1e-10  # what PaddlePaddle's kernel adds, too
        power, zeros = -s["lr_power"], torch.zeros_like(p)
        old = held.get("squared", zeros)
        held["squared"] = new = old + g * g
        held["linear"] = linear = held.get("linear", zeros) + g - (new**power - old**power) / rate * p
        return torch.where(linear.abs() > l1, (l1 * linear.sign() - linear) / (new**power / rate + 2 * l2), 0.0)
