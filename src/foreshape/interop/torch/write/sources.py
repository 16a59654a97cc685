"""Functions and classes of plain torch code as text, with their own needs, for files without imports of this package.

The text is the functions' own: of the helpers in `helpers`, and of operators' kernels. Anything behind torch's own operators (packed weights, hand-written
kernels) is refused.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any, Final

from foreshape.core.spec import DType
from foreshape.core.values.torch_private import NAMES
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.helpers import run_time
from foreshape.interop.torch.write.kernel_text import all_names, free_names, plain_text
from foreshape.interop.torch.write.numbers_code import number_code
from foreshape.language.operator.operator import Operator

_IMPORTED: Final = {
    "torch": "import torch",
    "F": "import torch.nn.functional as F",
    "Tensor": "from torch import Tensor",
    "math": "import math",
    "numpy": "import numpy",
}
_STAND_INS: Final = (
    "foreshape.core.dims",
    "foreshape.core.dims.derived",
    "foreshape.language.operator.require",
    "foreshape.machine.process.this_run",
    "foreshape.core.values.torch_types",
)
"""Rooms with functions for kernels; `helpers.run_time` has them under the same names."""
_ROOMS: Final = (
    "foreshape.interop.torch.write.helpers.",
    "foreshape.language.ops.",
    "foreshape.machine.kernels.",
    "foreshape.core.values.offsets",
    "foreshape.language.operator.attributes",
)
"""The modules whose functions may be copied."""
_NEVER: Final = ("onednn", "packed", "frozen", "fused", "recurrent_net", "pages", "lstm_steps", "gru_steps")
"""Modules of ours, below ``foreshape.machine.kernels``, for other code."""


class Sources:
    """The functions and classes of a file, each written once, after its needs.

    Attributes:
        imports: the lines of imports, by the imported name.
        texts: name -> the source.
    """

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self._names: dict[Any, str] = {}

    def add(self, thing: Callable[..., Any]) -> str:
        """Write a function or class with its needs, and return its name. Raises `Refused` if it is more than torch code."""
        name = self._names.get(thing)
        if name is not None:
            return name
        module = str(getattr(thing, "__module__", ""))
        if not module.startswith(_ROOMS) or any(f".{part}" in module and module.startswith("foreshape.machine.kernels.") for part in _NEVER):
            raise Refused(f"it uses {module}.{thing.__name__}, which is no torch code")
        name = thing.__name__
        if name in self.texts or name in self._names.values():
            raise Refused(f"two functions in its file would have the name {name}")
        self._names[thing] = name
        text = plain_text(textwrap.dedent(inspect.getsource(thing)))
        if text.startswith(("@data_class", "@dataclass")):  # Python's data classes want their module among the imported ones
            text = re.sub(r"^@.*\n", "", text).replace(f"class {name}:", f"class {name}(NamedTuple):", 1)
            self.imports["NamedTuple"] = "from typing import NamedTuple"
        text = self.use(text, vars(inspect.getmodule(thing)), {name})
        self.texts[name] = text
        return name

    def add_text(self, name: str, text: str, namespace: Mapping[str, Any]) -> None:
        """Write a text whose names stand for things in ``namespace``."""
        if name not in self.texts:
            text = self.use(text, namespace, {name})
            self.texts[name] = text

    def use(self, text: str, namespace: Mapping[str, Any], defined: set[str]) -> str:
        """Write everything used by a text of its module, and return the text with numbers of element types and kernels of torch in their places."""
        for name in sorted(free_names(text) - defined):
            value = namespace.get(name)
            if isinstance(value, DType):
                text = re.sub(rf"\b{name}\.(code|itemsize|is_floating)\b", lambda match, dtype=value: str(getattr(dtype, match[1])), text)
            elif name == "private":
                text = re.sub(r"\bprivate\.(\w+)", _torch_path, text)
                namespace = {**namespace, "torch": None}
        free = free_names(text) - defined
        for name in sorted(free):
            if name in namespace:
                self._add_name(name, namespace[name])
        for name in sorted(all_names(text) - free - defined):  # of annotations
            value = namespace.get(name)
            if name in _IMPORTED or str(getattr(value, "__module__", "")) in ("typing", "collections.abc"):
                self._add_name(name, value)
        return text

    def _add_name(self, name: str, value: Any) -> None:
        if name in _IMPORTED:
            self.imports[name] = _IMPORTED[name]
        elif isinstance(value, DType):
            self.texts.setdefault(name, f"{name} = torch.{'bfloat16' if value.name == 'bf16' else value.numpy_name}")
        elif _stand_in(value) is not None:
            self.add(_stand_in(value))
        elif name == "aten":
            self.imports.setdefault("torch", _IMPORTED["torch"])
            self.texts.setdefault("aten", "aten = torch.ops.aten")
        elif isinstance(value, types.ModuleType):
            if value.__name__.startswith("foreshape"):
                raise Refused(f"it uses {value.__name__}, which is no torch code")
            self.imports[name] = f"import {value.__name__}" if value.__name__ == name else f"import {value.__name__} as {name}"
        elif isinstance(value, type) and issubclass(value, Exception) and value.__module__ == "foreshape.errors":
            self.texts.setdefault(name, f"class {name}(Exception):\n    pass")
        elif isinstance(value, type) and issubclass(value, Operator):
            raise Refused(f"its kernel uses {value.__name__}")
        elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)) or hasattr(value, "__wrapped__"):
            module = value.__module__
            if module.split(".")[0] != "foreshape":
                self.imports[name] = f"from {module} import {value.__name__}" + ("" if value.__name__ == name else f" as {name}")
            elif self.add(value) != name:
                self.texts.setdefault(name, f"{name} = {value.__name__}")
        elif (constant := _literal(value)) is not None:
            self.texts.setdefault(name, f"{name} = {constant}")
        elif getattr(value, "__module__", "").split(".")[0] in ("typing", "collections", "functools", "itertools"):
            self.imports[name] = f"from {value.__module__} import {value.__name__}"
        else:
            raise Refused(f"its kernel uses {name}, which is no torch code")


def _stand_in(value: Any) -> Any:
    """Return the function at run time for one of the house's own."""
    room = str(getattr(value, "__module__", ""))
    if room in _STAND_INS or room.startswith("foreshape.core.dims."):
        return getattr(run_time, str(getattr(value, "__name__", "")), None)
    return None


