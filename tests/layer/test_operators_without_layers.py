"""Operators that no layer function writes, each with why it is there: a new operator gets a layer, or an entry here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.sources import tree_of

import foreshape as fs
from foreshape import layer
from foreshape.language.operator.registry import all_operators, layer_name, shown_type

SOURCE = Path(__file__).parents[2] / "src" / "foreshape"
WRITERS: Final = frozenset({"apply", "append_op", "unary", "binary", "_apply", "_reduce", "_extreme", "_close", "_regions", "_with_places", "_all",
                            "_normalised", "_run_block", "_lookup", "unpooled", "convolved"})  # fmt: skip
"""Functions of the layers that are given the type of an operator."""

WITHOUT: Final = {
    "the optimizers write them": """
        adadelta adagrad adam adamax adamw clip_by_norm decay_selected_rows decayed_adagrad ftrl get_tensor_from_selected_rows lamb lars_momentum
        lazy_momentum lazy_rmsprop lion merge_selected_rows momentum proximal_gd rmsprop sgd squared_l2_norm""",
    "passes, gradients and runs write them": """
        accumulate_selected_rows check_finite_and_unscale coalesce_parts coalesce_tensor count_examples empty_selected_rows feed fetch
        fill_zeros_like own_part random_state split_coalesced split_lookup swap_random_state sync_batch_norm update_loss_scaling weigh_by_examples""",
    "fs.from_torch writes it, for the median along an axis and its place, as torch has them": "median_of_axis",
    "fs.from_torch writes it, for an autograd.Function or a hook": "with_gradient",
    "programs for ranks: fs.data_parallel() and others write them, as paddle.distributed and fleet do": """
        alltoall barrier c_allgather c_allreduce_max c_allreduce_min c_allreduce_prod c_allreduce_sum c_broadcast c_concat c_dropout c_embedding
        c_identity c_reduce_max c_reduce_min c_reduce_prod c_reduce_sum c_reducescatter c_scatter c_softmax_with_cross_entropy c_split
        c_sync_calc_stream c_sync_comm_stream c_wait_comm c_wait_compute mp_allreduce_sum""",
    "PaddlePaddle's trainings write them: use_multi_tensor, ModelAverage, a warm-up of paddle.incubate, recompute, cross_entropy of fluid": """
        average_accumulates cross_entropy2 cross_entropy_grad2 merged_adam merged_momentum pow2_decay_with_linear_warmup seed""",
    "an older form, of PaddlePaddle 1.8, of what a layer writes by a newer one": """
        bicubic_interp bilinear_interp crop diag expand expand_as flatten flatten2 generate_proposals gru isinf isnan linear_interp lstm matmul
        multiclass_nms multiclass_nms2 nearest_interp one_hot pad2d reshape reverse shuffle_channel squeeze top_k transpose trilinear_interp
        unique_with_counts unsqueeze""",
    "another form, of PaddlePaddle 2, of what a layer writes: paddle.unbind, paddle.view, conv2d_transpose of groups, share_data and memcpy": """
        depthwise_conv2d_transpose empty memcpy memcpy_d2h select_output share_data unbind view_dtype""",
    "functions of fluid.layers for few networks": """
        add_position_encoding affine_channel box_decoder_and_assign center_loss cvm data_norm fsp gru_unit hash locality_aware_nms lstm_unit lstmp
        merge_lod_tensor pad_constant_like similarity_focus size space_to_depth split_lod_tensor teacher_student_sigmoid_loss
        uniform_random_batch_size_like""",
    "functions of paddle.incubate, paddle.amp and others for few networks": """
        check_numerics fill_diagonal_tensor fused_bn_add_activation fused_embedding_seq_pool l1_norm partial_concat partial_sum shuffle_batch""",
    "functions of paddle.incubate.nn, which join what layers write one by one; steps join that anyway": """
        fused_attention fused_bias_dropout_residual_layer_norm fused_dropout_add fused_feedforward fused_gemm_epilogue fused_multi_transformer
        fused_softmax_mask fused_softmax_mask_upper_triangle""",
    "quantized networks, as paddle.static.quantization and PaddleSlim save them": """
        dequantize_abs_max dequantize_linear dequantize_log fake_channel_wise_dequantize_max_abs fake_channel_wise_quantize_abs_max
        fake_channel_wise_quantize_dequantize_abs_max fake_dequantize_max_abs fake_quantize_abs_max fake_quantize_dequantize_abs_max
        fake_quantize_dequantize_moving_average_abs_max fake_quantize_moving_average_abs_max fake_quantize_range_abs_max
        moving_average_abs_max_scale quantize_linear""",
    "networks that fs.quantize makes": """
        dynamic_int8_linear dynamic_quantize_linear grouped_linear int8_lookup matmul_integer""",
    "passes of paddle.inference, whose networks Config.enable_save_optim_model saves": """
        conditional_block_infer dequantize fc fused_conv2d fused_conv2d_add_act fused_conv3d fused_elementwise_add fused_elementwise_div
        fused_elementwise_mul fused_elementwise_sub fused_embedding_eltwise_layernorm fused_fc_elementwise_layernorm fused_matmul fused_softplus
        fused_transpose fusion_gru fusion_lstm fusion_repeated_fc_relu fusion_seqconv_eltadd_relu fusion_seqexpand_concat_fc
        fusion_seqpool_cvm_concat fusion_squared_mat_sub multi_gru multihead_matmul quantize requantize""",
    "operators of ONNX that no operator of PaddlePaddle is": """
        dilated_pool non_max_suppression""",
    "demands on sizes of networks of torch, written by their import": "size_demand",
}
"""Why -> the operators. Those of the first three are written here, the others are there for the files of PaddlePaddle 1.8 to 2.6."""


def written(room: str) -> set[str]:
    """The types of operators that the functions of a room write: found in the text of their calls."""
    known = [t for t in all_operators() if not t.endswith("_grad")]
    found: set[str] = set()
    for path in (SOURCE / room).rglob("*.py"):
        for text in _types(tree_of(path)):
            found |= {text} if text.isidentifier() else {t for t in known if re.fullmatch(text, t)}
    return found & set(known)


def _types(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        given: list[ast.expr] = []
        if isinstance(node, ast.FunctionDef) and any(isinstance(d, ast.Name) and d.id in ("of_one_tensor", "of_two") for d in node.decorator_list):
            yield node.name
        if isinstance(node, ast.Call) and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) in WRITERS:
            given = [a for a in node.args if not isinstance(a, (ast.Dict, ast.Call))]
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id in ("type", "name"):
            given = [node.value]
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            given = node.value.elts[:1]
        for part in (p for g in given for p in ast.walk(g)):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                yield part.value
            elif isinstance(part, ast.JoinedStr) and len(part.values) > 1:
                yield "".join(re.escape(str(v.value)) if isinstance(v, ast.Constant) else r"\w+" for v in part.values)


def test_each_operator_has_a_layer_or_a_reason() -> None:
    without = [t for types in WITHOUT.values() for t in types.split()]
    assert len(without) == len(set(without))
    there = {t for t, of in all_operators().items() if of.__module__.startswith("foreshape.language.ops") and not t.endswith("_grad")}
    missing = there - written("layer")
    assert missing - set(without) == set(), "these have no layer function and no reason"
    assert set(without) - missing == set(), "these have a layer function, or are gone"


def test_what_is_said_to_be_written_here_is() -> None:
    """By a room, or by an operator that says what stands for it over ranks."""
    for why, rooms in (("the optimizers write them", ("optimizer",)), ("passes, gradients and runs write them", ("transforms", "interop", "language/ops"))):
        text = "\n".join(p.read_text(encoding="utf-8") for room in rooms for p in (SOURCE / room).rglob("*.py"))
        text = re.sub(r'^    type = ".*$', "", text, flags=re.MULTILINE)
        assert [t for t in WITHOUT[why].split() if f'"{t}"' not in text] == []


def test_an_operator_of_another_name_says_its_layer_function() -> None:
    """For every type that a layer writes: the name of a public function, or the reason why it is written only within others."""
    # first states; sequences of lstm and gru; conv2d of a filter for each channel; tril and triu
    within = {"fill_constant_batch_size_like", "sequence_rnn", "depthwise_conv2d", "tril_triu"}

    def is_public(name: str) -> bool:
        found: object = layer
        for part in name.split("."):
            found = getattr(found, part, None)
        return found is not None

    assert [t for t in sorted(written("layer") - within) if not is_public(layer_name(t))] == []
    assert [t for t in sorted(all_operators()) if "layer_function" in vars(all_operators()[t]) and (layer_name(t) == t or not is_public(layer_name(t)))] == []


def test_the_users_name_stands_in_words_with_the_type_beside_it() -> None:
    assert [shown_type(t) for t in ("lookup_table_v2", "lookup_table_v2_grad", "relu", "of_nobody")] == [
        "embedding (lookup_table_v2)", "embedding_grad (lookup_table_v2_grad)", "relu", "of_nobody",
    ]  # fmt: skip
    with pytest.raises(fs.TypeMismatchError, match=r"^embedding \(lookup_table_v2\): Ids must be one of int32, int64") as raised:
        layer.embedding(layer.data("ids", 3), [10, 3])
    assert raised.value.op == "lookup_table_v2"


def test_tables_have_the_users_names_and_the_text_of_a_program_its_own() -> None:
    x = layer.reshape(layer.embedding(layer.data("ids", shape=["batch", 6], dtype="int64"), [9, 4]), [0, 24])
    program = layer.transpose(x, [1, 0]).block.program
    assert not re.search("lookup_table|reshape2|transpose2", str(program.summary())) and "reshape, transpose" not in str(program.summary())
    assert all(type in str(program) for type in ("lookup_table_v2", "reshape2", "transpose2"))
