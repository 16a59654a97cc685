"""Networks of torch.nn, torchvision, timm and transformers imported by `fs.from_torch`, and compared with themselves: `make torch-families`.

    run.py                                  # every family of the .toml files beside this file: results with the batch open, and with every size open
    run.py --grad                           # gradients, and buffers after a step, too
    run.py --only nn.LSTM,timm.* --verbose

Each entry of a .toml is a family: its name is the class or function unless ``make`` says another one (``module:name`` below the file's library).
``arguments`` make the network, ``config`` the configuration of one of transformers, beside the default one unless it is ``bare``; ``more`` goes into
each call. A text that begins with @ is a name of the library, or an expression of one.
``inputs`` are written as variables are here: an element type (f32, intN: integers below N, mask: ones with zeros at the end, part: between 0 and 1,
logs: logarithms of parts, lengths:N of at most N) and dims. ``sizes`` has for a symbol the example's size and another one; ``take`` the results that
are compared; ``like`` another entry to begin with; ``skip`` why a family is left out, ``refused`` why it cannot be imported.

A comparison passes within 1e-4 of the largest number of a run in double precision, or within 4 times of eager torch's own error. Each family has a
process of its own. Exits with 1 if one fails that is not refused for a reason, or the other way about.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fnmatch
import importlib
import json
import os
import re
import resource
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SIZES = {"batch": (2, 5), "words": (12, 19), "target": (7, 10), "time": (9, 14), "height": (64, 96), "width": (64, 128)}
TOLERANCE = 1e-4
OF_DROPPING = ("p", "dropout", "drop_prob", "attention_dropout", "activation_dropout", "dropout_p", "dropout_prob", "layerdrop", "hidden_dropout")
OF_DROPPING += ("attn_dropout", "resid_dropout")


def entries() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(HERE.glob("*.toml")):
        table = tomllib.loads(path.read_text())
        base = table.pop("DEFAULT", {})
        for name, own in table.items():
            yield f"{path.stem}.{name}", merged(table, base, {"make": name, **own})


def merged(table: dict[str, Any], base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    like = table.get(own.get("like", ""), {})
    out = {**base, **like, **own}
    out["config"] = {**({} if out.get("bare") else base.get("config", {})), **like.get("config", {}), **own.get("config", {})}
    out["make"] = own["make"]
    return out


# --- a family: the network and its inputs


def found(library: str, path: str) -> Any:
    module, _, name = path.rpartition(":")
    held = importlib.import_module(f"{library}.{module}" if module else library)
    return eval(name, {**vars(held), "None": None}) if re.search(r"\W", name) or name == "None" else getattr(held, name)  # of this repository's own files


def argument(library: str, value: Any) -> Any:
    if isinstance(value, str) and value.startswith("@"):
        return None if value == "@None" else found(library, value[1:])
    return tuple(value) if isinstance(value, list) and library == "torch.nn" else value


def network(entry: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    library, given = entry["library"], {k: argument(entry["library"], v) for k, v in entry.get("arguments", {}).items()}
    if library == "timm":
        import timm

        net = timm.create_model(entry["make"], pretrained=False, num_classes=10, **given)
    elif library == "transformers":
        import transformers

        transformers.logging.set_verbosity_error()
        made = getattr(transformers, entry["make"])
        net = made(made.config_class(**entry["config"]))
    else:
        net = found(library, entry["make"])(**given)
    if entry.get("parts"):
        net = Parts.of(net)
    names = list(entry["inputs"])
    by_name = library == "transformers" or bool(entry.get("more"))
    net = Picked.of(net, names if by_name else [], entry.get("more", {}), entry.get("take") if library == "transformers" else None) if by_name else net
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            if not isinstance(parameter, nn.UninitializedParameter) and parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape, generator=drawn) * 0.01)
        for name, buffer in net.named_buffers():
            if name.endswith("running_mean"):
                buffer.add_(torch.randn(buffer.shape, generator=drawn) * 0.05)
            elif name.endswith("running_var"):
                buffer.mul_(1 + 0.2 * torch.rand(buffer.shape, generator=drawn))
    return net


class Picked:
    """Calls a network with keywords, and gives some of its results."""

    @staticmethod
    def of(network: Any, names: list[str], more: dict[str, Any], take: list[str] | None) -> Any:
        from torch import nn

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.network = network

            def forward(self, *given: Any) -> Any:
                out = self.network(**dict(zip(names, given, strict=True)), **more)
                return out if take is None else tuple(getattr(out, one) for one in take)

        return Net()


class Parts:
    """The backbone and the heads of a detector, without the choice of boxes."""

    @staticmethod
    def of(network: Any) -> Any:
        from torch import nn

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.backbone, self.head = network.backbone, network.head

            def forward(self, x: Any) -> Any:
                return self.head(list(self.backbone(x).values()))

        return Net()


def without_dropout(net: Any) -> Any:
    for one in net.modules():
        for name in OF_DROPPING:
            kind = type(one).__name__.lower()
            if isinstance(getattr(one, name, None), float) and (name != "p" or "drop" in kind or "stochastic" in kind):
                setattr(one, name, 0.0)
    return net


def parsed(entry: dict[str, Any]) -> list[tuple[str, list[str]]]:
    out = []
    for text in entry["inputs"].values():
        kind, _, dims = text.partition("[")
        out.append((kind, [d.strip() for d in dims.rstrip("]").split(",") if d.strip()]))
    return out


def drawn_inputs(entry: dict[str, Any], sizes: dict[str, int], seed: int) -> tuple[Any, ...]:
    import torch

    drawn = torch.Generator().manual_seed(seed)

    def size(text: str) -> int:
        return int(text) if text.isdigit() else sizes[text]

    out: list[Any] = []
    for kind, dims in parsed(entry):
        shape = [size(d) for d in dims]
        if kind == "f32":
            out.append(torch.randn(shape, generator=drawn))
        elif kind == "part":
            out.append(torch.rand(shape, generator=drawn) * 0.8 + 0.1)
        elif kind == "logs":
            out.append(torch.randn(shape, generator=drawn).log_softmax(-1))
        elif kind == "mask":
            mask = torch.ones(shape, dtype=torch.int64)
            if shape[1] > 3:
                mask[0, shape[1] - 3 :] = 0
            out.append(mask)
        elif kind.startswith("lengths:"):
            most = size(kind.partition(":")[2])
            out.append(torch.randint(max(1, most - 1), most + 1, shape, generator=drawn))
        else:
            high, _, more = kind.removeprefix("int").partition("+")
            out.append(torch.randint(0, int(high), shape, generator=drawn) + int(more or 0))
    return tuple(out)


def all_sizes(entry: dict[str, Any]) -> dict[str, tuple[int, int]]:
    names = {d for _, dims in parsed(entry) for d in dims if not d.isdigit()}
    return {name: tuple(entry.get("sizes", {}).get(name, SIZES.get(name))) for name in names}


# --- comparisons


def leaves(value: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [torch.as_tensor(v).detach() for v in tree_leaves(value) if v is not None]


def error_of(got: Any, want: Any) -> float:
    import torch

    if want.is_complex():
        got, want = torch.view_as_real(got), torch.view_as_real(want)
    got, want = got.double(), want.double()
    same = (got == want) | (got.isnan() & want.isnan())
    if bool(same.all()):
        return 0.0
    finite = want[want.isfinite()]
    off = (got - want)[~same].abs().max().item() / max(finite.abs().max().item() if finite.numel() else 1.0, 1e-12)
    return float("inf") if off != off else off


def compared(got: list[Any], like: list[Any], truth: list[Any]) -> str:
    if len(got) != len(like):
        return f"{len(got)} results instead of {len(like)}"
    for at, (g, e, t) in enumerate(zip(got, like, truth, strict=True)):
        if tuple(g.shape) != tuple(e.shape) or g.dtype != e.dtype:
            return f"result {at}: {g.dtype}{tuple(g.shape)} instead of {e.dtype}{tuple(e.shape)}"
        if not e.is_floating_point() and not e.is_complex():
            if not bool((g == e).all()):
                return f"result {at}: integers differ"
        elif not error_of(g, t) <= max(TOLERANCE, 4 * error_of(e, t)):
            return f"result {at}: error {error_of(g, t):.1e} (eager's own {error_of(e, t):.1e})"
    return ""


def doubled(given: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(x.double() if x.is_floating_point() else x for x in given)


def eager(net: Any, given: tuple[Any, ...]) -> tuple[list[Any], list[Any], Any]:
    """Return results in single and in double precision, and the network of the latter; the network's buffers go on, as the import's do."""
    import torch

    exact = copy.deepcopy(net).double()
    with torch.no_grad():
        like = leaves(net(*copy.deepcopy(given)))
        try:
            return like, leaves(exact(*doubled(given))), exact
        except Exception:  # it has numbers of single precision in its code
            return like, like, net


def check(entry: dict[str, Any], level: str, training: bool) -> dict[str, Any]:
    """Return what is wrong with a family, if anything, and figures."""
    import torch

    import foreshape as fs
    from foreshape.interop.torch import exporting

    with contextlib.suppress(ImportError, RuntimeError):  # a layer that fixes its sizes in its first call is made ready
        importlib.import_module("torch.nn.modules.lazy")
    sizes = all_sizes(entry)
    names = sorted(sizes) if level == "full" else [n for n in sizes if n == "batch"]
    if level == "full" and names in (["batch"], []):
        return {"skipped": True}
    net = network(entry)
    example = drawn_inputs(entry, {n: pair[0] for n, pair in sizes.items()}, 3)
    other = drawn_inputs(entry, {n: pair[1 if n in names else 0] for n, pair in sizes.items()}, 4)
    dynamic = tuple({at: d for at, d in enumerate(dims) if d in names} or None for _, dims in parsed(entry))
    if training:
        net = with_loss(without_dropout(net), example).train()
        with torch.no_grad():
            copy.deepcopy(net)(*example)
    else:
        net = net.eval()
        with torch.no_grad():
            net(*example)
    spent = [0.0]
    own = torch.export.export

    def timed(*args: Any, **keywords: Any) -> Any:
        begin = time.process_time()
        try:
            return own(*args, **keywords)
        finally:
            spent[0] += time.process_time() - begin

    decompose = exporting.decomposed

    def timed_too(*args: Any, **keywords: Any) -> Any:
        begin = time.process_time()
        try:
            return decompose(*args, **keywords)
        finally:
            spent[0] += time.process_time() - begin

    torch.export.export = timed
    exporting.decomposed = timed_too
    begin = time.process_time()
    model = fs.from_torch(copy.deepcopy(net), example, dynamic)
    whole = time.process_time() - begin
    ops = [op for block in model.program.blocks for op in block.ops]
    inside = os.path.dirname(torch.__file__) + os.sep
    lines = sum(1 for op in ops if op.call_site is not None and not op.call_site.file.startswith(inside))
    figures = {"export_s": round(spent[0], 3), "own_s": round(whole - spent[0], 3), "ops": len(ops), "lines": lines, "wrong": "", "unguarded": model.unguarded}
    for words, given in (("the example", example), ("other sizes", other)):
        figures["wrong"] = gradients(net, model, given) if training else results(net, model, given)
        if figures["wrong"]:
            figures["wrong"] = f"{words}: {figures['wrong']}"
            return figures
    if not training and names:
        small = {n: max(1, pair[0] // 3) if n in names else pair[0] for n, pair in sizes.items()}
        given = drawn_inputs(entry, small, 5)
        try:
            eager(copy.deepcopy(net), given)
        except Exception:  # eager torch takes no sizes so small
            return figures
        try:
            figures["wrong"] = results(net, model, given)
            figures["small"] = figures["wrong"] or "ok"
        except fs.ForeshapeError as error:
            figures["small"] = f"{type(error).__name__}: {error}"
    return figures


def results(net: Any, model: Any, given: tuple[Any, ...]) -> str:
    seen = leaves(model(*copy.deepcopy(given)))
    like, truth, exact = eager(net, given)
    return compared(seen, like, truth) or buffers_after(net, exact, model)


def gradients(net: Any, model: Any, given: tuple[Any, ...]) -> str:
    """Compare a step with the one of eager torch: gradients, and buffers behind it. The buffers of both go on from call to call."""
    seen = model.gradients(*copy.deepcopy(given))
    net.zero_grad(set_to_none=True)
    before = copy.deepcopy(net)
    net(*copy.deepcopy(given)).backward()
    want = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    try:
        exact = before.double()
        exact(*doubled(given)).backward()
        truth = {n: p.grad for n, p in exact.named_parameters() if p.grad is not None}
    except Exception:
        exact, truth = net, want
    scale = 1e-3 * max((float(g.abs().max()) for g in truth.values() if g.numel()), default=0.0)
    for name, grad in want.items():
        if name not in seen:
            if float(grad.abs().max()):
                return f"no gradient of {name}"
            continue
        least = max(scale, float(truth[name].abs().max()), 1e-12)
        off, own = ((x.double() - truth[name].double()).abs().max().item() / least for x in (seen[name], grad))
        if not off <= max(TOLERANCE, 4 * own):
            return f"gradient of {name}: error {off:.1e} (eager's own {own:.1e})"
    return buffers_after(net, exact, model)


def buffers_after(net: Any, exact: Any, model: Any) -> str:
    """Compare buffers after a call, in single and in double precision."""
    truth = dict(exact.named_buffers())
    for name, buffer in net.named_buffers():
        if name in model.buffers:
            off, own = error_of(model.scope.tensor(name), truth[name]), error_of(buffer, truth[name])
            if not off <= max(TOLERANCE, 4 * own):
                return f"buffer {name} after the call: error {off:.1e} (eager's own {own:.1e})"
    return ""


def with_loss(net: Any, example: tuple[Any, ...]) -> Any:
    """Return a network that gives a number; one without parameters gets a factor for its first floating input."""
    import torch
    from torch import nn

    if any(map(nn.parameter.is_lazy, net.parameters())):  # its first call makes them
        with torch.no_grad():
            net(*example)
    bare = not any(one.requires_grad for one in net.parameters()) and any(one.is_floating_point() for one in example)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = net
            self.factor = nn.Parameter(torch.ones(())) if bare else None

        def forward(self, *given: Any) -> Any:
            if self.factor is not None:
                first = next(at for at, one in enumerate(given) if one.is_floating_point())
                given = (*given[:first], given[first] * self.factor, *given[first + 1 :])
            given = [one for one in torch.utils._pytree.tree_leaves(self.network(*given)) if isinstance(one, torch.Tensor) and one.is_floating_point()]
            return sum(torch.sin(one * 1.3 + 0.2).mean() for one in given)

    return Loss()


# --- the run


def alone(function: Callable[[], dict[str, Any]], limit: int, verbose: bool) -> dict[str, Any]:
    """Return what a function gives in a process of its own, or how that ended; the limit is of processor time."""
    with tempfile.TemporaryFile("w+") as out:
        pid = os.fork()
        if pid == 0:
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            if not verbose:
                quiet = os.open(os.devnull, os.O_WRONLY)
                os.dup2(quiet, 1)
                os.dup2(quiet, 2)
            try:
                warnings.simplefilter("ignore")
                told = function()
            except BaseException as error:
                if verbose:
                    traceback.print_exc()
                told = {"wrong": f"{type(error).__name__}: {str(error).strip()[:1500]}"}
            out.write(json.dumps(told))
            out.flush()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        out.seek(0)
        text = out.read()
    return json.loads(text) if text else {"wrong": f"more than {limit} s" if os.WIFSIGNALED(status) else f"the process ended with {status}"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="names, as nn.LSTM, or patterns, as timm.*, divided by commas")
    parser.add_argument("--levels", default="batch,full")
    parser.add_argument("--grad", action="store_true", help="gradients, and buffers after a step, too")
    parser.add_argument("--only-grad", action="store_true", help="these alone")
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--out", default="", help="a file for the figures, a line of JSON for each comparison")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    import torch
    import torch._dynamo
    import torch.export

    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        import stand_ins  # noqa: F401
    chosen = [(n, e) for n, e in entries() if any(fnmatch.fnmatchcase(n, one) for one in given.only.split(",")) and "skip" not in e]
    for library in {e["library"].split(".")[0] for _, e in chosen}:
        importlib.import_module(library)
    told: list[dict[str, Any]] = []
    for name, entry in chosen:
        for training in (True,) if given.only_grad else (False, True) if given.grad else (False,):
            for level in given.levels.split(","):
                one = alone(lambda: check(entry, level, training), given.limit, given.verbose)  # noqa: B023
                if one.get("skipped"):
                    continue
                one |= {"name": name, "level": level, "grad": training, "refused": entry.get("refused", "")}
                told.append(one)
                if given.out:
                    with open(given.out, "a") as out:
                        out.write(json.dumps(one) + "\n")
                if one["wrong"] or given.verbose:
                    print(f"{'FAIL' if one['wrong'] else 'ok  '} {name} [{level}{', gradients' if training else ''}] {one['wrong'][:400]}", flush=True)
                if one.get("unguarded"):
                    print(f"note {name} [{level}] asks about sizes without a guard: {one['unguarded'][0][:300]}", flush=True)
                if one.get("small", "ok") != "ok" and not one["wrong"]:
                    print(f"note {name} [{level}] at a third of the sizes: {one['small'][:300]}", flush=True)
    return totals(told)


def totals(told: list[dict[str, Any]]) -> int:
    for training in (False, True):
        for level in ("batch", "full"):
            these = [one for one in told if one["level"] == level and one["grad"] == training]
            if these:
                print(f"{level}{', gradients' if training else ''}: {sum(not one['wrong'] for one in these)} of {len(these)}")
    small = [one["small"] for one in told if "small" in one]
    right = [one for one in told if not one["wrong"]]
    if small:
        print(f"a third of each open size: {small.count('ok')} of {len(small)}")
    if right:
        print(f"ops with the user's line: {sum(one['lines'] for one in right)} of {sum(one['ops'] for one in right)}")
        print(f"import beside torch.export: {sum(one['own_s'] for one in right) / max(sum(one['export_s'] for one in right), 1e-9):.2f}")
    return int(any(bool(one["wrong"]) != bool(one["refused"]) for one in told))


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    sys.exit(main())
