"""Mutated and crafted files for every reader: programs, parameters, safetensors, .npy, .npz, checkpoints with a right checksum and without, jobs.

    python tests/fuzz/files.py --seconds 60 [--seed 1] [--only NUMBER] [--family NAME]

Each case is drawn from the seed and its number, so that ``--seed S --only N`` runs it again. The cases run in a process of their own, and each
is written to a file before it is read: what kills the process is found too. Ends with status 1 at the first case that comes to anything
but a value or one of the package's errors, that takes much memory or time, or that leaves something half done.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import numpy as np  # noqa: E402
from mutation import mutate  # noqa: E402
from support import crafted_checkpoints, crafted_gguf, crafted_headers, crafted_pir, crafted_programs, onnx_cases  # noqa: E402
from support.commanded import call  # noqa: E402
from support.messages import good  # noqa: E402
from support.planned_networks import stack  # noqa: E402
from support.survival import checked_words, survive  # noqa: E402

import foreshape as fs  # noqa: E402
from foreshape.apps.cli.command_options import PlanOptions  # noqa: E402
from foreshape.apps.cli.ranks import print_ranks_plan  # noqa: E402
from foreshape.apps.tokenization.prompt_tokenizer import PromptTokenizer, chat_template_of  # noqa: E402
from foreshape.apps.training.checkpoint import container  # noqa: E402
from foreshape.apps.workers import Job  # noqa: E402
from foreshape.compiler.cost import calibration, measured  # noqa: E402
from foreshape.core.spec import UNSIGNED  # noqa: E402
from foreshape.interop import load_safetensors, read_parameters, write_parameters  # noqa: E402
from foreshape.interop.gguf_file import GgufFile  # noqa: E402
from foreshape.interop.npy_file import read_array  # noqa: E402

CORPUS = HERE.parent / "corpus"
MOST = 12_000
"""Larger files only make it slower."""
SECONDS, MIB = 10.0, 300
"""What one case may take, of processor time and of memory."""
Made = tuple[str, bytes]
"""A file's ending and bytes."""


class Violation(AssertionError):
    """A reader did what none may do."""


# --- what is read


@cache
def programs() -> list[bytes]:
    """Small programs of the corpus, and one that is always there."""
    files = sorted(CORPUS.glob("*/*.pdmodel"), key=lambda p: (p.stat().st_size, str(p)))
    return [good(), *(p.read_bytes() for p in files if p.stat().st_size <= MOST)]


@cache
def onnx_models() -> list[bytes]:
    return [case["model"].tobytes() for case in onnx_cases.cases().values()]


NAMES = ("a", "b/c", "flag", "n", "w")


@cache
def parameters() -> list[bytes]:
    rng = np.random.RandomState(1)
    values = {"a": rng.rand(2, 3).astype("f4"), "b/c": rng.rand(3), "flag": np.array([True, False]), "n": np.arange(4), "w": np.zeros((0, 4), "f4")}
    with tempfile.TemporaryDirectory() as folder:
        write_parameters(Path(folder) / "p", values)
        return [(Path(folder) / "p").read_bytes()]


@cache
def safetensors() -> list[bytes]:
    return [crafted_headers.safetensors(json.dumps(crafted_headers.GOOD), crafted_headers.DATA), *(data for _, data in crafted_headers.wrong_headers())][:40]


@cache
def arrays() -> list[bytes]:
    out: list[bytes] = []
    for of in ("f4", "i8", "?", ">u2", "f8"):
        file = io.BytesIO()
        np.save(file, np.arange(6).reshape(2, 3).astype(of))
        out.append(file.getvalue())
    return out


@cache
def archives() -> list[bytes]:
    return [data for _, data in crafted_headers.archives() if len(data) < MOST]


@cache
def checkpoint() -> crafted_checkpoints.Whole:
    with tempfile.TemporaryDirectory() as folder:
        return crafted_checkpoints.whole(Path(folder))


@cache
def checkpoint_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        container.write(Path(folder) / "c", checkpoint().tensors, checkpoint().facts)
        return (Path(folder) / "c").read_bytes()


def with_checksum(data: bytes) -> bytes:
    """The same bytes with the checksum that they have, wherever its place is now."""
    at = data.find(b'"checksum":"') + 12
    if at < 12 or at + 64 > len(data):
        return data
    zeros = data[:at] + b"0" * 64 + data[at + 64 :]
    return data[:at] + hashlib.sha256(zeros).hexdigest().encode() + data[at + 64 :]


