"""The networks of PaddleDetection that find boxes by regions or by queries, and masks. See `paddle_detectors`."""

from __future__ import annotations

from typing import Any

from paddle_detectors import ANY_SIZE, ONE, SQUARES, Modules, keep, nms, resnet

ALL = [0, 1, 2, 3]
PYRAMID = {
    "ResNet": resnet([1, 2, 3]),
    "FPN": {"out_channel": 64, "spatial_scales": [0.125, 0.0625, 0.03125], "extra_stage": 2, "has_extra_convs": True, "use_c5": False},
}
FEAT = {"feat_in": 64, "feat_out": 64, "num_convs": 1}
RETINA = {
    "conv_feat": {"name": "RetinaFeat", **FEAT, "norm_type": None},
    "bbox_assigner": {"name": "MaxIoUAssigner", "positive_overlap": 0.5, "negative_overlap": 0.4},
    "loss_class": {"name": "FocalLoss"},
    "anchor_generator": {
        "name": "RetinaAnchorGenerator",
        "octave_base_scale": 4,
        "scales_per_octave": 3,
        "aspect_ratios": [0.5, 1.0, 2.0],
        "strides": [8.0, 16.0, 32.0, 64.0, 128.0],
    },
    "nms": nms(0.01),
}
keep(
    "RetinaNet",
    "RetinaNet",
    PYRAMID
    | {
        "RetinaNet": {"backbone": "ResNet", "neck": "FPN", "head": "RetinaHead"},
        "RetinaHead": RETINA,
    },
    ANY_SIZE,
    True,
)


def fcos(dcn: bool = False, norm: str = "gn", **more: Any) -> Modules:
    return PYRAMID | {
        "FPN": PYRAMID["FPN"] | {"out_channel": 256},
        "FCOS": {"backbone": "ResNet", "neck": "FPN", "fcos_head": "FCOSHead"},
        "FCOSHead": {
            "fcos_feat": {"name": "FCOSFeat", "feat_in": 256, "feat_out": 256, "num_convs": 1, "norm_type": norm, "use_dcn": dcn},
            "nms": nms(0.01),
            **more,
        },
    }


keep("FCOS", "FCOS", fcos(), ANY_SIZE, True)
keep("FCOS_dcn", "FCOS", fcos(True, "bn", sqrt_score=True), SQUARES, False)


def gfl(head: str = "GFLHead", **more: Any) -> Modules:
    return PYRAMID | {
        "GFL": {"backbone": "ResNet", "neck": "FPN", "head": head},
        head: {
            "conv_feat": {"name": "FCOSFeat", **FEAT, "norm_type": "gn"},
            "feat_in_chan": 64,
            "loss_class": {"name": "QualityFocalLoss"},
            "nms": nms(0.01),
            **more,
        },
    }


keep("GFL", "GFL", gfl(), ANY_SIZE, True)
keep("GFLv2", "GFL", gfl(dgqp_module={"name": "DGQP", "reg_topk": 4, "reg_channels": 64, "add_mean": True}), SQUARES, False)
keep("OTA", "GFL", gfl("OTAVFLHead", assigner={"name": "SimOTAAssigner"}), SQUARES, False)
keep(
    "TOOD",
    "TOOD",
    PYRAMID
    | {
        "TOOD": {"backbone": "ResNet", "neck": "FPN", "head": "TOODHead"},
        "TOODHead": {"feat_channels": 64, "stacked_convs": 2, "norm_groups": 8, "nms": nms(0.01)},
    },
    ANY_SIZE,
    True,
)
keep(
    "YOLOF",
    "YOLOF",
    {
        "YOLOF": {"backbone": "ResNet", "neck": "DilatedEncoder", "head": "YOLOFHead"},
        "ResNet": resnet([3]),
        "DilatedEncoder": {"in_channels": [512], "out_channels": [64], "block_mid_channels": 32},
        "YOLOFHead": {
            "conv_feat": {"name": "YOLOFFeat", "feat_in": 64, "feat_out": 64, "num_cls_convs": 1, "num_reg_convs": 1},
            "bbox_assigner": {"name": "UniformAssigner", "pos_ignore_thr": 0.15, "neg_ignore_thr": 0.7},
            "anchor_generator": {"name": "AnchorGenerator", "anchor_sizes": [[32, 64, 128, 256, 512]], "aspect_ratios": [1.0], "strides": [32]},
            "loss_class": {"name": "FocalLoss"},
            "nms": nms(0.01),
        },
    },
    ANY_SIZE,
    True,
)


