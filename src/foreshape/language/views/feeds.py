"""The accepted sizes of a program's inputs, gathered from its guards for `foreshape.language.conditions.feeds`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from weakref import ref

from foreshape.core.dims import evaluate, symbol_name, symbols_of
from foreshape.errors import DescriptionError, SchemaError, border
from foreshape.language.conditions.feeds import Feeds
from foreshape.language.program.dropping import for_step
from foreshape.language.program.inputs import inputs_of
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable


@border("what the inputs take cannot be told", SchemaError)
def feeds_of(program: Program) -> Feeds:
    """Return the accepted sizes of a program's inputs. With fetch ops in the program, ops unused by them demand nothing."""
    version, program_ref = program.version, ref(program)
    fetched = [n for op in program.global_block.ops if op.is_fetch for n in op.input_names()]
    program = for_step(program, fetched) if fetched else program
    inputs = inputs_of(program.global_block)
    specs = {v.name: v.entry_spec for v in inputs}
    symbols: dict[str, None] = {}
    for spec in specs.values():
        for size in (*(spec.dims or ()), *(spec.lod.counts if spec.lod is not None else ())):
            symbols.update(dict.fromkeys(sorted(symbols_of(size))))

    def runs(values: Mapping[str, int]) -> bool:
        """Return whether the network can be inferred at these sizes."""
        network = program_ref()
        if network is None or network.version != version:
            return True
        dims = {v.name: v.entry_spec.dims for v in inputs_of(network.global_block)}
        try:
            network.with_feed_shapes({name: [evaluate(d, values) for d in sizes] for name, sizes in dims.items() if sizes})
        except DescriptionError:
            return False
        return True

    return Feeds(specs, [g.condition for g in program.guard_list()], _words(program, inputs, symbols), runs, version)


def _words(program: Program, inputs: Sequence[Variable], symbols: Iterable[str]) -> dict[str, str]:
    """Return symbol -> its word for people. A file's -1 has no name: it is called by its purpose."""
    called: dict[str, list[str]] = {}
    of_images = _image_axes(program)
    for variable in inputs:
        for axis, dim in enumerate(variable.spec.dims or ()):
            name = symbol_name(dim)
            if name is not None and name == f"{variable.name}.{axis}":  # made for a -1
                called.setdefault("batch" if not axis else of_images.get(name, ""), []).append(name)
    symbol_names = set(symbols)
    out = {n: n for n in symbols}
    for word, names in called.items():
        if word and len(names) == 1 and word not in symbol_names:
            out[names[0]] = word
    return out


def _image_axes(program: Program) -> dict[str, str]:
    """Return symbol -> ``height`` or ``width``: its role in the first op over images with a size made of it alone."""
    out: dict[str, str] = {}
    for op in program.global_block.ops:
        if op.operator is not None and {"strides", "paddings"} <= op.operator.schema.attributes.keys():  # it goes over windows
            image = op.block.find(op.operand(0))
            if image is not None and image.spec.dims is not None and len(image.spec.dims) == 4:
                height = 1 if op.attrs.get("data_format") == "NHWC" else 2
                for axis, word in ((height, "height"), (height + 1, "width")):
                    made_of = symbols_of(image.spec.dims[axis])
                    if len(made_of) == 1:
                        out.setdefault(made_of.pop(), word)
    return out
