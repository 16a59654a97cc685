"""The networks of PaddleSeg, as its own code builds them: those that take any image (``_any``) with open sizes, and all with a size that is fixed.

``NETWORKS[name]()`` gives a layer, its inputs and arrays for each of two sizes. As PaddleSeg's export does, a network's first results are what it
gives, and, of ``_softmax`` and ``_argmax``, what is made of them.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from paddle_packages import bare

NETWORKS: dict[str, Callable[[], Any]] = {}
CLASSES = 5
ABSENT = {name: {"LogWriter": None, "metrics": None} for name in ("visualdl", "sklearn", "sklearn.metrics", "pycocotools", "filelock")}
"""What the package imports for training alone."""


def seg(module: str) -> Any:
    """A module of PaddleSeg, without what the package itself imports for training.

    Raises:
        ModuleNotFoundError: the package, or what its networks need, is not installed.
    """
    bare("paddleseg", ["paddleseg.core"], ABSENT)
    return importlib.import_module(module)


def models() -> Any:
    return seg("paddleseg.models")


def backbone(name: str, **more: Any) -> Any:
    made = getattr(models(), name)
    if name in ("VisionTransformer", "CAE"):
        made.init_weight = lambda self: None  # it reads a file of parameters, and cannot do without
    return made(**more)


def first(network: Any, then: str | None) -> Any:
    """A network's results, the way it is exported: as PaddleSeg's wrapper makes them."""
    import paddle

    class Exported(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.network = network
            self.then = then

        def forward(self, image: Any) -> Any:
            results = self.network(image)
            if self.then == "softmax":
                return [paddle.nn.functional.softmax(r, axis=1) for r in results]
            return [paddle.argmax(r, axis=1, dtype="int32") for r in results]

    return Exported()


def keep(name: str, make: Callable[[], Any], sizes: tuple[tuple[int, ...], ...], opened: tuple[int | None, ...], then: str | None = None) -> None:
    def build() -> Any:
        import paddle

        feeds = [[np.random.RandomState(at).uniform(-1, 1, dims).astype("float32")] for at, dims in enumerate(sizes)]
        network = make()
        return first(network, then) if then else network, [paddle.static.InputSpec(list(opened), "float32", "x")], feeds

    NETWORKS[name] = build


def kept(name: str, make: Callable[[], Any], size: tuple[int, int] = (64, 64), other: tuple[int, int] | None = (96, 64)) -> None:
    """With a batch that is open, with all sizes fixed, and (but where there is no other size) with open images."""
    keep(name, make, ((1, 3, *size), (2, 3, *size)), (None, 3, *size))
    keep(f"{name}_fixed", make, ((1, 3, *size),), (1, 3, *size))
    if other:
        keep(f"{name}_any", make, ((1, 3, *size), (2, 3, *other)), (None, 3, None, None))


def on(network: str, under: str = "ResNet18_vd", given: dict[str, Any] | None = None, **more: Any) -> Callable[[], Any]:
    """A network on a backbone."""
    return lambda: getattr(models(), network)(num_classes=CLASSES, backbone=backbone(under, **given or {}), **more)


def alone(network: str, **more: Any) -> Callable[[], Any]:
    return lambda: getattr(models(), network)(num_classes=CLASSES, **more)


SMALL = (64, 64)
# Networks that have backbones of their own.
for _name in ("AttentionUNet", "BiSeNetV2", "ENet", "ESPNetV2", "FastSCNN", "HarDNet", "PPHumanSegLite", "SegNet", "SINet", "U2Netp", "UNet"):
    kept(_name, alone(_name), SMALL if _name != "BiSeNetV2" else (128, 128), (128, 64) if _name != "BiSeNetV2" else (128, 192))
kept("ESPNetV1", lambda: models().ESPNetV1(num_classes=19), SMALL, (128, 64))
kept("DDRNet_23", alone("DDRNet_23"), (64, 64), (128, 64))
kept("RTFormer", alone("RTFormer", base_channels=16), (64, 64), (128, 64))
kept("LPSNet", alone("LPSNet", depths=[1, 3, 3, 10, 10], channels=[8, 24, 48, 96, 96], scale_ratios=[1.0, 0.25]), (64, 64), (128, 64))
kept("UNet_deconv", alone("UNet", use_deconv=True), SMALL, (96, 64))
kept("UNetPlusPlus", alone("UNetPlusPlus"), (32, 32), (48, 32))
kept("UNetPlusPlus_deconv", alone("UNetPlusPlus", use_deconv=True), (32, 32), (48, 32))
kept("UNet3Plus", alone("UNet3Plus"), (32, 32), (48, 32))
kept("UNet3Plus_CGM", alone("UNet3Plus", is_CGM=True), (32, 32), (48, 32))

# Heads over a residual network.
kept("ANN", on("ANN", inter_channels=64, key_value_channels=32))
kept("BiseNetV1", on("BiseNetV1"))
kept("CCNet", on("CCNet", recurrence=2))
kept("DANet", on("DANet", backbone_indices=(2, 3)))
kept("DecoupledSegNet", on("DecoupledSegNet"))
kept("DeepLabV3", on("DeepLabV3"))
kept("DeepLabV3P", on("DeepLabV3P"))
kept("DMNet", on("DMNet", mid_channels=64), other=None)
kept("DNLNet", on("DNLNet", "ResNet50_vd"))
kept("DNLNet_dot", on("DNLNet", "ResNet50_vd", mode="dot_product", use_scale=False))
kept("EMANet", on("EMANet", "ResNet50_vd", ema_channels=64, gc_channels=32, num_bases=16))
kept("ENCNet", on("ENCNet", mid_channels=64))
kept("FastFCN", on("FastFCN", mid_channels=64))
kept("GCNet", on("GCNet", gc_channels=64))
kept("GINet", on("GINet", "ResNet50_vd"))
kept("GloRe", on("GloRe", "ResNet50_vd"))
kept("GSCNN", on("GSCNN"))
kept("ISANet", on("ISANet", isa_channels=32))
kept("OCRNet", on("OCRNet", backbone_indices=(2, 3), ocr_mid_channels=64, ocr_key_channels=32))
kept("PFPNNet", on("PFPNNet", backbone_indices=[0, 1, 2, 3], channels=64, fpn_inplanes=[64, 128, 256, 512]))
kept("PointRend", on("PointRend", backbone_indices=[0, 1, 2, 3], fpn_inplanes=[64, 128, 256, 512], fpn_outplanes=256, point_subdivision_num_points=64,
                     PFN_in_channels=[256] * 4))  # fmt: skip
kept("PSPNet", on("PSPNet", pp_out_channels=64))
kept("SFNet", on("SFNet", backbone_indices=[0, 1, 2, 3]))
kept("UPerNet", on("UPerNet", backbone_indices=[0, 1, 2, 3], channels=64))
KNET = {
    "kernel_update_head_params": {
        "num_classes": CLASSES, "num_ffn_fcs": 2, "num_heads": 4, "num_mask_fcs": 1, "feedforward_channels": 64, "in_channels": 64, "out_channels": 64,
        "dropout": 0.0, "conv_kernel_size": 1,
        "kernel_updator_cfg": {"in_channels": 64, "feat_channels": 64, "out_channels": 64, "input_feat_shape": 3},
    },
}  # fmt: skip


def knet(head: str, **more: Any) -> Callable[[], Any]:
    def make() -> Any:
        generate = {"head_layer": head, "num_classes": CLASSES, **more}
        return on("KNet", backbone_indices=[0, 1, 2, 3], kernel_generate_head_params=generate, **KNET)()

    return make


kept("KNet_UPer", knet("UPerKernelHead", channels=64, fpn_inplanes=[64, 128, 256, 512]))

# Other backbones.
kept("FCN_HRNet", on("FCN", "HRNet_W18_Small_V1"))
kept("FCN_UHRNet", on("FCN", "UHRNet_W18_Small"))
kept("FCN_LiteHRNet", on("FCN", "Lite_HRNet_18"))
kept("FCN_LiteHRNet_naive", on("FCN", "Lite_HRNet_naive"))
kept("FCN_HRFormer", on("FCN", "HRFormer_small", {"stage3_num_modules": 1, "stage4_num_modules": 1}))
kept("HRNetContrast", on("HRNetW48Contrast", "HRNet_W18_Small_V1", bb_channels=240, drop_prob=0.1, proj_dim=32))
kept("MscaleOCRNet", on("MscaleOCRNet", "HRNet_W18_Small_V1"), (64, 64), (64, 128))
kept("DeepLabV3P_Xception", on("DeepLabV3P", "Xception41_deeplab", backbone_indices=(0, 1)))
kept("DeepLabV3P_MobileNetV2", on("DeepLabV3P", "MobileNetV2_x0_25"))
kept("DeepLabV3P_GhostNet", on("DeepLabV3P", "GhostNet_x0_5", backbone_indices=(0, 3)))
kept("PortraitNet", on("PortraitNet", "MobileNetV2_x1_0"))
kept("PortraitNet_edge", on("PortraitNet", "MobileNetV2_x1_0", add_edge=True))
kept("LRASPP", on("LRASPP", "MobileNetV3_small_x0_35"))
kept("LRASPP_pool", on("LRASPP", "MobileNetV3_small_x0_35", use_gap=False), (1024, 1024), None)
kept("MobileSeg", on("MobileSeg", "MobileNetV3_small_x0_35"))
kept("MobileSeg_ShuffleNet", on("MobileSeg", "ShuffleNetV2_x0_25"))
kept("MobileSeg_GhostNet", on("MobileSeg", "GhostNet_x0_5"))
kept("MobileSeg_LiteHRNet", on("MobileSeg", "Lite_HRNet_naive", backbone_indices=[0, 1, 2]))
for _arm in ("UAFM_SpAtten", "UAFM_SpAtten_S", "UAFM_ChAtten", "UAFM_ChAtten_S", "UAFM"):
    kept(f"PPLiteSeg_{_arm}", on("PPLiteSeg", "STDC1", arm_type=_arm), (64, 64), (128, 64))
kept("STDCSeg", on("STDCSeg", "STDC1"))
kept("STDCSeg_last", on("STDCSeg", "STDC2", use_conv_last=True, use_boundary_2=True))
kept("SegFormer", on("SegFormer", "MixVisionTransformer_B0", embedding_dim=64))
kept("TopFormer", on("TopFormer", "TopTransformer_Tiny", {"lr_mult": 0.1}), (64, 64), (128, 64))
kept("PPMobileSeg", on("PPMobileSeg", "MobileSeg_Tiny", {"inj_type": "AAM", "out_feat_chs": [32, 64, 128], "out_channels": 64}), (64, 64), (128, 64))
kept("PPMobileSeg_valid", on("PPMobileSeg", "MobileSeg_Tiny", {"inj_type": "AAMSx8", "out_feat_chs": [32, 64, 128], "out_channels": 64}, upsample="valid"),
     (64, 64), (128, 64))  # fmt: skip
HAM = {"channels": 64, "ham_channels": 64, "num_groups": 8, "ham_kwargs": {"MD_R": 8}}
kept("SegNeXt", on("SegNeXt", "MSCAN_T", decoder_cfg=HAM))
kept("UPerNet_Swin", on("UPerNet", "SwinTransformer_tiny_patch4_window7_224", backbone_indices=[0, 1, 2, 3], channels=64))
kept("MaskFormer", on("MaskFormer", "SwinTransformer_tiny_patch4_window7_224_maskformer"))
VIT = {"img_size": 64, "embed_dim": 48, "depth": 4, "num_heads": 3, "qkv_bias": True}
for _head in ("naive", "pup", "mla"):
    kept(f"SETR_{_head}", on("SegmentationTransformer", "VisionTransformer", VIT, backbone_indices=(0, 1, 2, 3), head=_head))
kept("LinearSegmenter", on("LinearSegmenter", "VisionTransformer", VIT | {"final_norm": True}))
kept("MaskSegmenter", on("MaskSegmenter", "VisionTransformer", VIT | {"final_norm": True}, h_embed_dim=48, h_depth=2, h_num_heads=3))
CAE = {"img_size": 64, "embed_dim": 768, "depth": 4, "num_heads": 12, "qkv_bias": True, "init_values": 0.1, "use_rel_pos_bias": True}
kept("UPerNetCAE", on("UPerNetCAE", "CAE", CAE, backbone_indices=[0, 1, 2, 3], channels=768, fpn_channels=[768] * 4, head_channels=768, channels_fpn=64))
kept("UPerNetViTAdapter", on("UPerNetViTAdapter", "ViTAdapter_Tiny", backbone_indices=[0, 1, 2, 3], channels=64))

# As PaddleSeg exports them: what is made of the results.
keep("PPLiteSeg_softmax", on("PPLiteSeg", "STDC1"), ((1, 3, 64, 64), (2, 3, 128, 64)), (None, 3, None, None), "softmax")
keep("PPLiteSeg_argmax", on("PPLiteSeg", "STDC1"), ((1, 3, 64, 64), (2, 3, 128, 64)), (None, 3, None, None), "argmax")
keep("SegFormer_argmax", on("SegFormer", "MixVisionTransformer_B0", embedding_dim=64), ((1, 3, 64, 96),), (1, 3, 64, 96), "argmax")
keep("OCRNet_softmax", on("OCRNet", "HRNet_W18_Small_V1", backbone_indices=[0]), ((1, 3, 64, 96),), (1, 3, 64, 96), "softmax")

REFUSED = (
    "DMNet",
    "DMNet_any",
    "GSCNN",
    "GSCNN_any",
    "GSCNN_fixed",
    "ISANet",
    "ISANet_any",
    "ISANet_fixed",
    "KNet_UPer",
    "KNet_UPer_any",
    "MaskFormer_any",
    "PointRend",
    "PointRend_any",
    "PointRend_fixed",
    "RTFormer",
    "RTFormer_any",
    "SegNeXt",
    "SegNeXt_any",
    "SegNeXt_fixed",
    "SegNet",
    "SegNet_any",
    "UPerNetViTAdapter",
    "UPerNetViTAdapter_any",
    "UPerNet_Swin_any",
)
"""What PaddlePaddle 2.6.2 refuses to describe or to run with these sizes open; and SegNeXt, which begins with numbers drawn by chance."""
for _name in REFUSED:
    NETWORKS.pop(_name, None)
