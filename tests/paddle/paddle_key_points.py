"""The networks of PaddleDetection that follow what moves, that find key points, and rotated boxes. See `paddle_detectors`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from paddle_detectors import ANY_SIZE, ONE, SQUARES, Modules, keep, nms, resnet
from paddle_regions import PYRAMID

__all__: list[str] = []
JDE = {
    "num_classes": 1,
    "JDE": {"detector": "YOLOv3", "reid": "JDEEmbeddingHead", "tracker": "JDETracker"},
    "YOLOv3": {"backbone": "DarkNet", "neck": "YOLOv3FPN", "yolo_head": "YOLOv3Head", "post_process": "JDEBBoxPostProcess", "for_mot": True},
    "YOLOv3Head": {
        "anchors": [[128, 384], [180, 540], [256, 640], [512, 640], [32, 96], [45, 135], [64, 192], [90, 271], [8, 24], [11, 34], [16, 48], [23, 68]],
        "anchor_masks": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
        "loss": "JDEDetectionLoss",
    },
    "JDEBBoxPostProcess": {"decode": {"name": "JDEBox", "conf_thresh": 0.3, "downsample_ratio": 32}, "nms": nms(0.01, normalized=True)},
    "JDEEmbeddingHead": {"anchor_levels": 3, "anchor_scales": 4, "embedding_dim": 32},
}
keep("JDE", "JDE", JDE, ONE, False)


def fairmot(backbone: str, neck: str = "CenterNetDLAFPN", ltrb: bool = True, **more: Any) -> Modules:
    return {
        "num_classes": 1,
        "for_mot": True,
        "FairMOT": {"detector": "CenterNet", "reid": "FairMOTEmbeddingHead", "loss": "FairMOTLoss", "tracker": "JDETracker"},
        "CenterNet": {"backbone": backbone, "neck": neck, "head": "CenterNetHead", "post_process": "CenterNetPostProcess", "for_mot": True},
        "CenterNetHead": {"head_planes": 32, "regress_ltrb": ltrb},
        "FairMOTEmbeddingHead": {"ch_head": 32, "ch_emb": 16},
        "CenterNetPostProcess": {"max_per_img": 30, "regress_ltrb": ltrb},
        **more,
    }


keep("FairMOT_DLA", "FairMOT", fairmot("DLA", CenterNetDLAFPN={"last_level": 5, "out_channel": 0, "dcn_v2": True}), ONE, False)
keep(
    "FairMOT_HRNet",
    "FairMOT",
    fairmot(
        "HRNet",
        HRNet={"width": 18, "freeze_at": -1, "freeze_norm": False, "upsample": False},
        CenterNetDLAFPN={"last_level": 3, "first_level": 0, "dcn_v2": False},
    ),
    ONE,
    False,
)
keep("FairMOT_HarDNet", "FairMOT", fairmot("HarDNet", "CenterNetHarDNetFPN"), ONE, False)


def before(dims: Sequence[int], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.RandomState(seed + 50)
    return {"pre_image": rng.uniform(-1, 1, dims).astype("float32"), "pre_hm": rng.uniform(0, 1, (dims[0], 1, *dims[2:])).astype("float32")}


keep(
    "CenterTrack",
    "CenterTrack",
    {
        "num_classes": 1,
        "for_mot": True,
        "mot_metric": True,
        "CenterTrack": {"detector": "CenterNet", "plugin_head": "CenterTrackHead", "tracker": "CenterTracker"},
        "CenterNet": {"backbone": "DLA", "neck": "CenterNetDLAFPN", "head": "CenterNetHead", "post_process": "CenterNetPostProcess", "for_mot": True},
        "DLA": {"pre_img": True, "pre_hm": True},
        "CenterNetDLAFPN": {"last_level": 5, "dcn_v2": True},
        "CenterNetHead": {"head_planes": 32, "regress_ltrb": False},
        "CenterNetPostProcess": {"max_per_img": 30, "regress_ltrb": False},
        "CenterTrackHead": {"head_planes": 32},
    },
    ONE,
    False,
    before,
)
BYTE = {
    "num_classes": 1,
    "ByteTrack": {"detector": "YOLOX", "reid": "None", "tracker": "JDETracker"},
    "depth_mult": 0.33,
    "width_mult": 0.25,
    "YOLOX": {"backbone": "CSPDarkNet", "neck": "YOLOCSPPAN", "head": "YOLOXHead", "input_size": [128, 128], "for_mot": True},
    "YOLOXHead": {"assigner": {"name": "SimOTAAssigner"}, "nms": nms(0.001)},
}
keep("ByteTrack", "ByteTrack", BYTE, SQUARES, False)


def crops(dims: Sequence[int], seed: int) -> dict[str, np.ndarray]:
    return {"crops": np.random.RandomState(seed + 50).uniform(-1, 1, (3 + seed, 3, 192, 64)).astype("float32")}


def deepsort(reid: str, **more: Any) -> Modules:
    return {"DeepSORT": {"detector": "None", "reid": reid, "tracker": "DeepSORTTracker"}, reid: more}


for name, arguments in (
    ("PCBPyramid", {"model_name": "ResNet50", "num_conv_out_channels": 16}),
    ("PPLCNetEmbedding", {"scale": 0.5, "input_ch": 1280, "output_ch": 32}),
    ("ResNetEmbedding", {"model_name": "ResNet50"}),
):
    keep(f"DeepSORT_{name}", "DeepSORT", deepsort(name, **arguments), SQUARES, False, crops)

JOINTS = [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10], [11, 12], [13, 14], [15, 16]]
UPRIGHT = ((2, 3, 128, 96), (1, 3, 128, 96))


def key_points(
    backbone: str, joined: int, architecture: str = "TopDownHRNet", post: str = "HRNetPostProcess", dark: bool | None = True, **more: Any
) -> Modules:
    given: Modules = {"backbone": backbone, "post_process": post, "num_joints": 17, "width": joined, "loss": "KeyPointMSELoss"}
    if dark is not None:
        given |= {"flip_perm": JOINTS, "use_dark": dark}
    return {"num_classes": 1, architecture: given, backbone: {"freeze_at": -1, "freeze_norm": False, "return_idx": [0], **more}}


keep("HRNet", "TopDownHRNet", key_points("HRNet", 18, width=18), UPRIGHT, False)
keep("HRNet_open", "TopDownHRNet", key_points("HRNet", 18, dark=False, width=18), ANY_SIZE, True)
keep("TinyPose", "TopDownHRNet", key_points("LiteHRNet", 40, network_type="wider_naive"), UPRIGHT, False)
keep("LiteHRNet_18", "TopDownHRNet", key_points("LiteHRNet", 40, dark=False, network_type="lite_18"), UPRIGHT, False)
keep("LiteHRNet_naive", "TopDownHRNet", key_points("LiteHRNet", 30, dark=False, network_type="naive"), UPRIGHT, False)
keep(
    "TinyPose3D_heatmap",
    "TinyPose3DHRHeatmapNet",
    key_points("LiteHRNet", 40, "TinyPose3DHRHeatmapNet", "TinyPose3DPostProcess", None, network_type="wider_naive"),
    SQUARES,
    False,
)
keep("TinyPose3D", "TinyPose3DHRNet", key_points("LiteHRNet", 40, "TinyPose3DHRNet", "TinyPose3DPostProcess", None, network_type="wider_naive"), SQUARES, False)
HIGHER = {
    "num_classes": 1,
    "HigherHRNet": {
        "backbone": "HRNet",
        "hrhrnet_head": "HrHRNetHead",
        "post_process": "HrHRNetPostProcess",
        "flip_perm": [0, 2, 1, 4, 3, 6, 5, 8, 7, 10, 9, 12, 11, 14, 13, 16, 15],
        "eval_flip": False,
    },
    "HRNet": {"width": 18, "freeze_at": -1, "freeze_norm": False, "return_idx": [0]},
    "HrHRNetHead": {"num_joints": 17, "width": 18, "loss": "HrHRNetLoss", "swahr": False},
    "HrHRNetLoss": {"num_joints": 17, "swahr": False},
}
keep("HigherHRNet", "HigherHRNet", HIGHER, ONE, True)
keep(
    "METRO",
    "METRO_Body",
    {
        "num_classes": 1,
        "METRO_Body": {"backbone": "HRNet", "trans_encoder": "TransEncoder", "num_joints": 24, "loss": "Pose3DLoss"},
        "HRNet": {"width": 32, "freeze_at": -1, "freeze_norm": False, "norm_momentum": 0.1, "downsample": True},
        "TransEncoder": {
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "input_feat_dim": [2048, 64, 32],
            "hidden_feat_dim": [64, 32, 16],
            "act_fn": "gelu",
        },
    },
    ((2, 3, 224, 224),),
    False,
)
keep(
    "S2ANet",
    "S2ANet",
    {
        "S2ANet": {"backbone": "ResNet", "neck": "FPN", "head": "S2ANetHead"},
        "ResNet": resnet([1, 2, 3], variant="d"),
        "FPN": {"out_channel": 64, "spatial_scales": [0.25, 0.125, 0.0625], "has_extra_convs": True, "extra_stage": 2, "relu_before_extra_convs": False},
        "S2ANetHead": {
            "anchor_assign": "RBoxAssigner",
            "feat_in": 64,
            "feat_out": 64,
            "stacked_convs": 1,
            "nms_pre": 100,
            "nms": nms(0.05, keep_top_k=-1, nms_threshold=0.1, normalized=False),
        },
    },
    ONE,
    True,
)
keep(
    "FCOSR",
    "YOLOv3",
    PYRAMID
    | {
        "YOLOv3": {"backbone": "ResNet", "neck": "FPN", "yolo_head": "FCOSRHead", "post_process": None},
        "FCOSRHead": {
            "feat_channels": 64,
            "stacked_convs": 1,
            "fpn_strides": [8, 16, 32, 64, 128],
            "norm_cfg": {"name": "gn", "num_groups": 8},
            "nms": nms(0.1, keep_top_k=-1, nms_threshold=0.1, normalized=False),
        },
    },
    SQUARES,
    False,
)
