"""Programs as modules of plain torch: our operators written as torch code, without a dependency on this package.

`plain_writer` goes through the ops; the functions of `foreshape.interop.forms` write each as a line of Python. An operator that is a
composition of others is written by its parts; one without a form is refused by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foreshape.compiler.lowering.expansion import expanded
from foreshape.core.gc_pause import collector_waits
from foreshape.errors import FormatError
from foreshape.interop.forms.rules import follows_mode, torch_writer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.plain_op import Flow
from foreshape.interop.torch.write.plain_source import PlainSource, source_of
from foreshape.interop.torch.write.plain_writer import PlainWriter
from foreshape.interop.written_ops import listed
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Program
from foreshape.transforms.passes.framework import named


@collector_waits
def plain_source(
    program: Program,
    feeds: Sequence[str],
    fetches: Sequence[str],
    title: str = "A network.",
    weights: str = "",
    tied: Mapping[str, str] | None = None,
    flow: Flow = "python",
) -> PlainSource:
    """Return a program as the source of a module of torch.

    Args:
        program: with known shapes, and no ops but the ones for the fetches; it stays as it is.
        feeds: the names of its inputs, in the order of the arguments of ``forward``.
        fetches: the names of its results, in order.
        title: the first line of the source.
        weights: the name of the file of its tensors, beside it: with it the source has a function ``load``.
        tied: a further key in the ``state_dict`` -> the program's parameter.
        flow: the form of loops and branches.

    Raises:
        FormatError: operators without torch code, all listed; an input or result other than a tensor.
    """
    block = expanded(program.global_block, list(fetches), keep=lambda op: torch_writer(op.type) is not None)
    writer = PlainWriter(block.program, flow)
    try:
        results = writer.run(feeds, fetches)
    except Refused as refused:
        raise FormatError(f"it cannot be written as torch code: {refused}") from None
    if writer.unwritten:
        raise FormatError(f"it cannot be written as torch code:{listed(writer.unwritten)}")
    block = block.program.global_block
    ends = {name: f"the input {feed}: {block.vars[feed].spec.text()}" for feed, name in zip(feeds, writer.fed, strict=False)}
    ends |= {f"result {number}": f"{name}: {block.vars[name].spec.text()}" for number, name in enumerate(fetches)}
    return source_of(writer, results, ends, learned(writer), title, weights, tied or {})


@named("by_mode")
def BY_MODE(program: Program) -> bool:
    """Give a network saved for tests the operators of training back, where torch code has both forms: dropout, and batch normalization's own statistics."""
    changed = False
    for op in program.all_ops():
        if follows_mode(op.type) and not op.attributes.values.get("use_global_stats"):
            entries = tuple([(n, t, False if n == "is_test" and t is AttrType.BOOLEAN else v) for n, t, v in op.attributes.entries])
            if entries != op.attributes.entries:
                op.attributes, changed = Attributes.of(op.type, entries), True
    return changed


def learned(writer: PlainWriter) -> set[str]:
    """Return the learning parameters: of floats, trainable, and written by no op."""
    return {n for n, v in writer.parameters.items() if v.spec.known_dtype.is_floating and v.trainable and not writer.writes[n]}
