"""`lora`: training of small matrices beside the weights of a network, themselves unchanged."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Sequence
from typing import Any

from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ForeshapeWarning, SchemaError
from foreshape.language.operator.computations import FlattenedProduct, MatrixProduct
from foreshape.language.program import Block, Op, Program, Role, Variable, default_startup_program, program_guard
from foreshape.language.program.names import blocks_of, names_of
from foreshape.layer.initializer import Constant, Uniform
from foreshape.layer.parameter import ParamAttr, create_parameter
from foreshape.runtime.engine import Scope, default_scope
from foreshape.transforms.passes.forward_and_back import shown

_LATER = Role.BACKWARD | Role.OPTIMIZE


class LowRank:
    """The small matrices of a network, made by `lora`.

    Args:
        program, pairs, scale: the attributes of these names.
        turned: the names of the weights ``[out, in]``, of products with their transposes.

    Attributes:
        program: the network.
        pairs: the name of a weight -> the names of its two small matrices, ``[in, rank]`` and ``[rank, out]``.
        scale: the factor of their product.
    """

    def __init__(self, program: Program, pairs: dict[str, tuple[str, str]], scale: float, turned: frozenset[str]) -> None:
        self.program, self.pairs, self.scale, self._turned = program, pairs, scale, turned

    @property
    def parameters(self) -> list[str]:
        """Return the names of the small matrices, for `foreshape.save_safetensors`: a file of them alone."""
        return [name for pair in self.pairs.values() for name in pair]

    def merge(self, scope: Scope | None = None) -> Program:
        """Put the small matrices into the weights, and return a copy of the network without them.

        The second matrix of each pair becomes zeros, so the network with them still gives the same.

        Args:
            scope: holds the values; the default scope if left out.

        Raises:
            ExecutionError: a matrix has no value.
        """
        values = default_scope() if scope is None else scope
        with torch.inference_mode():
            new: dict[str, Any] = {}
            for weight, (a, b) in self.pairs.items():
                change = (values.tensor(a) @ values.tensor(b)) * self.scale
                new[weight] = values.tensor(weight) + (change.T if weight in self._turned else change)
                new[b] = torch.zeros_like(values.tensor(b))
            values.fill(new)
        copy = self.program.clone()
        for block in copy.blocks:
            _take_away(block, set(self.parameters))
        copy.touch()
        return copy

    def __repr__(self) -> str:
        return f"LowRank({len(self.pairs)} weights, scale {self.scale:g})"


def lora(
    program: Program | Variable,
    rank: int,
    targets: str | Sequence[str] = "*",
    *,
    alpha: float | None = None,
    trained: str | Sequence[str] = (),
    startup: Program | None = None,
) -> LowRank:
    """Add to chosen products x W a product with two small matrices, x W + (alpha / rank) (x A) B, and train these alone (Hu et al., "LoRA", 2021).

    A starts at random and B at zero: at first the network's results stay the same. The optimizer's state is for the small matrices alone.

    Examples:
        >>> adapter = fs.lora(cost, rank=8, targets=["*.query.weight", "*.value.weight"])
        >>> fs.train(cost, examples, optimizer=fs.optimizer.AdamW(1e-3))
        >>> fs.save_safetensors("adapter.safetensors", names=adapter.parameters)

    Args:
        program: the network, or a variable of it; it is changed. It has no gradients yet.
        rank: the columns of A.
        targets: patterns of the names of weights, such as ``"*.attention.*.weight"``. Each must be ``[in, out]`` of a product (or ``[out, in]`` of one
            with its transpose). A weight with another use, such as a table of words and of scores, is left out with a warning, or refused by its name.
        alpha: the factor of the change, times rank; by default ``rank``, a factor of 1.
        trained: patterns of parameters trained besides, such as a new head.
        startup: takes the first values; the default startup program if left out.

    Raises:
        SchemaError: no such weight, a weight with other uses too, or a program with gradients.
    """
    network = program.block.program if isinstance(program, Variable) else program
    if rank < 1:
        raise SchemaError.must("rank", "at least 1", rank)
    if any(op.role & _LATER for op in network.all_ops()):
        raise SchemaError("the program has its gradients already; call lora before minimize")
    patterns = [targets] if isinstance(targets, str) else list(targets)
    products = _products(network)
    chosen = {name: ops for name, ops in products.items() if any(fnmatch.fnmatch(name, p) for p in patterns)}
    shared = {name: use for name, ops in chosen.items() if (use := _other_use(network, name, ops)) is not None}
    if weight_name := next((name for name in shared if name in patterns), None):
        raise SchemaError(
            f"{weight_name} is the weight of a product, and has another use too: {shared[weight_name]}. The change of a product alone cannot be merged"
        )
    chosen = {name: ops for name, ops in chosen.items() if name not in shared}
    if not chosen:
        left_out = f" without another use ({', '.join(shared)} have some)" if shared else ""
        raise SchemaError(f"no weight of a product{left_out} is called {' or '.join(patterns)}; there are {', '.join([*products][:20]) or 'none'}")
    if shared:
        warnings.warn(f"lora leaves out {', '.join(shared)}, with another use: {next(iter(shared.values()))}", ForeshapeWarning, stacklevel=2)
    scale = 1.0 if alpha is None else alpha / rank
    pairs: dict[str, tuple[str, str]] = {}
    transposed: set[str] = set()
    stay = [trained] if isinstance(trained, str) else list(trained)
    for variable in network.parameters():
        if not any(fnmatch.fnmatch(variable.name, p) for p in stay):
            variable.trainable, variable.stop_gradient = False, True
    with program_guard(network, default_startup_program() if startup is None else startup):
        for name, ops in chosen.items():
            weight = network.global_block.var(name)
            turns = {_turns(op) for op in ops}
            if len(turns) > 1:
                raise SchemaError(f"{name} is the weight of a product as it is and of one that turns it")
            rows, columns = weight.spec.known_dims[::-1] if True in turns else weight.spec.known_dims
            pairs[name] = _pair(name, weight, rows, columns, rank)
            transposed |= {name} if True in turns else set()
            for op in ops:
                _add(op, pairs[name], scale)
    network.touch()
    return LowRank(network, pairs, scale, frozenset(transposed))


def _products(program: Program) -> dict[str, list[Op]]:
    """Return the parameters with a product of theirs: name -> products."""
    products: dict[str, list[Op]] = {}
    for op in program.all_ops():
        product = op.computes(MatrixProduct) or op.computes(FlattenedProduct)
        name = op.operand(1) if product is not None else None
        variable = program.global_block.vars.get(name) if name is not None else None
        if name is None or variable is None or not variable.persistable or variable.spec.rank != 2:
            continue
        if isinstance(product, FlattenedProduct) and product.y_rows != 1:
            continue
        if isinstance(product, MatrixProduct) and product.x_transposed:
            continue
        products.setdefault(name, []).append(op)
    return products


def _other_use(program: Program, name: str, products: Sequence[Op]) -> str | None:
    """Return an op with a use of a weight other than as the second operand of its products; None without one.

    A loop or a branch reads the weights of its block's products: these are looked at there.
    """
    for op in program.all_ops():
        reads = list(op.input_names()).count(name)
        inner = any(name in names_of(block).outer_reads for block in blocks_of(op))
        if name in op.output_names() or reads > int(inner or any(op is product for product in products)):
            return shown(op)
    return None


def _turns(op: Op) -> bool:
    product = op.computes(MatrixProduct)
    return product is not None and product.y_transposed


def _pair(name: str, weight: Variable, rows: Any, columns: Any, rank: int) -> tuple[str, str]:
    bound = float(rows) ** -0.5
    a, b = f"{name}.lora_a", f"{name}.lora_b"
    create_parameter([rows, rank], weight.spec.known_dtype, ParamAttr(name=a, initializer=Uniform(-bound, bound)))
    create_parameter([rank, columns], weight.spec.known_dtype, ParamAttr(name=b, initializer=Constant(0.0)))
    return a, b


def _add(op: Op, pair: tuple[str, str], scale: float) -> None:
    """Let the product's result be its sum with the product of the small matrices."""
    block = op.block
    (x, (out, *_)) = op.operand(0), op.output_names()
    assert x is not None
    new_name = block.program.unique_name
    base = new_name(f"{out}@BASE")
    variable = block.var(out)
    if variable.op is op:
        variable.op = None
    op.rename_output(out, base)
    block.infer_op(op)
    index = block.ops.index(op) + 1
    flattened = op.computes(FlattenedProduct)
    type, attrs = ("matmul_v2", {}) if flattened is None else ("mul", {"x_num_col_dims": flattened.x_rows, "y_num_col_dims": 1})
    small, change, scaled = (new_name(f"{out}@LORA") for _ in range(3))
    block.append_op(type, {"X": x, "Y": pair[0]}, {"Out": small}, attrs, site=op.site, index=index)
    block.append_op(type, {"X": small, "Y": pair[1]}, {"Out": change}, attrs, site=op.site, index=index + 1)
    block.append_op("scale", {"X": change}, {"Out": scaled}, {"scale": scale}, site=op.site, index=index + 2)
    block.append_op("elementwise_add", {"X": base, "Y": scaled}, {"Out": out}, site=op.site, index=index + 3)


def _take_away(block: Block, names: set[str]) -> None:
    """Take the products with the small matrices, and the sums with them, out of a block."""
    gone: set[str] = set(names)
    for op in list(block.ops):
        reads = list(op.input_names())
        if not gone.intersection(reads):
            continue
        (out,) = op.output_names()
        block.remove_op(op)
        base = [n for n in reads if n not in gone]
        if len(base) == 1 and base[0].split("@BASE")[0] == out:
            producer = next(o for o in block.ops if base[0] in o.output_names())
            block.vars[base[0]].op = None
            producer.rename_output(base[0], out)
            block.infer_op(producer)
            gone.add(base[0])
        else:
            gone.add(out)
    for name in gone & set(block.vars):
        block.remove_variable(name)
