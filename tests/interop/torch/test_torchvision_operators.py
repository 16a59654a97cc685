"""torchvision's operators, as their networks have them in a graph, beside the same in plain torch; torchvision itself need not be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import foreshape as fs
from foreshape.interop.torch.untyped_torch import own_operators

SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "roi_align": "(Tensor input, Tensor rois, float scale, SymInt height, SymInt width, int sampling_ratio, bool aligned) -> Tensor",
    "roi_pool": "(Tensor input, Tensor rois, float scale, SymInt height, SymInt width) -> (Tensor, Tensor)",
    "deform_conv2d": "(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt sh, SymInt sw, SymInt ph, SymInt pw, SymInt dh, "
    "SymInt dw, SymInt groups, SymInt offset_groups, bool use_mask) -> Tensor",
}


def nms(boxes: torch.Tensor, scores: torch.Tensor, threshold: float) -> torch.Tensor:
    kept: list[int] = []
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    for at in scores.argsort(descending=True, stable=True).tolist():
        both = [(torch.minimum(boxes[at, 2:], boxes[k, 2:]) - torch.maximum(boxes[at, :2], boxes[k, :2])).clamp(min=0).prod() for k in kept]
        if all(b / (area[at] + area[k] - b) <= threshold for b, k in zip(both, kept, strict=True)):
            kept.append(at)
    return torch.tensor(kept, dtype=torch.int64)


def between(image: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the pixels ``[channels, *places]`` at places between them, 0 outside."""
    high, wide = image.shape[-2:]
    out = image.new_zeros((image.shape[0], *y.shape))
    for row, of_row in ((y.floor(), 1 - (y - y.floor())), (y.floor() + 1, y - y.floor())):
        for column, of_column in ((x.floor(), 1 - (x - x.floor())), (x.floor() + 1, x - x.floor())):
            inside = (row >= 0) & (row < high) & (column >= 0) & (column < wide)
            out = out + image[:, row.clamp(0, high - 1).long(), column.clamp(0, wide - 1).long()] * (of_row * of_column * inside)
    return out


def roi_align(x: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int, ratio: int, aligned: bool) -> torch.Tensor:
    regions = []
    for image, *ends in rois:
        left, top, right, bottom = (e * scale - (0.5 if aligned else 0.0) for e in ends)
        tall, wide = (e if aligned else e.clamp(min=1.0) for e in (bottom - top, right - left))
        points = [start + size / count * (torch.arange(count * ratio) + 0.5) / ratio for start, size, count in ((top, tall, height), (left, wide, width))]
        y, x_ = (p.clamp(0, n - 1) for p, n in zip(points, x.shape[2:], strict=True))
        found = between(x[int(image)], y[:, None].expand(-1, len(x_)), x_.expand(len(y), -1))
        regions.append(nn.functional.avg_pool2d(found, ratio))
    return torch.stack(regions)


