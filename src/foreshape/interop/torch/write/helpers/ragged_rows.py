"""Rows in sequences: their order, their groups, and what is computed from sequence to sequence."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from foreshape.core.values.offsets import Offsets
from foreshape.interop.torch.write.helpers.bounds import within


def sequences_of_lengths(lengths: Tensor, width: int) -> Offsets:
    """Return the sequences of padded ones of a width."""
    return Offsets.of_lengths(within(lengths.reshape(-1).long(), width + 1, "a length"))


def packed(x: Tensor, offsets: Offsets) -> Tensor:
    """Return the rows of ``[sequences, width, *row]``, one sequence after the other."""
    return x.flatten(0, 1).index_select(0, offsets.segments * x.shape[1] + offsets.positions)


def padded(rows: Tensor, offsets: Offsets, width: int, value: float = 0.0) -> Tensor:
    """Return rows as ``[sequences, width, *row]``, with a value behind each sequence."""
    out = rows.new_full((offsets.count * width, *rows.shape[1:]), value)
    return out.index_copy(0, offsets.segments * width + offsets.positions, rows).unflatten(0, (offsets.count, width))


def unpadded(x: Tensor, lengths: Tensor, outer: Offsets | None) -> tuple[Tensor, Offsets]:
    """Return the first rows of each ``x[i]``, and their sequences; ``outer`` ones group these."""
    offsets = sequences_of_lengths(lengths, x.shape[1])
    rows = packed(x if x.dim() > 2 else x.unsqueeze(2), offsets)
    return rows, offsets if outer is None else Offsets([*outer.levels, offsets.last])


def regrouped(rows: int, target: Tensor, outer: Offsets | None) -> Offsets:
    """Return sequences by their offsets, below outer ones that then count them."""
    if len(target) < 2 or int(target[0]) or int(target[-1]) != rows or bool((target.diff() < 0).any()):
        raise ValueError(f"offsets must rise from 0 to the number of rows, {rows}; seen {target[:8].tolist()}")
    if outer is not None and len(target) != rows + 1:
        raise ValueError(f"as many sequences must be appended as there are rows, {rows}; seen {len(target) - 1}")
    return Offsets([*([] if outer is None else outer.levels), target])


def ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return the numbers ``starts[i]`` to ``starts[i] + lengths[i]`` (not included), one range after the other."""
    return torch.arange(int(lengths.sum()), device=starts.device) + (starts - lengths.cumsum(0) + lengths).repeat_interleave(lengths)


def joined(tensors: Sequence[Tensor], sequences: Sequence[Offsets]) -> tuple[Tensor, Offsets]:
    """Return for each i the outermost sequences i of all tensors, one after the other, with the inner levels of all."""
    lengths: list[Tensor] = []
    bounds = [torch.arange(len(offsets.levels[0]), device=offsets.last.device) for offsets in sequences]  # of the outermost ones, in parts of each level
    index = bounds[0][:0]
    for level in range(len(sequences[0].levels)):
        sizes = [offsets.levels[level].diff() for offsets in sequences]
        lengths.append(torch.cat(sizes).index_select(0, index) if level else torch.stack(sizes).sum(0))
        bounds = [offsets.levels[level][b] for offsets, b in zip(sequences, bounds, strict=True)]
        totals = [0]
        for b in bounds:
            totals.append(totals[-1] + int(b[-1]))
        starts = torch.stack([b[:-1] + total for b, total in zip(bounds, totals, strict=False)], 1).reshape(-1)
        index = ranges(starts, torch.stack([b.diff() for b in bounds], 1).reshape(-1))
    return torch.cat([*tensors]).index_select(0, index), Offsets.of_lengths(*lengths)


def repeated(x: Tensor, sequences: Offsets | None, target: Offsets, level: int) -> tuple[Tensor, Offsets | None]:
    """Return sequence (or, without sequences, row) i of ``x`` once for each part of sequence i of a level of ``target``: sequences or rows."""
    index = Offsets([target.levels[level]]).segments
    if sequences is None:
        return x.index_select(0, index), None
    lengths = sequences.lengths.index_select(0, index)
    return x.index_select(0, ranges(sequences.last[:-1].index_select(0, index), lengths)), Offsets.of_lengths(lengths)


def sliced(x: Tensor, sequences: Offsets, first: Tensor, length: Tensor) -> tuple[Tensor, Offsets]:
    """Return some rows of each sequence, from its row ``first[i]`` on."""
    first, length = first.reshape(-1).long(), length.reshape(-1).long()
    if bool(((first < 0) | (length < 0) | (first > sequences.lengths) | (length > sequences.lengths - first)).any()):
        raise ValueError(f"slices must be within sequences of {sequences.shown_lengths()}; seen {first[:8].tolist()} and {length[:8].tolist()}")
    index = ranges(sequences.last[:-1] + first, length)
    return x.index_select(0, index), Offsets([*sequences.levels[:-1], Offsets.of_lengths(length).last])


