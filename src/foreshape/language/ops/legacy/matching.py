"""Assignment of truths to boxes in training a detector: `bipartite_match`, `mine_hard_examples`, `target_assign`.

Equal scores count in their order; PaddlePaddle leaves it to its sort in `mine_hard_examples`, so there it may differ.
"""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, INT32, INT64, LOD_TENSOR, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import fail, require_at_most, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, f64, i32, reject, sample
from foreshape.language.ops.rules.ragged_rules import check_numbers, new_lod, ragged, rows

_NONE = 1e-6
"""The least similarity of a match."""
_MANY = 130
"""PaddlePaddle matches anything of a similarity above 0 from this number of rows on."""


class BipartiteMatch(Operator):
    """ColToRowMatchIndices = the matched row in its image for each column, -1 for none; ColToRowMatchDist = their similarity, or 0.

    In an image the most similar row and column are matched, again and again, until either has none left. Of equal pairs the first column is taken, and of these
    the first row. With "per_prediction" each column left over gets its most similar row, if the similarity is at least ``dist_threshold``.
    """

    type = "bipartite_match"
    family = "detection"
    layer_function = "detection.bipartite_match"
    DistMat = operand((FP32, FP64), doc="[rows, columns], similarities; ragged: the rows of each image; or of one image")
    ColToRowMatchIndices = result(doc="int32 [images, columns]")
    ColToRowMatchDist = result(doc="[images, columns]")
    match_type = attribute(AttrType.STRING, "bipartite", choices=("bipartite", "per_prediction"))
    dist_threshold = attribute(AttrType.FLOAT, 0.5)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, DistMat: Spec) -> tuple[Spec, Spec]:
        require_rank(2, DistMat, "DistMat")
        images = ragged(DistMat, "DistMat", 1).counts[0] if DistMat.lod is not None else 1
        dims = (images, DistMat.known_dims[1])
        return DistMat.dense(dims, INT32), DistMat.dense(dims)

    def workspace(self, DistMat: Spec) -> Size:
        return 3 * DistMat.nbytes + 64 * DistMat.known_dims[1]

    def kernel(self, DistMat: Tensor, *, offsets: list[Offsets | None]) -> tuple[Tensor, Tensor]:
        parts = torch.split(DistMat, offsets[0].host_lengths) if offsets[0] is not None else [DistMat]
        index = torch.full((len(parts), DistMat.shape[1]), -1, dtype=torch.int32, device=DistMat.device)
        alike = DistMat.new_zeros(len(parts), DistMat.shape[1])
        for distances, rows_of, how in zip(parts, index, alike, strict=True):
            if distances.numel():
                self._match(distances, rows_of, how)
        return index, alike

    def _match(self, distances: Tensor, index: Tensor, alike: Tensor) -> None:
        """Fill in the columns of one image."""
        count = len(distances)
        none = distances < _NONE if count < _MANY else distances <= 0
        left = distances.masked_fill(none, -1.0).t().contiguous()  # the first of equal ones is then of the first column
        for _ in range(min(left.shape)):
            place = int(left.argmax())
            column, row = place // count, place % count
            value = float(left[column, row])
            if value < 0:
                break
            index[column], alike[column] = row, left[column, row]
            left[column] = -1.0
            left[:, row] = -1.0
        if self.match_type == "per_prediction":
            fits = (distances >= _NONE) & (distances >= self.dist_threshold)
            best, row = distances.masked_fill(~fits, -1.0).max(0)
            added = (index < 0) & (best >= 0)
            index[added] = row[added].int()
            alike[added] = best[added]

    samples = [
        sample(DistMat=f32(7, 5, low=0.0, high=1.0, distinct=True).ragged([3, 0, 4])),
        sample(DistMat=f32(7, 9, low=0.0, high=1.0, distinct=True).ragged([5, 2]), match_type="per_prediction", dist_threshold=0.6),
        sample(DistMat=f64(3, 4, low=-1.0, high=1.0, distinct=True)),
        sample(DistMat=f32(0, 4).ragged([0, 0])),
    ]
    rejects = [
        reject(DistMat=f32(7), says="DistMat must have 2 dims"),
        reject(DistMat=f32(7, 3).ragged([2, 1], [3, 0, 4]), says="1 level"),
    ]


