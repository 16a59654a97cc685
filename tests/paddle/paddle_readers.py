"""More networks of PP-OCR: other detectors and readers, end to end, tables, formulas and sharper images. See `paddle_ocr`, whose ``NETWORKS`` they are in."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from paddle_ocr import ANY, CTC, DET, SVTR_NET, Part, keep, parts, ppocr

__all__: list[str] = []
Dims = tuple[int, ...]


def add(name: str, make: Callable[[], Any], sizes: Sequence[Dims], opened: tuple[int | None, ...] | None = None) -> None:
    """A network of images; ``opened``: else the batch alone is open."""
    keep(name, make, tuple(sizes), opened or (None, *sizes[0][1:]))


def det(backbone: Part, neck: Part | None, head: Part) -> Callable[[], Any]:
    return lambda: parts("det", dict(backbone), dict(head), None if neck is None else dict(neck))


EAST = {"name": "EASTFPN", "model_name": "small"}
MOBILE = {"name": "MobileNetV3", "scale": 0.5, "model_name": "large"}
DB = {"name": "DBHead", "k": 50}
add("EAST_MobileNetV3", det(MOBILE, EAST, {"name": "EASTHead", "model_name": "small"}), DET, ANY)
add("EAST_ResNet_vd", det({"name": "ResNet_vd", "layers": 18}, EAST | {"model_name": "large"}, {"name": "EASTHead", "model_name": "large"}), DET, ANY)
add("SAST", det({"name": "ResNet_SAST", "layers": 50}, {"name": "SASTFPN", "with_cab": True}, {"name": "SASTHead"}), ((1, 3, 128, 128),), ANY)
add("PSE", det({"name": "ResNet", "layers": 18}, {"name": "FPN", "out_channels": 64}, {"name": "PSEHead", "hidden_dim": 32, "out_channels": 7}), DET, ANY)
add("PSE_MobileNetV3", det(MOBILE, {"name": "FPN", "out_channels": 64}, {"name": "PSEHead", "hidden_dim": 32, "out_channels": 7}), DET, ANY)
DEFORMED = {"name": "ResNet", "layers": 50, "dcn_stage": [False, True, True, True]}
FCE = {"name": "FCEFPN", "out_channels": 64, "has_extra_convs": False, "extra_stage": 0}
add("FCE", det(DEFORMED | {"out_indices": [1, 2, 3]}, FCE, {"name": "FCEHead", "fourier_degree": 5}), ((1, 3, 64, 96),), ANY)
add("DBpp", det(DEFORMED, {"name": "DBFPN", "out_channels": 64, "use_asf": True}, DB), ((1, 3, 64, 96),), ANY)
add("DBpp_fixed", det(DEFORMED, {"name": "DBFPN", "out_channels": 64, "use_asf": True}, DB), ((1, 3, 64, 96),), (1, 3, 64, 96))
add("CT", det({"name": "ResNet_vd", "layers": 18}, {"name": "CTFPN"}, {"name": "CT_Head", "hidden_dim": 32, "num_classes": 3}), DET, ANY)
LITE = {"name": "RSEFPN", "out_channels": 32, "shortcut": True}
add(
    "DB_PPHGNet",
    det({"name": "PPHGNet_small", "det": True}, {"name": "LKPAN", "out_channels": 32, "intracl": True}, {"name": "PFHeadLocal", "k": 50, "mode": "large"}),
    ((1, 3, 64, 96),),
    ANY,
)
add("DB_RepSVTR", det({"name": "RepSVTR_det"}, LITE, {"name": "PFHeadLocal", "k": 50, "mode": "small"}), DET, ANY)


def rec(backbone: Part | None, head: Part, neck: Part | None = None, transform: Part | None = None, channels: int = 3) -> Callable[[], Any]:
    return lambda: parts("rec", backbone and dict(backbone), dict(head), neck and dict(neck), transform and dict(transform), channels)


RESHAPE = {"name": "SequenceEncoder", "encoder_type": "reshape"}
RNN = {"name": "SequenceEncoder", "encoder_type": "rnn", "hidden_size": 24}
TPS = {"name": "TPS", "num_fiducial": 20, "loc_lr": 0.1, "model_name": "small"}
THIN = {"name": "MobileNetV3", "scale": 0.5, "model_name": "large"}
WIDE = ((2, 3, 32, 100), (1, 3, 32, 100))
OPEN = (None, 3, 32, None)
add("Rosetta", rec(THIN, CTC, RESHAPE), ((2, 3, 32, 100), (1, 3, 32, 160)), OPEN)
add("Rosetta_ResNet_vd", rec({"name": "ResNet", "layers": 34}, CTC, RESHAPE), ((2, 3, 32, 100), (1, 3, 32, 160)), OPEN)
add("STARNet", rec(THIN, CTC, RNN, TPS), WIDE)
add("STARNet_large", rec({"name": "ResNet", "layers": 34}, CTC, RNN, TPS | {"model_name": "large"}), WIDE)
ATTENTION = {"name": "AttentionHead", "hidden_size": 24, "out_channels": 38}
add("RARE", rec(THIN, ATTENTION, RNN, TPS), WIDE)
add(
    "MTB_NRTR",
    rec(
        {"name": "MTB", "cnn_num": 2},
        {"name": "Transformer", "d_model": 512, "num_encoder_layers": 1, "num_decoder_layers": 1, "beam_size": -1, "max_len": 6, "out_channels": 40},
        None,
        None,
        1,
    ),
    ((2, 1, 32, 100), (1, 1, 32, 100)),
)
add(
    "MTB_NRTR_beam",
    rec(
        {"name": "MTB", "cnn_num": 2},
        {"name": "Transformer", "d_model": 512, "num_encoder_layers": 1, "num_decoder_layers": 1, "beam_size": 3, "max_len": 6, "out_channels": 40},
        None,
        None,
        1,
    ),
    ((1, 1, 32, 100),),
)
STN = {
    "name": "STN_ON",
    "tps_inputsize": [32, 64],
    "tps_outputsize": [32, 100],
    "num_control_points": 20,
    "tps_margins": [0.05, 0.05],
    "stn_activation": "none",
}
add("SVTR_STN", rec(SVTR_NET, CTC, RESHAPE, STN | {"tps_inputsize": [32, 64]}), ((2, 3, 64, 256), (1, 3, 64, 256)))
add("SVTR_Conv", rec(SVTR_NET | {"mixer": ["Conv"] * 2 + ["Global"] * 2, "patch_merging": "Pool", "prenorm": True}, CTC, RESHAPE), WIDE)
add("CPPD", rec(SVTR_NET | {"last_stage": False}, {"name": "CPPDHead", "dim": 32, "vis_seq": 50, "num_layer": 1, "max_len": 6, "out_channels": 40}), WIDE)
add(
    "CPPD_wide",
    rec(
        SVTR_NET | {"img_size": [48, 160], "last_stage": False},
        {"name": "CPPDHead", "dim": 32, "vis_seq": 120, "num_layer": 1, "max_len": 6, "out_channels": 40, "ch": True},
    ),
    ((1, 3, 48, 160),),
    (None, 3, 48, 160),
)
add("ViTSTR", rec({"name": "ViTSTR", "scale": "tiny", "depth": 2, "embed_dim": 48, "num_heads": 3}, CTC, RESHAPE, None, 1), ((2, 1, 224, 224),))
ABINET = {"name": "ABINetHead", "num_layers": 1, "max_length": 6, "image_size": [32, 128], "out_channels": 38, "dim_feedforward": 64}
add("ABINet", rec({"name": "ResNet45"}, ABINET | {"use_lang": True, "iter_size": 2}), ((2, 3, 32, 128), (1, 3, 32, 128)))
add("ABINet_vision", rec({"name": "ResNet45"}, ABINET), ((1, 3, 32, 128),), (1, 3, 32, 128))
add(
    "VisionLAN",
    rec(
        {"name": "ResNet45", "strides": [2, 2, 2, 1, 1]},
        {"name": "VLHead", "n_layers": 1, "n_position": 256, "n_dim": 512, "max_text_length": 6, "training_step": "LA", "out_channels": 37},
    ),
    ((2, 3, 64, 256), (1, 3, 64, 256)),
)
SPIN = {"name": "GA_SPIN", "offsets": True, "default_type": 6, "loc_lr": 0.1, "stn": True, "I_r_size": [32, 100]}
add(
    "SPIN",
    rec(
        {"name": "ResNet32", "out_channels": 64},
        {"name": "SPINAttentionHead", "hidden_size": 24, "out_channels": 38},
        {"name": "SequenceEncoder", "encoder_type": "cascadernn", "hidden_size": 24, "out_channels": [24, 38], "with_linear": True},
        SPIN,
        1,
    ),
    ((2, 1, 32, 100), (1, 1, 32, 100)),
)
add(
    "RFL",
    rec(
        {"name": "ResNetRFL", "use_cnt": True, "use_seq": True},
        {"name": "RFLHead", "in_channels": 512, "hidden_size": 24, "batch_max_legnth": 6, "out_channels": 38, "use_cnt": True, "use_seq": True},
        {"name": "RFAdaptor", "use_v2s": True, "use_s2v": True},
        TPS | {"model_name": "large"},
        1,
    ),
    ((2, 1, 32, 100), (1, 1, 32, 100)),
)
add(
    "PREN",
    rec({"name": "EfficientNetb3_PREN"}, {"name": "PRENHead", "out_channels": 38}, {"name": "PRENFPN", "n_r": 5, "d_model": 384, "max_len": 6, "dropout": 0.1}),
    ((2, 3, 64, 256), (1, 3, 64, 256)),
)
PARSEQ = {
    "name": "ParseQHead",
    "out_channels": 40,
    "max_text_length": 6,
    "embed_dim": 48,
    "dec_num_heads": 4,
    "dec_mlp_ratio": 2,
    "dec_depth": 1,
    "perm_num": 6,
    "perm_forward": True,
    "perm_mirrored": True,
    "dropout": 0.1,
}
SIGHT = {"name": "ViTParseQ", "img_size": [32, 128], "patch_size": [4, 8], "embed_dim": 48, "depth": 2, "num_heads": 3, "mlp_ratio": 2, "in_channels": 3}
add("ParseQ", rec(SIGHT, PARSEQ | {"decode_ar": True, "refine_iters": 1}), ((2, 3, 32, 128), (1, 3, 32, 128)))
add("ParseQ_at_once", rec(SIGHT, PARSEQ | {"decode_ar": False, "refine_iters": 2}), ((2, 3, 32, 128), (1, 3, 32, 128)))
SATRN = {
    "name": "SATRNHead",
    "enc_cfg": {"n_layers": 1, "n_head": 4, "d_k": 8, "d_v": 8, "d_model": 32, "n_position": 100, "d_inner": 32, "dropout": 0.1},
    "dec_cfg": {
        "n_layers": 1,
        "d_embedding": 32,
        "n_head": 4,
        "d_model": 32,
        "d_inner": 32,
        "d_k": 8,
        "d_v": 8,
        "max_seq_len": 6,
        "start_idx": 38,
        "padding_idx": 39,
    },
}
add("SATRN", rec({"name": "ShallowCNN", "hidden_dim": 32}, SATRN | {"out_channels": 40}), WIDE)
V2 = {
    "name": "SVTRv2",
    "use_pos_embed": False,
    "dims": [16, 24, 32],
    "depths": [1, 2, 1],
    "num_heads": [2, 3, 4],
    "mixer": [["Conv"], ["Conv", "Global"], ["Global"]],
    "local_k": [[5, 5], [5, 5], [-1, -1]],
    "sub_k": [[2, 1], [2, 1], [-1, -1]],
    "last_stage": False,
    "use_pool": True,
}
MULTI = {
    "name": "MultiHead",
    "out_channels_list": {"CTCLabelDecode": 40, "NRTRLabelDecode": 42, "SARLabelDecode": 42},
    "head_list": [
        {
            "CTCHead": {
                "Neck": {"name": "svtr", "dims": 24, "depth": 1, "hidden_dims": 24, "kernel_size": [1, 3], "use_guide": True},
                "Head": {"fc_decay": 0.00001},
            }
        },
        {"NRTRHead": {"nrtr_dim": 32, "max_text_length": 6, "num_decoder_layers": 1}},
    ],
}
TALL = ((2, 3, 48, 160), (1, 3, 48, 320))


def copied(part: Any) -> Any:
    """Building takes names out of what is described."""
    return {k: copied(v) for k, v in part.items()} if isinstance(part, dict) else [copied(v) for v in part] if isinstance(part, list) else part


add("SVTRv2_multi", lambda: parts("rec", copied(V2), copied(MULTI)), TALL, (None, 3, 48, None))
add("RepSVTR_multi", lambda: parts("rec", {"name": "RepSVTR"}, copied(MULTI)), TALL, (None, 3, 48, None))
add("PPLCNetV3_multi", lambda: parts("rec", {"name": "PPLCNetV3", "scale": 0.35}, copied(MULTI)), TALL, (None, 3, 48, None))
SAR_MULTI = MULTI | {"head_list": [MULTI["head_list"][0], {"SARHead": {"enc_dim": 32, "max_text_length": 6}}]}
add(
    "MobileNetV1_multi",
    lambda: parts("rec", {"name": "MobileNetV1Enhance", "scale": 0.25, "last_conv_stride": [1, 2], "last_pool_type": "avg"}, copied(SAR_MULTI)),
    TALL,
    (None, 3, 48, None),
)
add("PPHGNet_rec", rec({"name": "PPHGNet_small"}, CTC, RESHAPE), TALL[:1], (None, 3, 48, None))
add("MicroNet", rec({"name": "MicroNet", "mode": "M3"}, CTC, RNN), ((2, 3, 32, 100), (1, 3, 32, 160)), OPEN)


def with_more(
    name: str,
    make: Callable[[], Any],
    sizes: Sequence[Dims],
    image: tuple[int | None, ...],
    more: Callable[[int, np.random.RandomState], Any],
    together: bool = False,
) -> None:
    """A network that takes a list of other arrays beside its images (or ``together`` with them): as exported, and each named as its place is."""
    import paddle_ocr

    def build() -> Any:
        import paddle

        specs: Any = None
        feeds: list[Any] = []
        for at, dims in enumerate(sizes):
            rng = np.random.RandomState(at)
            x = rng.uniform(-1, 1, dims).astype("float32")
            others, opened = more(dims[0], rng)
            beside = [paddle.static.InputSpec(list(o), str(v.dtype), f"more{k}") for k, (o, v) in enumerate(zip(opened, others, strict=True))]
            first = paddle.static.InputSpec(list(image), "float32", "image")
            specs = [[first, *beside]] if together else [first, beside]
            feeds.append([[x, *others]] if together else [x, others])
        return make(), specs, feeds

    paddle_ocr.NETWORKS[name] = build


def srn(batch: int, rng: np.random.RandomState) -> Any:
    steps, heads = 6, 8
    ahead = np.triu(np.full((steps, steps), -1_000_000_000, "int64"), 1)
    made = [
        np.tile(np.arange(256).reshape(1, 256, 1), (batch, 1, 1)),
        np.tile(np.arange(steps).reshape(1, steps, 1), (batch, 1, 1)),
        np.tile(ahead, (batch, heads, 1, 1)),
        np.tile(np.ascontiguousarray(ahead.T), (batch, heads, 1, 1)),
    ]
    return [m.astype("int64") for m in made], [(None, 256, 1), (None, steps, 1), (None, heads, steps, steps), (None, heads, steps, steps)]


SRN = {"name": "SRNHead", "max_text_length": 6, "num_heads": 8, "num_encoder_TUs": 1, "num_decoder_TUs": 1, "hidden_dims": 512, "out_channels": 38}
with_more("SRN", lambda: parts("rec", {"name": "ResNetFPN"}, dict(SRN), None, None, 1), ((2, 1, 64, 256), (1, 1, 64, 256)), (None, 1, 64, 256), srn)


def ratio(batch: int, rng: np.random.RandomState) -> Any:
    return [rng.uniform(0.4, 1.0, batch).astype("float32")], [(None,)]


SAR = {"name": "SARHead", "enc_dim": 32, "d_k": 32, "max_text_length": 6, "out_channels": 40}
for kind, given in (("", {}), ("_gru", {"enc_gru": True, "dec_gru": True, "enc_bi_rnn": True, "dec_bi_rnn": True, "pred_concat": False})):
    with_more(f"SAR{kind}", lambda given=given: parts("rec", {"name": "ResNet31"}, SAR | given), ((2, 3, 48, 160), (1, 3, 48, 160)), (None, 3, 48, 160), ratio)


def places(batch: int, rng: np.random.RandomState) -> Any:
    return [rng.uniform(0.4, 1.0, batch).astype("float32"), np.tile(np.arange(6), (batch, 1)).astype("int64")], [(None,), (None, 6)]


ROBUST = {
    "name": "RobustScannerHead",
    "enc_outchannles": 16,
    "hybrid_dec_rnn_layers": 2,
    "hybrid_dec_dropout": 0,
    "position_dec_rnn_layers": 2,
    "start_idx": 38,
    "mask": True,
    "padding_idx": 39,
    "encode_value": False,
    "max_text_length": 6,
    "out_channels": 40,
}
with_more(
    "RobustScanner",
    lambda: parts("rec", {"name": "ResNet31", "init_type": "KaimingNormal"}, {"encoder": None} | ROBUST),
    ((2, 3, 48, 160), (1, 3, 48, 160)),
    (None, 3, 48, 160),
    places,
)
CAN = {
    "name": "CANHead",
    "in_channel": 684,
    "out_channel": 111,
    "max_text_length": 6,
    "ratio": 16,
    "attdecoder": {
        "is_train": False,
        "input_size": 24,
        "hidden_size": 24,
        "encoder_out_channel": 684,
        "dropout": True,
        "dropout_ratio": 0.5,
        "word_num": 111,
        "counting_decoder_out_channel": 111,
        "attention": {"attention_dim": 24, "word_conv_kernel": 1},
    },
}


def formula(batch: int, rng: np.random.RandomState) -> Any:
    return [np.ones((batch, 1, 64, 96), "float32"), np.ones((batch, 6), "int64")], [(None, 1, None, None), (None, 6)]


DENSE = {"name": "DenseNet", "growthRate": 24, "reduction": 0.5, "bottleneck": True, "use_dropout": True, "input_channel": 1}
with_more("CAN", lambda: parts("rec", dict(DENSE), copied(CAN), None, None, 1), ((1, 1, 64, 96),), (None, 1, None, None), formula, True)


def letters(make: Callable[[], Any]) -> Callable[[], Any]:
    """Some parts read their characters from a path below their package."""

    def made() -> Any:
        ppocr("ppocr.modeling.architectures")
        here = os.getcwd()
        os.chdir(os.path.dirname(os.path.dirname(str(sys.modules["ppocr"].__file__))))
        try:
            return make()
        finally:
            os.chdir(here)

    return made


add("PGNet", letters(lambda: parts("e2e", {"name": "ResNet", "layers": 50}, {"name": "PGHead"}, {"name": "PGFPN"})), ((1, 3, 128, 128),), ANY)
add(
    "TableRARE",
    lambda: parts(
        "table",
        {"name": "MobileNetV3", "scale": 0.5, "model_name": "large"},
        {"name": "TableAttentionHead", "hidden_size": 24, "max_text_length": 6, "loc_reg_num": 4, "out_channels": 30},
    ),
    ((1, 3, 488, 488),),
)
add(
    "TableMaster",
    lambda: parts(
        "table",
        {
            "name": "TableResNetExtra",
            "gcb_config": {"ratio": 0.0625, "headers": 1, "att_scale": False, "fusion_type": "channel_add", "layers": [False, True, True, True]},
            "layers": [1, 1, 1, 1],
        },
        {"name": "TableMasterHead", "hidden_size": 512, "headers": 8, "d_ff": 64, "dropout": 0, "max_text_length": 4, "out_channels": 30},
    ),
    ((1, 3, 96, 96),),
)
add(
    "SLANet_attention",
    lambda: parts(
        "table",
        {"name": "PPLCNet", "scale": 0.25},
        {"name": "SLAHead", "hidden_size": 32, "out_channels": 30, "max_text_length": 6, "loc_reg_num": 8, "use_attn": True},
        {"name": "CSPPAN", "out_channels": 24},
    ),
    ((1, 3, 96, 96),),
    ANY,
)
SHARPER = {"STN": True, "scale_factor": 2, "width": 128, "height": 32, "infer_mode": True}
add(
    "TSRN",
    lambda: parts("sr", None, None, None, {"name": "TSRN", "hidden_units": 16, "srb_nums": 1, "mask": False} | SHARPER),
    ((2, 3, 16, 64), (1, 3, 16, 64)),
)
add(
    "Telescope",
    letters(lambda: parts("sr", None, None, None, {"name": "TBSRN", "hidden_units": 32, "srb_nums": 1, "mask": False} | SHARPER)),
    ((2, 3, 16, 64), (1, 3, 16, 64)),
)
