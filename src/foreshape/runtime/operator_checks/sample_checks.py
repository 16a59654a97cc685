"""The checks of one sample, or of one reject, of an operator; each raises `ExecutionError` in words where something differs."""

from __future__ import annotations

from typing import Any, cast

from foreshape.core.dims import evaluate, symbol, symbols_of
from foreshape.core.spec import LOD_RANK_TABLE, LOD_TENSOR_ARRAY, Lod, Spec
from foreshape.core.values.conversion import to_numpy, to_tensor
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_proxy import torch
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.errors import ForeshapeError
from foreshape.language.infer.rules import answer
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.require import RuleError
from foreshape.language.operator.samples import Reject, Sample
from foreshape.language.program import Program
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.operator_checks.agreement import agree, in_pairs, require_that
from foreshape.runtime.operator_checks.sample_programs import SampleProgram, sample_program

# --- the kernel


def check_kernel(cls: type[Operator], sample: Sample) -> None:
    """Compare number, dims, element types, offsets and known values of the kernel's results with the shape rule's."""
    case = sample_program(cls, sample.arguments)
    operator, key = case.key()
    expected = answer(operator, key).results
    arguments, offsets = case.tensors()
    named: dict[str, Any] = {"requested": (True,) * len(cls.schema.results)} if cls.kernel_requested else {}
    named |= {"offsets": offsets} if cls.kernel_offsets else {}
    named |= {"before": [None] * len(cls.accumulates)} if cls.accumulates else {}
    if cls.expand is not Operator.expand:
        given: Any = _made_of_others(case)
    else:
        with torch.inference_mode():
            given = cls.kernel(operator, *arguments, **named)
    results = cast("tuple[Any, ...]", given if isinstance(given, tuple) else (given,))
    fields = cls.schema.results
    makers = [r for r in fields if r.new_offsets]
    wanted = len(fields) + len(makers)
    require_that(len(results) == wanted, f"the kernel must return {wanted} values, for {', '.join(r.name for r in fields)}; it returned {len(results)}")
    for field, made in zip(makers, results[len(fields) :], strict=True):
        at = fields.index(field)
        for spec, rows, own in zip(*(x if field.many else [x] for x in (expected[at], results[at], made)), strict=True):
            if own is not None and isinstance(spec, Spec) and spec.lod is not None:
                _check_offsets(field.name, spec.lod, own, len(rows))
    for field, spec, value in zip(fields, expected, results[: len(fields)], strict=True):
        if spec is None or (value is None and field.optional):
            continue
        pairs: list[tuple[Any, Any]] = list(zip(spec, cast("Any", value), strict=True)) if isinstance(spec, tuple) else [(spec, value)]
        for one, its in pairs:
            _check_result(field.name, one, its)


def _made_of_others(case: SampleProgram) -> tuple[Any, ...]:
    """Return the results of an operator without a kernel of its own, as a kernel would."""
    values = Executor().run(case.program, case.feed, case.results, Scope())
    found = dict(zip(case.results, (to_tensor(v) for v in values), strict=True))
    made = [[found[n] for n in case.outputs.get(r.name, ())] for r in case.cls.schema.results]
    return tuple(m if r.many else m[0] if m else None for m, r in zip(made, case.cls.schema.results, strict=True))


def _check_offsets(name: str, lod: Lod, own: Any, rows: int) -> None:
    require_that(len(own.levels) == len(lod.counts), f"{name} must have offsets of {len(lod.counts)} levels; the kernel gave {len(own.levels)}")
    for count, level, below in zip(lod.counts, own.levels, [*(len(x) - 1 for x in own.levels[1:]), rows], strict=True):
        whole = level.dtype is torch.int64 and int(level[0]) == 0 and int(level[-1]) == below and bool((level.diff() >= 0).all())
        require_that(whole, f"the offsets of {name} must be int64 and rise from 0 to {below}; seen {level.tolist()}")
        fits = not isinstance(count, int) or count == len(level) - 1
        require_that(fits, f"{name} must have {count} sequences by the shape rule; the kernel gave {len(level) - 1}")


def _check_result(name: str, spec: Any, value: Any) -> None:
    """Compare a value with its spec."""
    if isinstance(value, Offsets):
        counts = tuple(len(x) - 1 for x in value.levels)
        fits = spec.kind is LOD_RANK_TABLE and spec.dims == (value.rows,) and spec.lod is not None and spec.lod.counts == counts
        require_that(fits, f"{name} must be a rank table of {spec.text()}; the kernel gave one of {value.rows} rows and {counts} sequences")
        return
    is_array, numbers = isinstance(value, TensorArray), value
    require_that(is_array is (spec.kind is LOD_TENSOR_ARRAY), f"{name} must be of the kind {spec.kind.name}; the kernel gave {type(value).__name__}")
    for one in [t for t in value.tensors if t is not None] if isinstance(value, TensorArray) else [value]:
        dims, seen = spec.known_dims, list(one.shape)
        fits = len(dims) == len(seen) and all(not isinstance(d, int) or d == size for d, size in zip(dims, seen, strict=True))
        require_that(fits, f"{name} must be of {spec.text()} by the shape rule; the kernel gave {seen}")
        require_that(dtype_of_torch(one.dtype) is spec.dtype, f"{name} must be of {spec.text()} by the shape rule; the kernel gave {one.dtype}")
    if spec.value is not None and all(isinstance(x, int) for x in spec.value):
        seen = to_numpy(numbers).reshape(-1).tolist()
        require_that(seen == list(spec.value), f"{name} must be {list(spec.value)} by the shape rule; the kernel gave {seen}")