def crafted_checkpoint(rng: random.Random) -> bytes:
    _, tensors, facts = crafted_checkpoints.any_wrong(checkpoint(), rng)
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(fs.FormatError):  # a name that no file can have
        container.write(Path(folder) / "c", tensors, facts)
        return (Path(folder) / "c").read_bytes()
    return b""


@cache
def jobs() -> list[bytes]:
    with fs.program_guard(fs.Program(), fs.Program()):
        x = fs.layer.data("x", input_size=4)
        cost = fs.layer.square(fs.layer.fc(x, 1))
        return [fs.job(cost, {"x": "x.npy"}, validation={"x": "v.npy"}, metrics={"m": cost}, checkpoint="c", model=("m", [x], [cost])).to_bytes()]


def crafted_job(rng: random.Random) -> bytes:
    """A job whose document is changed in its bytes, with sizes that are right."""
    begin, data = len(b"foreshape job\n"), jobs()[0]
    words, main, startup = struct.unpack_from("<QQQ", data, begin)
    document = mutate(data[begin + 24 : begin + 24 + words], [data[begin + 24 : begin + 24 + words]], rng)
    return data[:begin] + struct.pack("<QQQ", len(document), main, startup) + document + data[begin + 24 + words :]


@cache
def timed() -> tuple[dict[str, Any], dict[str, Any], Any]:
    """A calibration and a measured step as JSON, and a small program that is planned with them."""
    product = [[float(n), float(n), float(n), 1e-11 * n**3] for n in (1, 64, 4096)]
    kinds = {"product addmm mm onednn": product, "relu": [[10.0, 1e-6]], "elementwise_add": [[8.0, 1e-9], [64.0, 1e-8]]}
    kernels = {"step": 1e-5, "among": 1e-7, "kinds": kinds, "memory": [[10, 1e-9], [1000, 1e-7]]}
    message = {"type": "c_allreduce_sum", "ring": 0, "bytes": 400, "started": 0.1, "waited": 0.2, "done": 0.2, "came": 0.3}
    step = {"format": measured.FORMAT, "step": 7, "steps": 20, "ranks": [{"seconds": 0.5, "messages": [message]}] * 2}
    return {"format": calibration.FORMAT, "machine": "m", "threads": {"1": kernels, "2": kernels}}, step, stack()


def crafted_json(good: dict[str, Any], rng: random.Random) -> bytes:
    """A document with a few things in it that are wrong, or some bytes."""
    found: Any = good
    if rng.random() < 0.3:
        data = json.dumps(good).encode()
        return mutate(data, [data], rng)
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.choice(list(crafted_checkpoints.places(found)))
        value = rng.choice((*crafted_checkpoints.WRONG.values(), [[1.0, 1e-6]], [[2.0, 3.0, 1e-6]], [[1e17, 1e-300]], [[1e-9, 1e17], [1e-9, 1e-9]]))
        found = rng.choice((crafted_checkpoints.replaced, crafted_checkpoints.with_more))(found, at, value)
    return json.dumps(found).encode()


@cache
def gguf_files() -> list[bytes]:
    return crafted_gguf.networks()


MAKERS: dict[str, Callable[[random.Random], Made]] = {
    "programs": lambda rng: ("pdmodel", mutate(rng.choice(programs()), programs(), rng)),
    "programs, crafted": lambda rng: ("crafted", crafted_programs.crafted(rng)),
    "programs of PaddlePaddle 3": lambda rng: ("pdmodel", mutate(rng.choice(crafted_pir.texts()), crafted_pir.texts(), rng)),
    "programs of PaddlePaddle 3, crafted": lambda rng: ("json", crafted_pir.crafted(rng)),
    "models of ONNX": lambda rng: ("onnx", mutate(rng.choice(onnx_models()), onnx_models(), rng)),
    "parameters": lambda rng: ("pdiparams", mutate(rng.choice(parameters()), parameters(), rng)),
    "safetensors": lambda rng: ("tensors", mutate(rng.choice(safetensors()), safetensors(), rng)),
    "safetensors headers": lambda rng: ("tensors", crafted_headers.any_header(rng)),
    "npy": lambda rng: ("npy", mutate(rng.choice(arrays()), arrays(), rng)),
    "npy headers": lambda rng: ("npy", crafted_headers.any_array(rng)),
    "npz": lambda rng: ("npz", mutate(rng.choice(archives()), archives(), rng)),
    "checkpoints": lambda rng: ("checkpoint", mutate(checkpoint_bytes(), [checkpoint_bytes(), *safetensors()], rng)),
    "checkpoints, right checksum": lambda rng: ("checkpoint", with_checksum(mutate(checkpoint_bytes(), [checkpoint_bytes()], rng))),
    "checkpoints, crafted": lambda rng: ("checkpoint", crafted_checkpoint(rng)),
    "calibrations": lambda rng: ("calibration", crafted_json(timed()[0], rng)),
    "measured steps": lambda rng: ("measured", crafted_json(timed()[1], rng)),
    "GGUF": lambda rng: ("gguf", mutate(rng.choice(gguf_files()), gguf_files(), rng)),
    "GGUF headers": lambda rng: ("gguf", crafted_gguf.crafted(rng, gguf_files())),
    "jobs": lambda rng: ("job", mutate(jobs()[0], jobs(), rng)),
    "jobs, right sizes": lambda rng: ("job", crafted_job(rng)),
}


