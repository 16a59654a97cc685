"""In PaddlePaddle too augmentation changes each example in training, and its own clone for a test leaves them alone."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from sides import paddle_python

import foreshape as fs
from foreshape import layer

pytestmark = pytest.mark.paddle

RUN = """
import json, sys
import numpy as np
import paddle
paddle.enable_static()
folder = sys.argv[1]
names = json.load(open(folder + "/names.json"))
program = paddle.static.Program.parse_from_string(open(folder + "/main.pdmodel", "rb").read())
executor = paddle.static.Executor(paddle.CPUPlace())
feed = dict(np.load(folder + "/feed.npz"))
for kind, one in (("train", program), ("test", program.clone(for_test=True))):
    found = executor.run(one, feed=feed, fetch_list=list(names.values()))
    np.savez(folder + "/" + kind + ".npz", **dict(zip(names, found)))
"""


def test_its_own_clone_for_a_test_switches_augmentation_off(tmp_path: Path) -> None:
    image, label = layer.data("image", shape=["batch", 3, 8, 6]), layer.data("label", 10)
    mixed, shares = layer.mixup(image, label)
    same = {
        "flip": layer.random_flip(image), "crop": layer.random_crop(image, (8, 6), padding=2), "move": layer.random_translation(image, 1),
        "share": layer.random_translation(image, 0.1), "turn": layer.random_rotation(image, 20), "zoom": layer.random_zoom(image, 0.2),
        "affine": layer.random_affine(image, 10, 0.1, 0.1, "reflection"), "noise": layer.gaussian_noise(image, 0.1),
        "bright": layer.random_brightness(image, 0.2, (0, 1)), "contrast": layer.random_contrast(image, 0.3), "cut": layer.cutout(image, 3), "mixed": mixed,
    }  # fmt: skip
    made = {**same, "part": layer.random_crop(image, 5), "shares": shares}
    fs.default_main_program().save(tmp_path / "main.pdmodel")
    (tmp_path / "names.json").write_text(json.dumps({name: v.name for name, v in made.items()}))
    random = np.random.default_rng(0)
    feed = {"image": random.random((16, 3, 8, 6), "float32"), "label": np.eye(10, dtype="float32")[random.integers(10, size=16)]}
    np.savez(tmp_path / "feed.npz", **feed)
    done = subprocess.run([paddle_python(), "-c", RUN, str(tmp_path)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    train, test = np.load(tmp_path / "train.npz"), np.load(tmp_path / "test.npz")
    for name in same:
        assert train[name].shape == feed["image"].shape and not np.array_equal(train[name], feed["image"]), name
        np.testing.assert_array_equal(test[name], feed["image"], err_msg=name)
    np.testing.assert_array_equal(test["part"], feed["image"][:, :, 1:6, :5])
    np.testing.assert_array_equal(test["shares"], feed["label"])
    np.testing.assert_allclose(train["shares"].sum(1), 1, rtol=1e-5)