def roi_pool(x: torch.Tensor, rois: torch.Tensor, scale: float, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    regions = []
    for image, *ends in rois:
        left, top, right, bottom = (int((e * scale + 0.5).floor()) for e in ends)
        parts = [[(int(at * n // count) + start, int(-(-(at + 1) * n // count)) + start) for at in range(count)]
                 for start, n, count in ((top, bottom - top + 1, height), (left, right - left + 1, width))]  # fmt: skip
        rows = [torch.stack([x[int(image), :, a:b, c:d].amax((1, 2)) for c, d in parts[1]], -1) for a, b in parts[0]]
        regions.append(torch.stack(rows, 1))
    return torch.stack(regions), torch.empty(0)


def deform_conv2d(x: torch.Tensor, weight: torch.Tensor, offset: torch.Tensor, mask: torch.Tensor, bias: torch.Tensor, *numbers: Any) -> torch.Tensor:
    sh, sw, ph, pw, dh, dw, groups, sets, masked = numbers
    count, high, wide = weight.shape[2] * weight.shape[3], *offset.shape[2:]
    moved = offset.view(len(x), sets, count, 2, high, wide)
    places = torch.arange(high)[:, None] * sh - ph, torch.arange(wide) * sw - pw
    columns = []
    for n in range(len(x)):
        of_sets = []
        for s, part in enumerate(x[n].chunk(sets)):
            y = moved[n, s, :, 0] + places[0] + (torch.arange(count) // weight.shape[3] * dh)[:, None, None]
            read = between(part, y, moved[n, s, :, 1] + places[1] + (torch.arange(count) % weight.shape[3] * dw)[:, None, None])
            of_sets.append(read * mask.view(len(x), sets, count, high, wide)[n, s] if masked else read)
        columns.append(torch.cat(of_sets).view(groups, -1, high * wide))
    out = torch.einsum("gok,ngkp->ngop", weight.view(groups, len(weight) // groups, -1), torch.stack(columns))
    return out.reshape(len(x), len(weight), high, wide) + bias.view(-1, 1, 1)


PLAIN: dict[str, Callable[..., Any]] = {"nms": nms, "roi_align": roi_align, "roi_pool": roi_pool, "deform_conv2d": deform_conv2d}


def _shapes(name: str, *given: Any) -> Any:
    x = given[0]
    if name == "nms":
        return x.new_empty(own_operators().get_ctx().new_dynamic_size(), dtype=torch.int64)
    if name == "deform_conv2d":
        return x.new_empty(x.shape[0], given[1].shape[0], *given[2].shape[2:])
    out = x.new_empty(given[1].shape[0], x.shape[1], *given[3:5])
    return (out, out.new_empty(out.shape, dtype=torch.int32)) if name == "roi_pool" else out


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    """Define torchvision's operators, unless it is there."""
    missing = [name for name in SCHEMAS if not hasattr(torch.ops.torchvision, name)]
    held = own_operators().Library("torchvision", "FRAGMENT")
    for name in missing:
        held.define(name + SCHEMAS[name])
        own_operators().register_fake(f"torchvision::{name}", lambda *given, name=name: _shapes(name, *given), lib=held)
    yield
    held._destroy()


class Chosen(nn.Module):
    """Boxes of scores, the best ones without their like, and the regions there."""

    def __init__(self, plain: bool) -> None:
        super().__init__()
        self.call = PLAIN if plain else {name: getattr(torch.ops.torchvision, name) for name in PLAIN}
        self.conv = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, boxes: torch.Tensor, scores: torch.Tensor) -> Any:
        kept = self.call["nms"](boxes, scores, 0.4)
        return kept, boxes[kept] * 2.0


class Regions(Chosen):
    def forward(self, x: torch.Tensor, rois: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        aligned, pooled = self.call["roi_align"](y, rois, 0.5, 3, 2, 2, True), self.call["roi_pool"](y, rois, 0.5, 2, 3)[0]
        return (aligned.sin().mean() + pooled.cos().mean() + self.call["roi_align"](y, rois, 0.5, 2, 2, 1, False).mean()) * 3.0


class Deformed(Chosen):
    def __init__(self, plain: bool) -> None:
        super().__init__(plain)
        self.offset, self.mask, self.bias = nn.Conv2d(4, 24, (2, 3), 2, (0, 1)), nn.Conv2d(4, 12, (2, 3), 2, (0, 1)), nn.Parameter(torch.randn(6))
        self.weight = nn.Parameter(torch.randn(6, 2, 2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        offset, mask = self.offset(x), self.mask(x)
        with_mask = self.call["deform_conv2d"](x, self.weight, offset, mask.sigmoid(), self.bias, 2, 2, 0, 1, 1, 1, 2, 2, True)
        without = self.call["deform_conv2d"](x, self.weight, offset, mask[:0], self.bias, 2, 2, 0, 1, 1, 1, 2, 2, False)
        return with_mask.sin().mean() + without.cos().mean()


def boxes(count: int, images: int = 0) -> torch.Tensor:
    made = torch.rand(count, 2) * 16
    made = torch.cat([made, made + 3 + torch.rand(count, 2) * 12], 1)
    return torch.cat([torch.arange(count)[:, None] * 7 % images, made], 1) if images else made


def alike(count: int) -> torch.Tensor:
    """Return scores of which some are equal: these come in the order of the boxes."""
    return torch.randint(0, 4, (count,)) / 4


IMAGES = {0: "batch", 2: "height", 3: "width"}
CASES: dict[str, tuple[type[Chosen], Any, Callable[[int], Any]]] = {
    "nms": (Chosen, (None, {0: "boxes"}, {0: "boxes"}), lambda k: (torch.randn(1, 3, 4, 4), boxes(30 + k), alike(30 + k))),
    "regions": (Regions, (IMAGES, {0: "regions"}), lambda k: (torch.randn(2 + k, 3, 16, 18 + 2 * k), boxes(5 + k, 2 + k))),
    "one_image": (Regions, ({2: "height"}, {0: "regions"}), lambda k: (torch.randn(1, 3, 16 + k, 18), boxes(5 + k, 1))),
    "deformed": (Deformed, (IMAGES,), lambda k: (torch.randn(2 + k, 3, 8 + 2 * k, 10 + 4 * k),)),
}


@pytest.mark.quick_cases("one_image")
@pytest.mark.parametrize("name", CASES)
def test_torchvisions_operators_are_imported_with_their_gradients(name: str) -> None:
    of, dynamic, given = CASES[name]
    torch.manual_seed(0)
    plain, net = of(True), of(False)
    net.load_state_dict(plain.state_dict())
    model = fs.from_torch(net, given(0), dynamic)
    assert not model.missing
    for k in (0, 1):
        inputs = given(k)
        want = plain(*inputs)
        torch.testing.assert_close(model(*inputs), want, rtol=1e-4, atol=1e-5)
        if isinstance(want, torch.Tensor):
            plain.zero_grad()
            want.backward()
            seen = model.gradients(*inputs)
            for parameter, value in plain.named_parameters():
                torch.testing.assert_close(seen[parameter], value.grad, rtol=1e-3, atol=1e-5)
