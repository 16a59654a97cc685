"""Networks of paddleclas (one small member of each way in which its code goes), with drawn parameters; see `paddle_networks`.

``NETWORKS[name]()`` gives a layer, its inputs and arrays for each of two sizes. Sizes of images are open where the network's own code allows
it. The package's top level and its utilities bring servers, indices and their requirements with them, so that only the networks are imported.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

Network = tuple[Any, list[Any], list[list[np.ndarray]]]
NETWORKS: dict[str, Callable[[], Network]] = {}


def package(name: str, path: str) -> None:
    """A package of which only submodules are imported."""
    made = types.ModuleType(name)
    made.__path__ = [path]
    sys.modules[name] = made


@functools.cache
def architectures() -> Any:
    """The module ``ppcls.arch`` of paddleclas.

    Raises:
        ModuleNotFoundError: paddleclas is not installed.
    """
    found = importlib.util.find_spec("paddleclas")
    if found is None or found.submodule_search_locations is None:
        raise ModuleNotFoundError("paddleclas is not installed")
    root = next(iter(found.submodule_search_locations))
    for name in ("paddleclas", "paddleclas.ppcls", "paddleclas.ppcls.utils"):
        package(name, root + name.removeprefix("paddleclas").replace(".", "/"))
    importlib.import_module("paddleclas.ppcls.utils.logger")._logger = logging.getLogger("ppcls")  # it is None until a program has set it up
    return importlib.import_module("paddleclas.ppcls.arch")


def backbone(name: str, **more: Any) -> Any:
    """A network by the name of the function that makes it, which may be one that the package does not list."""
    listed = architectures().backbone
    makers = [getattr(m, name) for n, m in sys.modules.items() if n.startswith(listed.__name__) and hasattr(m, name)]
    return makers[0](**more)


def keep(name: str, make: Callable[[], Any], sizes: tuple[tuple[int, ...], ...], opened: tuple[int | None, ...]) -> None:
    def build() -> Network:
        import paddle

        feeds = [[np.random.RandomState(at).uniform(-1, 1, dims).astype("float32")] for at, dims in enumerate(sizes)]
        return make(), [paddle.static.InputSpec(list(opened), "float32", "image")], feeds

    NETWORKS[name] = build


def named(names: str, *sizes: tuple[int, ...], opened: tuple[int | None, ...], **more: Any) -> None:
    for name in names.split():
        keep(name, functools.partial(backbone, name, **more), sizes, opened)


ANY = (None, 3, None, None)
"""Of any size: two sizes are run."""
SMALL = ((1, 3, 64, 96), (2, 3, 96, 64))
TEN = {"pretrained": False, "class_num": 10}
named(
    "ResNet18_vd PPLCNetV2_small ESNet_x0_25 PPHGNet_tiny PPHGNetV2_B0 SE_ResNeXt50_vd_32x4d Res2Net50_vd_26w_4s DPN68 MobileNetV2_x0_25 "
    "ShuffleNetV2_swish GhostNet_x0_5 RegNetX_200MF ReXNet_1_0 HarDNet39_ds VAN_B0 PeleeNet MobileNeXt_x0_35 SqueezeNet1_0 "
    "Xception41_deeplab PPLCNetV2_base_ShiTu ResNet50_metabin ResNet50_adaptive_max_pool2d ConvNeXt_tiny DenseNet121 MobileNetV4_conv_small",
    *SMALL, opened=ANY, **TEN,
)  # fmt: skip
named("DLA34 HRNet_W18_C ResNeSt50_fast_1s1x64d CSPDarkNet53 EfficientNetB0_small TinyNet_E FasterNet_T0 StarNet_S1", *SMALL, opened=ANY, pretrained=False)
FACE = (None, 3, 112, 112)
named("MicroNet_M0 MicroNet_M3", (2, 3, 64, 64), (1, 3, 64, 64), opened=(None, 3, 64, 64), **TEN)
named("MobileFaceNet AdaFace_IR_SE_50", (2, 3, 112, 112), (1, 3, 112, 112), opened=FACE)
keep("WideResNet", lambda: backbone("WideResNet", depth=10, widen_factor=2, dropout=0.0, num_classes=10, proj=True), ((2, 3, 32, 32),), (None, 3, 32, 32))
named(
    "CSWinTransformer_tiny_224 CvT_13_224 NextViT_small_224 UniFormer_small TNT_small alt_gvt_small pcpvt_small PVT_V2_B2_Linear LeViT_128S "
    "DeiT_tiny_distilled_patch16_224 SwinTransformer_tiny_patch4_window7_224 "
    "MobileNetV4_hybrid_medium DSNet_tiny MixNet_S GoogLeNet",
    (1, 3, 224, 224), opened=(None, 3, 224, 224), pretrained=False,
)  # fmt: skip
named(
    "MobileViT_XXS MobileViTV2_x0_5 MobileViTV3_XXS MobileViTV3_x0_5",
    (1, 3, 256, 256), opened=(None, 3, 256, 256), pretrained=False,
)  # fmt: skip
named("SVTR_tiny", (1, 3, 48, 320), opened=(None, 3, 48, 320), pretrained=False)


def recogniser(name: str, neck: dict[str, Any] | None, head: dict[str, Any] | None, stop: str | None = "flatten") -> Any:
    """A network whose features are compared: a backbone up to a layer, what makes features of it, and the classes that it was trained with."""
    parts: dict[str, Any] = {"Backbone": {"name": name, "pretrained": False}}
    given = {"BackboneStopLayer": stop and {"name": stop}, "Neck": neck and dict(neck), "Head": head and dict(head)}
    return architectures().RecModel(**parts, **{k: v for k, v in given.items() if v})


def recognises(name: str, *given: Any, **more: Any) -> None:
    keep(name, lambda: recogniser(*given, **more), SMALL, ANY)


MOBILE = "MobileNetV1_x0_25"
FEATURES = {"name": "FC", "embedding_size": 256, "class_num": 64}
CLASSES = {"embedding_size": 64, "class_num": 50}
recognises("ArcMargin", MOBILE, FEATURES, {"name": "ArcMargin", **CLASSES})
recognises("AdaMargin", MOBILE, FEATURES, {"name": "AdaMargin", **CLASSES})
recognises("CircleMargin", MOBILE, FEATURES, {"name": "CircleMargin", "margin": 0.25, "scale": 64, **CLASSES})
recognises("FRFNNeck", MOBILE, {"name": "FRFNNeck", "num_features": 256, "low_dim": 32}, None)
recognises("MetaBNNeck", MOBILE, {"name": "MetaBNNeck", "num_features": 256}, None)
recognises("BNNeck_Tanh", "PPLCNet_x0_25", {"name": "BNNeck", "num_features": 1280}, {"name": "FC", "embedding_size": 1280, "class_num": 20})
recognises("VehicleNeck", "ResNet50_last_stage_stride1", {"name": "VehicleNeck", "in_channels": 2048, "out_channels": 64}, None, stop="avg_pool")


def decoded() -> Any:
    network = backbone(MOBILE, pretrained=False, class_num=80)
    about = {"class_num": 80, "in_channels": 256, "query_num": 20, "embed_dim": 32, "num_heads": 4, "mlp_hidden_dim": 64}
    architectures().add_ml_decoder_head(network, about)
    return network


def distilled() -> Any:
    models = [{"Teacher": {"name": "PPLCNet_x0_25", "pretrained": False}}, {"Student": {"name": MOBILE, "pretrained": False}}]
    return architectures().DistillationModel(models=models, freeze_params_list=[True, False])


def attentive() -> Any:
    """What a student learns of its teacher's features: PaddlePaddle's own words for it are AFD."""
    keys = ["blocks[0]", "blocks[2]", "blocks[4]"]
    student = {"name": "LinearTransformStudent", "qk_dim": 16, "s_shapes": [[64, 16, 16], [128, 8, 8], [256, 4, 4]], "t_shapes": [[64, 16, 16], [128, 8, 8]]}
    models = [{"Features": {"name": "ResNet18", "pretrained": False, "return_patterns": keys}}, {"Compared": {**student, "keys": keys}}]
    return architectures().AttentionModel(models=models, freeze_params_list=[False, False])


keep("MLDecoder", decoded, SMALL, ANY)
keep("DistillationModel", distilled, SMALL, ANY)
keep("AttentionModel", attentive, ((2, 3, 64, 64), (1, 3, 64, 64)), (None, 3, 64, 64))