# --- how it is read: "read" or "refused"


def read_program(path: Path) -> str:
    out = survive(path.read_bytes())
    return "refused" if out.refused is not None else "read, with errors" if out.errors else "read"


def read_onnx(path: Path) -> str:
    """What comes of a model of another format is looked at as it is saved: it has names that its symbols had not, when they were made."""
    try:
        program = fs.load_program(path.read_bytes())
    except fs.FormatError as error:
        checked_words(error)
        return "refused"
    try:
        data = program.to_bytes()
    except fs.FormatError as error:
        assert any(v.dtype in UNSIGNED for v in program.all_variables()), error
        return "read, with elements that no .pdmodel has"
    return "read, with errors" if survive(data).errors else "read"


def use_program(path: Path) -> str:
    """Whatever looks at it, the commands too, and a run."""

    def commands() -> None:
        page = path.with_suffix(".html")
        shown = ("show", "show --json", "show --summary", "show --tail")
        for words in (*shown, "check --guards", "check --json", "plan --batch 2", f"report --html {page}", "run"):
            name, *options = words.split(" ")
            call(name, path, *options)
        page.unlink(missing_ok=True)

    return crafted_programs.use(path.read_bytes(), commands)


def read_checkpoint(path: Path) -> str:
    """Go on from it, with both words."""
    folder = path.parent / "run"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / "step-000000005.safetensors").write_bytes(path.read_bytes())
    for word in ("refuse", "take"):
        scope, executor = fs.Scope(), fs.Executor(seed=1)
        before = executor.random_state(), np.random.get_state()[1].copy(), random.getstate()
        try:
            with contextlib.redirect_stderr(io.StringIO()):
                crafted_checkpoints.train(folder, scope, executor, on_change=word)
        except (fs.FormatError, fs.ExecutionError) as error:
            checked_words(error)
            if " at step " in str(error):  # numbers that are right, and whose loss is none
                return "read"
            unchanged = (executor.random_state() == before[0]).all() and (np.random.get_state()[1] == before[1]).all() and random.getstate() == before[2]
            if scope.names() or not unchanged:
                raise Violation(f"refused, and yet something has changed: {error}") from error
            continue
        return "read"
    return "refused"