_PUBLIC: Final = frozenset({"fft_c2c", "fft_r2c", "fft_c2r", "unique", "ctc_loss", "ctc_loss_gradient", "check"})
"""Kernels of torch without a public function, with gradients; and its word for a trace."""


def _torch_path(match: re.Match[str]) -> str:
    if match[1] not in _PUBLIC:
        raise Refused(f"its kernel uses {NAMES[match[1]].path} of torch")
    return f"torch.{NAMES[match[1]].path}"


def _literal(value: Any) -> str | None:
    """Return a constant as code; None if it is none."""
    if isinstance(value, float):
        return number_code(value)
    if value is None or isinstance(value, (int, str, bool)):
        return repr(value)
    if type(value) in (tuple, list, frozenset, set):
        items: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        parts = [_literal(v) for v in items]
        if any(m is None for m in parts):
            return None
        listed = ", ".join(m for m in parts if m is not None)
        if isinstance(value, (frozenset, set)):
            return f"frozenset([{listed}])"
        return f"[{listed}]" if isinstance(value, list) else f"({listed}{',' if len(items) == 1 else ''})"
    if isinstance(value, dict):
        pairs: list[tuple[Any, Any]] = list(value.items())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        parts = [(_literal(k), _literal(v)) for k, v in pairs]
        return None if any(k is None or v is None for k, v in parts) else f"{{{', '.join(f'{k}: {v}' for k, v in parts)}}}"
    return None
