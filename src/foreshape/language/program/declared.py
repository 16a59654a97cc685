"""A file's description of a variable, before inference: turned into a spec, with symbols for -1, on demand."""

from __future__ import annotations

from typing import Any, Protocol

from foreshape.core.dims import Size, symbol_after
from foreshape.core.spec import DType, Kind, Lod, Spec
from foreshape.language.program.call_site import Site


class Declared:
    """Kind, element type, dims (-1 where unknown; None if not described) and lod level, as read. Shared by equal variables."""

    __slots__ = ("_shared", "dims", "dtype", "form", "kind", "lod_level", "negative", "symbolic", "symbolic_lod")

    def __init__(
        self,
        kind: Kind,
        dtype: DType | None,
        dims: tuple[int, ...] | None,
        lod_level: int = 0,
        symbolic: tuple[Size, ...] | None = None,
        symbolic_lod: Lod | None = None,
    ) -> None:
        self.kind, self.dtype, self.dims, self.lod_level = kind, dtype, dims, lod_level
        self.symbolic, self.symbolic_lod = symbolic, symbolic_lod
        """The same with named symbols, where the file keeps them."""
        self.form: Any = None
        """The file's description of the variable without its name, kept for the wire room to write it back unchanged."""
        self.negative = min(dims) if dims and min(dims) < -1 else None
        """The dim below -1, if there is one."""
        fixed = (dims is None or min(dims, default=0) >= 0) and not lod_level and symbolic is None
        self._shared = Spec(kind, dtype, dims) if fixed else None

    def spec_for(self, name: str) -> Spec:
        """Return the spec of the variable ``name``: its -1s become symbols named after it."""
        if self._shared is not None:
            return self._shared
        lod = self.symbolic_lod
        if lod is None and self.lod_level:
            lod = Lod(name, tuple(symbol_after(f"{name}.level{k}") for k in range(self.lod_level)))
        if self.symbolic is not None:
            return Spec(self.kind, self.dtype, self.symbolic, lod)
        assert self.dims is not None
        dims = tuple(d if d >= 0 else symbol_after(name if lod is not None and not axis else f"{name}.{axis}") for axis, d in enumerate(self.dims))
        return Spec(self.kind, self.dtype, dims, lod)


class DeclaredForm(Protocol):
    """A file's description of a variable, without its name."""

    declared: Declared
    site: Site
    value: Any
    persistable: bool
    trainable: bool
    stop_gradient: bool
    is_parameter: bool
    need_check_feed: bool
    extra: tuple[bytes, ...]
    unknown_fields: bytes
