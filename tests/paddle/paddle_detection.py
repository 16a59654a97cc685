"""The networks of PaddleDetection: here most that find boxes in one stage, others in `paddle_regions` and `paddle_key_points`. See `paddle_detectors`."""

from __future__ import annotations

from typing import Any

import paddle_key_points
import paddle_regions
from paddle_detectors import ANY_SIZE, CLASSES, NETWORKS, ONE, SQUARES, Modules, keep, nms, resnet

__all__ = ["NETWORKS", "paddle_key_points", "paddle_regions"]
YOLO_ANCHORS = [[10, 13], [16, 30], [33, 23], [30, 61], [62, 45], [59, 119], [116, 90], [156, 198], [373, 326]]
YOLO_MASKS = [[6, 7, 8], [3, 4, 5], [0, 1, 2]]


def yolo(backbone: str, neck: str, head: Modules | None = None, decode: Modules | None = None, suppress: Modules | None = None, **more: Any) -> Modules:
    return {
        "YOLOv3": {"backbone": backbone, "neck": neck, "yolo_head": "YOLOv3Head", "post_process": "BBoxPostProcess"},
        "YOLOv3Head": {"anchors": YOLO_ANCHORS, "anchor_masks": YOLO_MASKS, "loss": "YOLOv3Loss", **(head or {})},
        "BBoxPostProcess": {
            "decode": {"name": "YOLOBox", "conf_thresh": 0.005, "downsample_ratio": 32, "clip_bbox": True, **(decode or {})},
            "nms": suppress or nms(0.1),
        },
        **more,
    }


SMALL = {"model_name": "small", "scale": 0.5, "with_extra_blocks": False, "extra_block_filters": []}
MATRIX = {"name": "MatrixNMS", "keep_top_k": 50, "score_threshold": 0.01, "post_threshold": 0.01, "nms_top_k": -1, "background_label": -1}
keep("YOLOv3_DarkNet53", "YOLOv3", yolo("DarkNet", "YOLOv3FPN"), SQUARES, False)
keep("YOLOv3_MobileNet", "YOLOv3", yolo("MobileNet", "YOLOv3FPN", MobileNet={"scale": 0.25, "feature_maps": [4, 6, 13]}), ANY_SIZE, True)
keep("YOLOv3_MobileNetV3", "YOLOv3", yolo("MobileNetV3", "YOLOv3FPN", MobileNetV3={**SMALL, "feature_maps": [4, 9, 12]}), ANY_SIZE, True)
keep("YOLOv3_ResNet_dcn", "YOLOv3", yolo("ResNet", "YOLOv3FPN", ResNet=resnet([1, 2, 3], depth=50, variant="d", dcn_v2_stages=[3])), SQUARES, False)
keep(
    "PPYOLO_ResNet_dcn",
    "YOLOv3",
    yolo(
        "ResNet",
        "PPYOLOFPN",
        {"iou_aware": True},
        {"scale_x_y": 1.05},
        MATRIX,
        ResNet=resnet([1, 2, 3], depth=50, variant="d", dcn_v2_stages=[3]),
        PPYOLOFPN={"coord_conv": True, "drop_block": True, "spp": True},
    ),
    SQUARES,
    False,
)
keep(
    "PPYOLO_ResNet18",
    "YOLOv3",
    yolo(
        "ResNet",
        "PPYOLOFPN",
        {"anchor_masks": [[3, 4, 5], [0, 1, 2]]},
        {"scale_x_y": 1.05},
        MATRIX,
        ResNet=resnet([2, 3], variant="d"),
        PPYOLOFPN={"drop_block": True, "conv_block_num": 0},
    ),
    ANY_SIZE,
    True,
)
keep(
    "PPYOLO_tiny",
    "YOLOv3",
    yolo(
        "MobileNetV3",
        "PPYOLOTinyFPN",
        None,
        {"scale_x_y": 1.05},
        None,
        MobileNetV3={"model_name": "large", "scale": 0.5, "feature_maps": [7, 13, 16], "with_extra_blocks": False, "extra_block_filters": []},
        PPYOLOTinyFPN={"spp": True, "drop_block": True},
    ),
    ANY_SIZE,
    True,
)
keep(
    "PPYOLOv2_ResNet",
    "YOLOv3",
    yolo(
        "ResNet",
        "PPYOLOPAN",
        {"iou_aware": True, "iou_aware_factor": 0.5},
        {"scale_x_y": 1.05},
        MATRIX | {"use_gaussian": True},
        ResNet=resnet([1, 2, 3], variant="d"),
        PPYOLOPAN={"drop_block": True, "spp": True},
    ),
    ANY_SIZE,
    True,
)
CSP = {"layers": [1, 1, 1, 1], "channels": [16, 24, 32, 48, 64], "return_idx": [1, 2, 3], "use_large_stem": True}