class MineHardExamples(Operator):
    """NegIndices = the priors of each image counted as negative examples, rising; UpdatedMatchIndices = the remaining matches.

    With "max_negative" the negatives are unmatched priors with a similarity below ``neg_dist_threshold`` and the largest ClsLoss: ``neg_pos_ratio`` times the
    number of matched priors. With "hard_example" the ``sample_size`` priors with the largest ClsLoss + LocLoss are chosen. Of these the unmatched ones are
    negative, and a match not chosen counts no more.
    """

    type = "mine_hard_examples"
    family = "detection"
    layer_function = "detection.mine_hard_examples"
    ClsLoss = operand((FP32, FP64), doc="[images, priors]")
    LocLoss = operand((FP32, FP64), same_type_as="ClsLoss", optional=True, doc="[images, priors]")
    MatchIndices = operand((INT32,), doc="[images, priors]; -1: unmatched")
    MatchDist = operand((FP32, FP64), same_type_as="ClsLoss", doc="[images, priors]: their similarities")
    NegIndices = result(new_offsets=True, doc="int32 [rows, 1], ragged: the priors of each image")
    UpdatedMatchIndices = result(doc="as MatchIndices")
    neg_pos_ratio = attribute(AttrType.FLOAT, 1.0)
    neg_dist_threshold = attribute(AttrType.FLOAT, 0.5)
    sample_size = attribute(AttrType.INT, 0)
    mining_type = attribute(AttrType.STRING, "max_negative", choices=("max_negative", "hard_example"))
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, ClsLoss: Spec, LocLoss: Spec | None, MatchIndices: Spec, MatchDist: Spec) -> tuple[Spec, Spec]:
        require_rank(2, ClsLoss, "ClsLoss")
        for slot, spec in (("LocLoss", LocLoss), ("MatchIndices", MatchIndices), ("MatchDist", MatchDist)):
            if spec is not None:
                require_rank(2, spec, slot)
                for axis in (0, 1):
                    require_equal(spec.known_dims[axis], ClsLoss.known_dims[axis], f"{slot} must have the dims of ClsLoss", **{slot: axis, "ClsLoss": axis})
        if self.mining_type == "hard_example" and self.sample_size <= 0:
            fail(f"sample_size must be larger than 0 to mine hard examples; seen {self.sample_size}", SchemaError)
        if self.mining_type == "max_negative" and not (self.neg_pos_ratio > 0 and 0 < self.neg_dist_threshold < 1):
            finding = f"{self.neg_pos_ratio} and {self.neg_dist_threshold}"
            fail(f"neg_pos_ratio must be larger than 0, and neg_dist_threshold between 0 and 1; seen {finding}", SchemaError)
        lod = new_lod("NegIndices", (ClsLoss.known_dims[0],))
        return rows(INT32, (unknown_size("rows"), 1), lod), MatchIndices.like()

    def workspace(self, ClsLoss: Spec, LocLoss: Spec | None, MatchIndices: Spec, MatchDist: Spec) -> Size:
        return (72 + ClsLoss.known_dtype.itemsize) * ClsLoss.elements + 40 * ClsLoss.known_dims[0]

    def kernel(self, ClsLoss: Tensor, LocLoss: Tensor | None, MatchIndices: Tensor, MatchDist: Tensor) -> tuple[Tensor, Tensor, Offsets]:
        free = MatchIndices == -1
        if self.mining_type == "max_negative":
            eligible = free & (MatchDist.float() < self.neg_dist_threshold)
            loss = ClsLoss
            count = ((~free).sum(1).float() * self.neg_pos_ratio).long()
        else:
            eligible = torch.ones_like(free)
            loss = ClsLoss if LocLoss is None else ClsLoss + LocLoss
            count = torch.full((len(free),), self.sample_size, dtype=torch.int64, device=free.device)
        count = torch.minimum(count, eligible.sum(1))
        order = torch.argsort(loss.float(), dim=1, descending=True, stable=True)
        order = order.gather(1, torch.argsort(eligible.gather(1, order).logical_not_(), dim=1, stable=True))
        chosen = torch.zeros(free.shape, dtype=torch.bool, device=free.device)
        chosen.scatter_(1, order, torch.arange(free.shape[1], device=free.device) < count.unsqueeze(1))
        if self.mining_type == "hard_example":
            updated = MatchIndices.masked_fill((MatchIndices > -1) & ~chosen, -1)
            chosen &= MatchIndices <= -1
        else:
            updated = MatchIndices.clone()
        index = chosen.nonzero()[:, 1:].int()
        return index, updated, Offsets.of_lengths(chosen.sum(1))

    samples = [
        sample(ClsLoss=f32(2, 5, distinct=True), MatchIndices=i32(2, 5, data=[0, -1, -1, -1, 1, -1, 2, -1, -1, -1]), MatchDist=f32(2, 5, low=0.0, high=1.0),
               neg_pos_ratio=1.5),
        sample(ClsLoss=f64(2, 5, distinct=True), LocLoss=f64(2, 5, distinct=True), MatchIndices=i32(2, 5, low=-1, high=1), MatchDist=f64(2, 5),
               mining_type="hard_example", sample_size=3),
        sample(ClsLoss=f32(0, 5), MatchIndices=i32(0, 5), MatchDist=f32(0, 5)),
    ]  # fmt: skip
    rejects = [
        reject(ClsLoss=f32(2, 5), MatchIndices=i32(2, 5), MatchDist=f32(2, 5), mining_type="hard_example", says="sample_size", error=SchemaError),
        reject(ClsLoss=f32(2, 5), MatchIndices=i32(2, 5), MatchDist=f32(2, 5), neg_pos_ratio=0.0, says="neg_pos_ratio", error=SchemaError),
    ]


