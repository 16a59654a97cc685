"""Import of pooling."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_layers import pairs
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.open_size import as_variable, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.program import Variable
from foreshape.program.current import current_block
from foreshape.spec import INT64


def _pool(
    t: TorchCall, x: Variable, kind: str, kernel: Any, stride: Any, padding: Any, ceil: bool, exclusive: bool, dilation: Any = 1, divisor: Any = None
) -> Any:
    axes = int(t.name.split("pool")[1][0])
    sizes = pairs(kernel, axes)
    strides = pairs(stride, axes) if stride not in (None, [], ()) else sizes
    pads = pairs(padding, axes)
    dilations = pairs(dilation, axes)
    single = t.rank(x) == axes + 1
    x = layer.unsqueeze(x, [0]) if single else x
    if divisor is not None or any(d != 1 for d in dilations):
        made = _spaced(t, x, kind if divisor is None else "sum", sizes, strides, pads, dilations, ceil)
        made = made if divisor is None else t.scale(made, 1.0 / divisor)
        return layer.squeeze(made, [0]) if single else made
    if axes == 1:
        x, sizes, strides, pads = layer.unsqueeze(x, [2]), [1, *sizes], [1, *strides], [0, *pads]
    attrs = {"ksize": sizes, "strides": strides, "paddings": pads, "pooling_type": kind, "ceil_mode": bool(ceil), "exclusive": exclusive}
    made = t.op("pool3d" if axes == 3 else "pool2d", attrs, X=x)
    made = layer.squeeze(made, [2]) if axes == 1 else made
    return layer.squeeze(made, [0]) if single else made


def _spaced(t: TorchCall, x: Variable, kind: str, sizes: Any, strides: Any, pads: Any, dilations: Any, ceil: bool, places: bool = False) -> Any:
    """Return the pooling of windows with spaces, or of sums; with ``places`` two results."""
    both = [n for p in pads for n in (p, p)]
    attrs = {"ksize": sizes, "strides": strides, "paddings": both, "dilations": dilations, "pooling_type": kind, "ceil_mode": bool(ceil), "return_mask": places}
    if not places:
        return t.op("dilated_pool", attrs, X=x)[0]
    block = current_block()
    names = {slot: f"{block.program.layer_name('dilated_pool')}.{slot.lower()}" for slot in ("Out", "Mask")}
    block.append_op("dilated_pool", {"X": x}, names, attrs)
    return tuple(block.vars[name] for name in names.values())


@aten("max_pool1d", "max_pool2d", "max_pool3d")
def _max_pool(t: TorchCall, x: Variable, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    return _pool(t, x, "max", kernel, stride, padding, ceil_mode, True, dilation)


@aten("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices")
def _max_pool_places(t: TorchCall, x: Variable, kernel: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False) -> Any:
    """Return maxima, and their places in the image: ours are counted over batch and channels too."""
    if not any(len(u.args) > 1 and u.args[1] == 1 for u in t.node.users):
        return [_pool(t, x, "max", kernel, stride, padding, ceil_mode, True, dilation), None]
    axes = int(t.name.split("pool")[1][0])
    single = t.rank(x) == axes + 1
    x = layer.unsqueeze(x, [0]) if single else x
    sizes = pairs(kernel, axes)
    strides = pairs(stride, axes) if stride else sizes
    made, places = _spaced(t, x, "max", sizes, strides, pairs(padding, axes), pairs(dilation, axes), ceil_mode, True)
    image = as_variable(size_of(x, 2))
    for axis in range(3, t.rank(x)):
        image = layer.multiply(image, as_variable(size_of(x, axis)))
    both = [made, layer.remainder(places, image)]
    return [layer.squeeze(one, [0]) for one in both] if single else both


@aten("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _mean_pool(
    t: TorchCall, x: Variable, kernel: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False, count_include_pad: bool = True, divisor: Any = None
) -> Any:
    return _pool(t, x, "avg", kernel, stride, padding, ceil_mode, not count_include_pad, 1, divisor)


@aten("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive(t: TorchCall, x: Variable, size: Any) -> Any:
    name = t.name
    kind, axes = "max" if "_max_" in name else "avg", int(name.split("pool")[1][0])
    if any(not isinstance(s, int) for s in (size if is_list(size) else [size])):
        raise Refused("an open number of windows")
    sizes = pairs(size, axes)
    if kind == "avg" and all(s == 1 for s in sizes):
        return layer.reduce_mean(x, [*range(t.rank(x) - axes, t.rank(x))], keepdim=True)
    single = t.rank(x) == axes + 1
    x = layer.unsqueeze(x, [0]) if single else x
    if axes == 1:
        x, sizes = layer.unsqueeze(x, [2]), [1, *sizes]
    type = "pool3d" if axes == 3 else "pool2d"
    if kind == "max" and any(len(u.args) > 1 and u.args[1] == 1 for u in t.node.users):
        found = t.op(f"max_{type}_with_index", {"ksize": sizes, "adaptive": True}, X=x)
        both = [found[0], layer.cast(found[1], INT64)]
    else:
        both = [t.op(type, {"ksize": sizes, "adaptive": True, "pooling_type": kind}, X=x), None]
    dropped = [*([0] if single else []), *([2] if axes == 1 else [])]
    both = [layer.squeeze(one, dropped) if dropped and one is not None else one for one in both]
    return both if kind == "max" else both[0]
