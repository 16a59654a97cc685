"""Which means of the forward pass are over examples, so that over ranks each is a part of the mean over all: found back from the loss.

A loss must be a sum of means (or sums) over examples, each times numbers, and of what does not depend on the data, such as a penalty on weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from foreshape.dims import equal, product, symbols_of
from foreshape.errors import SchemaError
from foreshape.program import Block, Op, Role, Variable
from foreshape.program.op import is_absent

_MEANS = frozenset({"mean", "reduce_mean"})
_SUMS = frozenset({"reduce_sum"})
_PASSED = {"scale": "X", "reshape2": "X", "reshape": "X", "squeeze2": "X", "unsqueeze2": "X", "flatten2": "X", "cast": "X", "assign": "X"}
_ADDED = frozenset({"sum", "elementwise_add", "elementwise_sub"})
_FACTORS = frozenset({"elementwise_mul", "elementwise_div"})


@dataclass(slots=True)
class LossParts:
    """What a loss is made of: names of variables of the global block."""

    means: list[str] = field(default_factory=list[str])
    """Means over examples: each is to be weighed by how many examples it is of."""
    alike: list[str] = field(default_factory=list[str])
    """Summands that are the same on every rank."""


def parts_of(block: Block, loss: str) -> LossParts:
    """What a loss is made of.

    Raises:
        SchemaError: it is no sum of means or sums over examples, with the user's line.
    """
    return _Walk(block).parts(loss)


class _Walk:
    def __init__(self, block: Block) -> None:
        self.block = block
        self.writer: dict[str, Op] = {}
        for op in block.ops:
            if not op.role & (Role.BACKWARD | Role.OPTIMIZE | Role.LEARNING_RATE):
                for name in op.output_names():
                    if not is_absent(name):
                        self.writer[name] = op
        self._depends: dict[str, bool] = {}

    def parts(self, loss: str) -> LossParts:
        out = LossParts()
        if not self.depends(loss):
            raise SchemaError(f"the loss {loss} does not depend on any data")
        self._walk(loss, out)
        return out

    def depends(self, name: str) -> bool:
        """Whether a value depends on what is fed."""
        found = self._depends.get(name)
        if found is None:
            self._depends[name] = False
            found = self._depends[name] = self._of_data(name)
        return found

    def _of_data(self, name: str) -> bool:
        pending, seen = [name], {name}
        while pending:
            op = self.writer.get(pending.pop())
            if op is None:
                continue
            for one in op.all_reads():
                variable = self.block.find(one)
                if one not in self.writer and variable is not None and not variable.persistable and variable.value is None:
                    return True
                if one not in seen:
                    seen.add(one)
                    pending.append(one)
        return name not in self.writer and not self.block.var(name).persistable

    def _walk(self, name: str, out: LossParts) -> None:
        if name in out.means or name in out.alike:
            return
        if not self.depends(name):
            out.alike.append(name)
            return
        op = self.writer.get(name)
        if op is None:
            raise SchemaError(f"the loss depends on {name}, which is fed, otherwise than as a mean or sum over examples")
        if op.type in _MEANS and _is_over_all(op, self.block):
            out.means.append(name)
        elif op.type in _SUMS and _is_over_all(op, self.block):
            return
        elif op.type in _PASSED and product(self.block.var(name).spec.known_dims) == 1:
            if op.type == "scale" and op.attrs.get("bias"):
                raise SchemaError(f"{_shown(op)} adds a number to a part of the loss, which each rank would add: add it before the mean")
            self._walk(op.inputs[_PASSED[op.type]][0], out)
        elif op.type in _ADDED and product(self.block.var(name).spec.known_dims) == 1:
            for one in op.input_names():
                self._walk(one, out)
        elif op.type in _FACTORS and product(self.block.var(name).spec.known_dims) == 1:
            x, y = op.inputs["X"][0], op.inputs["Y"][0]
            if self.depends(y) and (op.type == "elementwise_div" or self.depends(x)):
                raise SchemaError(f"the loss is a product or quotient of what depends on the data, of which ranks cannot make parts: {_shown(op)}")
            self._walk(x if self.depends(x) else y, out)
        else:
            raise SchemaError(
                f"for ranks, the loss must be a sum of means or sums over examples; {name} is made by {_shown(op)}"
            )


def _is_over_all(op: Op, block: Block) -> bool:
    """Whether a mean or sum leaves one number."""
    return product(block.var(next(iter(op.output_names()))).spec.known_dims) == 1


def _shown(op: Op) -> str:
    site = op.call_site
    return op.type + (f" ({site.short()})" if site is not None else "")


def same_share(a: Variable, b: Variable) -> bool:
    """Whether two values have their elements in one proportion in any run, so that a rank's share of one is its share of the other."""
    x, y = (product([d for d in v.spec.known_dims if not isinstance(d, int)]) for v in (a, b))
    return equal(x, y) is True and bool(symbols_of(x))