def without_tokens(x: Tensor, sequences: Offsets, tokens: Sequence[int]) -> tuple[Tensor, Offsets | None]:
    """Return the rows other than some numbers, and their sequences; None for the old ones, of no numbers."""
    if not tokens:
        return x.clone(), None
    stays = torch.isin(x.reshape(-1), torch.tensor(tokens, dtype=x.dtype, device=x.device), invert=True)
    counts = torch.cat((sequences.last[:1], stays.cumsum(0)))
    return x[stays], Offsets([*sequences.levels[:-1], counts[sequences.last]])


def numbered_windows(x: Tensor, sequences: Offsets, size: int, value: float) -> Tensor:
    """Return the numbers from each row on, ``[rows, size]``; a value past the end of the sequence."""
    if not sequences.rows:
        return x.new_empty((0, size))
    place = torch.arange(sequences.rows, device=x.device).unsqueeze(1) + torch.arange(size, device=x.device)
    past = place >= sequences.last[1:].repeat_interleave(sequences.lengths).unsqueeze(1)
    return x.reshape(-1)[place.clamp(max=sequences.rows - 1)].masked_fill(past, value)


def in_rows_of(x: Tensor, sequences: Offsets, width: int) -> tuple[Tensor, Offsets]:
    """Return the numbers of each sequence in rows of a width, a divisor of their number."""
    numbers = sequences.last * x.shape[1]
    if bool((numbers % width).any()):
        raise ValueError(f"{width} must divide the numbers of every sequence, of {x.shape[1]} times {sequences.shown_lengths()}")
    return x.reshape(-1, width), Offsets([*sequences.levels[:-1], numbers // width])


def added_at(x: Tensor, ids: Tensor, updates: Tensor, sequences: Offsets, others: Offsets) -> Tensor:
    """Return ``x`` with each row of the updates of sequence i added at ``(i, its id)``."""
    if not sequences.same_sequences(others):
        raise ValueError(f"ids and updates must have the same sequences; seen {sequences.shown_lengths()} and {others.shown_lengths()}")
    place = sequences.segments * x.shape[1] + within(ids.reshape(-1), x.shape[1], "an id")
    return x.reshape(-1).index_add(0, place, updates.reshape(-1)).view(x.shape)


def ragged_softmax(x: Tensor, sequences: Offsets) -> Tensor:
    """Return the softmax of the numbers of each sequence."""
    numbers, index = x.reshape(-1), sequences.segments
    if numbers.shape != index.shape:
        raise ValueError(f"there must be one number in each of {len(index)} rows; seen {len(numbers)}")
    zeros = numbers.new_zeros(sequences.count)
    largest = zeros.scatter_reduce(0, index, numbers.detach(), "amax", include_self=False)
    out = (numbers - largest.index_select(0, index)).exp()
    return (out / zeros.index_add(0, index, out).index_select(0, index)).view(x.shape)


def ragged_row_convolution(x: Tensor, weight: Tensor, sequences: Offsets) -> Tensor:
    """Return the sum of each row and the rows after it in its sequence, each times its row of weights."""
    out, index = x * weight[0], sequences.segments
    for step in range(1, min(len(weight), len(x))):
        following = x[step:] * (index[step:] == index[:-step]).unsqueeze(1) * weight[step]
        out = out + torch.cat((following, torch.zeros_like(x[:step])))
    return out


def context_convolution(x: Tensor, padding: Tensor | None, weight: Tensor, sequences: Offsets, start: int, length: int) -> Tensor:
    """Return the rows around each row, from ``start`` on, times weights ``[length * width, out]``.

    Outside of the sequence there are zeros or rows of ``padding``: the first max(0, -start) before it, the others behind it.
    """
    place = sequences.positions.unsqueeze(1) + torch.arange(start, start + length, device=x.device)
    size, front = sequences.lengths[sequences.segments].unsqueeze(1), max(0, -start)
    inside = (place >= 0) & (place < size)
    index = place + sequences.last[:-1][sequences.segments].unsqueeze(1)
    outside = torch.where(place < 0, place + front, place - size + front) if padding is not None else torch.zeros_like(place)
    around = torch.cat((x, x.new_zeros((1, x.shape[1])) if padding is None else padding))
    rows = around.index_select(0, torch.where(inside, index, outside + x.shape[0]).reshape(-1))
    return rows.reshape(x.shape[0], length * x.shape[1]) @ weight


def shares_of_rows(x: Tensor, place: Tensor | None, d_out: Tensor, sequences: Offsets, how: str) -> Tensor:
    """Return the gradient of pooled sequences: each row's share of its sequence's; ``place`` has the rows of the extremes."""
    if how in ("SUM", "AVERAGE", "SQRT"):
        count = sequences.lengths.clamp(min=1).to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))
        share = d_out / {"SUM": torch.ones_like(count), "AVERAGE": count, "SQRT": count.sqrt()}[how]
        return share.index_select(0, sequences.segments)
    full = sequences.lengths.nonzero().reshape(-1)
    if how in ("MAX", "MIN") and place is not None:
        return torch.zeros_like(x).scatter(0, place.long()[full], d_out[full])
    rows = sequences.last[1:] - 1 if how == "LAST" else sequences.last[:-1]
    return torch.zeros_like(x).index_copy(0, rows[full], d_out[full])


