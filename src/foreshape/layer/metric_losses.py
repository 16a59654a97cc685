"""Losses of distance: contrastive and triplet losses of embeddings, and how far regions overlap."""

from __future__ import annotations

from foreshape.errors import SchemaError, ShapeError
from foreshape.language.operator.require import require_equal, require_rank
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.variable import Variable
from foreshape.layer.class_losses import softmax_with_cross_entropy
from foreshape.layer.creation import range as numbers_before
from foreshape.layer.functions import relu
from foreshape.layer.labels import same_dims, stating
from foreshape.layer.manipulation import unsqueeze
from foreshape.layer.math import cast, maximum, minimum, rsqrt, sqrt, square
from foreshape.layer.positions import size_of
from foreshape.layer.reductions import matmul, reduce_sum
from foreshape.layer.weights import by_example

_LEAST = 1e-24
"""The least square of a length."""


def _rows(layer: str, **variables: Variable) -> None:
    """Require rows of one number of features, as many of each."""
    for name, x in variables.items():
        if x.spec.rank != 2:
            raise ShapeError(f"{layer}: {name} must be [batch, features]; it is {x.spec.text()}")
    same_dims(layer, **variables)


def _distance(x: Variable, y: Variable, epsilon: float) -> Variable:
    """Return the length of x - y + epsilon, of each row, ``[batch, 1]``, with a slope of 0 at 0."""
    return sqrt(maximum(reduce_sum(square(x - y + epsilon), 1, keepdim=True), _LEAST))


def _unit(x: Variable) -> Variable:
    """Divide rows by their lengths; a row of zeros stays, with a gradient of zeros."""
    squares = reduce_sum(square(x), 1, keepdim=True)
    return x * (rsqrt(maximum(squares, _LEAST)) * cast(squares > _LEAST, x.spec.known_dtype))


@tells_line
def info_nce_loss(query: Variable, key: Variable, temperature: float = 0.1, symmetric: bool = False, *, sample_weight: Variable | None = None) -> Variable:
    """Return InfoNCE: the cross entropy of each query's own key among all keys of the batch, ``[batch, 1]``.

    -log(exp(s_ii / T) / sum over j of exp(s_ij / T)), where s_ij is the cosine of the angle between query i and key j, 0 of rows of zeros (van den Oord et al.,
    "Representation Learning with Contrastive Predictive Coding", 2018). With ``symmetric`` it is the mean of this loss and of the loss with keys and
    queries exchanged, as in CLIP (Radford et al., 2021).

    Examples:
        >>> loss = layer.mean(layer.info_nce_loss(layer.fc(image, 64), layer.fc(text, 64), symmetric=True))

    Args:
        query, key: ``[batch, features]``; row i of both belong together.
        temperature: T, above 0.
        symmetric: take the mean with keys and queries exchanged.
        sample_weight: ``[batch]`` or ``[batch, 1]``: the factor of each pair's loss.

    Raises:
        ShapeError: other dims. SchemaError: a temperature not above 0.
    """
    _rows("info_nce_loss", query=query, key=key)
    if not temperature > 0:
        raise SchemaError.must("info_nce_loss: temperature", "above 0", temperature)
    q, k = _unit(query) * (1.0 / temperature), _unit(key)
    labels = unsqueeze(numbers_before(0, size_of(query, 0), 1, "int32"), [1])
    loss: Variable = softmax_with_cross_entropy(matmul(q, k, transpose_y=True), labels)
    if symmetric:
        loss = (loss + softmax_with_cross_entropy(matmul(k, q, transpose_y=True), labels)) * 0.5
    return by_example(loss, sample_weight, "info_nce_loss")


