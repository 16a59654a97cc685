"""Windows with moved pixels: images read between pixels, one image at a time, and the gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from foreshape.core.values.torch_proxy import Tensor, torch


@dataclass(frozen=True)
class DeformedWindows:
    """The windows of a convolution: their sizes, strides, paddings and dilations, and the number of sets of offsets."""

    window: tuple[int, int]
    strides: Sequence[int]
    paddings: Sequence[int]
    dilations: Sequence[int]
    sets: int

    def regular(self, count: tuple[int, int], like: Tensor) -> tuple[Tensor, Tensor]:
        """Return rows ``[kh, 1, oh, 1]`` and columns ``[1, kw, 1, ow]`` of all pixels of all windows, before they are moved."""
        out: list[Tensor] = []
        for k, s, p, d, n in zip(self.window, self.strides, self.paddings, self.dilations, count, strict=True):
            first = torch.arange(n, device=like.device, dtype=like.dtype) * s - p
            within = torch.arange(k, device=like.device, dtype=like.dtype) * d
            out.append(within[:, None] + first)
        return out[0][:, None, :, None], out[1][None, :, None, :]


@dataclass(frozen=True)
class Places:
    """Points between pixels, ``[sets, points]``: the pixel at or before each, how far behind it each is, and whether the image reaches there."""

    size: tuple[int, int]
    row: Tensor
    column: Tensor
    below: Tensor
    right: Tensor
    inside: Tensor

    def corners(self) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield for each of the four pixels around its number, its weight, and the derivatives of the weight by row and by column. All are 0 for no pixel."""
        height, width = self.size
        for at_row in (0, 1):
            for at_column in (0, 1):
                row, column = self.row + at_row, self.column + at_column
                there = self.inside & (row >= 0) & (row < height) & (column >= 0) & (column < width)
                of_row = self.below if at_row else 1 - self.below
                of_column = self.right if at_column else 1 - self.right
                nothing = torch.zeros((), dtype=of_row.dtype, device=of_row.device)
                index = torch.where(there, row * width + column, 0)
                by_row = torch.where(there, of_column if at_row else -of_column, nothing)
                by_column = torch.where(there, of_row if at_column else -of_row, nothing)
                yield index, torch.where(there, of_row * of_column, nothing), by_row, by_column


def places(offset: Tensor, windows: DeformedWindows, size: tuple[int, int]) -> Places:
    """Return the places of the pixels of the windows over an image of ``size``. ``offset [sets * kh * kw * 2, oh, ow]``: rows, then columns, of each pixel."""
    kh, kw = windows.window
    count = (int(offset.shape[1]), int(offset.shape[2]))
    moved = offset.reshape(windows.sets, kh, kw, 2, *count)
    rows, columns = windows.regular(count, offset)
    at_row, at_column = ((regular + moved[:, :, :, k]).reshape(windows.sets, -1) for k, regular in enumerate((rows, columns)))
    inside = (at_row > -1) & (at_row < size[0]) & (at_column > -1) & (at_column < size[1])
    at_row, at_column = torch.where(inside, at_row, 0.0), torch.where(inside, at_column, 0.0)
    row, column = at_row.floor(), at_column.floor()
    return Places(size, row.long(), column.long(), at_row - row, at_column - column, inside)


def read(image: Tensor, at: Places) -> Tensor:
    """Return ``image [sets, channels, pixels]`` at the places: [sets, channels, points]."""
    out: Tensor | None = None
    for index, weight, _, _ in at.corners():
        part = image.gather(2, index.unsqueeze(1).expand(-1, image.shape[1], -1)).mul_(weight.unsqueeze(1))
        out = part if out is None else out.add_(part)
    assert out is not None
    return out


def spread(d: Tensor, at: Places, into: Tensor) -> None:
    """Add the gradient of `read` to the gradient of the image, as its adjoint."""
    for index, weight, _, _ in at.corners():
        into.scatter_add_(2, index.unsqueeze(1).expand(-1, into.shape[1], -1), d * weight.unsqueeze(1))


def moved(image: Tensor, d: Tensor, at: Places) -> tuple[Tensor, Tensor]:
    """Return the gradients of the rows and of the columns of the places, ``[sets, points]``."""
    by_row = torch.zeros_like(at.below)
    by_column = torch.zeros_like(at.below)
    for index, _, of_row, of_column in at.corners():
        along = image.gather(2, index.unsqueeze(1).expand(-1, image.shape[1], -1)).mul_(d).sum(1)
        by_row.addcmul_(along, of_row)
        by_column.addcmul_(along, of_column)
    return by_row, by_column
