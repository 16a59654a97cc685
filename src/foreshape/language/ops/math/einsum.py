"""Products of tensors with axes named by letters."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import COMPLEX, FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import SchemaError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require, require_broadcast, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.math.complex_numbers import c64, conjugate, conjugate_bytes

_FORM = re.compile(r"[A-Za-z.]+(,[A-Za-z.]+)*->[A-Za-z.]*")


class Einsum(Operator):
    """Out = the product of Operands, summed over all letters of ``equation`` absent right of ``->``.

    ``ij,jk->ik`` is the product of two matrices. An axis of 1 broadcasts; ``...`` stands for broadcast axes. A letter stands once in each operand. InnerCache
    and XShape are for the gradient, under PaddlePaddle's names: here both are Operands, without a copy.
    """

    type = "einsum"
    multiplies = True
    Operands = operand((*FLOATING, *COMPLEX), many=True, doc="one or two")
    Out = result(doc="the dims of the letters right of ->")
    InnerCache = result(many=True, view_of="Operands", doc="the numbers of Operands, for the gradient")
    XShape = result(many=True, view_of="Operands", doc="the dims of Operands")
    equation = attribute(AttrType.STRING)

    def _terms(self, count: int) -> tuple[list[str], str]:
        """Return the letters of the operands, and the letters of the result."""
        text = self.equation.replace(" ", "")
        if _FORM.fullmatch(text) is None:
            fail(f"equation must be letters for each operand, divided by commas, and -> with those of the result; seen {self.equation!r}", SchemaError)
        left, out = text.split("->")
        terms = left.split(",")
        if len(terms) != count or not 1 <= count <= 2:
            fail(f"equation must have letters for each of the {count} operands, which are one or two; seen {self.equation!r}", SchemaError)
        for term in (*terms, out):
            plain = term.replace("...", "", 1)
            if "." in plain or len(set(plain)) != len(plain):
                fail(f"a letter must stand once in {term!r} of equation, and ... once at most", SchemaError)
        if not set(out) - {"."} <= set(left):
            fail(f"each letter of the result must be one of an operand; seen {self.equation!r}", SchemaError)
        return terms, out

    def infer_shape(self, Operands: tuple[Spec, ...]) -> Any:
        terms, out = self._terms(len(Operands))
        sizes: dict[str, Size] = {}
        common: list[Size] = []
        for term, spec in zip(terms, Operands, strict=True):
            require(spec.dtype is Operands[0].dtype, "Operands must be of one element type", Operands=None)
            letters = len(term.replace("...", ""))
            if "..." in term:
                require(spec.rank >= letters, f"an operand of {term!r} must have at least {letters} dims, not {spec.rank}", Operands=None)
            else:
                require_rank(letters, spec, "Operands")
            front, dots, back = term.partition("...")
            dims = list(spec.known_dims)
            dotted = dims[len(front) : len(dims) - len(back)] if dots else []
            for letter, size in zip(front + back, dims[: len(front)] + (dims[len(dims) - len(back) :] if back else []), strict=True):
                requirement = f"the dims at {letter!r} must be equal, or one of them 1"
                sizes[letter] = require_broadcast(sizes[letter], size, requirement, Operands=None) if letter in sizes else size
            wide = max(len(dotted), len(common))
            padded = [[1] * (wide - len(x)) + x for x in (common, dotted)]
            common = [require_broadcast(a, b, "the dims at ... must be equal, or one of them 1", Operands=None) for a, b in zip(*padded, strict=True)]
        require("..." in out or not common, "what ... stands for must be in the result too", Operands=None)
        front, dots, back = out.partition("...")
        like = tuple(s.like() for s in Operands)
        return Operands[0].dense((*(sizes[c] for c in front), *(common if dots else ()), *(sizes[c] for c in back))), like, like

    def work(self, Operands: tuple[Spec, ...]) -> Size:
        terms, out = self._terms(len(Operands))
        count = self.infer_shape(Operands)[0].elements
        for term, spec in zip(terms, Operands, strict=True):
            for letter, size in zip(reversed(term.rpartition("...")[2]), reversed(spec.known_dims), strict=False):
                if letter not in out:
                    count = count * size
                    out += letter
        return count

    def workspace(self, Operands: tuple[Spec, ...]) -> Size:
        out = self.infer_shape(Operands)[0]
        return 3 * sum((s.nbytes for s in Operands), 0) + 2 * out.nbytes

    def kernel(self, Operands: list[Tensor]) -> Any:
        return _unshared(_summed(self.equation.replace(" ", ""), Operands), Operands), Operands, Operands

    def _infer_gradient(self, XShape: tuple[Spec, ...], InnerCache: tuple[Spec, ...], d_out: Spec) -> Any:
        out, caches, like = Einsum.with_values({"equation": self.equation}).infer_shape(XShape)
        require(len(caches) == len(InnerCache), f"InnerCache must be as many as x_shape, {len(XShape)}, not {len(InnerCache)}", InnerCache=None)
        for have, want in zip((*InnerCache, d_out), (*caches, out), strict=True):
            slot = "Out@GRAD" if want is out else "InnerCache"
            require(have.rank == want.rank, f"{slot} must have {want.rank} dims, not {have.rank}", **{slot: None})
            for a, b in zip(have.known_dims, want.known_dims, strict=True):
                require_equal(a, b, f"{slot} must have the dims that x_shape tells", **{slot: None})
        return like

    def _gradient_workspace(self, XShape: tuple[Spec, ...], InnerCache: tuple[Spec, ...], d_out: Spec) -> Size:
        return 6 * sum((s.nbytes for s in XShape), 0) + 4 * d_out.nbytes + sum(map(conjugate_bytes, InnerCache), 0)

    @gradient("XShape", "InnerCache", "Out@GRAD", gives="Operands@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, called={"XShape": "x_shape"})
    def backward(self, XShape: list[Tensor], InnerCache: list[Tensor], d_out: Tensor) -> Any:
        terms, out = self._terms(len(InnerCache))
        gradients: list[Tensor] = []
        for index, (term, x) in enumerate(zip(terms, InnerCache, strict=True)):
            remaining = [(t, conjugate(o)) for k, (t, o) in enumerate(zip(terms, InnerCache, strict=True)) if k != index]
            letters = set(out.replace(".", "")).union(*(t.replace(".", "") for t, _ in remaining))
            dots = "..." in out or any("..." in t for t, _ in remaining)
            pattern = ("..." if dots else "") + "".join(c for c in term.replace("...", "") if c in letters)
            summed = _summed(",".join([out, *(t for t, _ in remaining)]) + "->" + pattern, [d_out, *(o for _, o in remaining)])
            gradients.append(_unshared(_arranged(summed, pattern, term, x), (d_out, *InnerCache)))
        return gradients

    samples = [
        sample(Operands=[f32(2, 3), f32(3, 5)], equation="ij,jk->ik"),
        sample(Operands=[f32(2, 3, 4, 5), f32(2, 6, 4, 5)], equation="bqhd,bkhd->bhqk"),
        sample(Operands=[f32(2, 3, 4), f32(6, 4)], equation="...i,oi->...o"),
        sample(Operands=[f32(2, 3, 1), f32(1, 4)], equation="bij,jk->kb"),
        sample(Operands=[f32(2, 3, 5)], equation="ijk->kj"),
        sample(Operands=[f32(2, 3)], equation="ij->"),
        sample(Operands=[f32(5), f32(3)], equation="i,j->ij"),
        sample(Operands=[f32(2, 3, 4), f32(3, 4)], equation="...ij,ij->...j"),
        sample(Operands=[c64(2, 3), c64(3, 5)], equation="ij,jk->ki"),
        sample(Operands=[c64(2, 3, 5)], equation="ijk->kj"),
    ]
    rejects = [
        reject(Operands=[f32(2, 3), f32(4, 5)], equation="ij,jk->ik", says="the dims at 'j' must be equal"),
        reject(Operands=[f32(2, 3), f32(3, 5, 2)], equation="ij,jk->ik", says="must have 2 dims"),
        reject(Operands=[f32(2, 3)], equation="ij,jk->ik", says="for each of the 1 operands", error=SchemaError),
        reject(Operands=[f32(3, 3)], equation="ii->i", says="a letter must stand once", error=SchemaError),
        reject(Operands=[f32(2, 3)], equation="ij->k", says="one of an operand", error=SchemaError),
        reject(Operands=[f32(2, 3)], equation="ij", says="equation must be letters", error=SchemaError),
        reject(Operands=[f32(2, 3)], equation="...j->j", says="must be in the result too"),
    ]


def _summed(equation: str, operands: Sequence[Tensor]) -> Tensor:
    """Return ``torch.einsum`` of operands copied where their batch axes lie innermost: there torch multiplies matrices one by one."""
    batches = _batches(equation)
    return torch.einsum(equation, *(map(_batch_outside, operands, *batches) if batches else operands))


@lru_cache(1024)
def _batches(equation: str) -> tuple[list[str], list[set[str]]] | None:
    """Return the letters of each operand, and for each the batch: the letters all operands and the result have. None without a batch."""
    left, out = equation.split("->")
    terms = left.split(",")
    batch = set(out).intersection(*terms)
    return (terms, [batch] * len(terms)) if batch and len(terms) > 1 else None


def _batch_outside(x: Tensor, term: str, batch: set[str]) -> Tensor:
    """Return ``x``, or a copy with the axes of the batch outermost in memory, if none of the others lies innermost, or one is broadcast."""
    letters = term.replace("...", "." * (x.dim() - len(term) + 3))
    steps = [step for c, n, step in zip(letters, x.shape, x.stride(), strict=True) if n > 1 and c not in batch]
    if not steps or (1 in steps and 0 not in steps):
        return x
    order = sorted(range(x.dim()), key=lambda axis: letters[axis] not in batch)
    return x.permute(order).contiguous().permute([order.index(axis) for axis in range(x.dim())])


def _unshared(x: Tensor, tensors: Sequence[Tensor]) -> Tensor:
    """Return ``x`` contiguous, in memory none of the others has: a sum over nothing is a view."""
    shared = any(x.untyped_storage().data_ptr() == o.untyped_storage().data_ptr() for o in tensors)
    return x.clone(memory_format=torch.contiguous_format) if shared else x.contiguous()


def _arranged(d: Tensor, have: str, term: str, x: Tensor) -> Tensor:
    """Return a gradient with the axes of ``have``, the broadcast ones first, as the gradient of the operand x with the axes of ``term``."""
    letters = have.replace("...", "")
    lead = d.dim() - len(letters)
    mine = x.dim() - len(term.replace("...", ""))
    if lead > mine:
        d = d.sum(tuple(range(lead - mine)))
    elif lead < mine:
        d = d.reshape(*[1] * (mine - lead), *d.shape)
    front, _, back = term.partition("...")
    for letter in front + back:
        if letter not in letters:
            d, letters = d.unsqueeze(-1), letters + letter
    order = [mine + letters.index(c) for c in front] + list(range(mine)) + [mine + letters.index(c) for c in back]
    d = d.permute(order)
    for axis, size in enumerate(x.shape):
        if size == 1 and d.shape[axis] != 1:
            d = d.sum(axis, keepdim=True)
    return d.expand(x.shape)