def ttfnet(backbone: str, neck: Modules, head: Modules, **more: Any) -> Modules:
    return {
        "TTFNet": {"backbone": backbone, "neck": "TTFFPN", "ttf_head": "TTFHead", "post_process": "BBoxPostProcess"},
        "TTFFPN": neck,
        "TTFHead": {"hm_loss": {"name": "CTFocalLoss"}, "wh_loss": {"name": "GIoULoss"}, **head},
        "BBoxPostProcess": {"decode": {"name": "TTFBox", "max_per_img": 40, "score_thresh": 0.01, "down_ratio": 4}},
        **more,
    }


FIRST = ((1, 3, 128, 160), (1, 3, 96, 128))
keep("TTFNet_DarkNet", "TTFNet", ttfnet("DarkNet", {}, {}, DarkNet={"return_idx": [1, 2, 3, 4]}), FIRST, True)
keep("PAFNet", "TTFNet", ttfnet("ResNet", {}, {"dcn_head": True}, ResNet=resnet(ALL, depth=50, variant="d", dcn_v2_stages=[3])), ONE, False)
keep(
    "PAFNet_lite",
    "TTFNet",
    ttfnet(
        "MobileNetV3",
        {"planes": [96, 48, 24], "shortcut_num": [2, 2, 1], "lite_neck": True, "fusion_method": "concat"},
        {"hm_head_planes": 48, "wh_head_planes": 24, "lite_head": True},
        MobileNetV3={"model_name": "large", "scale": 0.5, "feature_maps": [5, 8, 14, 17], "with_extra_blocks": True, "extra_block_filters": []},
    ),
    FIRST,
    True,
)
CENTER = {
    "CenterNet": {"backbone": "ResNet", "neck": "CenterNetDLAFPN", "head": "CenterNetHead", "post_process": "CenterNetPostProcess"},
    "CenterNetHead": {"head_planes": 32, "regress_ltrb": False},
    "CenterNetPostProcess": {"max_per_img": 30, "regress_ltrb": False},
}
DLA = {"CenterNet": CENTER["CenterNet"] | {"backbone": "DLA"}}
keep(
    "CenterNet_ResNet",
    "CenterNet",
    CENTER | {"ResNet": resnet(ALL, variant="d"), "CenterNetDLAFPN": {"first_level": 0, "last_level": 4, "dcn_v2": False}},
    FIRST,
    True,
)
keep("CenterNet_DLA", "CenterNet", CENTER | DLA | {"CenterNetDLAFPN": {"dcn_v2": True}}, FIRST, True)
keep(
    "CenterNet_ShuffleNetV2",
    "CenterNet",
    CENTER
    | {
        "CenterNet": CENTER["CenterNet"] | {"backbone": "ShuffleNetV2"},
        "ShuffleNetV2": {"scale": 1.0, "feature_maps": [5, 13, 17]},
        "CenterNetDLAFPN": {"first_level": 0, "last_level": 3, "dcn_v2": False},
    },
    FIRST,
    True,
)


def rcnn(architecture: str = "FasterRCNN", pyramid: bool = True, backbone: str = "ResNet", neck: str = "FPN", **more: Any) -> Modules:
    proposals = {"min_size": 0.0, "nms_thresh": 0.7, "pre_nms_top_n": 300, "post_nms_top_n": 40}
    generator = {"aspect_ratios": [0.5, 1.0, 2.0], "anchor_sizes": [[32], [64], [128], [256], [512]], "strides": [4, 8, 16, 32, 64]}
    single = {"aspect_ratios": [0.5, 1.0, 2.0], "anchor_sizes": [32, 64, 128, 256, 512], "strides": [16]}
    cascade = architecture == "CascadeRCNN"
    head = "CascadeHead" if cascade else "BBoxHead"
    made: Modules = {
        architecture: {"backbone": backbone, "rpn_head": "RPNHead", "bbox_head": head, "bbox_post_process": "BBoxPostProcess"}
        | ({"neck": neck} if pyramid else {}),
        "ResNet": resnet(ALL) if pyramid else resnet([2], num_stages=3, depth=50),
        "RPNHead": {"anchor_generator": generator if pyramid else single, "test_proposal": proposals, "train_proposal": proposals},
        "BBoxAssigner": {},
        "BBoxPostProcess": {"decode": {"name": "RCNNBox"} | ({"prior_box_var": [30.0, 30.0, 15.0, 15.0]} if cascade else {}), "nms": nms(0.1)},
    }
    if pyramid:
        made |= {neck: {"out_channel": 64}, "TwoFCHead": {"out_channel": 64}, "CascadeTwoFCHead": {"out_channel": 64}}
        made[head] = {
            "head": "CascadeTwoFCHead" if cascade else "TwoFCHead",
            "roi_extractor": {"resolution": 7, "sampling_ratio": 0, "aligned": True},
            "bbox_assigner": "BBoxAssigner",
        }
    else:
        made[head] = {
            "head": "Res5Head",
            "roi_extractor": {"resolution": 14, "sampling_ratio": 0, "aligned": True},
            "bbox_assigner": "BBoxAssigner",
            "with_pool": True,
        }
    if "mask_head" in more:
        made[architecture] |= {"mask_head": "MaskHead", "mask_post_process": "MaskPostProcess"}
        made |= more.pop("mask_head")
    return made | more