def ppyoloe(alpha: bool, head: str = "PPYOLOEHead", **more: Any) -> Modules:
    return {
        "YOLOv3": {"backbone": "CSPResNet", "neck": "CustomCSPPAN", "yolo_head": head, "post_process": None},
        "CSPResNet": CSP | {"use_alpha": alpha},
        "CustomCSPPAN": {"out_channels": [64, 48, 32], "stage_num": 1, "block_num": 1, "act": "swish", "spp": True},
        head: {"fpn_strides": [32, 16, 8], "nms": nms(0.01), **more},
    }


keep("PPYOLOE", "YOLOv3", ppyoloe(False), SQUARES, False)
keep("PPYOLOE_plus", "YOLOv3", ppyoloe(True), ANY_SIZE, True)
keep("PPYOLOE_fixed", "YOLOv3", ppyoloe(True, eval_size=[128, 128]), ONE, None)
keep("PPYOLOE_without_nms", "YOLOv3", ppyoloe(True, exclude_nms=True), SQUARES, False)
keep("PPYOLOE_contrast", "YOLOv3", ppyoloe(True, "PPYOLOEContrastHead"), SQUARES, False)
keep(
    "PPYOLOE_R",
    "YOLOv3",
    ppyoloe(True, "PPYOLOERHead", nms=nms(0.1, normalized=False, keep_top_k=-1, nms_top_k=2000), num_classes=CLASSES),
    SQUARES,
    False,
)
keep(
    "PPYOLOE_transformer_neck",
    "YOLOv3",
    ppyoloe(True)
    | {
        "CustomCSPPAN": {
            "out_channels": [64, 48, 32],
            "stage_num": 1,
            "block_num": 1,
            "act": "swish",
            "use_trans": True,
            "num_layers": 1,
            "dim_feedforward": 64,
            "eval_size": [128, 128],
        }
    },
    SQUARES,
    False,
)
keep(
    "PPYOLOE_vit",
    "YOLOv3",
    {
        "YOLOv3": {"backbone": "VisionTransformer", "neck": "YOLOCSPPAN", "yolo_head": "PPYOLOEHead", "post_process": None},
        "VisionTransformer": {
            "img_size": [128, 128],
            "embed_dim": 48,
            "depth": 2,
            "num_heads": 3,
            "qkv_bias": True,
            "init_values": 0.1,
            "use_sincos_pos_emb": True,
            "epsilon": 1e-6,
            "out_indices": [1],
            "with_fpn": True,
            "num_fpn_levels": 3,
            "out_with_norm": False,
        },
        "YOLOCSPPAN": {"in_channels": [48, 48, 48], "act": "silu"},
        "PPYOLOEHead": {"fpn_strides": [8, 16, 32], "in_channels": [48, 48, 48], "nms": nms(0.01)},
    },
    SQUARES,
    False,
)
keep(
    "PPYOLOE_convnext",
    "YOLOv3",
    ppyoloe(True) | {"YOLOv3": {"backbone": "ConvNeXt", "neck": "CustomCSPPAN", "yolo_head": "PPYOLOEHead", "post_process": None}},
    SQUARES,
    False,
)


def yolox(depthwise: bool) -> Modules:
    return {
        "depth_mult": 0.33,
        "width_mult": 0.25,
        "act": "silu",
        "YOLOX": {"backbone": "CSPDarkNet", "neck": "YOLOCSPPAN", "head": "YOLOXHead", "input_size": [128, 128]},
        "CSPDarkNet": {"arch": "X", "return_idx": [2, 3, 4], "depthwise": depthwise},
        "YOLOCSPPAN": {"depthwise": depthwise},
        "YOLOXHead": {"depthwise": depthwise, "assigner": {"name": "SimOTAAssigner"}, "nms": nms(0.001)},
    }


keep("YOLOX", "YOLOX", yolox(False), ANY_SIZE, True)
keep("YOLOX_nano", "YOLOX", yolox(True), SQUARES, False)


def picodet(backbone: str, neck: str, head: str, **more: Any) -> Modules:
    feat = {"name": "PicoFeat", "feat_in": 32, "feat_out": 32, "num_convs": 2, "num_fpn_stride": 4, "share_cls_reg": True}
    return {
        "PicoDet": {"backbone": backbone, "neck": neck, "head": head},
        neck: {"out_channels": 32, "use_depthwise": True, "num_features": 4},
        head: {
            "conv_feat": feat | {"use_se": head == "PicoHeadV2"},
            "fpn_stride": [8, 16, 32, 64],
            "feat_in_chan": 32,
            "reg_max": 7,
            "cell_offset": 0.5,
            "loss_class": {"name": "VarifocalLoss"},
            "nms": nms(0.025),
            "assigner": {"name": "SimOTAAssigner"},
        },
        **more,
    }


