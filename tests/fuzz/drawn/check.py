"""Checks one program: described, run in some ways by Foreshape, and compared with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import foreshape as fs
from drawn.in_foreshape import Described, Ran, Unfused, both_at_once, describe, run
from drawn.in_torch import Runner
from drawn.measure import Reference, distance, flat, is_tame
from drawn.program import Program


class Different(AssertionError):
    """Two ways to run a program do not give the same."""


class Failed(Exception):
    """A program failed: its cause, and the way and the element type in which it did."""

    def __init__(self, cause: BaseException, way: str, dtype: str) -> None:
        super().__init__(f"{way}, {dtype}: {type(cause).__name__}: {cause}")
        self.way, self.dtype, self.__cause__ = way, dtype, cause


def _threads(of: Described) -> list[Ran]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        return [run(of, [fs.Executor(seed=1)])]
    finally:
        torch.set_num_threads(before)


def _loaded(of: Described) -> list[Ran]:
    return [run(of, [fs.Executor(seed=1)], fs.load_program(fs.save_program(of.main)))]


def _recomputed(of: Described) -> list[Ran]:
    sizes = dict.fromkeys(fs.plan(of.main).symbols, 5)
    try:
        lean = fs.recompute(of.main, int(0.8 * fs.plan(of.main).peak(**sizes)), **sizes)
    except (fs.MemoryPlanError, fs.SchemaError):
        return []  # nothing that could be computed again
    return [run(of, [fs.Executor(seed=1)], lean.program)]


WAYS: dict[str, Callable[[Described], list[Ran]]] = {
    "unfused": lambda of: [run(of, [Unfused(seed=1)])],
    "checked": lambda of: [run(of, [fs.Executor(check=True, seed=1)])],
    "checked, fused": lambda of: [run(of, [fs.Executor(check="fused", seed=1)])],
    "two executors on one scope": lambda of: [run(of, [fs.Executor(seed=1), fs.Executor(seed=1)])],
    "fused and unfused on one scope": lambda of: [run(of, [fs.Executor(seed=1), Unfused(seed=1)])],
    "two threads at once": lambda of: both_at_once(of, fs.Executor(seed=1)),
    "two cores": _threads,
    "saved and loaded": _loaded,
    "recomputed": _recomputed,
    "frozen": lambda of: [run(of, [fs.Executor(seed=1, frozen=True)])],
}


def ways(number: int) -> list[str]:
    """The ways in which a program is run besides the usual one: three, so that all take turns."""
    names = list(WAYS)
    return ["unfused", *(names[1 + (2 * number + k) % (len(names) - 1)] for k in range(2))]


def check(program: Program, others: list[str], dtypes: tuple[str, ...] = ("fp64", "fp32")) -> bool:
    """Compare the usual way and others with torch. False where the program's numbers are too wild to be compared.

    Raises:
        Failed: the ways do not give the same, or one of them an error.
    """
    reference: Reference | None = None
    way = "usual"
    for dtype in dtypes:
        try:
            way = "usual"
            of = describe(program, dtype)
            usual = run(of, [fs.Executor(seed=1)])
            if reference is None:
                reference = _reference(of, usual)
                if not is_tame(reference.ran):
                    return False
            _compare(reference, usual, dtype)
            for way in others if dtype == "fp64" else others[:1]:
                for ran in WAYS[way](of):
                    _compare(reference, ran, dtype)
                    _state(usual, ran, dtype, reference)
        except Exception as error:
            raise Failed(error, way, dtype) from error
    return True


def _reference(of: Described, usual: Ran) -> Reference:
    program = of.program
    ran = Runner(program, of.trained, usual.rates).run()
    unknown = ran.flowed - of.trained.keys()
    if unknown:
        raise Different(f"in torch a gradient flows to {sorted(unknown)}, which are not trained")
    if of.rate is not None:
        for at, rate in enumerate(usual.rates):
            wanted = rate_at(program.optimizer.rate, at)
            if abs(rate - wanted) > 1e-6 * max(wanted, 1e-3):
                raise Different(f"the learning rate of step {at} is {rate}, and should be {wanted}")
    return Reference(program, of.trained, usual.rates, ran)


def _compare(reference: Reference, ran: Ran, dtype: str) -> None:
    for at, (one, wanted) in enumerate(zip(ran.fetched, reference.ran.fetched, strict=True)):
        for n, value in one.items():
            if tuple(np.shape(value)) != tuple(wanted[n].shape):
                raise Different(f"value {n} of run {at} is {np.shape(value)}, and in torch {tuple(wanted[n].shape)}")
    apart = reference.apart(flat(ran), dtype)
    if apart is not None:
        raise Different(apart)


def _state(usual: Ran, ran: Ran, dtype: str, reference: Reference) -> None:
    """What the scope holds besides the parameters must be the same, too."""
    if usual.state.keys() != ran.state.keys():
        raise Different(f"the scope holds {sorted(ran.state.keys() ^ usual.state.keys())} only once")
    if dtype == "fp64":
        far = [n for n, v in ran.state.items() if n not in reference.ran.state and distance(v, usual.state[n]) > 1e-6]
        if far and not _wild(reference):
            raise Different(f"{', '.join(far)} are not as in the usual way")


def _wild(reference: Reference) -> bool:
    """Whether the parameters move by much more than what goes in."""
    moved, plain = flat(reference.moved(1e-12, 5)), flat(reference.ran)
    return any(distance(moved[n], v) > 1e-8 for n, v in plain.items())


def rate_at(given: Any, step: int) -> float:
    """The learning rate of a step, by its formula."""
    import math

    if isinstance(given, float):
        return given
    name, s = given
    base = s.get("learning_rate", 0.0)
    match name:
        case "ExponentialDecay":
            return base * s["decay_rate"] ** (step / s["decay_steps"])
        case "NaturalExpDecay":
            return base * math.exp(-s["decay_rate"] * step / s["decay_steps"])
        case "InverseTimeDecay":
            return base / (1 + s["decay_rate"] * (step // s["decay_steps"]))
        case "PolynomialDecay":
            cycles = max(1, math.ceil(step / s["decay_steps"]))
            return (base - s["end_learning_rate"]) * (1 - step / (s["decay_steps"] * cycles)) + s["end_learning_rate"]
        case "PiecewiseDecay":
            return s["values"][sum(step >= b for b in s["boundaries"])]
        case "CosineDecay":
            return base / 2 * (math.cos(step // s["step_each_epoch"] * math.pi / s["epochs"]) + 1)
        case "NoamDecay":
            return base * s["d_model"] ** -0.5 * min((step + 1) ** -0.5, (step + 1) * s["warmup_steps"] ** -1.5)
        case _:
            return s["start_lr"] + step * (s["end_lr"] - s["start_lr"]) / s["warmup_steps"] if step < s["warmup_steps"] else base