@tells_line
def contrastive_loss(x: Variable, y: Variable, label: Variable, margin: float = 1.0, *, sample_weight: Variable | None = None) -> Variable:
    """Return the pairwise contrastive loss, ``[batch, 1]``: l d^2 / 2 + (1 - l) max(0, margin - d)^2 / 2, with d the distance of the two.

    Source: Hadsell, Chopra and LeCun, "Dimensionality Reduction by Learning an Invariant Mapping", 2006, where the label is the other way round.

    Args:
        x, y: ``[batch, features]``.
        label: l, 1 for pairs that belong together and 0 for others, ``[batch, 1]`` of the element type of x.
        margin: the least distance of other pairs.
        sample_weight: ``[batch]`` or ``[batch, 1]``: the factor of each pair's loss.
    """
    _rows("contrastive_loss", x=x, y=y)
    with stating("contrastive_loss", x=x, label=label):
        rows = x.spec.known_dims[0]
        require_rank(2, label.spec, "label", like=(rows, 1))
        require_equal(label.spec.known_dims[1], 1, "label must have 1 column", label=1)
        require_equal(rows, label.spec.known_dims[0], "label must have as many rows as x", x=0, label=0)
    d = _distance(x, y, 1e-6)
    loss = (label * square(d) + (1.0 - label) * square(relu(margin - d))) * 0.5
    return by_example(loss, sample_weight, "contrastive_loss")


@tells_line
def triplet_margin_loss(
    anchor: Variable, positive: Variable, negative: Variable, margin: float = 1.0, epsilon: float = 1e-6, swap: bool = False, *,
    sample_weight: Variable | None = None,
) -> Variable:  # fmt: skip
    """Return max(0, margin + d(anchor, positive) - d(anchor, negative)) with d(x, y) = ||x - y + epsilon||, ``[batch, 1]``.

    Source: Schroff et al., "FaceNet", 2015, with torch's distances. With ``swap`` the lesser of d(anchor, negative) and
    d(positive, negative) counts (Balntas et al., 2016).

    Args:
        anchor, positive, negative: ``[batch, features]``: two of one class, and one of another.
        margin: the least additional distance of the negative.
        epsilon: keeps the gradient of a distance of 0 finite.
        swap: let the lesser distance of the negative count.
        sample_weight: ``[batch]`` or ``[batch, 1]``: the factor of each triplet's loss.
    """
    _rows("triplet_margin_loss", anchor=anchor, positive=positive, negative=negative)
    far = _distance(anchor, negative, epsilon)
    if swap:
        far = minimum(far, _distance(positive, negative, epsilon))
    return by_example(relu(_distance(anchor, positive, epsilon) - far + margin), sample_weight, "triplet_margin_loss")


@tells_line
def dice_loss(x: Variable, label: Variable, epsilon: float = 1e-5, *, sample_weight: Variable | None = None) -> Variable:
    """Return 1 - (2 sum(p y) + epsilon) / (sum(p) + sum(y) + epsilon) for each example, over all but the first dim, ``[batch, 1]``.

    It is 0 for equal probabilities p and region y, and 1 without overlap; the size of the region does not matter. Source:
    Milletari et al., "V-Net", 2016 (with squares below the line), in the form of Sudre et al., 2017.

    Args:
        x: p, probabilities ``[batch, ...]``, such as from `sigmoid`.
        label: y, from 0 to 1, of the same dims and element type.
        epsilon: keeps empty regions from dividing by 0: an empty region found empty gives 0.
        sample_weight: ``[batch]`` or ``[batch, 1]``: the factor of each example's loss.

    Raises:
        ShapeError: an input of fewer than 2 dims, or a label of others.
    """
    rank = x.spec.rank
    if rank < 2:
        raise ShapeError(f"dice_loss({x.name}): the input must be [batch, ...], of at least 2 dims; it is {x.spec.text()}")
    axes = list(range(1, rank))

    def total(x: Variable) -> Variable:
        return unsqueeze(reduce_sum(x, axes), [1])

    same_dims("dice_loss", x=x, label=label)
    ratio = (total(x * label) * 2.0 + epsilon) / (total(x) + total(label) + epsilon)
    return by_example(1.0 - ratio, sample_weight, "dice_loss")
