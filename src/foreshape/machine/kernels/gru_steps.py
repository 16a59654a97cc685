"""The GRU, in its two forms, and the plain recurrence step by step, with their gradients; as `lstm_steps` has the LSTM.

``reset_after``: r, z, n with n = tanh(x_n + r (W_n h + b_n)), as torch and PaddlePaddle's ``rnn`` have it. ``reset_before``: u, r, c with c = act(x_c + W_c
(r h)), as PaddlePaddle's ``gru`` has it. Its ``origin_mode`` tells the side of the new state that u weighs.
"""

from __future__ import annotations

from foreshape.core.data_class import data_class
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels.lstm_steps import activate_, slope
from foreshape.machine.kernels.products import mm
from foreshape.machine.kernels.recurrence import StepSchedule

# --- r, z, n, the reset after the product


def reset_after(gates: Tensor, weight: Tensor, bias: Tensor | None, h0: Tensor, schedule: StepSchedule) -> tuple[Tensor, Tensor, Tensor]:
    """Run the steps. ``gates`` [places, 3 hidden] are the inputs' share, and are overwritten; ``weight`` [hidden, 3 hidden], ``bias`` [3 hidden].

    Returns:
        The gates after their activation, the state's share of n [places, hidden], and the state.
    """
    size = gates.shape[1] // 3
    share = gates.new_empty((schedule.places, 3 * size)) if bias is None else bias.repeat(schedule.places, 1)
    state = gates.new_empty((schedule.places, size))
    split = schedule.widths
    both, r, z, n = (schedule.steps(x) for x in (gates[:, : 2 * size], *gates.view(-1, 3, size).unbind(1)))
    shares, share_both, share_n, states = (schedule.steps(x) for x in (share, share[:, : 2 * size], share[:, 2 * size :], state))
    before = h0
    for t, width in enumerate(split):
        if before.shape[0] != width:
            before = before[:width]
        if bias is None:
            torch.mm(before, weight, out=shares[t])
        else:
            shares[t].addmm_(before, weight)
        both[t].add_(share_both[t]).sigmoid_()
        new = n[t].addcmul_(r[t], share_n[t]).tanh_()
        torch.lerp(new, before, z[t], out=states[t])
        before = states[t]
    return gates, share[:, 2 * size :], state


