"""Noise-contrastive estimation: a loss over a large vocabulary with the true classes and a few drawn ones."""

from __future__ import annotations

import math
from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import FP32, FP64, INT32, INT64, LOD_TENSOR, SELECTED_ROWS, Kind, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, how_to_fit, require, require_equal, require_one_per_row, require_rank
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.tensor.random_state import generator_for

UNIFORM, LOG_UNIFORM, CUSTOM = 0, 1, 2


def _gradient_kinds(self: Any, *specs: Any) -> tuple[Kind, ...]:
    return LOD_TENSOR, SELECTED_ROWS if self.is_sparse else LOD_TENSOR, LOD_TENSOR


class Nce(Operator):
    """Noise-contrastive estimation (Gutmann and Hyvärinen, 2010).

    For each row the classes are its labels and ``num_neg_samples`` drawn ones. With o = sigmoid(Input . Weight[class] + Bias[class]) and b = num_neg_samples *
    the probability of drawing the class, Cost = SampleWeight * (the sum of -log(o / (o + b)) over the labels and of -log(b / (o + b)) over the drawn classes).
    SampleLogits are the o, SampleLabels the classes, labels first.

    Class c is drawn with the probability 1 / classes (sampler 0), (log(c + 2) - log(c + 1)) / log(classes) (1: the last class never is), or CustomDistProbs[c]
    (2, by the alias method). A seed draws the same classes in every step.
    """

    type = "nce"
    family = "loss"
    random = True
    Input = operand((FP32, FP64), doc="[batch, width]")
    Label = operand((INT64,), doc="[batch, labels] or [batch]")
    Weight = operand((FP32, FP64), same_type_as="Input", doc="[classes, width]")
    Bias = operand((FP32, FP64), optional=True, same_type_as="Input", doc="[classes, 1] or [classes]")
    SampleWeight = operand((FP32, FP64), optional=True, same_type_as="Input", doc="[batch, 1] or [batch]")
    CustomDistProbs = operand((FP32, FP64), optional=True, doc="[classes]")
    CustomDistAlias = operand((INT32,), optional=True, doc="[classes]: the alias of each class")
    CustomDistAliasProbs = operand((FP32, FP64), optional=True, doc="[classes]: the probability of the class itself, not its alias")
    Cost = result(doc="[batch, 1], ragged as Input")
    SampleLogits = result(doc="[batch, labels + num_neg_samples]")
    SampleLabels = result(doc="int64, as SampleLogits")
    num_total_classes = attribute(AttrType.INT, low=1)
    num_neg_samples = attribute(AttrType.INT, 10, low=0, doc="the number of classes drawn for each row")
    sampler = attribute(AttrType.INT, UNIFORM, choices=(UNIFORM, LOG_UNIFORM, CUSTOM))
    seed = attribute(AttrType.INT, 0)
    is_sparse = attribute(AttrType.BOOLEAN, False, doc="the gradient of Weight is sparse rows, not a whole table")
    remote_prefetch = attribute(AttrType.BOOLEAN, False, doc="rows are fetched from other machines")

    def infer_shape(
        self, Input: Spec, Label: Spec, Weight: Spec, Bias: Spec | None, SampleWeight: Spec | None, CustomDistProbs: Spec | None,
        CustomDistAlias: Spec | None, CustomDistAliasProbs: Spec | None,
    ) -> Any:  # fmt: skip
        require_rank(2, Input, "Input")
        require_rank(2, Weight, "Weight")
        require(Label.rank in (1, 2), f"Label must have 1 or 2 dims, not {Label.rank}{how_to_fit('Label', Label.known_dims, Label.known_dims[:2])}", Label=None)
        batch, classes = Input.known_dims[0], self.num_total_classes
        labels = Label.known_dims[1] if Label.rank == 2 else 1
        require_equal(batch, Label.known_dims[0], "Input and Label must have as many rows", Input=0, Label=0)
        require_equal(Input.known_dims[1], Weight.known_dims[1], "the rows of Input and Weight must be of one width", Input=1, Weight=1)
        require_equal(Weight.known_dims[0], classes, f"Weight must have {classes} rows, one for each class", Weight=0)
        if Bias is not None:
            require_one_per_row(Bias, "Bias", classes, "Weight")
        if SampleWeight is not None:
            require_one_per_row(SampleWeight, "SampleWeight", batch, "Input")
        if self.sampler == LOG_UNIFORM:
            require(classes > 1, "the log-uniform sampler needs at least 2 classes", Weight=0)
        if self.sampler == CUSTOM:
            custom = {"CustomDistProbs": CustomDistProbs, "CustomDistAlias": CustomDistAlias, "CustomDistAliasProbs": CustomDistAliasProbs}
            for slot, spec in custom.items():
                if spec is None:
                    fail(f"the custom sampler needs {slot}", SchemaError)
                require_equal(product(spec.known_dims), classes, f"{slot} must have {classes} numbers, one for each class", **{slot: None})
        looked_at = (batch, labels + self.num_neg_samples)
        return Input.with_dims((batch, 1)), Input.dense(looked_at), Input.dense(looked_at, INT64)

    def _drawn(self, count: int, device: Any, Alias: Tensor | None, AliasProbs: Tensor | None) -> Tensor:
        """Return the drawn classes of each row."""
        shape, classes, generator = (count, self.num_neg_samples), self.num_total_classes, generator_for(self.seed)
        if self.sampler == LOG_UNIFORM:
            u = torch.rand(shape, dtype=torch.float64, generator=generator, device=device)
            return (u.mul_(math.log(classes)).exp_().long() - 1).remainder_(classes - 1)
        out = torch.randint(0, classes, shape, generator=generator, device=device)
        if self.sampler == CUSTOM:
            assert Alias is not None and AliasProbs is not None
            u = torch.rand(shape, dtype=AliasProbs.dtype, generator=generator, device=device)
            out = torch.where(u < AliasProbs.reshape(-1)[out], out, Alias.reshape(-1)[out].long())
            if bool(((out < 0) | (out >= classes)).any()):
                raise ExecutionError(f"nce: CustomDistAlias must be in [0, {classes}) wherever CustomDistAliasProbs is less than 1")
        return out

    def _noise(self, classes: Tensor, Probs: Tensor | None, dtype: Any) -> Tensor:
        """Return the mean number of draws of these classes for a row."""
        if self.sampler == UNIFORM:
            return torch.full((), self.num_neg_samples / self.num_total_classes, dtype=dtype, device=classes.device)
        if self.sampler == LOG_UNIFORM:
            share = (1.0 / (classes + 1.0)).to(dtype).log1p_().div_(math.log(self.num_total_classes))
        else:
            assert Probs is not None
            share = Probs.reshape(-1)[classes].to(dtype)
        return share.mul_(self.num_neg_samples)

    def workspace(
        self, Input: Spec, Label: Spec, Weight: Spec, Bias: Spec | None, SampleWeight: Spec | None, CustomDistProbs: Spec | None,
        CustomDistAlias: Spec | None, CustomDistAliasProbs: Spec | None,
    ) -> Size:  # fmt: skip
        return self._looked_at(Input, Label) * (Input.known_dims[1] * Input.known_dtype.itemsize + 32)

    def _looked_at(self, Input: Spec, Label: Spec) -> Size:
        """Return the number of rows of Weight read."""
        return Label.elements + Input.known_dims[0] * self.num_neg_samples

    def kernel(
        self, Input: Tensor, Label: Tensor, Weight: Tensor, Bias: Tensor | None, SampleWeight: Tensor | None, CustomDistProbs: Tensor | None,
        CustomDistAlias: Tensor | None, CustomDistAliasProbs: Tensor | None,
    ) -> Any:  # fmt: skip
        batch, total = Input.shape[0], self.num_total_classes
        true = Label.reshape(batch, -1) if batch else Label.new_empty(0, Label.shape[1] if Label.dim() == 2 else 1)
        if true.numel() and not 0 <= int(true.min()) <= int(true.max()) < total:
            raise ExecutionError(f"nce: Label must be in [0, {total}), the classes; seen {int(true.min())} to {int(true.max())}")
        classes = torch.cat([true, self._drawn(batch, Input.device, CustomDistAlias, CustomDistAliasProbs)], 1)
        logits = torch.bmm(Weight[classes], Input.unsqueeze(-1)).squeeze(-1)
        if Bias is not None:
            logits = logits.add_(Bias.reshape(-1)[classes])
        o = logits.sigmoid_()
        b = self._noise(classes, CustomDistProbs, o.dtype)
        count = true.shape[1]
        part = torch.cat([o[:, :count], b.expand_as(o)[:, count:]], 1)
        cost = part.div_(o + b).log_().neg_()
        if SampleWeight is not None:
            cost = cost.mul_(SampleWeight.reshape(-1, 1))
        return cost.sum(1, keepdim=True), o, classes

    def _infer_gradient(
        self, Input: Spec, Label: Spec, Weight: Spec, Bias: Spec | None, SampleLogits: Spec, SampleLabels: Spec, SampleWeight: Spec | None,
        CustomDistProbs: Spec | None, CustomDistAlias: Spec | None, CustomDistAliasProbs: Spec | None, d_cost: Spec,
    ) -> Any:  # fmt: skip
        cost, logits, labels = Nce.infer_shape(self, Input, Label, Weight, Bias, SampleWeight, CustomDistProbs, CustomDistAlias, CustomDistAliasProbs)  # type: ignore[arg-type]
        check_made(SampleLogits=(SampleLogits, logits), SampleLabels=(SampleLabels, labels), Cost_GRAD=(d_cost, cost))
        return Input.like(), Weight.like(), None if Bias is None else Bias.like()

    def _gradient_workspace(
        self, Input: Spec, Label: Spec, Weight: Spec, Bias: Spec | None, SampleLogits: Spec, SampleLabels: Spec, SampleWeight: Spec | None,
        CustomDistProbs: Spec | None, CustomDistAlias: Spec | None, CustomDistAliasProbs: Spec | None, d_cost: Spec,
    ) -> Size:  # fmt: skip
        return self._looked_at(Input, Label) * (2 * Input.known_dims[1] + 8) * Input.known_dtype.itemsize

    @gradient(
        "Input", "Label", "Weight", "Bias", "SampleLogits", "SampleLabels", "SampleWeight", "CustomDistProbs", "CustomDistAlias", "CustomDistAliasProbs",
        "Cost@GRAD", gives=("Input@GRAD", "Weight@GRAD", "Bias@GRAD"), infer=_infer_gradient, kinds=_gradient_kinds,
        workspace=_gradient_workspace,
    )  # fmt: skip
    def backward(
        self, Input: Tensor, Label: Tensor, Weight: Tensor, Bias: Tensor | None, SampleLogits: Tensor, SampleLabels: Tensor, SampleWeight: Tensor | None,
        CustomDistProbs: Tensor | None, CustomDistAlias: Tensor | None, CustomDistAliasProbs: Tensor | None, d_cost: Tensor, *, requested: tuple[bool, ...],
    ) -> Any:  # fmt: skip
        o, classes = SampleLogits, SampleLabels
        b = self._noise(classes, CustomDistProbs, o.dtype)
        count = classes.shape[1] - self.num_neg_samples
        d = torch.cat([(b * (o - 1.0))[:, :count], (o * (1.0 - o))[:, count:]], 1).div_(o + b).mul_(d_cost)
        if SampleWeight is not None:
            d = d.mul_(SampleWeight.reshape(-1, 1))
        d_input = d_weight = d_bias = None
        if requested[0]:
            d_input = torch.bmm(d.unsqueeze(1), Weight[classes]).squeeze(1)
        if requested[1]:
            ids, values = classes.reshape(-1), (d.unsqueeze(-1) * Input.unsqueeze(1)).reshape(classes.numel(), Input.shape[1])
            d_weight = Rows(ids, values, Weight.shape[0]) if self.is_sparse else torch.zeros_like(Weight).index_add_(0, ids, values)
        if requested[2] and Bias is not None:
            d_bias = torch.zeros_like(Bias).reshape(-1).index_add_(0, classes.reshape(-1), d.reshape(-1)).reshape(Bias.shape)
        return d_input, d_weight, d_bias

    samples = [
        sample(Input=f32(5, 3), Label=i64(5, 2, high=6), Weight=f32(7, 3), Bias=f32(7, 1), num_total_classes=7, num_neg_samples=4, seed=3),
        sample(Input=f32(5, 3), Label=i64(5, high=6), Weight=f32(7, 3), num_total_classes=7, seed=5, is_sparse=True),
        sample(Input=f32(5, 3), Label=i64(5, 2, high=6), Weight=f32(7, 3), Bias=f32(7), SampleWeight=f32(5, 1, low=0.1), num_total_classes=7,
               num_neg_samples=6, sampler=LOG_UNIFORM, seed=3),
        sample(Input=f32(4, 3), Label=i64(4, 1, high=4), Weight=f32(5, 3), Bias=f32(5, 1), CustomDistProbs=f32(5, data=[0.4, 0.1, 0.1, 0.2, 0.2]),
               CustomDistAlias=i32(5, data=[-1, 0, 0, -1, -1]), CustomDistAliasProbs=f32(5, data=[1.0, 0.5, 0.5, 1.0, 1.0]), num_total_classes=5,
               num_neg_samples=6, sampler=CUSTOM, seed=3, is_sparse=True),
        sample(Input=f32(5, 3), Label=i64(5, 2, high=6), Weight=f32(7, 3), num_total_classes=7, num_neg_samples=4, exact=False, differentiate=False),
        sample(Input=f32(5, 3).ragged([2, 0, 3]), Label=i64(5, 1, high=6), Weight=f32(7, 3), num_total_classes=7, num_neg_samples=0, seed=3),
        sample(Input=f32(0, 3), Label=i64(0, 2), Weight=f32(7, 3), Bias=f32(7, 1), num_total_classes=7, seed=3),
    ]  # fmt: skip
    rejects = [
        reject(Input=f32(5, 3), Label=i64(4, 2), Weight=f32(7, 3), num_total_classes=7, says="as many rows"),
        reject(Input=f32(5, 3), Label=i64(5, 2), Weight=f32(6, 3), num_total_classes=7, says="Weight must have 7 rows"),
        reject(Input=f32(5, 3), Label=i64(5, 2), Weight=f32(7, 3), Bias=f32(6, 1), num_total_classes=7, says="Bias must have one number for each row"),
        reject(Input=f32(5, 3), Label=i64(5, 2), Weight=f32(7, 3), SampleWeight=f32(4), num_total_classes=7, says="SampleWeight must have one number"),
        reject(Input=f32(5, 3), Label=i64(5, 2, 1), Weight=f32(7, 3), num_total_classes=7, says="Label must have 1 or 2 dims"),
        reject(Input=f32(5, 3), Label=i64(5, 2), Weight=f32(7, 3), num_total_classes=7, sampler=CUSTOM, says="needs CustomDistProbs", error=SchemaError),
        reject(Input=f32(5, 3), Label=i64(5, 2), Weight=f32(1, 3), num_total_classes=1, sampler=LOG_UNIFORM, says="at least 2 classes"),
    ]