keep("PicoDet_LCNet", "PicoDet", picodet("LCNet", "LCPAN", "PicoHeadV2", LCNet={"scale": 0.35}), SQUARES, False)
keep("PicoDet_LCNet_open", "PicoDet", picodet("LCNet", "LCPAN", "PicoHeadV2", LCNet={"scale": 0.35}), ANY_SIZE, True)
keep("PicoDet_ESNet", "PicoDet", picodet("ESNet", "CSPPAN", "PicoHead", ESNet={"scale": 0.5}), SQUARES, False)
keep("PicoDet_ShuffleNetV2", "PicoDet", picodet("ShuffleNetV2", "ESPAN", "PicoHead", ShuffleNetV2={"scale": 0.5}), ANY_SIZE, True)
keep("PicoDet_MobileNetV3", "PicoDet", picodet("MobileNetV3", "CSPPAN", "PicoHead", MobileNetV3={**SMALL, "feature_maps": [4, 9, 12]}), SQUARES, False)


def ssd(backbone: str, generator: Modules | None = None, head: Modules | None = None, **more: Any) -> Modules:
    return {
        "SSD": {"backbone": backbone, "ssd_head": "SSDHead", "post_process": "BBoxPostProcess", "r34_backbone": backbone == "ResNet"},
        "SSDHead": {"anchor_generator": {"min_max_aspect_ratios_order": True, **(generator or {})}, **(head or {})},
        "BBoxPostProcess": {"decode": {"name": "SSDBox"}, "nms": nms(0.2)},
        **more,
    }


LITE_ANCHORS = {
    "steps": [16, 32, 64, 107, 160, 320],
    "aspect_ratios": [[2.0]] + [[2.0, 3.0]] * 5,
    "min_ratio": 20,
    "max_ratio": 95,
    "base_size": 320,
    "min_sizes": [],
    "max_sizes": [],
    "clip": True,
    "min_max_aspect_ratios_order": False,
}
TALL = ((1, 3, 300, 300), (2, 3, 300, 300))
keep("SSD_VGG", "SSD", ssd("VGG"), TALL[:1], False)
keep(
    "SSD_MobileNet",
    "SSD",
    ssd("MobileNet", {"steps": [0.0] * 6}, MobileNet={"scale": 0.25, "feature_maps": [11, 13, 14, 15, 16, 17], "with_extra_blocks": True}),
    TALL,
    False,
)
keep("SSD_ResNet", "SSD", ssd("ResNet", {"clip": True}, {"use_extra_head": True}, ResNet=resnet([2], num_stages=3, depth=34)), TALL, False)
keep(
    "SSDLite_MobileNetV3",
    "SSD",
    ssd(
        "MobileNetV3",
        LITE_ANCHORS,
        {"use_sepconv": True},
        MobileNetV3={"model_name": "small", "scale": 0.5, "with_extra_blocks": True, "feature_maps": [9, 13, 14, 15, 16, 17]},
    ),
    TALL,
    False,
)
keep(
    "SSDLite_GhostNet",
    "SSD",
    ssd("GhostNet", LITE_ANCHORS, {"use_sepconv": True}, GhostNet={"scale": 0.5, "with_extra_blocks": True, "feature_maps": [13, 18, 19, 20, 21, 22]}),
    ANY_SIZE,
    True,
)
for kind in ("None", "only_fpn", "only_ssh", "fpn_ssh"):
    keep(
        f"BlazeFace_{kind}",
        "BlazeFace",
        {
            "num_classes": 1,
            "BlazeFace": {"backbone": "BlazeNet", "neck": "BlazeNeck", "blaze_head": "FaceHead", "post_process": "BBoxPostProcess"},
            "BlazeNet": {"act": "hard_swish"},
            "BlazeNeck": {"neck_type": kind, "in_channel": [96, 96]},
            "FaceHead": {
                "in_channels": [48, 48] if "ssh" in kind or "fpn" in kind else [96, 96],
                "loss": "SSDLoss",
                "anchor_generator": {
                    "steps": [8.0, 16.0],
                    "aspect_ratios": [[1.0], [1.0]],
                    "min_sizes": [[16.0, 24.0], [32.0, 48.0, 64.0, 80.0, 96.0, 128.0]],
                    "max_sizes": [[], []],
                    "offset": 0.5,
                    "flip": False,
                    "min_max_aspect_ratios_order": False,
                },
            },
            "BBoxPostProcess": {"decode": {"name": "SSDBox"}, "nms": nms(0.01)},
        },
        ANY_SIZE,
        True,
    )
