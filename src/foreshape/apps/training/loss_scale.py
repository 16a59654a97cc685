"""The updates left out by a run with a scaled loss: gradients that were not finite, read from the scale's own state."""

from __future__ import annotations

from foreshape.apps.training.history import number
from foreshape.language.program import Op, Program
from foreshape.runtime.engine import Scope
from foreshape.transforms.passes.accumulate import COUNTER


class LossScale:
    """A watch on the scale of a program's loss, which counts the updates of this run.

    The program needs no op for it. After an update with finite gradients the count of good steps is above 0, or the scale has grown.
    """

    def __init__(self, program: Program, op: Op) -> None:
        self._scale, self._good = op.outputs["LossScaling"][0], op.outputs["OutGoodSteps"][0]
        gathered = op.block.idx != program.global_block.idx
        state = program.global_block.vars
        self._counter = next((n for n in state if gathered and n.startswith(COUNTER) and state[n].persistable), None)
        self._last = 0.0
        self.updates = self.left_out = 0
        """Counts since the run began, or was resumed."""

    @classmethod
    def of(cls, program: Program) -> LossScale | None:
        """Return the scale of a training program; None without a scaled loss."""
        names = {n for n, v in program.global_block.vars.items() if v.persistable}
        states = ((op, op.outputs.get("LossScaling"), op.outputs.get("OutGoodSteps")) for op in program.all_ops())
        op = next((op for op, scale, good in states if scale and good and names.issuperset(scale + good)), None)
        return None if op is None else cls(program, op)

    def begin(self, scope: Scope) -> None:
        """Look at the scale before the first step."""
        self._last = float(scope.tensor(self._scale).item())

    def after(self, scope: Scope) -> tuple[int, int]:
        """Return the number of updates left out and of updates due in the last step: none within a group of batches."""
        if self._counter is not None and int(scope.tensor(self._counter).item()):
            return 0, 0
        scale = float(scope.tensor(self._scale).item())
        left_out = int(int(scope.tensor(self._good).item()) == 0 and scale <= self._last)
        self._last = scale
        self.updates += 1
        self.left_out += left_out
        return left_out, 1

    def words(self) -> str | None:
        """Return the warning at the end of a run; None if few updates were left out, as while the scale falls to a fitting value."""
        if 2 * self.left_out <= self.updates:
            return None
        return (
            f"{self.left_out:,} of {self.updates:,} updates were left out, since their gradients were not finite in fp16: they changed no parameter. "
            f"The loss scale is {number(self._last)}. Make smaller what overflows, inputs or activations or the loss, or take precision='bf16', which "
            "has the range of fp32"
        )
