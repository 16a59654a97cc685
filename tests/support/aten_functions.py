"""Functions of torch with several statements, for the cases of `test_aten_operators`: changes in place, complex values, diagonals, sparse matrices."""

from __future__ import annotations

import torch
from torch import Tensor


def put_in_place(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, torch.tensor([0, 2])] = 5.0
    return y


def put_by_places(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :, torch.tensor([0, 2])] = x[:, :, :2] * 2
    y[:, 1:3, ::2] = 7.0
    y[:, 0] += 1
    return y


def masked(x: Tensor, m: Tensor) -> Tensor:
    y = x.clone()
    y[m] = 0.0
    y[x > 1] = 1.0
    return y


def masked_rows(x: Tensor, m: Tensor) -> Tensor:
    y = x.clone()
    y[m[:, 0, 0]] = 0.0
    y[:, m[0, :, 0]] = 2.0
    return y


def complex_parts(x: Tensor) -> Tensor:
    z = torch.complex(x, x + 1)
    z[..., 2] = torch.complex(x, -x)[..., 0] * 2
    z[:, 1:3, :2] = 1 - 2j
    z[..., 4:] += z[..., :2] * 1j
    z[x > 1] = 0
    z[:, torch.tensor([0, 3])] = z[:, :2].conj()
    z.real = z.real * 3
    torch.view_as_real(z)[..., 1] *= 2
    return torch.view_as_real(z)


def spectra(x: Tensor, weight: Tensor) -> Tensor:
    """As a layer of a Fourier neural operator."""
    modes = torch.fft.rfft(x)
    out = torch.zeros(x.shape[0], 2, 4, dtype=torch.cfloat)
    out[..., :3] = torch.einsum("bix,iox->box", modes[..., :3], weight)
    return torch.fft.irfft(out, n=6)


def diagonals(x: Tensor) -> list[Tensor]:
    flat = x.flatten(1)
    tensors = [flat.clone(), flat @ flat.T, x.reshape(-1, 3) * 2, (x.reshape(-1, 3) * 3), x[:, :, :4].mean(0).expand(4, 4, 4) * 2]
    return [tensor.fill_diagonal_(7.0, wrap=at == 3) for at, tensor in enumerate(tensors)] + [torch.diag(tensors[1], k) for k in (len(x) - 1, 1 - len(x))]


COORDINATES = torch.tensor([[0, 3, 1, 3, 0], [1, 0, 2, 3, 1]])


def sparse_products(x: Tensor) -> list[Tensor]:
    matrix = torch.sparse_coo_tensor(COORDINATES, x[0, 0, :5], (4, 4))
    rows = torch.sparse_csr_tensor(torch.tensor([0, 2, 2, 3, 5]), torch.tensor([0, 3, 1, 1, 2]), torch.arange(5.0), (4, 4))
    across = x.permute(1, 0, 2).flatten(1)
    return [
        torch.sparse.mm(matrix, across),
        torch.sparse.mm(rows, across) + rows @ across + torch.mm(2 * matrix.t(), across) / 3,
        torch.sparse.addmm(across, matrix.coalesce(), across, beta=0.5, alpha=2.0),
        torch.mv(-matrix, across[:, 0]) + x[0, 0, :4] @ matrix,
        matrix.to_dense() * matrix.sum(),
    ]
