"""The state of random operators' generator: read as a tensor and put back, to draw the same numbers again."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from foreshape.core.spec import UINT8, Spec, tensor
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import ZERO_GRADIENT, Operator, operand, result
from foreshape.language.operator.require import require_equal
from foreshape.language.operator.samples import SampleTensor, sample
from foreshape.machine.process.this_run import this_run

if TYPE_CHECKING:
    from torch import Generator

STATE_BYTES = 5056
"""The bytes of the CPU generator's state; the shorter states of other devices are followed by zeros."""
_WORDS = 624


def check_state(state: Tensor) -> None:
    """Refuse a state with which the CPU's generator would read past its words: torch checks each number alone.

    Raises:
        ValueError: it is no such state, and why.
    """
    if state.dtype is not torch.uint8 or state.shape != (STATE_BYTES,):
        raise ValueError(f"a state is uint8 [{STATE_BYTES}]; seen {str(state.dtype).removeprefix('torch.')} {list(state.shape)[:8]}")
    left, seeded, word = struct.unpack("=iiQ", state[8:24].numpy().tobytes())
    if seeded != 1 or not 1 <= left <= _WORDS or word > _WORDS or word + left - 1 > _WORDS:
        raise ValueError(f"{left} words are said to be left from word {word} on, and there are {_WORDS}")


def generator_for(seed: int) -> Generator | None:
    """Return for a seed a new generator; for 0 the running executor's (None, torch's default one, outside of a run)."""
    running = this_run.generator
    if not seed:
        return running
    out = torch.Generator(running.device if running is not None else "cpu")
    out.manual_seed(seed)
    return out


def _generator() -> Generator:
    return this_run.generator if this_run.generator is not None else torch.default_generator


def _state() -> Tensor:
    state = _generator().get_state()
    if state.numel() == STATE_BYTES:
        return state
    out = torch.zeros(STATE_BYTES, dtype=torch.uint8, device="cpu")
    out[: state.numel()] = state
    return out


class RandomState(Operator):
    """State = the state of the executor's generator."""

    type = "random_state"
    State = result(doc=f"uint8 [{STATE_BYTES}]")
    random = True
    gradient = ZERO_GRADIENT

    def infer_shape(self) -> Spec:
        return tensor(UINT8, STATE_BYTES)

    def kernel(self) -> Tensor:
        return _state()

    samples = [sample(exact=False)]


_SAMPLE = [*[0] * 8, 1, 0, 0, 0, 1, *[0] * 11, *[7, 1, 9, 3] * 1248, *[0] * 40]
"""A state of the CPU's generator: a seed, "one number left", "seeded", the next one's place, 624 words, no number of a pair kept."""


class SwapRandomState(Operator):
    """Before = the state of the executor's generator; from here on it draws the numbers it drew from State on."""

    type = "swap_random_state"
    State = operand((UINT8,), doc=f"[{STATE_BYTES}], of random_state in the same step")
    Before = result(doc="as State")
    random = True
    side_effects = True
    gradient = ZERO_GRADIENT

    def infer_shape(self, State: Spec) -> Spec:
        require_equal(State.elements, STATE_BYTES, f"State must have {STATE_BYTES} bytes", State=None)
        return tensor(UINT8, STATE_BYTES)

    def workspace(self, State: Spec) -> int:
        return STATE_BYTES

    def kernel(self, State: Tensor) -> Tensor:
        previous, generator = _state(), _generator()
        try:
            if generator.device.type == "cpu":
                check_state(State.cpu())
            generator.set_state(State.cpu()[: generator.get_state().numel()].clone())  # torch reads from the beginning of the storage
        except (RuntimeError, ValueError) as error:
            raise ExecutionError(f"swap_random_state: State is no state of the generator: {error}") from None
        return previous

    samples = [sample(State=SampleTensor(UINT8, (STATE_BYTES,), 0, 255, data=_SAMPLE), exact=False)]
