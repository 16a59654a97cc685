"""Runs the recipes as their pages say, and draws the picture of each into docs/recipes.

python docs/make_recipe_pictures.py [NAME ...]

Pages about texts take the folders all-MiniLM-L6-v2 and ms-marco-MiniLM-L6-v2 of the current folder.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from count_recipe_lines import RECIPES, code_of, names
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

INK, OTHER, PALE = "#1f4e79", "#c0504d", "#b8c7d6"


def tabular_regression(found: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    axes.scatter(found["test_progression"], found["guesses"], s=18, color=INK)
    axes.axline((150, 150), slope=1, color=PALE)
    axes.axhline(found["progression"].mean(), color=OTHER, linewidth=1, label="always the mean")
    axes.set(xlabel="measured after a year", ylabel="predicted")
    axes.legend(frameon=False)


def image_classifier(found: dict[str, Any], figure: Any) -> None:
    import foreshape as fs

    rows = figure.subplots(3, 10)
    shown = found["images"][:10]
    executor = fs.Executor(seed=0)  # a run of what was described is a step of training
    seen = [executor.run(found["x"].block.program, feed={"image": shown}, fetch=[found["seen"]])[0][:, 0] for _ in range(2)]
    for row, images, title in zip(rows, [shown[:, 0], *seen], ["as it is", "one step", "another"], strict=True):
        for axes, image in zip(row, images, strict=True):
            axes.imshow(image, cmap="gray_r", vmin=0, vmax=1)
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(title)


def losses(found: dict[str, Any], figure: Any) -> None:
    axes, history = figure.subplots(), found["history"]
    steps = np.arange(1, len(history.epochs) + 1) * history.steps / len(history.epochs)
    axes.plot(np.array(history.losses) / np.log(2), color=PALE, linewidth=0.8, label="each step")
    axes.plot(steps, np.array(history.column("validation loss")) / np.log(2), color=INK, marker="o", label="other help pages")
    axes.set(xlabel="step", ylabel="bits for a letter")
    axes.legend(frameon=False)


def fine_tuning(found: dict[str, Any], figure: Any) -> None:
    import foreshape as fs

    data = {"image": found["images"][found["few"]], "label": found["classes"][found["few"]] - 5}
    held = {"image": found["images"][found["high"][50:200]], "label": found["classes"][found["high"][50:200]] - 5}
    anew = fs.train(found["cost"], data, validation=held, optimizer=fs.optimizer.Adam(0.002), metrics={"accuracy": found["accuracy"]},
                    epochs=len(found["history"].epochs), batch_size=10, scope=_anew(found), progress=False)  # fmt: skip
    axes = figure.subplots()
    axes.plot(found["history"].column("validation accuracy"), color=INK, label="with the loaded layers")
    axes.plot(anew.column("validation accuracy"), color=OTHER, label="from nothing")
    print("from nothing:", fs.evaluate({"accuracy": found["accuracy"]}, {"image": found["images"][found["held_out"]],
          "label": found["classes"][found["held_out"]] - 5}, scope=_SCOPES[-1]))  # fmt: skip
    axes.set(xlabel="epoch", ylabel="accuracy")
    axes.legend(frameon=False)


_SCOPES: list[Any] = []


def _anew(found: dict[str, Any]) -> Any:
    """A scope in which the loaded layers have drawn values, as large as a new network's."""
    import foreshape as fs

    scope, random = fs.Scope(), np.random.default_rng(0)
    for parameter in found["model"].program.parameters():
        dims = [int(d) for d in parameter.dims]
        if not parameter.name.startswith("head"):
            bound = 0.0 if len(dims) == 1 else (6 / np.prod(dims[1:])) ** 0.5
            scope[parameter.name] = random.uniform(-bound, bound, dims).astype("float32")
    _SCOPES.append(scope)
    return scope


def recommender(found: dict[str, Any], figure: Any) -> None:
    import foreshape as fs

    people, ratings, data = found["people"], found["ratings"], found["data"]
    held = ratings // 20
    counts = np.bincount(data["person"][:-held, 0], minlength=people)[data["person"][-held:, 0]]
    scores = fs.predict(found["score"], {name: data[name][-held:] for name in ("person", "film")}, batch_size=4096)
    right = ((scores > 0) == (data["liked"][-held:] > 0.5))[:, 0]
    edges = [0, 1, 5, 10, 20, 50, 100, 10**9]
    bars = [right[(counts >= low) & (counts < high)].mean() for low, high in pairwise(edges)]
    axes = figure.subplots()
    axes.bar(["none", "1-4", "5-9", "10-19", "20-49", "50-99", "more"], bars, color=INK)
    axes.axhline(0.5, color=OTHER, linewidth=1)
    axes.set(xlabel="ratings of the person that were trained on", ylabel="right answers", ylim=(0.4, 1))