def read_timed(path: Path, **given: Path) -> str:
    """What a plan of ranks makes of times."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            device = str(given.get("device", "1TFLOPS:100GB/s"))
            print_ranks_plan(timed()[2], PlanOptions(ranks=2, batch=64, device=device, json=True, measured=given.get("measured")), {})
    except (fs.FormatError, fs.SchemaError, fs.MemoryPlanError) as error:
        checked_words(error)
        return "refused"
    return "read"


def read_job(path: Path) -> str:
    """What is read of it says the same again."""
    try:
        found = Job.load(path)
    except fs.FormatError as error:
        checked_words(error)
        return "refused"
    if Job.from_bytes(found.to_bytes()) != found:
        raise Violation("a job that is another one after its journey")
    return "read"


def read_tensors(path: Path) -> str:
    scope = fs.Scope()
    try:
        load_safetensors(path, scope)
    except fs.FormatError as error:
        checked_words(error)
        if scope.names():
            raise Violation(f"refused, and yet the scope holds {scope.names()}: {error}") from error
        return "refused"
    for name in scope.names():
        float(scope.tensor(name).double().sum())  # every number of it can be read
    return "read"


def plainly(read: Callable[[Path], Any]) -> Callable[[Path], str]:
    """A reader that gives arrays."""

    def reading(path: Path) -> str:
        try:
            found = read(path)
        except fs.FormatError as error:
            checked_words(error)
            return "refused"
        for array in found.values() if isinstance(found, dict) else [found]:
            if array.nbytes > 4 * path.stat().st_size + 64:
                raise Violation(f"{path.stat().st_size} bytes gave {array.nbytes}")
            np.sum(array)
        return "read"

    return reading


def read_and_run(path: Path) -> str:
    """All that is done with a program, but for the commands."""
    survive(path.read_bytes())
    return crafted_programs.use(path.read_bytes(), lambda: None)


def read_gguf(path: Path) -> str:
    """The network, and each tensor, fact and word of it: what one refuses another may read."""
    out = "refused"
    try:
        file = GgufFile(path)
        for name in file.tensors:
            file.floats(name)
        for name in (*file.facts, *file.texts):
            file.fact_bytes(name)
        out = "read, but no network"
        PromptTokenizer(path).words(" a b<s>€")
        chat_template_of(path)
    except fs.ForeshapeError as error:
        checked_words(error)
    try:
        fs.language_model(path, users=1, context=8)
    except fs.ForeshapeError as error:
        checked_words(error)
        return out
    return "read"


READERS: dict[str, Callable[[Path], str]] = {
    "json": read_and_run,
    "onnx": read_onnx,
    "pdmodel": read_program,
    "crafted": use_program,
    "pdiparams": plainly(lambda path: read_parameters(path, NAMES)),
    "tensors": read_tensors,
    "npy": plainly(read_array),
    "npz": plainly(read_array),
    "checkpoint": read_checkpoint,
    "calibration": lambda path: read_timed(path, device=path),
    "measured": lambda path: read_timed(path, measured=path),
    "job": read_job,
    "gguf": read_gguf,
}


# --- the runs


def run(
    seconds: float, seed: int, most: int | None = None, folder: Path | None = None, families: list[str] | None = None, only: int | None = None
) -> Counter[str]:
    """Cases for some seconds, or until there are ``most``: how many of each family ended how.

    Raises:
        Violation: the first case that no reader may come to; its file, named in the message, is left in ``folder``.
    """
    warnings.simplefilter("ignore", fs.ForeshapeWarning)  # of newer versions of a format
    place = folder if folder is not None else Path(tempfile.mkdtemp(prefix="fuzz-"))
    counts: Counter[str] = Counter()
    names = families or list(MAKERS)
    until = time.monotonic() + seconds
    number = 0 if only is None else only
    while time.monotonic() < until and (most is None or counts.total() < most):
        rng = random.Random(f"{seed} {number}")
        family = rng.choice(names)
        ending, data = MAKERS[family](rng)
        path = place / f"case-{seed}-{number}.{ending}"
        path.write_bytes(data)
        started, held = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            how = READERS[ending](path)
        except Exception as error:
            raise Violation(f"{family}, {path} (--seed {seed} --only {number}):\n{traceback.format_exc()}") from error
        took, more = time.process_time() - started, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - held) / 1024
        if took > SECONDS or (more > MIB and number > 50):
            raise Violation(f"{family}, {path} (--seed {seed} --only {number}): {took:.1f} s, {more:.0f} MiB more than before")
        path.unlink()
        counts[f"{family}: {how}"] += 1
        if only is not None:
            break
        number += 1
    return counts


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--seed", type=int, default=int(time.time()))
    arguments.add_argument("--only", type=int, help="run this case alone")
    arguments.add_argument("--family", action="append", choices=list(MAKERS))
    arguments.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.inside is not None:
        try:
            counts = run(given.seconds, given.seed, None, given.inside, given.family, given.only)
        except Violation as violation:
            print(violation, file=sys.stderr)
            return 1
        for what, count in sorted(counts.items()):
            print(f"{count:8} {what}")
        print(f"seed {given.seed}: {counts.total()} cases, none of them wrong")
        return 0
    folder = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
    done = subprocess.run([sys.executable, "-X", "faulthandler", __file__, *sys.argv[1:], "--seed", str(given.seed), "--inside", str(folder)], check=False)
    if done.returncode:
        print(f"seed {given.seed}: ended with {done.returncode}; the case: {', '.join(map(str, sorted(folder.glob('case-*')))) or 'none'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
