"""Recurrent layers as cuDNN computes them: one operator for all steps and layers, with a reserve kept for the gradient.

``cudnnGetRNNTempSpaceSizes`` alone knows the reserve and the workspace; here they are estimates by gates, steps, batch and hidden size (modelled).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from foreshape.apps.forecast.recorder import Recorder
from foreshape.interop.torch.untyped_torch import is_list, torch
from foreshape.machine.kernels.cudnn_recurrence import RESERVED


def recurrent(recorder: Recorder, gates: int, args: Sequence[Any], lower: Any) -> Any:
    """Return the result of ``torch.lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``: of rows of texts or of packed ones.

    Args:
        recorder: takes the bytes without a tensor.
        gates: 4, 3 or 1.
        args: of torch's function, by place.
        lower: autocast's element type, where it is on: then the weights are cast, one after the other into a flat copy.
    """
    is_packed = isinstance(args[1], torch.Tensor) and args[1].dtype is torch.int64
    if is_packed:
        x, _, initial, weights, _, layers, rate, training, bidirectional, *_ = args
        batch_first = False
    else:
        x, initial, weights, _, layers, rate, training, bidirectional, batch_first = args
    states: list[Any] = list(initial) if is_list(initial) else [initial]
    if lower is not None:
        flat = [weight.to(lower) for weight in weights]
        x, states, weights = x.to(lower), [state.to(lower) for state in states], flat
    with torch.autocast("cpu", enabled=False):
        out, *ends = _function().apply(recorder, gates, layers, bidirectional, batch_first, bool(training and rate), x, *states, *weights)
    return (out, *ends)


@cache
def _function() -> Any:
    """Return the autograd function; torch is imported by now."""

    class CudnnRecurrence(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, recorder: Recorder, gates: int, layers: int, bidirectional: bool, batch_first: bool, dropped: bool, x: Any, *operands: Any
        ) -> Any:
            number = 2 if gates == 4 else 1
            states, weights = operands[:number], operands[number:]
            hidden = weights[1].shape[0] // gates
            directions = 2 if bidirectional else 1
            *rows, _ = x.shape
            steps = x.numel() // x.shape[-1]
            size = x.element_size()
            first = x.transpose(0, 1).contiguous() if batch_first else x
            shape = (rows[1], rows[0]) if batch_first else tuple(rows)
            out = torch.empty(*shape, hidden * directions, dtype=x.dtype)
            ends = [torch.empty_like(state, dtype=x.dtype) for state in states]
            reserved = RESERVED[gates] * steps * hidden * directions * layers * size + (steps * hidden * directions * (layers - 1) * size if dropped else 0)
            reserve = torch.empty(reserved, dtype=torch.uint8)
            work = gates * steps * hidden * directions * size
            recorder.record.free(recorder.take(work, "workspace", "cuDNN", largest=2 * work, shrinks=False))
            del first
            ctx.save_for_backward(x, out, reserve, *operands)
            ctx.recorder, ctx.number, ctx.work, ctx.batch_first = recorder, number, work, batch_first
            return (out.transpose(0, 1) if batch_first else out, *ends)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            x, _, _, *operands = ctx.saved_tensors
            states, weights = operands[: ctx.number], operands[ctx.number :]
            first = x.transpose(0, 1).contiguous() if ctx.batch_first else None
            grad = grads[0].contiguous() if grads[0] is not None else None
            dx = torch.empty_like(x)
            dstates = [torch.empty_like(state) for state in states]
            flat = torch.empty(sum(weight.numel() for weight in weights), dtype=x.dtype)
            ctx.recorder.record.free(ctx.recorder.take(ctx.work, "workspace", "cuDNN", largest=2 * ctx.work, shrinks=False))
            parts = [part.view(weight.shape) for part, weight in zip(flat.split([w.numel() for w in weights]), weights, strict=True)]
            del first, grad
            return (None,) * 6 + (dx, *dstates, *parts)

    return CudnnRecurrence