def masks(shared: bool = False) -> Modules:
    return {
        "MaskHead": {
            "head": "MaskFeat",
            "roi_extractor": {"resolution": 14, "sampling_ratio": 0, "aligned": True},
            "mask_assigner": "MaskAssigner",
            "share_bbox_feat": shared,
        },
        "MaskFeat": {"num_convs": 0 if shared else 1, "out_channel": 32},
        "MaskAssigner": {"mask_resolution": 14 if shared else 28},
        "MaskPostProcess": {"binary_thresh": 0.5},
    }


keep("FasterRCNN_FPN", "FasterRCNN", rcnn(), ANY_SIZE, True)
keep("FasterRCNN_FPN_one", "FasterRCNN", rcnn(), ONE, None)
keep("FasterRCNN_C4", "FasterRCNN", rcnn(pyramid=False), ANY_SIZE, True)
keep(
    "FasterRCNN_FPN_gn",
    "FasterRCNN",
    rcnn(
        FPN={"out_channel": 64, "norm_type": "gn"},
        BBoxHead={"head": "XConvNormHead", "roi_extractor": {"resolution": 7, "sampling_ratio": 0, "aligned": True}, "bbox_assigner": "BBoxAssigner"},
        XConvNormHead={"num_convs": 1, "conv_dim": 64, "out_channel": 64},
    ),
    ANY_SIZE,
    True,
)
keep(
    "FasterRCNN_HRNet",
    "FasterRCNN",
    rcnn(backbone="HRNet", neck="HRFPN", HRNet={"width": 18, "freeze_at": -1, "freeze_norm": False, "return_idx": ALL}),
    ANY_SIZE,
    True,
)
keep(
    "FasterRCNN_swin",
    "FasterRCNN",
    rcnn(backbone="SwinTransformer", SwinTransformer={"embed_dim": 24, "depths": [1, 2, 1, 1], "num_heads": [1, 2, 3, 6], "window_size": 7}),
    ANY_SIZE,
    True,
)
keep(
    "FasterRCNN_res2net",
    "FasterRCNN",
    rcnn(backbone="Res2Net", Res2Net={"depth": 50, "width": 26, "scales": 4, "freeze_at": -1, "freeze_norm": False, "variant": "d"}),
    ANY_SIZE,
    True,
)
keep("FasterRCNN_senet", "FasterRCNN", rcnn(backbone="SENet", SENet={"depth": 50, "freeze_at": -1, "freeze_norm": False}), SQUARES, False)
keep(
    "RetinaNet_BiFPN",
    "RetinaNet",
    PYRAMID
    | {
        "RetinaNet": {"backbone": "ResNet", "neck": "BiFPN", "head": "RetinaHead"},
        "BiFPN": {"out_channel": 64},
        "RetinaHead": RETINA,
    },
    SQUARES,
    False,
)
keep("MaskRCNN_FPN", "MaskRCNN", rcnn("MaskRCNN", mask_head=masks()), ANY_SIZE, True)
keep("MaskRCNN_C4", "MaskRCNN", rcnn("MaskRCNN", False, mask_head=masks(True)), ((1, 3, 128, 160),), True)
keep("CascadeRCNN_FPN", "CascadeRCNN", rcnn("CascadeRCNN"), ANY_SIZE, True)
keep("CascadeMaskRCNN_FPN", "CascadeRCNN", rcnn("CascadeRCNN", mask_head=masks()), ANY_SIZE, True)
keep(
    "SparseRCNN",
    "SparseRCNN",
    {
        "SparseRCNN": {"backbone": "ResNet", "neck": "FPN", "head": "SparseRCNNHead", "postprocess": "SparsePostProcess"},
        "ResNet": resnet(ALL),
        "FPN": {"out_channel": 32},
        "SparseRCNNHead": {
            "head_hidden_dim": 32,
            "head_dim_feedforward": 64,
            "nhead": 4,
            "head_dropout": 0.0,
            "head_cls": 1,
            "head_reg": 2,
            "head_dim_dynamic": 16,
            "head_num_dynamic": 2,
            "head_num_heads": 2,
            "deep_supervision": True,
            "num_proposals": 20,
        },
        "SparsePostProcess": {"num_proposals": 20},
        "SparseRCNNLoss": {"losses": ["labels", "boxes"], "focal_loss_alpha": 0.25, "focal_loss_gamma": 2.0},
    },
    ANY_SIZE,
    True,
)
keep(
    "QueryInst",
    "QueryInst",
    {
        "QueryInst": {"backbone": "ResNet", "neck": "FPN", "rpn_head": "EmbeddingRPNHead", "roi_head": "SparseRoIHead", "post_process": "SparsePostProcess"},
        "ResNet": resnet(ALL),
        "FPN": {"out_channel": 32, "extra_stage": 0},
        "EmbeddingRPNHead": {"num_proposals": 20, "proposal_embedding_dim": 32},
        "SparseRoIHead": {
            "num_stages": 2,
            "bbox_roi_extractor": {"resolution": 7, "sampling_ratio": 2, "aligned": True},
            "mask_roi_extractor": {"resolution": 14, "sampling_ratio": 2, "aligned": True},
        },
        "DIIHead": {"proposal_embedding_dim": 32, "feedforward_channels": 64, "dynamic_feature_channels": 16, "num_attn_heads": 4},
        "DynamicMaskHead": {"proposal_embedding_dim": 32, "dynamic_feature_channels": 16, "num_convs": 1, "conv_channels": 32},
        "SparsePostProcess": {"num_proposals": 20, "binary_thresh": 0.5},
    },
    ((1, 3, 128, 160),),
    True,
)
keep(
    "SOLOv2",
    "SOLOv2",
    {
        "SOLOv2": {"backbone": "ResNet", "neck": "FPN", "solov2_head": "SOLOv2Head", "mask_head": "SOLOv2MaskHead"},
        "ResNet": resnet(ALL),
        "FPN": {"out_channel": 64},
        "SOLOv2Head": {
            "in_channels": 64,
            "seg_feat_channels": 64,
            "stacked_convs": 1,
            "num_grids": [16, 12, 8, 6, 4],
            "kernel_out_channels": 32,
            "mask_nms": {"name": "MaskMatrixNMS", "pre_nms_top_n": 60, "post_nms_top_n": 20},
            "score_threshold": 0.01,
        },
        "SOLOv2MaskHead": {"in_channels": 64, "mid_channels": 32, "out_channels": 32},
    },
    ((1, 3, 128, 160), (1, 3, 96, 128)),
    True,
)


