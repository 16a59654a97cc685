"""The generators of PaddleGAN, as its own code builds them (of small widths): images made larger, drawn otherwise, or moved, and video.

``NETWORKS[name]()`` gives a layer, its inputs and arrays for each size that it is run with.
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from paddle_packages import bare

NETWORKS: dict[str, Callable[[], Any]] = {}
ABSENT = {name: {"gaussian": None, "Munch": dict} for name in ("skimage", "skimage.filters", "munch", "imageio", "easydict", "natsort", "dlib")}
"""What the package imports for training alone."""


def gan(module: str) -> Any:
    """A module of PaddleGAN, without what the package itself imports for training.

    Raises:
        ModuleNotFoundError: the package, or what its networks need, is not installed.
    """
    if bare("ppgan", ["ppgan.models"], ABSENT):
        importlib.import_module("ppgan.utils.download").get_path_from_url = nothing
    return importlib.import_module(module)


def nothing(*given: Any, **named: Any) -> str:
    """A file of no parameters, in the place of those that a network would fetch."""
    import paddle

    path = str(Path(tempfile.gettempdir()) / "nothing.pdparams")
    paddle.save({}, path)
    return path


def generator(file: str, name: str, *given: Any, **more: Any) -> Any:
    module = gan("ppgan.models.generators." + file)
    return getattr(module, name)(*given, **more)


def keep(name: str, make: Callable[[], Any], opened: dict[str, tuple[int | None, ...]], *sizes: tuple[tuple[int, ...], ...], gain: float = 1.0) -> None:
    """``sizes``: of each run the dims of each input."""

    def build() -> Any:
        import paddle

        feeds = [[np.random.RandomState(7 * at + k).uniform(-1, 1, dims).astype("float32") for k, dims in enumerate(run)] for at, run in enumerate(sizes)]
        network = make()
        network.gain = gain
        return network, [paddle.static.InputSpec(list(dims), "float32", key) for key, dims in opened.items()], feeds

    NETWORKS[name] = build


def images(name: str, make: Callable[[], Any], size: tuple[int, int] = (32, 32), other: tuple[int, int] | None = (48, 32), **more: Any) -> None:
    """Of three channels: with a batch that is open, and with open images."""
    keep(name, make, {"x": (None, 3, *size)}, ((1, 3, *size),), ((2, 3, *size),), **more)
    if other:
        keep(f"{name}_any", make, {"x": (None, 3, None, None)}, ((1, 3, *size),), ((2, 3, *other),), **more)


def called(make: Callable[[], Any], call: Callable[..., Any], *parts: Callable[[], Any]) -> Callable[[], Any]:
    """A network that is called in another way than with its inputs alone; ``parts`` are further networks that are part of it."""

    def build() -> Any:
        import paddle

        networks = [make(), *(part() for part in parts)]

        class Called(paddle.nn.Layer):
            def __init__(self) -> None:
                super().__init__()
                self.networks = paddle.nn.LayerList(networks)
                self.call = call

            def forward(self, x: Any) -> Any:
                return self.call(*self.networks, x)

        class CalledWithTwo(Called):
            def forward(self, x: Any, y: Any) -> Any:
                return self.call(*self.networks, x, y)

        return CalledWithTwo() if len(networks) == 2 else Called()

    return build


images("Resnet", lambda: generator("resnet", "ResnetGenerator", 3, 3, ngf=8, n_blocks=2))
images("Resnet_batch", lambda: generator("resnet", "ResnetGenerator", 3, 3, ngf=8, n_blocks=2, norm_type="batch"))
images("MobileResnet", lambda: generator("mobile_resnet", "MobileResnetGenerator", 3, 3, ngf=8, n_blocks=2))
images("Unet", lambda: generator("unet", "UnetGenerator", 3, 3, 5, ngf=8), (32, 32), (64, 32))
images("Unet_instance", lambda: generator("unet", "UnetGenerator", 3, 3, 5, ngf=8, norm_type="instance"), (64, 64), (64, 96))
images("RRDB", lambda: generator("rrdb_net", "RRDBNet", 3, 3, 16, 2, gc=8))
images("LESRCNN", lambda: generator("lesrcnn", "LESRCNNGenerator", 4), (16, 16), (24, 16))
images("LESRCNN_3", lambda: generator("lesrcnn", "LESRCNNGenerator", 3), (16, 16), (24, 16))
images("DRN", lambda: generator("drn", "DRNGenerator", (2, 4), n_blocks=2, n_feats=8), (16, 16), (24, 16))
images("PAN", lambda: generator("pan", "PAN", 3, 3, 16, 8, 2), (16, 16), (24, 16))
images("PAN_2", lambda: generator("pan", "PAN", 3, 3, 16, 8, 2, scale=2), (16, 16), (24, 16))
images("MPR", lambda: generator("mpr", "MPRNet", n_feat=8, scale_unetfeats=4, scale_orsnetfeats=4, num_cab=2), (32, 32), (64, 32))
images("Anime", lambda: generator("generater_animegan", "AnimeGenerator"))
images("AnimeLite", lambda: generator("generater_animegan", "AnimeGeneratorLite"))
images("UGATIT", lambda: generator("resnet_ugatit", "ResnetUGATITGenerator", 3, 3, ngf=8, n_blocks=2, img_size=32), other=None)
images("UGATIT_light", lambda: generator("resnet_ugatit", "ResnetUGATITGenerator", 3, 3, ngf=8, n_blocks=2, img_size=32, light=True), (32, 32))
images("UGATITP2C", lambda: generator("resnet_ugatit_p2c", "ResnetUGATITP2CGenerator", ngf=8, img_size=32))
keep("DCGenerator", lambda: generator("dcgenerator", "DCGenerator", 16, 16, 3, ngf=8), {"x": (None, 16, 1, 1)}, ((1, 16, 1, 1),), ((3, 16, 1, 1),))
keep("DeepConv", lambda: generator("deep_conv", "DeepConvGenerator", 16, 3, size=16, ngf=8), {"z": (None, 16)}, ((1, 16),), ((3, 16),))
for _group in (False, True):
    keep(
        f"EDVR{'_predeblur' if _group else ''}",
        lambda predeblur=_group: generator("edvr", "EDVRNet", nf=16, nframes=3, groups=2, front_RBs=1, back_RBs=1, predeblur=predeblur, HR_in=predeblur),
        {"x": (1, 3, 3, 32, 32)},
        ((1, 3, 3, 32, 32),),
    )
VIDEO = {"lrs": (1, 4, 3, 64, 64)}
keep("BasicVSR", lambda: generator("basicvsr", "BasicVSRNet", mid_channels=8, num_blocks=1), VIDEO, ((1, 4, 3, 64, 64),))
keep("BasicVSR_any", lambda: generator("basicvsr", "BasicVSRNet", mid_channels=8, num_blocks=1), {"lrs": (None, 4, 3, None, None)}, ((1, 4, 3, 64, 64),))
keep("IconVSR", lambda: generator("iconvsr", "IconVSR", num_blocks=1), VIDEO, ((1, 4, 3, 64, 64),))
keep("BasicVSRPlusPlus", lambda: generator("basicvsr_plus_plus", "BasicVSRPlusPlus", mid_channels=16, num_blocks=1), VIDEO, ((1, 4, 3, 64, 64),))
keep("MSVSR", lambda: generator("msvsr", "MSVSR", mid_channels=16, deform_groups=2, stage1_groups=2), VIDEO, ((1, 4, 3, 64, 64),))
keep("Wav2Lip", lambda: generator("wav2lip", "Wav2Lip"), {"audio": (None, 1, 80, 16), "face": (None, 6, 96, 96)}, ((1, 1, 80, 16), (1, 6, 96, 96)))
keep("StarGANv2", lambda: generator("generator_starganv2", "StarGANv2Generator", img_size=64, style_dim=8, max_conv_dim=32, w_hpf=0),
     {"x": (1, 3, 64, 64), "s": (1, 8)}, ((1, 3, 64, 64), (1, 8)))  # fmt: skip
keep("LapstyleRevision", lambda: generator("generater_lapstyle", "RevisionNet"), {"x": (None, 6, None, None)}, ((1, 6, 32, 32),), ((2, 6, 48, 32),))
keep("LapstyleEncoder", lambda: generator("generater_lapstyle", "Encoder"), {"x": (None, 3, None, None)}, ((1, 3, 32, 32),))
keep("SPADE", lambda: generator("generater_photopen", "SPADEGenerator", 4, "normal", 128, 1.0, "spectralspadebatch3x3", 5, False, 4),
     {"seg": (None, 5, 128, 128)}, ((1, 5, 128, 128),))  # fmt: skip
keep(
    "StyleGANv2",
    called(
        lambda: generator("generator_styleganv2", "StyleGANv2Generator", 16, 32, 2, channel_multiplier=1),
        lambda network, z: network([z], randomize_noise=False)[0],
    ),
    {"z": (1, 32)},
    ((1, 32),),
)
keep("GPEN", called(lambda: generator("gpen", "GPEN", 16, 32, 2, channel_multiplier=1), lambda network, x: network(x)[0]), {"x": (1, 3, 16, 16)},
     ((1, 3, 16, 16),))  # fmt: skip
KEYPOINTS = {"block_expansion": 8, "num_kp": 4, "num_channels": 3, "max_features": 32, "num_blocks": 2, "temperature": 0.1, "estimate_jacobian": True,
             "scale_factor": 0.5}  # fmt: skip
MOTION = {"block_expansion": 8, "max_features": 32, "num_blocks": 2, "scale_factor": 0.5}


def keypoints(**more: Any) -> Any:
    return gan("ppgan.modules.keypoint_detector").KPDetector(**KEYPOINTS | more)


def moved(**more: Any) -> Any:
    given = {"num_channels": 3, "num_kp": 4, "block_expansion": 8, "max_features": 32, "num_down_blocks": 2, "num_bottleneck_blocks": 1,
             "estimate_occlusion_map": True, "dense_motion_params": MOTION, "estimate_jacobian": True, "inference": True}  # fmt: skip
    return generator("occlusion_aware", "OcclusionAwareGenerator", **given | more)


def move(detector: Any, network: Any, source: Any, driving: Any) -> Any:
    return network(source, kp_driving=detector(driving), kp_source=detector(source))["prediction"]


FRAMES = {"source": (1, 3, 64, 64), "driving": (1, 3, 64, 64)}
keep("KeypointDetector", keypoints, {"x": (None, 3, 64, 64)}, ((1, 3, 64, 64),))
keep("FirstOrder", called(keypoints, move, moved), FRAMES, ((1, 3, 64, 64), (1, 3, 64, 64)))
keep("FirstOrder_mobile", called(lambda: keypoints(mobile_net=True), move, lambda: moved(mobile_net=True)), FRAMES, ((1, 3, 64, 64), (1, 3, 64, 64)))
