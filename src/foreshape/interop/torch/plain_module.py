"""Programs as modules of plain torch, whose source is code of torch alone."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

from foreshape.engine import Scope
from foreshape.interop.torch.write import plain_source
from foreshape.interop.torch.write.plain_source import PlainSource, tensors_of
from foreshape.program import Program

_NUMBERS: Final = count(1)


def plain_module(program: Program, scope: Scope, feeds: Sequence[str], fetches: Sequence[str], names: Mapping[str, str]) -> Any:
    """Return a program as a module of torch without anything of this package; ``module.source`` is its text.

    Its tensors are copies of the scope's values; of a module of torch, its ``state_dict`` has the same keys. It is in ``eval()`` if the program is one
    for a test.

    Args:
        program: pruned to its fetches, with known shapes.
        feeds, fetches: the names of its inputs and results, in order.
        names: of a module of torch, its names -> the program's: a tied weight has two.

    Raises:
        FormatError: operators without torch code, all listed. ExecutionError: a parameter without a value.
    """
    source = plain_source(program, feeds, fetches, tied=names)
    module = module_of(source)
    values = tensors_of(source, lambda name: scope.tensor(name).detach().clone())
    module.load_state_dict({key: values.pop(key) for key in [*module.state_dict()]})
    for key, value in values.items():
        module.get_buffer(key).copy_(value)
    tests = [t for op in program.all_ops() if (t := op.attributes.values.get("is_test")) is not None]
    return module.train(not all(tests) if tests else True)


def module_of(source: PlainSource) -> Any:
    """Return the module of a source, with zeros for weights. Tracebacks show its lines."""
    number = next(_NUMBERS)
    path = f"<torch code {number}>"
    linecache.cache[path] = (len(source.text), None, source.text.splitlines(keepends=True), path)
    made = types.ModuleType(f"network_{number}")
    made.__file__ = path
    sys.modules[made.__name__] = made  # torch.compile looks its functions up there
    exec(compile(source.text, path, "exec"), vars(made))
    module = made.Network()
    module.source = source.text
    return module
