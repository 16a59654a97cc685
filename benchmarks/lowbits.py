"""Computing in 16, 8 and 4 bits: words a second of a decoder, beside transformers and CTranslate2, and saved networks beside OpenVINO and onnxruntime.

    python benchmarks/lowbits.py [--users 1,8,32] [--words 32] [--rounds 3] [--threads 2] [--width 576] [--layers 30]
    python benchmarks/lowbits.py minilm.onnx [--sizes input_ids=8,64 ...] [--all attention_mask=1 ...] [--rounds 7] [--seconds 0.5]

Of networks each line has the time of an answer in fp32 and its ratio to that of the faster peer; in bf16 and its ratio to that of OpenVINO, which takes bf16 by
itself on such processors; and the first answer from the file on, of the network and of the compiled one, and their ratios to onnxruntime's. At most 1.0, 1.0, 2
and 1.2 are wanted, and 0.9 in the geometric mean of bf16. Peers that are not installed are left out.

Of texts the network is a Llama of SmolLM's sizes with random weights: its speed does not depend on them. All take turns; the median of the rounds counts. Each
line has a number of users, words a second, and the ratio to the fastest peer of as many bits. The last column is the share of the memory's bandwidth, measured
by reading as many bytes as the weights have. Rows are rounded to 8 bits in the lines "rounded", as CTranslate2's are. Needs transformers.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import inference
import torch
import transformers

import foreshape as fs

ENDLESS = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}


def network(width: int, layers: int) -> Any:
    """Return a Llama with heads of 64 columns, three of which share keys where they can."""
    heads = max(1, width // 64)
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=49152,
            hidden_size=width,
            intermediate_size=width * 8 // 3 // 64 * 64,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads // 3 if heads % 3 == 0 else heads,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            **ENDLESS,
        )
    ).eval()


def ctranslate2_of(module: Any, threads: int) -> dict[str, Callable[[list[list[int]], int], list[list[int]]]]:
    """Return the writers of CTranslate2 by their element types; empty without the package."""
    try:
        import ctranslate2
        from tokenizers import Tokenizer, models
    except ImportError:
        return {}
    words = [f"w{n}" for n in range(module.config.vocab_size)]
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="w0")), unk_token="w0"
    )
    tokenizer.bos_token = tokenizer.eos_token = "w1"
    writers: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        module.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for kind in ("float32", "int8"):
            out = str(Path(folder) / kind)
            ctranslate2.converters.TransformersConverter(folder).convert(out, quantization=kind)
            generator = ctranslate2.Generator(out, device="cpu", compute_type=kind, intra_threads=threads, inter_threads=1)

            def write(prompts: list[list[int]], most: int, generator: Any = generator) -> list[list[int]]:
                texts = [[words[n] for n in prompt] for prompt in prompts]
                results = generator.generate_batch(
                    texts, max_length=most, min_length=most, sampling_topk=1, include_prompt_in_result=False, end_token=[], max_batch_size=len(prompts)
                )
                return [result.sequences_ids[0] for result in results]

            writers[f"ctranslate2 {kind}"] = write
    return writers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("words", 32), ("rounds", 3), ("threads", 2), ("width", 576), ("layers", 30)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--users", default="1,8,32")
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("networks", nargs="*")
    inference.add_feeds(parser)
    options = parser.parse_args()
    if options.networks:
        networks(options)
        return
    texts(options)


def networks(options: argparse.Namespace) -> None:
    """Print the lines of saved networks."""
    installed = [name for name in ("onnxruntime", "openvino") if importlib.util.find_spec(name) is not None]
    in_half: list[float] = []
    for path in options.networks:
        feeds = inference.given_feeds(path, options)
        shapes = [{name: list(dims) for name, (dims, _, _) in feeds.items()}]
        try:
            fs.compile_model(path, shapes, out=inference.compiled_of(path))
            reason = ""
        except fs.ForeshapeError as error:
            reason = str(error).splitlines()[0]
        kinds = [("foreshape", variant) for variant in ("frozen", "bf16", *([] if reason else ["compiled"]))]
        kinds += [(name, variant) for name in installed for variant in (("fp32", "") if name == "openvino" else ("",))]
        peers = {kind: inference.Peer(kind[0], path, feeds, kind[1], options.threads) for kind in kinds}
        for _ in range(options.rounds):
            for peer in peers.values():
                peer.measure(options.seconds)

        def beside(variant: str, rivals: list[tuple[str, str]], peers: Any = peers) -> tuple[float, str]:
            """The ratio to the faster rival, and words."""
            mine = statistics.median(peers["foreshape", variant].times)
            there = {rival: statistics.median(peers[rival].times) for rival in rivals if rival in peers}
            if not there:
                return float("nan"), f"{mine:.2f} ms"
            fastest = min(there, key=lambda rival: there[rival])
            return mine / there[fastest], f"{mine:.2f} ms, {mine / there[fastest]:.2f} of {fastest[0]} ({there[fastest]:.2f})"

        name = f"{Path(path).name} {inference.dims_text(feeds)}"
        print(f"{name}: fp32 {beside('frozen', [('onnxruntime', ''), ('openvino', 'fp32')])[1]}")
        ratio, words = beside("bf16", [("openvino", "")])
        print(f"{name}: bf16 {words}")
        in_half += [ratio] if ratio == ratio else []
        for variant in ("frozen", "compiled"):
            if ("foreshape", variant) in peers:
                first = peers["foreshape", variant].ready["first"]
                by = f", {first / peers['onnxruntime', ''].ready['first']:.2f} of onnxruntime" if ("onnxruntime", "") in peers else ""
                print(f"{name}: first answer, {variant} {first * 1e3:.0f} ms{by}")
            else:
                print(f"{name}: not compiled: {reason}")
        for peer in peers.values():
            peer.close()
    if in_half:
        print(f"geometric mean in bf16: {statistics.geometric_mean(in_half):.2f}")


def texts(options: argparse.Namespace) -> None:
    """Print the lines of a decoder."""
    torch.set_num_threads(options.threads)
    module = network(options.width, options.layers)
    weights = sum(p.numel() for p in module.parameters())
    peers = ctranslate2_of(module, options.threads)

    def transformers_writes(prompts: list[list[int]], most: int) -> list[list[int]]:
        ids = torch.tensor(prompts)
        with torch.no_grad():
            return module.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, do_sample=False)[:, len(prompts[0]) :].tolist()

    peers["transformers float32"] = transformers_writes
    print(f"{weights / 1e6:.0f} million weights, {options.threads} threads; bandwidth by reading: {bandwidth():.0f} GB/s\n")
    print(f"{'users':>5}  {'':<22}{'words/s':>8}{'first, ms':>11}{'by peer':>9}{'of bandwidth':>14}")
    for users in map(int, options.users.split(",")):
        prompts = [torch.randint(2, 49000, (32,), generator=torch.Generator().manual_seed(user)).tolist() for user in range(users)]
        writers: dict[str, Any] = dict(peers)
        for name, bits in (("float32", None), ("int8", "int8"), ("int8 rounded", "int8"), ("int4", "int4"), ("int4 rounded", "int4")):
            rows = "int8" if name.endswith("rounded") else "fp32"
            model = fs.language_model(module, users=users, context=32 + options.words, threads=options.threads, weights=bits, rows=rows)
            writers[f"foreshape {name}"] = lambda prompts, most, model=model: fs.generate(model, prompts, most)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in writers}
        for write in writers.values():
            write(prompts, 4)
        for _ in range(options.rounds):
            for name, write in writers.items():
                first, whole = seconds(write, prompts, 1), seconds(write, prompts, options.words)
                times[name].append((first, max(whole - first, 1e-9)))
        speeds = {name: users * (options.words - 1) / statistics.median(rest for _, rest in found) for name, found in times.items()}
        for name, speed in speeds.items():
            kind = name.split()[1]
            bits = {"float32": 32.0, "int8": 8.5, "int4": 4.5}[kind]
            rivals = [
                other
                for peer, other in speeds.items()
                if not peer.startswith("foreshape") and (peer.endswith(kind) or (kind == "int4" and peer.endswith("int8")))
            ]
            ratio = f"{speed / max(rivals):.2f}" if rivals and name.startswith("foreshape") else ""
            share = speed / users * weights * bits / 8 / 1e9 / bandwidth()
            first = statistics.median(first for first, _ in times[name]) * 1e3
            print(f"{users:>5}  {name:<22}{speed:>8.0f}{first:>11.0f}{ratio:>9}{share:>13.0%}")
        print()


def seconds(write: Any, prompts: list[list[int]], most: int) -> float:
    begin = time.perf_counter()
    write(prompts, most)
    return time.perf_counter() - begin


def bandwidth() -> float:
    """Return the gigabytes a second of a sum over 400 MB, the best of some."""
    if not _BANDWIDTH:
        data = torch.ones(100_000_000)
        _BANDWIDTH.append(max(0.4 / seconds(lambda *_: data.sum(), [], 0) for _ in range(8)))
    return _BANDWIDTH[0]


_BANDWIDTH: list[float] = []

if __name__ == "__main__":
    main()
