"""The networks of PP-OCR, as its own code builds them from the published descriptions (of half the width where that can be said).

``NETWORKS[name]()`` gives a layer, its inputs and arrays for each of two or three sizes; ``TRAINING[name]`` a network, its loss and what it
is fed. The code is that of the package unstructured-paddleocr, which, other than the package paddleocr, has the networks in it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

NETWORKS: dict[str, Callable[[], Any]] = {}
DET = ((1, 3, 64, 96), (2, 3, 96, 64))
REC = ((2, 3, 48, 96), (1, 3, 48, 160))


def ppocr(module: str) -> Any:
    """A module of PP-OCR.

    Raises:
        ModuleNotFoundError: the package, or what it needs, is not installed.
    """
    if "ppocr" not in sys.modules:  # it takes the name of its own package away
        found = importlib.util.find_spec("unstructured_paddleocr")
        if found is None or found.submodule_search_locations is None:
            raise ModuleNotFoundError("unstructured-paddleocr is not installed")
        sys.path.append(next(iter(found.submodule_search_locations)))
    return importlib.import_module(module)


Part = dict[str, Any]


def parts(kind: str, backbone: Part | None, head: Part | None, neck: Part | None = None, transform: Part | None = None, channels: int = 3) -> Any:
    made = {"model_type": kind, "algorithm": "", "in_channels": channels, "Transform": transform, "Backbone": backbone, "Neck": neck, "Head": head}
    net = ppocr("ppocr.modeling.architectures").build_model(made)
    net.gain = 0.4 if made["Backbone"] and made["Backbone"].get("name") == "PPLCNetV3" else 1.0  # its layers are sums of many convolutions
    return net


def keep(name: str, make: Callable[[], Any], sizes: tuple[tuple[int, ...], ...], opened: tuple[int | None, ...]) -> None:
    def build() -> Any:
        import paddle

        feeds = [[np.random.RandomState(at).uniform(-1, 1, dims).astype("float32")] for at, dims in enumerate(sizes)]
        return make(), [paddle.static.InputSpec(list(opened), "float32", "image")], feeds

    NETWORKS[name] = build


ANY = (None, 3, None, None)
TALL = (None, 3, 48, None)
DB_NECK = {"name": "DBFPN", "out_channels": 32}
DB_HEAD = {"name": "DBHead", "k": 50}
CTC = {"name": "CTCHead", "fc_decay": 0.00001, "out_channels": 97}
SMALL = {"model_name": "small", "scale": 0.5}


def detector(backbone: str, neck: dict[str, Any] | None = None, **more: Any) -> Any:
    return parts("det", {"name": backbone, **more}, dict(DB_HEAD), dict(neck or DB_NECK))


LITE = {"name": "RSEFPN", "out_channels": 32, "shortcut": True}
LARGE = {"name": "LKPAN", "out_channels": 32}


def recogniser(backbone: dict[str, Any], neck: dict[str, Any]) -> Any:
    return parts("rec", backbone, dict(CTC), neck)


MOBILE = {"name": "MobileNetV3", "scale": 0.5, "model_name": "small", "small_stride": [1, 2, 2, 2]}
ENHANCE = {"name": "MobileNetV1Enhance", "scale": 0.25, "last_conv_stride": [1, 2], "last_pool_type": "avg"}
SVTR = {"name": "SequenceEncoder", "encoder_type": "svtr", "dims": 32, "depth": 2, "hidden_dims": 40, "use_guide": False}
SVTR_NET = {
    "name": "SVTRNet",
    "img_size": [32, 100],
    "out_char_num": 25,
    "out_channels": 32,
    "patch_merging": "Conv",
    "embed_dim": [16, 24, 32],
    "depth": [1, 2, 1],
    "num_heads": [2, 3, 4],
    "mixer": ["Local"] * 2 + ["Global"] * 2,
    "local_mixer": [[7, 11]] * 3,
    "prenorm": False,
    "last_stage": True,
}
keep("DB_MobileNetV3", lambda: detector("MobileNetV3", scale=0.5, model_name="large", disable_se=True), DET, ANY)
keep("DB_MobileNetV3_SE_RSEFPN", lambda: detector("MobileNetV3", LITE, scale=0.35, model_name="small"), DET, ANY)
keep("DB_PPLCNetV3", lambda: detector("PPLCNetV3", LITE, scale=0.35, det=True), DET, ANY)
keep("DB_PPLCNet", lambda: detector("PPLCNet", LITE, scale=0.5), DET, ANY)
keep("DB_ResNet_vd_LKPAN", lambda: detector("ResNet_vd", LARGE, layers=18), DET, ANY)
keep(
    "CRNN_MobileNetV3",
    lambda: recogniser(dict(MOBILE), {"name": "SequenceEncoder", "encoder_type": "rnn", "hidden_size": 24}),
    ((2, 3, 32, 96), (1, 3, 32, 160)),
    (None, 3, 32, None),
)
keep("SVTR_LCNet", lambda: recogniser(dict(ENHANCE), dict(SVTR)), REC, TALL)
keep("CRNN_PPLCNetV3", lambda: recogniser({"name": "PPLCNetV3", "scale": 0.35}, {"name": "SequenceEncoder", "encoder_type": "reshape"}), REC, TALL)
keep(
    "SVTRNet",
    lambda: parts(
        "rec",
        SVTR_NET | {"img_size": [48, 320], "out_char_num": 80},
        dict(CTC),
        {"name": "SequenceEncoder", "encoder_type": "reshape"},
    ),
    ((2, 3, 48, 320), (1, 3, 48, 320)),
    (None, 3, 48, 320),
)
keep(
    "Classifier",
    lambda: parts("cls", {"name": "MobileNetV3", "scale": 0.35, "model_name": "small"}, {"name": "ClsHead", "class_dim": 2}),
    ((2, 3, 48, 192), (1, 3, 48, 192)),
    (None, 3, 48, 192),
)
keep(
    "SLANet",
    lambda: parts(
        "table",
        {"name": "PPLCNet", "scale": 0.25, "pretrained": False, "use_ssld": False},
        {"name": "SLAHead", "hidden_size": 32, "out_channels": 30, "max_text_length": 12, "loc_reg_num": 4},
        {"name": "CSPPAN", "out_channels": 24},
    ),
    ((1, 3, 96, 96), (2, 3, 128, 96)),
    ANY,
)

Described = tuple[Any, dict[str, np.ndarray]]
TRAINING: dict[str, Callable[[], Described]] = {}


def train(name: str, make: Callable[[], Any], dims: tuple[int, ...], loss_of: Callable[[Any], Described], optimizer: Callable[[Any], Any]) -> None:
    """A network in training mode for images of these dims (numbers all, as its loss wants it), its loss, and what lowers it."""

    def describe() -> Described:
        import paddle

        image = paddle.static.data("image", list(dims), "float32")
        network = make()
        network.train()
        loss, feed = loss_of(network(image))
        optimizer(paddle.optimizer).minimize(loss)
        return loss, feed | {"image": np.random.RandomState(5).uniform(-1, 1, dims).astype("float32")}

    TRAINING[name] = describe


def fed(name: str, value: np.ndarray) -> tuple[Any, dict[str, np.ndarray]]:
    import paddle

    return paddle.static.data(name, list(value.shape), str(value.dtype)), {name: value}


def db_loss(made: Any) -> Described:
    """Of shrunken maps, thresholds and what is made of both; without the choice of the hardest points, which is no part of a program."""
    loss = ppocr("ppocr.losses.det_db_loss").DBLoss()
    loss.bce_loss = loss.dice_loss
    rng = np.random.RandomState(9)
    batch, _, height, width = made["maps"].shape
    labels, feed = [], {}
    for name in ("threshold_map", "threshold_mask", "shrink_map", "shrink_mask"):
        drawn = rng.uniform(0, 1, (batch, height, width))
        variable, value = fed(name, (drawn if name == "threshold_map" else (drawn > 0.4)).astype("float32"))
        labels.append(variable)
        feed |= value
    return loss(made, [None, *labels])["loss"], feed


def ctc_loss(made: Any) -> Described:
    rng = np.random.RandomState(9)
    labels, one = fed("labels", rng.randint(1, 97, (made.shape[0], 5)).astype("int32"))
    lengths, two = fed("lengths", rng.randint(2, 6, made.shape[0]).astype("int64"))
    return ppocr("ppocr.losses.rec_ctc_loss").CTCLoss()(made, [None, labels, lengths])["loss"], one | two


def class_loss(made: Any) -> Described:
    label, feed = fed("label", np.random.RandomState(9).randint(0, 2, made.shape[0]).astype("int64"))
    return ppocr("ppocr.losses.cls_loss").ClsLoss()(made, [None, label])["loss"], feed


def svtr(drop: float) -> Any:
    return recogniser(dict(ENHANCE), dict(SVTR, drop_rate=drop, attn_drop_rate=drop))


train(
    "DB_MobileNetV3_Adam",
    lambda: detector("MobileNetV3", scale=0.5, model_name="small", disable_se=True),
    (2, 3, 64, 64),
    db_loss,
    lambda o: o.Adam(0.001, epsilon=1e-5, weight_decay=5e-5),
)
train("DB_PPLCNetV3_Momentum", lambda: detector("PPLCNetV3", LITE, scale=0.35, det=True), (2, 3, 64, 64), db_loss, lambda o: o.Momentum(0.005, 0.9))
train(
    "CRNN_MobileNetV3_Adam",
    lambda: recogniser(dict(MOBILE), {"name": "SequenceEncoder", "encoder_type": "rnn", "hidden_size": 24}),
    (3, 3, 32, 96),
    ctc_loss,
    lambda o: o.Adam(0.0005, epsilon=1e-5),
)
train("SVTR_LCNet_AdamW", lambda: svtr(0.0), (3, 3, 48, 96), ctc_loss, lambda o: o.AdamW(0.001, epsilon=1e-5, weight_decay=0.05))
train("SVTR_LCNet_dropout", lambda: svtr(0.1), (3, 3, 48, 96), ctc_loss, lambda o: o.AdamW(0.001, epsilon=1e-5, weight_decay=0.05))
train(
    "Classifier_Momentum",
    lambda: parts("cls", {"name": "MobileNetV3", "scale": 0.35, "model_name": "small"}, {"name": "ClsHead", "class_dim": 2}),
    (4, 3, 48, 96),
    class_loss,
    lambda o: o.Momentum(0.01, 0.9),
)

import paddle_readers  # noqa: E402,F401
