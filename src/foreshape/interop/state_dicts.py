"""`state_dict` and `load_state_dict`: values of a network by name, as torch's modules give and take them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from foreshape.core.data_class import data_class
from foreshape.core.pictures.figures import plural
from foreshape.core.spec import BF16, FP16, FP32, FP64, LOD_TENSOR, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import dtype_of_torch, torch_dtype
from foreshape.errors import ExecutionError, FormatError, SchemaError, TypeMismatchError, border
from foreshape.interop.state_dict_files import read_state_dict
from foreshape.language.operator.computations import FlattenedProduct, MatrixProduct
from foreshape.language.program import Op, Program, Role, Variable
from foreshape.language.program.call_site import warn_user
from foreshape.runtime.engine import Scope, default_scope

_NAMES: Final = WeakKeyDictionary[Program, Mapping[str, str]]()
"""By the program of a module of torch: name in its ``state_dict`` -> name here."""
_UPDATES: Final = Role.BACKWARD | Role.OPTIMIZE | Role.LEARNING_RATE
_SHOWN: Final = 20
_WITHIN: Final = {FP32: (FP16, BF16), FP64: (FP16, BF16, FP32)}
"""Element type -> narrower ones, with no number outside its own."""


def remember_names(names: Mapping[str, str], scope: Scope, *programs: Program) -> None:
    """Remember the names of a module's ``state_dict``, each with its name here, for the scope and the programs made of the module."""
    scope.module_names, scope.unnamed = names, frozenset(scope.names()) - set(names.values())
    for program in programs:
        _NAMES[program] = names


def module_names(program: Program, scope: Scope) -> Mapping[str, str]:
    """Return the names of the ``state_dict`` of the module that a program, or one it is made of, came from, each with its name here; none for another one."""
    names = _NAMES.get(program)
    if names is None and any(name in program.global_block.vars for name in scope.module_names.values()):
        names = scope.module_names
    return names or {}


@data_class(frozen=True)
class LoadReport:
    """The outcome of `load_state_dict`, by the names of the source.

    Attributes:
        fitting: values put in, or to be put in: all others too.
        renamed: of them, values of a module in a wrapper; name -> the longer one in the source.
        transposed: of them, weights of products, in torch's ``[out, in]``, for a weight ``[in, out]`` here; name -> the reason.
        converted: of them, values of another element type; name -> both.
        missing: names of the network without a value in the source.
        unexpected: names of the source unknown to the network.
        refused: name -> the difference to the network.
    """

    fitting: tuple[str, ...]
    renamed: Mapping[str, str]
    transposed: Mapping[str, str]
    converted: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    refused: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """Tell whether each value of the network was there and fitted, and no other."""
        return not (self.missing or self.unexpected or self.refused)

    def __str__(self) -> str:
        lines = [f"{len(self.fitting)} of {plural(len(self.fitting) + len(self.missing) + len(self.refused), 'value')} fit"]
        groups = {"under another name": self.renamed, "transposed": self.transposed, "converted": self.converted, "does not fit": self.refused}
        for word, reasons in groups.items():
            lines += _listing(word, [f"{name}: {reason}" for name, reason in reasons.items()])
        for word, names in (("missing in the source", self.missing), ("unknown to the network", self.unexpected)):
            lines += _listing(word, names)
        return "\n".join(lines)

    __repr__ = __str__