def detr(transformer: str, head: str, at: list[int], backbone: str = "ResNet", given: Modules | None = None, **more: Any) -> Modules:
    return {
        "hidden_dim": 32,
        "use_focal_loss": transformer != "DETRTransformer",
        "DETR": {"backbone": backbone, "transformer": transformer, "detr_head": head, "post_process": "DETRBBoxPostProcess"},
        "ResNet": resnet(at),
        transformer: {"num_queries": 20, "nhead": 4, "num_encoder_layers": 1, "num_decoder_layers": 2, "dim_feedforward": 64, "dropout": 0.0, **(given or {})},
        head: {},
        "DETRBBoxPostProcess": {"num_top_queries": 15},
        **more,
    }


keep("DETR", "DETR", detr("DETRTransformer", "DETRHead", [3]), ANY_SIZE, True)
keep("DeformableDETR", "DETR", detr("DeformableTransformer", "DeformableDETRHead", [1, 2, 3], given={"num_feature_levels": 4}), ANY_SIZE, True)
keep(
    "DINO",
    "DETR",
    detr(
        "DINOTransformer",
        "DINOHead",
        [1, 2, 3],
        given={"num_levels": 4, "pe_temperature": 20, "pe_offset": 0.0, "learnt_init_query": True},
        DINOHead={"loss": {"name": "DINOLoss"}},
    ),
    ANY_SIZE,
    True,
)
keep(
    "DINO_swin",
    "DETR",
    detr(
        "DINOTransformer",
        "DINOHead",
        [1, 2, 3],
        "SwinTransformer",
        {"num_levels": 4},
        DINOHead={"loss": {"name": "DINOLoss"}},
        SwinTransformer={"embed_dim": 24, "depths": [1, 2, 1, 1], "num_heads": [1, 2, 3, 6], "out_indices": [1, 2, 3]},
    ),
    SQUARES,
    False,
)
