"""The second half of the demonstration, a process of its own: open the saved network and classify the test images.

python -m foreshape.apps.training.classify FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import foreshape as fs
from foreshape.apps.training.demo import digits
from foreshape.errors import needs

_SHOWN = 14
_PER_ROW = 7


def classify(folder: Path, console: Any) -> float:
    """Classify the test images with the network in a folder; show some, and write digits.png and predictions.json.

    Returns:
        The fraction classified correctly.
    """
    program, feeds, fetches = fs.load_inference_model(str(folder / "digits"), scope=(scope := fs.Scope()))
    images, labels = digits()[1].values()
    (scores,) = fs.Executor().run(program, {feeds[0]: images}, fetches, scope)
    predicted, truth = scores.argmax(1), labels[:, 0]
    right = predicted == truth
    chosen = [*(~right).nonzero()[0], *right.nonzero()[0]][:_SHOWN]  # the mistakes first
    for start in range(0, len(chosen), _PER_ROW):
        row = chosen[start : start + _PER_ROW]
        captions = [f"{predicted[i]}" if right[i] else f"{predicted[i]}, is {truth[i]}" for i in row]
        console.print(drawn([images[i, 0] for i in row], captions, console.color_system in ("truecolor", "256")))
    accuracy = float(right.mean())
    console.print(f"{int(right.sum())} of {len(truth)} test images are classified rightly: {accuracy:.2%}", highlight=False)
    picture(folder / "digits.png", images[chosen, 0], predicted[chosen], truth[chosen])
    answers = {"accuracy": accuracy, "predicted": predicted.tolist(), "labels": truth.tolist()}
    (folder / "predictions.json").write_text(json.dumps(answers) + "\n", encoding="utf-8")
    return accuracy


def drawn(images: list[Any], captions: list[str], colours: bool) -> Any:
    """Return grey images ``[8, 8]`` side by side as text (rich's): each character is two pixels, one above the other."""
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    def grey(value: float) -> Color:
        return Color.from_rgb(*[round(255 * min(max(float(value), 0.0), 1.0))] * 3)

    out = Text()
    for top in range(0, images[0].shape[0], 2):
        for image in images:
            for above, below in zip(image[top], image[top + 1], strict=True):
                if colours:
                    out.append("▄", Style(color=grey(below), bgcolor=grey(above)))
                else:
                    out.append(" ▄▀█"[2 * (above > 0.5) + (below > 0.5)])
            out.append("   ")
        out.append("\n")
    for image, caption in zip(images, captions, strict=True):
        out.append(caption.ljust(image.shape[1] + 3), Style(bold=True, color="red" if "is" in caption else "green"))
    out.append("\n")
    return out


def picture(path: Path, images: Any, predicted: Any, truth: Any) -> None:
    """Write images with their predicted classes (and the true ones, if different) to a PNG."""
    with needs("a drawing"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(_PER_ROW * 1.1, 1.4 * -(-len(images) // _PER_ROW)), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.subplots(-(-len(images) // _PER_ROW), _PER_ROW, squeeze=False).reshape(-1)
    for axis in axes:
        axis.set_axis_off()
    for axis, image, guess, label in zip(axes, images, predicted, truth, strict=False):
        axis.imshow(image, cmap="gray_r", vmin=0, vmax=1)
        axis.set_title(f"{guess}" if guess == label else f"{guess}, is {label}", color="green" if guess == label else "red", fontsize=10)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    from rich.console import Console

    classify(Path(sys.argv[1]), Console(width=max(Console().width, 11 * _PER_ROW + 1)))