def _listing(word: str, lines: Iterable[str]) -> list[str]:
    listed = list(lines)
    remainder = [f"    and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
    return [f"  {word}: {len(listed)}", *(f"    {line[:200]}" for line in listed[:_SHOWN]), *remainder] if listed else []


@border("the values cannot be given", ExecutionError)
def state_dict(source: Any, scope: Scope | None = None) -> dict[str, Tensor]:
    """Return values by name as tensors of their own, as ``module.load_state_dict`` takes them.

    Args:
        source: the scope of a module brought over by `foreshape.from_torch`: exactly the module's names, two for a tied weight. Another scope: all of its
            values. A model or a program: its parameters and statistics, without state of an optimizer.
        scope: of a program, the default scope if omitted.

    Raises:
        ExecutionError: a name without a value. SchemaError: ``source`` is none of these.
    """
    if isinstance(source, Scope):
        holder: Scope = source
        names = source.module_names or {n: n for n in source.names()}
    else:
        program, holder = _network_of(source, scope)
        names = _value_names(program, holder)
    values = {name: holder.tensor(variable) for name, variable in names.items()}
    with torch.inference_mode(False):
        return {name: value.clone() for name, value in values.items() if not isinstance(value, Rows)}


@border("the values cannot be loaded", FormatError)
def load_state_dict(target: Any, source: Any, scope: Scope | None = None, *, strict: bool = True, convert: bool = False) -> LoadReport:
    """Put a ``state_dict`` of torch into the network of the same names; all of it or nothing.

    A weight ``[in, out]`` of a product, as `foreshape.layer.fc` has it, is ``[out, in]`` in torch's linear layers: its transpose is taken. A square one goes
    as the others of the network go; where there are none as in a linear layer, with a warning. In a module brought over nothing is transposed.

    Names are taken without the ``module.`` of ``DataParallel`` and the ``_orig_mod.`` of ``torch.compile``. Floats of 16 bits go into 32 bits, and 32 into
    64, as they are; the report tells all this.

    Args:
        target: a model (`foreshape.from_torch`, `foreshape.load_inference_model`), or a program.
        source: name -> tensor or array; or the path of a ``.safetensors`` file, of one by ``torch.save`` (no code is run), of an ``.index.json`` of several
            such files, or of a folder with one of these under the names of transformers.
        scope: takes the values; by default the model's, or for a program the default scope.
        strict: refuse all if a value is missing, unknown or does not fit. Otherwise put in what fits.
        convert: take floats of more bits too; by default they do not fit.

    Returns:
        The report: ``print`` shows it.

    Raises:
        ExecutionError: strict, and not everything fits; its text is the report. FormatError: no such file, or a damaged one. SchemaError: a
        wrong target or source.
    """
    program, holder = _network_of(target, scope)
    names = _value_names(program, holder)
    tensors, renamed = _named_as(names, read_state_dict(source))
    products = _product_weights(program) - set(module_names(program, holder).values())
    refused: dict[str, str] = {}
    transposed: dict[str, str] = {}
    converted: dict[str, str] = {}
    fitting: dict[str, tuple[str, Tensor]] = {}
    square: list[str] = []
    plain = 0
    for name, variable in names.items():
        value, spec = tensors.get(name), _spec_of(variable, program, holder)
        if value is None or spec is None:
            continue
        dims = tuple(value.shape)
        try:
            dtype = dtype_of_torch(value.dtype)
        except TypeMismatchError:
            refused[name] = f"{str(value.dtype).removeprefix('torch.')}{list(dims)}, an element type not known here, and the network has {spec.text()}"
            continue
        if dtype is not spec.dtype:
            floats = dtype.is_floating and spec.known_dtype.is_floating
            if not (floats and (convert or dtype in _WITHIN.get(spec.known_dtype, ()))):
                hint = "; convert=True takes it" if floats else ""
                refused[name] = f"{dtype.short}{list(dims)}, and the network has {spec.text()}{hint}"
                continue
            converted[name] = f"{dtype.short} to {spec.known_dtype.short}"
        if variable in products and len(dims) == 2 and dims[::-1] == spec.known_dims:
            if dims[0] != dims[1]:
                transposed[name] = f"{list(dims)} to {list(dims[::-1])}"
                value = value.t()
            else:
                square.append(name)
        elif dims != spec.known_dims:
            hint = "; its transpose would fit, and no product takes it so" if dims[::-1] == spec.known_dims else ""
            refused[name] = f"{dtype.short}{list(dims)}, and the network has {spec.text()}{hint}"
            continue
        elif variable in products:
            plain += 1
        fitting[name] = variable, value
    _decide_square(square, fitting, transposed, plain)
    _check_shared(fitting, refused)
    missing = tuple(
        n
        for n, variable in names.items()
        if n not in tensors and not any(alias in tensors for alias, alias_variable in names.items() if alias_variable == variable)
    )
    report = LoadReport(tuple(fitting), renamed, transposed, converted, missing, tuple(n for n in tensors if n not in names), refused)
    if strict and not report.complete:
        raise ExecutionError(f"the values do not fit the network, and nothing was changed; strict=False puts in what fits: {report}")
    types = {name: _spec_of(variable, program, holder) for name, (variable, _) in fitting.items()}
    holder.fill(
        {variable: value.to(torch_dtype(spec.known_dtype)).contiguous() for name, (variable, value) in fitting.items() if (spec := types[name]) is not None}
    )
    return report


def _spec_of(name: str, program: Program, scope: Scope) -> Spec | None:
    """Return the description of a value of a network; of one that nothing reads, by the tensor in its place."""
    variable = program.global_block.vars.get(name)
    if variable is not None or name not in scope:
        return None if variable is None else variable.spec
    value = scope.tensor(name)
    return Spec(LOD_TENSOR, dtype_of_torch(value.dtype), tuple(value.shape))


def _named_as(names: Mapping[str, str], tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors by the network's names, if the source has the names of a module in a wrapper; and such a name -> the source's."""
    out: dict[str, Tensor] = {}
    renamed: dict[str, str] = {}
    for name, value in tensors.items():
        inner = name
        if name not in names:
            inner = ".".join(part for part in name.split(".") if part != "_orig_mod")
            while inner not in names and inner.startswith("module."):
                inner = inner.removeprefix("module.")
        if inner in names and inner not in tensors and inner not in out:
            renamed[inner] = name
        else:
            inner = name
        out[inner] = value
    return out, renamed


def _decide_square(square: list[str], fitting: dict[str, tuple[str, Tensor]], transposed: dict[str, str], plain: int) -> None:
    """Transpose square weights of products, unless the others of the network fit as they are."""
    if not square or (plain and not transposed):
        return
    count = len(transposed)
    for name in square:
        variable, value = fitting[name]
        transposed[name] = f"{list(value.shape)}, square: " + ("as the others" if count and not plain else "as a product takes it")
        fitting[name] = variable, value.t()
    if plain or not count:
        why = "some others fit as they are, and some transposed" if plain else "no other tells the order"
        warn_user(f"square weights of products are taken as torch's linear layers have them, [out, in], and transposed ({why}): {', '.join(square[:5])}")


def _check_shared(fitting: dict[str, tuple[str, Tensor]], refused: dict[str, str]) -> None:
    """Refuse other numbers under the second name of a shared tensor."""
    first: dict[str, str] = {}
    for name, (variable, value) in list(fitting.items()):
        earlier = first.setdefault(variable, name)
        if earlier != name and not torch.equal(value, fitting[earlier][1]):
            refused[name] = f"other numbers than {earlier}, with which it shares a tensor"
            del fitting[name]


# --- the network


def _network_of(target: Any, scope: Scope | None) -> tuple[Program, Scope]:
    program: Any = target if isinstance(target, Program) else getattr(target, "program", None)
    if not isinstance(program, Program):
        raise SchemaError.must("the network", "a model, or a program", f"{type(target).__name__}")
    holder: Any = scope if scope is not None else getattr(target, "scope", None)
    return program, holder if isinstance(holder, Scope) else default_scope()


def _value_names(program: Program, scope: Scope) -> Mapping[str, str]:
    """Return the names of a network's values, each with its name here."""
    names = module_names(program, scope)
    if program in _NAMES:
        return names
    of_module = {*names.values(), *(scope.unnamed if names else ())}
    updates = {n for op in program.all_ops() if op.role & _UPDATES for n in (*op.input_names(), *op.output_names())}
    network = {n for op in program.all_ops() if not op.role & _UPDATES for n in (*op.input_names(), *op.output_names())}
    variables = [v for v in program.global_block.vars.values() if v.persistable and v.kind is LOD_TENSOR and v.spec.dims is not None]
    return {**names, **{v.name: v.name for v in variables if v.name not in of_module and (v.name in network or v.name not in updates)}}


def _product_weights(program: Program) -> set[str]:
    """Return the parameters taken only as ``[in, out]`` of products."""
    weights: dict[str, bool] = {}
    for op in program.all_ops():
        if op.role & _UPDATES:
            continue
        weight = _weight_of(op)
        for name in op.input_names():
            weights[name] = weights.get(name, True) and name == weight
    return {name for name, only in weights.items() if only and _is_weight(program.global_block.vars.get(name))}


def _is_weight(variable: Variable | None) -> bool:
    return variable is not None and variable.persistable and variable.spec.rank == 2


def _weight_of(op: Op) -> str | None:
    """Return the second operand of a product, if it is taken as it is."""
    product = op.computes(MatrixProduct) or op.computes(FlattenedProduct)
    if product is None or (isinstance(product, MatrixProduct) and product.y_transposed) or (isinstance(product, FlattenedProduct) and product.y_rows != 1):
        return None
    return op.operand(1)