# --- the shape rule


def check_symbols(cls: type[Operator], sample: Sample) -> None:
    """Put a symbol for each size of a sample, and compare the rule's answer, with the number back in its place, with its answer to numbers."""
    operator, key = sample_program(cls, sample.arguments).key()
    concrete = answer(operator, key).results
    flat = [s for k in key for s in (k if isinstance(k, tuple) else (k,)) if s is not None]
    for size in sorted({d for s in flat for d in s.dims or () if isinstance(d, int) and d > 1}):
        n = symbol("n")

        def swap(spec: Spec, size: int = size, n: Any = n) -> Spec:
            lod = spec.lod and Lod(spec.lod.source, tuple(n if c == size else c for c in spec.lod.counts))
            return Spec(spec.kind, spec.dtype, tuple(n if d == size else d for d in spec.known_dims), lod, spec.value)

        try:
            found = answer(operator, tuple(None if k is None else swap(k) if isinstance(k, Spec) else tuple(swap(s) for s in k) for k in key))
        except RuleError as error:
            require_that(error.__cause__ is None, f"with a symbol for {size}: {error}")  # a refusal is none: a fixed number may leave no other size
            continue
        broken = [c for c in found.conditions if c.symbols <= {"n"} and not c.answer({"n": size})]
        require_that(not broken, f"with n for {size} the rule leaves a guard that the sample breaks: {', '.join(map(str, broken))}")
        for field, want, got in zip(cls.schema.results, concrete, found.results, strict=True):
            for w, g in zip(want if isinstance(want, tuple) else (want,), got if isinstance(got, tuple) else (got,), strict=True):
                require_that((w is None) is (g is None), f"{field.name}: with n for {size} the rule gives {g}, and with numbers {w}")
                if w is not None and g is not None:
                    fits = len(w.known_dims) == len(g.known_dims) and all(
                        not symbols_of(b) <= {"n"} or not isinstance(a, int) or evaluate(b, {"n": size}) == a
                        for a, b in zip(w.known_dims, g.known_dims, strict=True)
                    )
                    require_that(fits, f"{field.name} must be {w.text()} for n = {size}; with a symbol the rule gives {g.text()}")


# --- files, texts, runs


def check_file(cls: type[Operator], sample: Sample) -> None:
    """Write a sample's program to bytes and read it: equal text, inferred dims and results, in a run that checks each op too."""
    import numpy

    if not sample.exact:
        return
    case = sample_program(cls, sample.arguments)
    fetch = case.results[:1] if any(r.updates for r in cls.schema.results) else case.results

    def run(program: Program, check: bool = False) -> list[Any]:
        return Executor(check=check).run(program, case.feed, fetch, Scope())

    first = run(case.program)
    again = Program.from_bytes(case.program.to_bytes())
    require_that(again.to_bytes() == case.program.to_bytes(), "a program read from bytes must have the same bytes again")
    if not any(v.spec.value is not None for v in case.program.all_variables() if v.op is None):  # the text has such values, the file has not
        require_that(str(again) == str(case.program), f"a program read from bytes must print as before:\n{case.program}\nseen:\n{again}")
    again.forget()
    again.infer()
    for variable in case.program.all_variables():
        dims = again.var(variable.name).dims  # a value known while describing is not in the file
        fits = len(dims) == len(variable.dims) and all(a in (-1, b) for a, b in zip(dims, variable.dims, strict=True))
        require_that(fits, f"{variable.name} must be inferred as {variable.dims} in a program read from bytes; seen {dims}")
    for a, b in in_pairs(run(again), first):  # where a matrix lies decides the last digits of some decompositions
        agree(a, b, "a result of the program read from bytes", "the program described", 1e-5, 1e-6)
    if all(numpy.isfinite(numpy.asarray(a)).all() for a in case.feed.values()):  # checked mode stops at a NaN, fed ones too
        for a, b in in_pairs(run(case.program, check=True), first):
            agree(a, b, "a result with check=True", "a run without", 1e-5, 1e-6)


def check_text(cls: type[Operator], sample: Sample) -> None:
    """Print a sample's program, and parse the text: it must print alike."""
    program = sample_program(cls, sample.arguments).program
    parsed = Program.parse(str(program))
    require_that(str(parsed) == str(program), f"a parsed program must print as before:\n{program}\nseen:\n{parsed}")


def check_reject(cls: type[Operator], reject: Reject) -> None:
    """Describe a reject: it must raise its error, with its words, the operator's name, the requirement and a slot of it."""
    try:
        sample_program(cls, reject.arguments)
    except ForeshapeError as raised:
        error = raised
    else:
        require_that(False, f"it must be refused with {reject.says!r}, and was taken")
        return
    require_that(type(error) is reject.error, f"it must be refused by {reject.error.__name__}; seen {type(error).__name__}: {error}")
    words = str(error)
    require_that(reject.says in words, f"it must be refused with {reject.says!r}; seen {words}")
    require_that(error.op == cls.type, f"the error must tell the operator {cls.type!r} in its field op; seen {error.op!r}")
    told = error.required is not None and error.required.split("\n")[0] in words
    require_that(told, f"the error must tell the requirement in its field required; seen {error.required!r}")
    slots = {f.name for f in cls.schema.operands}
    require_that(error.slot is None or error.slot in slots, f"the error's slot must be one of {', '.join(sorted(slots))}; seen {error.slot!r}")
