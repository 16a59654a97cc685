"""Programs as modules of plain torch, whose source is code of torch alone."""

from __future__ import annotations

import linecache
import sys
import types
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Final

from foreshape.interop.torch.write.plain_source import PlainSource, tensors_of
from foreshape.interop.torch.write.program_source import BY_MODE, plain_source
from foreshape.interop.torch.write.stopped_gradients import lacks_gradient
from foreshape.interop.torch.written_check import WrittenNetwork, check_written
from foreshape.language.program import Program
from foreshape.language.program.call_site import warn_user
from foreshape.runtime.engine import Scope

_NUMBERS: Final = count(1)


def plain_module(
    program: Program, scope: Scope, feeds: Sequence[str], fetches: Sequence[str], names: Mapping[str, str], is_for_test: bool = False, check: bool = True
) -> Any:
    """Return a program as a module of torch without anything of this package; ``module.source`` is its text.

    Its tensors are copies of the scope's values; of a module of torch, its ``state_dict`` has the same keys. It is in ``eval()`` if the program is one
    for a test. In ``train()`` it is the program, and in ``eval()`` its copy for a test.

    Args:
        program: pruned to its fetches, with known shapes.
        feeds, fetches: the names of its inputs and results, in order.
        names: of a module of torch, its names -> the program's: a tied weight has two.
        is_for_test: it was saved or imported for tests, so its dropout and batch normalization are those of training in ``train()``.
        check: compare the module with the program.

    Raises:
        FormatError: operators without torch code, all listed; other numbers than the program's. ExecutionError: a parameter without a value.
    """
    tests = [t for op in program.all_ops() if (t := op.attributes.values.get("is_test")) is not None]
    program = BY_MODE(program)[0] if is_for_test else program

    def write(program: Program, fetches: Sequence[str]) -> tuple[Any, PlainSource]:
        source = plain_source(program, feeds, fetches, tied=names)
        module = module_of(source)
        values = tensors_of(source, lambda name: scope.tensor(name).detach().clone())
        module.load_state_dict({key: values.pop(key) for key in [*module.state_dict()]})
        for key, value in values.items():
            module.get_buffer(key).copy_(value)
        return module, source

    module, source = write(program, fetches)
    _warn_of_no_gradient(program)
    if check:
        check_written(WrittenNetwork(module, source, program, feeds, fetches, scope, write))
    return module.train(not is_for_test and not (tests and all(tests)))


def _warn_of_no_gradient(program: Program) -> None:
    """Warn of operators whose written code refuses a backward pass."""
    lines: dict[str, None] = {}
    for op in program.all_ops():
        if lacks_gradient(op.type):
            lines[f"{op.type} ({op.call_site.short()})" if op.call_site is not None else op.type] = None
    if lines:
        first = ", ".join([*lines][:3]) + (f" and {len(lines) - 3} more" if len(lines) > 3 else "")
        warn_user(f"no gradient is written in torch code for {first}: for training use fs.to_torch(model), without plain=True")


def text_of(module: Any) -> str:
    """Return the text of a written module."""
    held: dict[str, Any] = module.__dict__
    return str(held["source_" if "source_" in held else "source"])


def module_of(source: PlainSource) -> Any:
    """Return the module of a source, with zeros for weights. Tracebacks show its lines. Its text is ``source``, or ``source_`` where the network has one."""
    number = next(_NUMBERS)
    path = f"<torch code {number}>"
    linecache.cache[path] = (len(source.text), None, source.text.splitlines(keepends=True), path)
    made = types.ModuleType(f"network_{number}")
    made.__file__ = path
    sys.modules[made.__name__] = made  # torch.compile looks its functions up there
    exec(compile(source.text, path, "exec"), vars(made))
    module = made.Network()
    setattr(module, "source_" if hasattr(module, "source") else "source", source.text)
    return module