def best_averages(x: Tensor, matrices: Offsets, rows: Offsets, columns: Offsets, sizes: Sequence[int], channels: int) -> tuple[Tensor, Tensor]:
    """Return the sums of the k largest numbers of each row of matrices over k, for each k of ``sizes``, and the places of the last k, -1 without one."""
    width, segments = columns.lengths, rows.segments
    if not torch.equal(matrices.lengths, channels * rows.lengths * width):
        raise ValueError(
            f"each sequence must have {channels} * rows * columns numbers; seen {matrices.shown_lengths()}, {rows.shown_lengths()} "
            f"and {columns.shown_lengths()}"
        )
    first = (matrices.last[:-1][segments] + rows.positions * width[segments]).unsqueeze(1)
    begin = (first + (rows.lengths * width)[segments].unsqueeze(1) * torch.arange(channels, device=x.device)).reshape(-1)
    length, values = width[segments].repeat_interleave(channels), x.reshape(-1)
    rank, longest = torch.arange(sizes[-1], device=x.device), int(length.max()) if len(length) else 0
    counts = torch.arange(max(longest, sizes[-1]), device=x.device) < length.unsqueeze(1)
    index = (begin.unsqueeze(1) + torch.arange(counts.shape[1], device=x.device)).masked_fill(~counts, 0)
    lines = values[index].masked_fill(~counts, float("-inf")) if len(values) else x.new_full(counts.shape, float("-inf"))
    largest, place = lines.sort(dim=1, descending=True, stable=True)
    valid = rank < length.unsqueeze(1)
    largest, place = largest[:, : sizes[-1]].masked_fill(~valid, 0), place[:, : sizes[-1]].masked_fill(~valid, -1)
    ks = torch.tensor(sizes, device=x.device).unsqueeze(1)
    out = largest @ ((rank < ks).to(x.dtype) / ks).T
    return out.reshape(rows.rows, channels * len(sizes)), place.reshape(-1).int()


def chosen_sequences(x: Tensor, levels: Sequence[Tensor], index: Tensor) -> tuple[Tensor, Offsets | None]:
    """Return rows, or outermost sequences, at places."""
    offsets: list[Tensor] = []
    for level in levels:
        lengths = level.diff().index_select(0, index)
        offsets.append(Offsets.of_lengths(lengths).last)
        index = ranges(level.index_select(0, index), lengths)
    return x.index_select(0, index), Offsets(offsets) if offsets else None


def split_by(x: Tensor, mask: Tensor, sequences: Offsets | None, level: int) -> tuple[Any, ...]:
    """Return the rows, or the sequences of a level, where a mask is true, the others, and the sequences of both."""
    levels, mask = () if sequences is None else sequences.levels[level:], mask.reshape(-1)
    true, true_offsets = chosen_sequences(x, levels, mask.nonzero().reshape(-1))
    false, false_offsets = chosen_sequences(x, levels, (~mask).nonzero().reshape(-1))
    return true, false, true_offsets, false_offsets


def merged_by(
    mask: Tensor, true: Tensor, false: Tensor, outer: Offsets | None, of_true: Offsets | None, of_false: Offsets | None, level: int
) -> tuple[Tensor, Offsets | None]:
    """Return the rows, or the outermost sequences, of ``true`` where a mask is true and of ``false`` elsewhere, below the first levels of ``outer``."""
    mask = mask.reshape(-1)
    counts, levels = (len(true), len(false)), list[Tensor]()
    if of_true is not None and of_false is not None:
        counts = len(of_true.levels[0]) - 1, len(of_false.levels[0]) - 1
        levels = [torch.cat((a, b[1:] + a[-1])) for a, b in zip(of_true.levels, of_false.levels, strict=True)]
    if counts != (int(mask.sum()), int((~mask).sum())):
        raise ValueError(f"the mask has {int(mask.sum())} true and {int((~mask).sum())} false; there are {counts[0]} and {counts[1]}")
    order = torch.where(mask, mask.cumsum(0) - 1, counts[0] + (~mask).cumsum(0) - 1)
    out, inner = chosen_sequences(torch.cat((true, false)), levels, order)
    above = () if outer is None else outer.levels[:level]
    return out, Offsets([*above, *inner.levels]) if inner is not None else None


def selected_output(x: Tensor, mask: Tensor, count: int) -> list[Tensor | None]:
    """Return ``x`` as the result of a number, and None for the others."""
    number = int(mask)
    if not 0 <= number < count:
        raise IndexError(f"the mask must choose one of {count}; seen {number}")
    return [x.clone() if place == number else None for place in range(count)]