class TargetAssign(Operator):
    """Out = for each prior an entry of its matched truth; ``mismatch_value`` if it is unmatched. It is the entry prior % entries in row MatchIndices of its
    image in X.

    OutWeight = 1 for matched priors, and for the priors in NegIndices, with ``mismatch_value`` in Out; 0 elsewhere.
    """

    type = "target_assign"
    family = "detection"
    layer_function = "detection.target_assign"
    X = operand((FP32, FP64, INT32, INT64), doc="[rows, entries, width], ragged: the truths of each image")
    MatchIndices = operand((INT32,), doc="[images, priors], as bipartite_match gives them; -1: none")
    NegIndices = operand((INT32,), optional=True, doc="[negatives, 1], ragged: priors of each image, as mine_hard_examples gives them")
    Out = result(doc="[images, priors, width]")
    OutWeight = result(doc="fp32 [images, priors, 1]")
    mismatch_value = attribute(AttrType.INT, 0)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, X: Spec, MatchIndices: Spec, NegIndices: Spec | None) -> tuple[Spec, Spec]:
        require_rank(3, X, "X")
        require_rank(2, MatchIndices, "MatchIndices")
        images, priors = MatchIndices.known_dims
        require_equal(ragged(X, "X", 1).counts[0], images, "X and MatchIndices must have as many images", X=0, MatchIndices=0)
        require_at_most(1, X.known_dims[1], "X must have at least one entry in a row", X=1)
        if NegIndices is not None:
            require_rank(2, NegIndices, "NegIndices")
            require_equal(NegIndices.known_dims[1], 1, "NegIndices must have 1 column", NegIndices=1)
            require_equal(ragged(NegIndices, "NegIndices", 1).counts[0], images, "NegIndices and MatchIndices must have as many images", NegIndices=0)
        return X.dense((images, priors, X.known_dims[2])), Spec(LOD_TENSOR, FP32, (images, priors, 1))

    def workspace(self, X: Spec, MatchIndices: Spec, NegIndices: Spec | None) -> Size:
        negatives = 48 * NegIndices.elements if NegIndices is not None else 0
        return 48 * MatchIndices.elements + 3 * X.known_dtype.itemsize * MatchIndices.elements * X.known_dims[2] + negatives

    def kernel(self, X: Tensor, MatchIndices: Tensor, NegIndices: Tensor | None, *, offsets: list[Offsets | None]) -> tuple[Tensor, Tensor]:
        sequences = offsets[0]
        assert sequences is not None
        images, priors = MatchIndices.shape
        matched = MatchIndices > -1
        image, prior = matched.nonzero().unbind(1)
        row = MatchIndices[image, prior].long()
        if bool((row >= sequences.lengths[image]).any()):
            raise ExecutionError(f"target_assign: MatchIndices must name rows of their images, which have {sequences.shown_lengths()}; seen {int(row.max())}")
        out = torch.full((images, priors, X.shape[2]), self.mismatch_value, dtype=X.dtype, device=X.device)
        out[image, prior] = X[sequences.last[image] + row, prior % X.shape[1]]
        weight = matched.float().unsqueeze(2)
        if NegIndices is not None:
            negatives = offsets[2]
            assert negatives is not None
            prior = NegIndices.reshape(-1).long()
            check_numbers(prior, priors, "a prior in NegIndices")
            out[negatives.segments, prior] = self.mismatch_value
            weight[negatives.segments, prior] = 1.0
        return out, weight

    samples = [
        sample(
            X=f32(5, 1, 3).ragged([2, 3]),
            MatchIndices=i32(2, 4, data=[0, -1, 1, -1, 2, 0, -1, -1]),
            NegIndices=i32(3, 1, data=[1, 2, 3]).ragged([1, 2]),
            mismatch_value=7,
        ),
        sample(X=i32(5, 4, 2).ragged([2, 0, 3]), MatchIndices=i32(3, 6, low=-1, high=-1)),
        sample(X=f64(3, 4, 2).ragged([3]), MatchIndices=i32(1, 6, low=-1, high=2)),
    ]
    rejects = [
        reject(X=f32(5, 0, 3).ragged([5]), MatchIndices=i32(1, 4), says="at least one entry"),
        reject(X=f32(5, 1, 3).ragged([5]), MatchIndices=i32(1, 4), NegIndices=i32(3, 1).ragged([2, 1]), says="as many images"),
    ]