def custom_loss(found: dict[str, Any], figure: Any) -> None:
    axes, held = figure.subplots(), found["held_out"]
    order = np.argsort(held["hours"][:, 0])
    axes.scatter(held["hours"], held["load"], s=5, color=PALE)
    for line, chance in enumerate(found["chances"]):
        axes.plot(held["hours"][order], found["bands"][order, line], color=INK, linewidth=1.8 if chance == 0.5 else 1)
        axes.annotate(f"{chance:.0%}", (24.2, found["bands"][order[-1], line]), annotation_clip=False)
    axes.set(xlabel="hour of the day", ylabel="load")


def notebooks(found: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    shown = axes.contourf(found["grid"][..., 0], found["grid"][..., 1], found["map_of_chances"][..., 1], levels=np.linspace(0, 1, 6), cmap="RdBu")
    axes.scatter(*found["points"][400:].T, c=found["classes"][400:], cmap="RdBu", s=14, edgecolors="black", linewidths=0.4)
    figure.colorbar(shown)


def segmentation(found: dict[str, Any], figure: Any) -> None:
    shown = [found["test_images"], found["truth"], found["answers"][:, None]]
    for row, title, images in zip(figure.subplots(3, 8), ["image", "truth", "answer"], shown, strict=True):
        colours = {"cmap": "gray"} if title == "image" else {"cmap": "tab10", "vmin": 1, "vmax": 10}
        for axes, image in zip(row, images[:, 0], strict=False):
            axes.imshow(np.ma.masked_equal(image, 0), interpolation="nearest", **colours)
            axes.set(xticks=[], yticks=[])
        row[0].set_ylabel(title)


def siamese_search(found: dict[str, Any], figure: Any) -> None:
    chosen = [np.flatnonzero(found["kinds"][found["unseen"]] == kind)[0] for kind in range(10)]
    columns = figure.subplots(6, len(chosen))
    for n, query in enumerate(chosen):
        for axes, one in zip(columns[:, n], [query, *found["found"][query]], strict=True):
            axes.imshow(found["images"][one, 0], cmap="gray_r", vmin=-0.2, vmax=1)
            axes.set(xticks=[], yticks=[])
            right = found["kinds"][found["unseen"][one]] == found["kinds"][found["unseen"][query]]
            for spine in axes.spines.values():
                spine.set(color="black" if one == query else INK if right else OTHER, linewidth=2)


def gan(found: dict[str, Any], figure: Any) -> None:
    nearest = found["digits"][found["apart"].argmin(1)]
    rows = figure.subplots(5, 12)
    shown = np.concatenate([found["pictures"][:48], nearest[36:48]])
    for axes, image in zip(rows.flat, shown, strict=True):
        axes.imshow(image.reshape(8, 8), cmap="gray_r", vmin=-1, vmax=1)
        axes.set(xticks=[], yticks=[])
    rows[0, 0].set_ylabel("drawn")
    rows[4, 0].set_ylabel("nearest")


def forecasting(found: dict[str, Any], figure: Any) -> None:
    axes, shown = figure.subplots(), slice(60, 74)
    days = np.arange(14 * 24) / 24
    axes.plot(days, found["test"][shown, : found["ahead"]].ravel(), color=PALE, label="a week before")
    axes.plot(days, found["truth"][shown].ravel(), color=OTHER, linewidth=1, label="truth")
    axes.plot(days, found["guesses"][shown].ravel(), color=INK, label="forecast")
    axes.set(xlabel="day", ylabel="load")
    axes.legend(frameon=False, ncols=3)


def ragged_text_classifier(found: dict[str, Any], figure: Any) -> None:
    taken, lengths = figure.subplots(1, 2, width_ratios=[3, 2])
    table = np.zeros([len(found["pages"])] * 2, int)
    np.add.at(table, (found["kinds"][: found["held"], 0], found["guesses"]), 1)
    taken.imshow(table, cmap="Blues")
    for row, column in np.ndindex(table.shape):
        taken.text(column, row, table[row, column] or "", ha="center", va="center", color="white" if table[row, column] > 30 else "black", fontsize=8)
    taken.set(xticks=range(len(table)), yticks=range(len(table)), yticklabels=found["pages"], xlabel="taken for", ylabel="from")
    taken.set_xticklabels(found["pages"], rotation=30, ha="right")
    lengths.hist([len(text) for text in found["texts"]], bins=np.geomspace(7, 2000, 20), color=INK)
    lengths.set(xscale="log", xlabel="words of a paragraph", ylabel="paragraphs")


def quantizing(found: dict[str, Any], figure: Any) -> None:
    scores, sizes = figure.subplots(1, 2, width_ratios=[3, 2])
    answers = found["answers"]
    scores.axline((0, 0), slope=1, color=PALE)
    scores.scatter(answers["fp32"], answers["min_max"], s=2, color=INK, linewidths=0)
    scores.set(xlabel="scores in fp32", ylabel="with 8 bits (min_max)")
    bars = sizes.barh([*answers], [os.path.getsize(f"{name}.pdiparams") / 1000 for name in answers], color=[OTHER, INK, INK, INK])
    sizes.bar_label(bars, fmt="%.0f")
    sizes.invert_yaxis()
    sizes.margins(x=0.25)
    sizes.set(xlabel="kB of values")


def generation(found: dict[str, Any], figure: Any) -> None:
    import foreshape as fs

    said, moments = found["numbers"][:8].tolist(), [perf_counter()]
    said += fs.generate(found["model"], [said], most=480, on_word=lambda text, word: moments.append(perf_counter()))[0]
    sizes, without = range(20, len(said), 20), []
    for size in sizes:
        times = []
        for _ in range(7):
            begin = perf_counter()
            fs.predict(found["following_scores"], {"read": [said[:size]]})
            times.append(perf_counter() - begin)
        without.append(1000 * np.median(times))
    each = 1000 * np.diff(moments)
    middle = [np.median(each[max(0, n - 18) : n + 2]) for n in sizes]
    print("milliseconds for the last letter, with the cache and without:", middle[-1], without[-1])
    axes = figure.subplots()
    axes.plot(sizes, without, color=OTHER, label="all letters anew")
    axes.plot(sizes, middle, color=INK, label="with the cache")
    axes.set(xlabel="letters before", ylabel="milliseconds for a letter", ylim=(0, None))
    axes.legend(frameon=False)


def serving(found: dict[str, Any], figure: Any) -> None:
    axes, answers = figure.subplots(), found["answers"]
    first = answers[0][2]
    for version, colour in (("1", OTHER), ("2", INK)):
        shown = [(begin - first, 1000 * taken) for by, _, begin, taken in answers if by == version]
        axes.scatter(*zip(*shown, strict=True), s=5, color=colour, linewidths=0, label=f"version {version}")
    axes.set(xlabel="second", ylabel="milliseconds for an answer", ylim=(0, None))
    axes.legend(frameon=False)


def text_search(found: dict[str, Any], figure: Any) -> None:
    every = found["answers"].items()
    for axes, (question, scores) in zip(figure.subplots(len(every), 1, sharex=True), every, strict=True):
        bars(axes, question, scores)


def bars(axes: Any, title: str, scores: Any) -> None:
    axes.barh([*scores][::-1], [*scores.values()][::-1], color=INK, height=0.6)
    axes.set_title(title, fontsize=9, loc="left")
    axes.tick_params(labelsize=7)


def chroma_search(found: dict[str, Any], figure: Any) -> None:
    for axes, title, answer in zip(figure.subplots(2, 1, sharex=True), ("all modules", "os"), (found["answer"], found["within"]), strict=True):
        bars(axes, title, dict(zip(answer["ids"][0], (1 - d for d in answer["distances"][0]), strict=True)))


def reranking(found: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots()
    axes.plot([*found["seconds"]], [1000 * s for s in found["seconds"].values()], color=INK, marker="o")
    axes.set(xlabel="texts that are reranked", ylabel="milliseconds for a question", xlim=(0, None), ylim=(0, None))


def near_duplicates(found: dict[str, Any], figure: Any) -> None:
    order = np.argsort(found["topics"], kind="stable")
    vectors, axes = found["vectors"][order], figure.subplots()
    figure.colorbar(axes.imshow(vectors @ vectors.T, cmap="Blues", vmin=0, vmax=1))
    axes.set_yticks(range(len(order)), [found["texts"][i] for i in order], fontsize=6)
    axes.set_xticks([])


DRAW: dict[str, Callable[[dict[str, Any], Any], None]] = {
    "tabular-regression": tabular_regression,
    "image-classifier": image_classifier,
    "character-language-model": losses,
    "fine-tuning": fine_tuning,
    "recommender": recommender,
    "custom-loss": custom_loss,
    "notebooks": notebooks,
    "serving": serving,
    "generation": generation,
    "quantizing": quantizing,
    "forecasting": forecasting,
    "ragged-text-classifier": ragged_text_classifier,
    "gan": gan,
    "segmentation": segmentation,
    "siamese-search": siamese_search,
    "text-search": text_search,
    "chroma-search": chroma_search,
    "reranking": reranking,
    "near-duplicates": near_duplicates,
}


HEIGHTS = {"image-classifier": 2.4, "siamese-search": 4.2}


def main(chosen: list[str]) -> None:
    for name in chosen or names():
        print(f"== {name}", flush=True)
        import foreshape as fs

        fs.reset()
        found: dict[str, Any] = {"__name__": name}
        here = os.getcwd()
        with tempfile.TemporaryDirectory() as folder:
            for model in map(Path, ("all-MiniLM-L6-v2", "ms-marco-MiniLM-L6-v2")):
                if model.exists():
                    Path(folder, model).symlink_to(model.resolve())
            os.chdir(folder)
            try:
                exec(compile(code_of(name), f"{name}.md", "exec"), found)
                figure = Figure(figsize=(7, HEIGHTS.get(name, 3.2)), layout="constrained", dpi=90)
                FigureCanvasAgg(figure)
                DRAW[name](found, figure)
                figure.savefig("picture.png")
                with Image.open("picture.png") as picture:
                    picture.convert("RGB").quantize(48).save(RECIPES / f"{name}.png", optimize=True)
            finally:
                os.chdir(here)


if __name__ == "__main__":
    main(sys.argv[1:])
