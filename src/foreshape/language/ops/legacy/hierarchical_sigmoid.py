"""Hierarchical sigmoid: a loss over a large vocabulary along one path of a tree of classes."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, INT64, LOD_TENSOR, SELECTED_ROWS, Kind, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import F, Tensor, torch
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require_equal, require_one_per_row, require_rank
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.machine.kernels.products import bmm

_LIMIT = 40.0
"""The bound of logits, so that no exponential overflows."""


def _gradient_kinds(self: Any, *specs: Any) -> tuple[Kind, ...]:
    return LOD_TENSOR, SELECTED_ROWS if self.is_sparse else LOD_TENSOR, LOD_TENSOR


class HierarchicalSigmoid(Operator):
    """The loss of a hierarchical softmax (Morin and Bengio, 2005): each class is a leaf of a binary tree, each inner node a classifier.

    Along the path to the class, z = X . W[node] + Bias[node], and the code (1 or 0) is the direction of the path. Out is the sum of log(1 + exp(z)) - code * z;
    PreOut holds log(1 + exp(z)). Paths are padded to the longest; as in PaddlePaddle each padded place adds log(2).

    PathTable and PathCode give the path of each row: nodes and codes, -1 after its end. Without them the tree is the complete one with ``num_classes`` leaves.
    Leaf c is at place c + num_classes of the heap, and its code is the bits of this number.
    """

    type = "hierarchical_sigmoid"
    family = "loss"
    X = operand((FP32, FP64), doc="[batch, width]")
    W = operand((FP32, FP64), same_type_as="X", doc="[nodes, width]; for the complete tree [num_classes - 1, width]")
    Label = operand((INT64,), doc="[batch, 1] or [batch]")
    PathTable = operand((INT64,), optional=True, doc="[batch, longest path]")
    PathCode = operand((INT64,), optional=True, doc="as PathTable")
    Bias = operand((FP32, FP64), optional=True, same_type_as="X", doc="[nodes, 1] or [nodes]")
    Out = result(doc="[batch, 1], ragged as X")
    PreOut = result(doc="[batch, longest path]")
    W_Out = result(optional=True, view_of="W", doc="W itself")
    num_classes = attribute(AttrType.INT, 2, low=2)
    is_sparse = attribute(AttrType.BOOLEAN, False, doc="the gradient of W is sparse rows, not a whole table")
    trainer_id = attribute(AttrType.INT, 0, doc="this machine's number, if W is spread over several")
    height_sections = attribute(AttrType.LONGS, [], doc="the rows of each machine")
    epmap = attribute(AttrType.STRINGS, [], doc="their addresses")
    table_names = attribute(AttrType.STRINGS, [], doc="their names of W")

    def infer_shape(self, X: Spec, W: Spec, Label: Spec, PathTable: Spec | None, PathCode: Spec | None, Bias: Spec | None) -> Any:
        require_rank(2, X, "X")
        require_rank(2, W, "W")
        batch, nodes = X.known_dims[0], W.known_dims[0]
        require_equal(X.known_dims[1], W.known_dims[1], "the rows of X and W must be of one width", X=1, W=1)
        require_one_per_row(Label, "Label", batch, "X")
        longest: Size
        if PathTable is not None and PathCode is not None:
            require_rank(2, PathTable, "PathTable")
            require_rank(2, PathCode, "PathCode")
            require_equal(PathTable.known_dims[0], batch, "PathTable must have one path for each row of X", PathTable=0, X=0)
            require_equal(PathCode.known_dims[0], batch, "PathCode must have one code for each row of X", PathCode=0, X=0)
            longest = require_equal(PathTable.known_dims[1], PathCode.known_dims[1], "PathTable and PathCode must have the same dims", PathTable=1, PathCode=1)
        elif PathTable is not None or PathCode is not None:
            fail("PathTable and PathCode come together", SchemaError)
        else:
            require_equal(nodes, self.num_classes - 1, f"W must have {self.num_classes - 1} rows, one for each inner node of the tree", W=0)
            longest = (self.num_classes - 1).bit_length()
        if Bias is not None:
            require_one_per_row(Bias, "Bias", nodes, "W")
        return X.with_dims((batch, 1)), X.dense((batch, longest)), W.like()

    def _path(self, Label: Tensor, PathTable: Tensor | None, PathCode: Tensor | None, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return for each row and place of the path the node (0 past the end), the code and the mask of the path.

        The last two are truth values.
        """
        if PathTable is not None and PathCode is not None:
            on = (PathTable >= 0).cumprod(1).bool()
            if PathTable.numel() and int(PathTable.max()) >= nodes:
                raise ExecutionError(
                    f"hierarchical_sigmoid: PathTable must be in [0, {nodes}), the rows of W, or negative past the end; seen {int(PathTable.max())}"
                )
            return PathTable * on, PathCode.bool() & on, on
        label = Label.reshape(-1, 1)
        if label.numel() and not 0 <= int(label.min()) <= int(label.max()) < self.num_classes:
            raise ExecutionError(f"hierarchical_sigmoid: Label must be in [0, {self.num_classes}), the classes; seen {int(label.min())} to {int(label.max())}")
        place = label + self.num_classes
        bits = torch.arange((self.num_classes - 1).bit_length(), device=label.device)
        node = (place >> (bits + 1)) - 1
        on = node >= 0
        return node.clamp_(min=0), ((place >> bits) & 1).bool() & on, on

    def _longest(self, PathTable: Spec | None) -> Size:
        return (self.num_classes - 1).bit_length() if PathTable is None else PathTable.known_dims[1]

    def workspace(self, X: Spec, W: Spec, Label: Spec, PathTable: Spec | None, PathCode: Spec | None, Bias: Spec | None) -> Size:
        return self._longest(PathTable) * (X.nbytes + (12 + 2 * X.known_dtype.itemsize) * X.known_dims[0]) + 24 * X.known_dims[0]

    def _gradient_workspace(self, *specs: Any) -> Size:
        X: Spec = specs[0]
        return self._longest(specs[3]) * (2 * X.nbytes + (16 + 3 * X.known_dtype.itemsize) * X.known_dims[0]) + 24 * X.known_dims[0]

    def kernel(
        self, X: Tensor, W: Tensor, Label: Tensor, PathTable: Tensor | None, PathCode: Tensor | None, Bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        node, code, on = self._path(Label, PathTable, PathCode, W.shape[0])
        z = torch.bmm(W[node], X.unsqueeze(-1)).squeeze(-1) if node.shape[1] else X.new_zeros(node.shape)
        if Bias is not None:
            z = z.add_(Bias.reshape(-1)[node])
        z = z.masked_fill_(~on, 0.0).clamp_(-_LIMIT, _LIMIT)
        pre = F.softplus(z, threshold=2 * _LIMIT)
        return (pre - z * code).sum(1, keepdim=True), pre, W

    def _infer_gradient(
        self, X: Spec, W: Spec, Label: Spec, PathTable: Spec | None, PathCode: Spec | None, Bias: Spec | None, PreOut: Spec, d_out: Spec
    ) -> Any:
        out, pre, _ = HierarchicalSigmoid.infer_shape(self, X, W, Label, PathTable, PathCode, Bias)  # type: ignore[arg-type]
        check_made(PreOut=(PreOut, pre), Out_GRAD=(d_out, out))
        return X.like(), W.like(), None if Bias is None else Bias.like()

    @gradient(
        "X", "W", "Label", "PathTable", "PathCode", "Bias", "PreOut", "Out@GRAD", gives=("X@GRAD", "W@GRAD", "Bias@GRAD"),
        infer=_infer_gradient, kinds=_gradient_kinds, workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(
        self, X: Tensor, W: Tensor, Label: Tensor, PathTable: Tensor | None, PathCode: Tensor | None, Bias: Tensor | None, PreOut: Tensor,
        d_out: Tensor, *, requested: tuple[bool, ...],
    ) -> Any:  # fmt: skip
        node, code, on = self._path(Label, PathTable, PathCode, W.shape[0])
        d = (-torch.expm1(-PreOut)).sub_(code.to(PreOut.dtype)).mul_(on).mul_(d_out)
        d_x = d_w = d_bias = None
        if requested[0]:
            d_x = bmm(d.unsqueeze(1), W[node]).squeeze(1)
        if requested[1]:
            values = d.unsqueeze(-1) * X.unsqueeze(1)
            if self.is_sparse:
                d_w = Rows(node[on], values[on], W.shape[0])
            else:
                d_w = torch.zeros_like(W).index_add_(0, node.reshape(-1), values.reshape(node.numel(), X.shape[1]))
        if requested[2] and Bias is not None:
            d_bias = torch.zeros_like(Bias).reshape(-1).index_add_(0, node.reshape(-1), d.reshape(-1)).reshape(Bias.shape)
        return d_x, d_w, d_bias

    _table = i64(4, 3, data=[0, 2, -1, 0, 1, 4, 3, -1, -1, 0, 2, 5])
    _code = i64(4, 3, data=[0, 1, -1, 1, 0, 1, 1, -1, -1, 0, 0, 1])
    samples = [
        sample(X=f32(4, 3), W=f32(5, 3), Label=i64(4, 1, data=[0, 5, 2, 3]), Bias=f32(5, 1), num_classes=6),
        sample(X=f32(4, 3), W=f32(6, 3), Label=i64(4, 1), Bias=f32(6), num_classes=7, is_sparse=True),
        sample(X=f32(4, 3), W=f32(1, 3), Label=i64(4, data=[0, 1, 1, 0])),
        sample(X=f32(4, 5), W=f32(6, 5), Label=i64(4, 1), Bias=f32(6, 1), num_classes=6, PathTable=_table, PathCode=_code),
        sample(X=f32(4, 5), W=f32(6, 5), Label=i64(4, 1), num_classes=6, is_sparse=True, PathTable=_table, PathCode=_code),
        sample(X=f32(4, 3).ragged([1, 0, 3]), W=f32(4, 3), Label=i64(4, 1, high=4), num_classes=5),
        sample(X=f32(0, 3), W=f32(5, 3), Label=i64(0, 1), Bias=f32(5, 1), num_classes=6),
    ]
    rejects = [
        reject(X=f32(4, 3), W=f32(6, 3), Label=i64(4, 1), num_classes=6, says="W must have 5 rows"),
        reject(X=f32(4, 3), W=f32(5, 3), Label=i64(5, 1), num_classes=6, says="Label must have one number for each row"),
        reject(X=f32(4, 3), W=f32(5, 3), Label=i64(), num_classes=6, says="Label must have one number for each row"),
        reject(X=f32(4, 3), W=f32(5, 3), Label=i64(4, 1), Bias=f32(4, 1), num_classes=6, says="Bias must have one number for each row of W"),
        reject(X=f32(4, 3), W=f32(5, 3), Label=i64(4, 1), PathTable=i64(4, 3), num_classes=6, says="come together", error=SchemaError),
    ]
