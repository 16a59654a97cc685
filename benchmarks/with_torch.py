"""The workloads in PyTorch: eager with autograd and torch.optim, as its users write it.

Variants: eager, fused, compile. Ragged text is padded beforehand, and packed in the step in the variant packed.
"""

from __future__ import annotations

import numpy as np
import torch
import workloads
from torch import nn
from torch.nn import functional as F

T = torch.from_numpy


def _parameter(value: np.ndarray) -> nn.Parameter:
    return nn.Parameter(T(value.copy()))


def _linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    made = nn.Linear(*weight.shape)
    made.weight, made.bias = _parameter(weight.T.copy()), _parameter(bias)
    return made


def _stack(w: workloads.Workload) -> nn.Module:
    layers: list[nn.Module] = []
    for k in range(w.settings["layers"]):
        layers += [_linear(w.parameters[f"w{k}"], w.parameters[f"b{k}"]), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _images(w: workloads.Workload) -> nn.Module:
    layers: list[nn.Module] = []
    for k, (i, o, stride) in enumerate(workloads.CONVOLUTIONS):
        convolution = nn.Conv2d(i, o, 3, stride, 1)
        convolution.weight, convolution.bias = _parameter(w.parameters[f"c{k}w"]), _parameter(w.parameters[f"c{k}b"])
        layers += [convolution, nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), _linear(w.parameters["fw"], w.parameters["fb"]))


class _Encoder(nn.Module):
    def __init__(self, w: workloads.Workload) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self._layer(w, k) for k in range(w.settings["layers"]))
        self.head = _linear(w.parameters["fw"], w.parameters["fb"])

    @staticmethod
    def _layer(w: workloads.Workload, k: int) -> nn.Module:
        p, s = w.parameters, w.settings
        made = nn.TransformerEncoderLayer(s["width"], s["heads"], s["inner"], dropout=0.0, batch_first=True)
        attention = made.self_attn
        attention.in_proj_weight.data = torch.cat([T(p[f"{k}w{n}"].T.copy()) for n in "qkv"])
        attention.in_proj_bias.data = torch.cat([T(p[f"{k}b{n}"]) for n in "qkv"])
        attention.out_proj.weight.data, attention.out_proj.bias.data = T(p[f"{k}wo"].T.copy()), T(p[f"{k}bo"].copy())
        for target, n in ((made.linear1, "1"), (made.linear2, "2")):
            target.weight.data, target.bias.data = T(p[f"{k}w{n}"].T.copy()), T(p[f"{k}b{n}"].copy())
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one in self.layers:
            x = one(x)
        return self.head(x.mean(1))


