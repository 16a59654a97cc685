"""`Described`: a name with a spec, and the parts of the spec by their public names."""

from __future__ import annotations

from typing import NoReturn

from foreshape.core.dims import Size
from foreshape.core.spec import UNKNOWN, DType, Kind, Spec, Unknown
from foreshape.language.program.declared import Declared


class Described:
    """A name with a spec, inferred, or declared by a file."""

    __slots__ = ("declared", "inferred_spec", "known", "name")

    name: str
    inferred_spec: Spec | None
    """The spec; None until somebody asks for it, if a file declares it."""
    declared: Declared | None
    known: bool
    """True if the spec is given or inferred; False if only declared by a file, behind an unknown operator."""

    @property
    def spec(self) -> Spec:
        """Return kind, element type, packed dims and raggedness, frozen."""
        found = self.inferred_spec
        if found is None:
            declared = self.declared
            found = UNKNOWN if declared is None else declared.spec_for(self.name)
            self.inferred_spec = found
        return found

    @spec.setter
    def spec(self, value: object) -> NoReturn:
        raise AttributeError(f"the spec of {self.name} is inferred; give a variable its shape when you make it, or see program.with_feed_shapes")

    @property
    def kind(self) -> Kind:
        return self.spec.kind

    @property
    def dtype(self) -> DType | None:
        return self.spec.dtype

    @property
    def data_type(self) -> DType | None:
        """Return another name of `dtype`."""
        return self.spec.dtype

    @property
    def shape(self) -> list[Size | Unknown]:
        """Return the logical shape, with symbols: of ragged data ``[sequences, UNK, *row]``."""
        return self.spec.logical_shape()

    @property
    def packed_shape(self) -> list[Size]:
        """Return the shape of the packed rows, with symbols; equal to `shape` if dense."""
        return list(self.spec.dims or ())

    @property
    def dims(self) -> list[int]:
        """Return the logical shape in the saved form: -1 where unknown."""
        return self.spec.logical_dims()

    @property
    def packed_dims(self) -> list[int]:
        """Return the dims as they are saved: -1 where unknown; equal to `dims` if dense."""
        return self.spec.packed_dims()

    @property
    def lod_level(self) -> int:
        """Return the number of levels of sequences in its rows; 0 if dense."""
        return self.spec.lod_level

    @property
    def nbytes(self) -> Size:
        """Return the bytes of its data: an int, or an expression in the symbols."""
        return self.spec.nbytes