def reset_after_gradient(made: list[Tensor], weight: Tensor, h0: Tensor, d_state: Tensor, schedule: StepSchedule) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the inputs' share, of the state's share, of ``h0`` (sorted) and of ``weight``. ``made``, the result of `reset_after`, is
    emptied to free its memory for the products; ``d_state`` is overwritten.
    """
    gates, share, state = made
    made.clear()
    size = state.shape[1]
    before = schedule.states_before(h0, state)
    r, z, n = gates.view(-1, 3, size).unbind(1)
    to_n = (1.0 - z) * (1.0 - n * n)
    factor = gates.new_empty((schedule.places, 3, size))
    torch.mul(to_n * share, slope("sigmoid", r), out=factor[:, 0])
    torch.mul(before - n, slope("sigmoid", z), out=factor[:, 1])
    torch.mul(to_n, r, out=factor[:, 2])
    d_share = torch.empty_like(gates)
    split = schedule.widths
    states, shares, three, factors, zs = (schedule.steps(x) for x in (d_state, d_share, d_share.view(-1, 3, size), factor, z))
    back = weight.t()
    d_h0 = torch.zeros_like(h0)
    for t in range(len(split) - 1, -1, -1):
        dh, width = states[t], split[t]
        torch.mul(dh.unsqueeze(1), factors[t], out=three[t])
        to = states[t - 1] if t else d_h0
        to = to[:width] if to.shape[0] != width else to
        to.addmm_(shares[t], back).addcmul_(dh, zs[t])
    del factor, factors, gates, share, state, r, z, n, zs
    d_weight = mm(before.t(), d_share)
    del before
    d_gates = d_share.clone()
    torch.mul(d_state, to_n, out=d_gates[:, 2 * size :])
    return d_gates, d_share, d_h0, d_weight


# --- u, r, c, the reset before the product


@data_class()
class ResetBefore:
    """The settings and weights of this form: ``gate_weight`` [hidden, 2 hidden] of u and r, ``candidate_weight`` [hidden, hidden]."""

    gate_weight: Tensor
    candidate_weight: Tensor
    gate: str
    candidate: str
    origin: bool

    def forward(self, gates: Tensor, h0: Tensor, schedule: StepSchedule) -> tuple[Tensor, Tensor]:
        """Return the state and the rest of the state before after the reset, each [places, hidden]. ``gates`` [places, 3 hidden] are the inputs' share, and
        become the gates after their activation.
        """
        size = gates.shape[1] // 3
        state, left = gates.new_empty((schedule.places, size)), gates.new_empty((schedule.places, size))
        split = schedule.widths
        both, u, r, c = (schedule.steps(x) for x in (gates[:, : 2 * size], *gates.view(-1, 3, size).unbind(1)))
        states, lefts = schedule.steps(state), schedule.steps(left)
        before = h0
        for t, width in enumerate(split):
            if before.shape[0] != width:
                before = before[:width]
            activate_(self.gate, both[t].addmm_(before, self.gate_weight))
            torch.mul(r[t], before, out=lefts[t])
            new = activate_(self.candidate, c[t].addmm_(lefts[t], self.candidate_weight))
            if self.origin:
                torch.lerp(new, before, u[t], out=states[t])
            else:
                torch.lerp(before, new, u[t], out=states[t])
            before = states[t]
        return state, left

    def backward(
        self, gates: Tensor, left: Tensor, state: Tensor, h0: Tensor, d_state: Tensor, schedule: StepSchedule
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the gradients of the inputs' share, of ``h0`` (sorted), of the two weights; ``d_state`` is overwritten."""
        size = state.shape[1]
        before = schedule.states_before(h0, state)
        u, r, c = gates.view(-1, 3, size).unbind(1)
        to_u = (before - c if self.origin else c - before) * slope(self.gate, u)
        to_c = (1.0 - u if self.origin else u) * slope(self.candidate, c)
        to_r = before * slope(self.gate, r)
        keep = u if self.origin else 1.0 - u
        d_gates = torch.empty_like(gates)
        split = schedule.widths
        states, us, cs, rs, keeps, resets = (schedule.steps(x) for x in (d_state, to_u, to_c, to_r, keep, r))
        both, d_u, d_r, d_c = (schedule.steps(x) for x in (d_gates[:, : 2 * size], *d_gates.view(-1, 3, size).unbind(1)))
        gate_back, candidate_back = self.gate_weight.t(), self.candidate_weight.t()
        d_h0 = torch.zeros_like(h0)
        for t in range(len(split) - 1, -1, -1):
            dh, width = states[t], split[t]
            torch.mul(dh, us[t], out=d_u[t])
            d_left = torch.mul(dh, cs[t], out=d_c[t]) @ candidate_back
            torch.mul(d_left, rs[t], out=d_r[t])
            to = states[t - 1] if t else d_h0
            to = to[:width] if to.shape[0] != width else to
            to.addcmul_(dh, keeps[t]).addcmul_(d_left, resets[t]).addmm_(both[t], gate_back)
        return d_gates, d_h0, mm(before.t(), d_gates[:, : 2 * size]), mm(left.t(), d_gates[:, 2 * size :])


# --- h = act(x + W h)


def plain(gates: Tensor, weight: Tensor, h0: Tensor, schedule: StepSchedule, activation: str) -> Tensor:
    """Return the state; ``gates`` [places, hidden] are the inputs' share, and become it."""
    before = h0
    for now in schedule.steps(gates):
        if before.shape[0] != now.shape[0]:
            before = before[: now.shape[0]]
        before = activate_(activation, now.addmm_(before, weight))
    return gates


def plain_gradient(state: Tensor, weight: Tensor, h0: Tensor, d_state: Tensor, schedule: StepSchedule, activation: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of the inputs' share, of ``h0`` (sorted) and of ``weight``; ``d_state`` becomes the first."""
    split = schedule.widths
    states, slopes = schedule.steps(d_state), schedule.steps(slope(activation, state))
    back = weight.t()
    d_h0 = torch.zeros_like(h0)
    for t in range(len(split) - 1, -1, -1):
        now = states[t].mul_(slopes[t])
        to = states[t - 1] if t else d_h0
        (to[: split[t]] if to.shape[0] != split[t] else to).addmm_(now, back)
    del slopes
    return d_state, d_h0, mm(schedule.states_before(h0, state).t(), d_state)