class _Text(nn.Module):
    def __init__(self, w: workloads.Workload, packed: bool) -> None:
        super().__init__()
        p, hidden = w.parameters, w.settings["hidden"]
        self.packed = packed
        self.embedding = nn.Embedding(*p["emb"].shape, _weight=T(p["emb"].copy()))
        self.lstm = nn.LSTM(p["emb"].shape[1], hidden, batch_first=True)
        self.lstm.weight_ih_l0.data, self.lstm.weight_hh_l0.data = T(p["wi"].T.copy()), T(p["wh"].T.copy())
        self.lstm.bias_ih_l0.data, self.lstm.bias_hh_l0.data = T(p["b"].copy()), torch.zeros(4 * hidden)
        self.lstm.bias_hh_l0.requires_grad_(False)
        self.head = _linear(p["fw"], p["fb"])

    def forward(self, padded: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        x = self.embedding(padded)
        if self.packed:
            last = self.lstm(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1][0][0]
        else:
            last = self.lstm(x)[0][torch.arange(len(lengths)), lengths - 1]
        return self.head(last)


class _EncodedTexts(nn.Module):
    """Padded texts with a mask of their words; or packed, where the rows are padded for the attention alone."""

    def __init__(self, w: workloads.Workload, packed: bool) -> None:
        super().__init__()
        p, width, self.heads, self.layers, self.packed = w.parameters, w.settings["width"], w.settings["heads"], w.settings["layers"], packed
        self.embedding = nn.Embedding(*p["emb"].shape, _weight=T(p["emb"].copy()))
        self.parts = nn.ModuleDict()
        for k in range(self.layers):
            joined = (np.concatenate([p[f"{k}{what}{n}"] for n in "qkv"], -1) for what in "wb")
            self.parts.update({f"{k}qkv": _linear(*joined), **{f"{k}{n}": _linear(p[f"{k}w{n}"], p[f"{k}b{n}"]) for n in "o12"}})
            self.parts.update({f"{k}n{n}": nn.LayerNorm(width) for n in "12"})
        self.head = _linear(p["fw"], p["fb"])

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        inside = torch.arange(ids.shape[1]) < lengths[:, None]
        at = inside.view(-1).nonzero()[:, 0] if self.packed else None
        h = self.embedding(ids if at is None else ids.view(-1)[at])
        for k in range(self.layers):
            h = self.parts[f"{k}n1"](h + self.parts[f"{k}o"](self.attend(self.parts[f"{k}qkv"](h), inside, at)))
            h = self.parts[f"{k}n2"](h + self.parts[f"{k}2"](F.gelu(self.parts[f"{k}1"](h))))
        if at is None:
            return self.head((h * inside[..., None]).sum(1) / lengths[:, None])
        return self.head(h.new_zeros(len(ids), h.shape[1]).index_add(0, at // ids.shape[1], h) / lengths[:, None])

    def attend(self, x: torch.Tensor, inside: torch.Tensor, at: torch.Tensor | None) -> torch.Tensor:
        batch, time = inside.shape
        x = x if at is None else x.new_zeros(batch * time, x.shape[1]).index_copy(0, at, x)
        q, k, v = x.view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, inside[:, None, None]).transpose(1, 2).reshape(batch, time, -1)
        return mixed if at is None else mixed.view(batch * time, -1)[at]


class _Normed(nn.Sequential):
    """A convolution and a batch norm."""

    def __init__(self, p: dict[str, np.ndarray], name: str, stride: int = 1) -> None:
        o, i, size, _ = p[f"{name}w"].shape
        convolution, norm = nn.Conv2d(i, o, size, stride, size // 2, bias=False), nn.BatchNorm2d(o)
        convolution.weight, norm.weight, norm.bias = (_parameter(p[name + n]) for n in "wgh")
        super().__init__(convolution, norm)


class _Bottleneck(nn.Module):
    def __init__(self, p: dict[str, np.ndarray], name: str, stride: int, shortcut: bool) -> None:
        super().__init__()
        self.within = nn.Sequential(_Normed(p, name + "1"), nn.ReLU(True), _Normed(p, name + "2", stride), nn.ReLU(True), _Normed(p, name + "3"))
        self.shortcut = _Normed(p, name + "s", stride) if shortcut else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.within(x) + self.shortcut(x), inplace=True)


def _residual(w: workloads.Workload) -> nn.Module:
    p = w.parameters
    blocks = [_Bottleneck(p, name, stride, shortcut) for name, _, _, stride, shortcut in workloads.bottlenecks()]
    stem = [_Normed(p, "stem", 2), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), _linear(p["fw"], p["fb"]))


def _padded(ids: np.ndarray, lengths: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, ...]:
    out = np.zeros((len(lengths), lengths.max()), np.int64)
    out[np.arange(lengths.max()) < lengths[:, None]] = ids
    return out, lengths, y


class _Bag(nn.Module):
    def __init__(self, w: workloads.Workload) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag.from_pretrained(T(w.parameters["emb"].copy()), freeze=False, mode="sum", sparse=True)
        self.head = _linear(w.parameters["fw"], w.parameters["fb"])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x))


class _Towers(nn.Module):
    def __init__(self, w: workloads.Workload) -> None:
        super().__init__()
        p = w.parameters
        self.tables = nn.ModuleDict({s: nn.EmbeddingBag.from_pretrained(T(p[f"{s}e"].copy()), freeze=False, mode="sum", sparse=True) for s in "ui"})
        layers = {n: nn.Sequential(_linear(p[f"{n}w0"], p[f"{n}b0"]), nn.ReLU(), _linear(p[f"{n}w1"], p[f"{n}b1"])) for n in ("u", "i", "")}
        self.head = layers.pop("")
        self.towers = nn.ModuleDict(layers)

    def forward(self, users: torch.Tensor, user: torch.Tensor, items: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        sides = [self.towers[s](torch.cat([self.tables[s](ids), numbers], 1)) for s, ids, numbers in (("u", users, user), ("i", items, item))]
        return self.head(torch.cat(sides, 1))


class _UNet(nn.Module):
    def __init__(self, w: workloads.Workload) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        for name, i, o, size in workloads.unet():
            made = nn.ConvTranspose2d(i, o, 2, 2) if size == 2 else nn.Conv2d(i, o, size, padding=size // 2)
            made.weight, made.bias = _parameter(w.parameters[f"{name}w"]), _parameter(w.parameters[f"{name}b"])
            self.layers[name] = made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        beside: dict[str, torch.Tensor] = {}
        for name, made in self.layers.items():
            if isinstance(made, nn.ConvTranspose2d):
                x = torch.cat([beside[f"d{name[1]}b"], made(x)], 1)
                continue
            if name in ("d1a", "d2a"):
                x = F.max_pool2d(x, 2)
            x = made(x)
            x = beside[name] = x if name == "head" else F.relu(x)
        return x


class _Both:
    """Lazy Adam on the table, Adam on the rest."""

    def __init__(self, module: nn.Module, rate: float, fused: dict[str, bool]) -> None:
        self.each = [torch.optim.SparseAdam(list(module.table.parameters()), rate), torch.optim.Adam(module.head.parameters(), rate, **fused)]

    def zero_grad(self) -> None:
        for one in self.each:
            one.zero_grad()

    def step(self) -> None:
        for one in self.each:
            one.step()


KINDS = {
    "stack": _stack, "images": _images, "encoder": _Encoder, "bag": _Bag, "residual": _residual, "towers": _Towers, "unet": _UNet,
}  # fmt: skip


class Training:
    """A module with an optimizer; called with ``i`` it does step ``i`` and returns the loss."""

    def __init__(self, w: workloads.Workload, variant: str) -> None:
        self.w = w
        texts = {"text": _Text, "encoded texts": _EncodedTexts}
        self.module = texts[w.kind](w, "packed" in variant) if w.kind in texts else KINDS[w.kind](w)
        fused, self.in_half = ({"fused": True} if "fused" in variant else {}), "bf16" in variant
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer: torch.optim.Optimizer | _Both
        if w.optimizer == "lazy adam":
            self.optimizer = _Both(self.module, w.rate, fused)
        elif w.optimizer == "adam":
            self.optimizer = torch.optim.Adam(parameters, w.rate, **fused)
        else:
            self.optimizer = torch.optim.SGD(parameters, w.rate, momentum=w.settings.get("momentum", 0.0), **({} if w.kind in ("bag", "towers") else fused))
        self.compute = torch.compile(self.loss_of) if variant == "compile" else self.loss_of
        self.data = [_padded(*given) for given in w.data] if w.kind in texts else w.data

    def loss_of(self, *given: torch.Tensor) -> torch.Tensor:
        *x, y = given
        if self.w.kind in ("bag", "towers"):
            return F.binary_cross_entropy_with_logits(self.module(*x), y)
        return F.cross_entropy(self.module(*x), y)

    def __call__(self, i: int) -> float:
        given = self.data[i % len(self.data)]
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.in_half):
            loss = self.compute(*map(T, given))
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def held(self) -> list[torch.Tensor]:
        """The parameters, the module's buffers and the optimizer's state."""
        each = self.optimizer.each if isinstance(self.optimizer, _Both) else [self.optimizer]
        state = [t for one in each for of in one.state.values() for t in of.values() if isinstance(t, torch.Tensor)]
        return [*self.module.parameters(), *self.module.buffers(), *state]


def build(w: workloads.Workload, variant: str) -> Training:
    """Make the module and the optimizer; returns the step."""
    torch.set_num_threads(2)
    return Training(w, variant)
