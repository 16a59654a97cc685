"""Which ops are a layer, what repeats, and the table and the drawing of that."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from random import Random

import pytest
from support import pictured

import foreshape as fs
from foreshape import layer
from foreshape.core.pictures.widths import wide
from foreshape.language.views.layer_grouping import WIDEST, folded_layers, folded_sections, is_sections
from foreshape.language.views.outline import OutlineLayer, forward_ops
from foreshape.language.views.summary import ROWS

CORPUS = Path(__file__).parents[1] / "corpus"
GOLDEN = Path(__file__).parent / "looks"
OF_THE_ZOO = ["clas_SwinTransformer_tiny_patch4_window7_224", "clas_LeViT_128S"]
"""Their ops that only work out sizes are more than the others."""
NETWORKS = ["resnet50", "googlenet", "mobilenet_v2", "transformer_adamw", "lstm_bidirectional", "while_loop", "lenet_bn_adam", "vgg11", *OF_THE_ZOO]


def corpus(name: str) -> fs.Program:
    return fs.load_program((CORPUS.parent / "zoo" if name in OF_THE_ZOO else CORPUS) / name / "main.pdmodel")


def outline(layers: list[OutlineLayer], depth: int = 0) -> list[str]:
    return [line for one in layers for line in ["  " * depth + one.name + (f" x {one.times}" if one.times > 1 else ""), *outline(one.children, depth + 1)]]


def compare(name: str, text: str, update: bool) -> None:
    path = GOLDEN / name
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text + "\n"


# --- layers


def test_scopes_are_groups_and_what_repeats_is_one() -> None:
    pictured.encoder(12)
    lines = outline(folded_layers(fs.default_main_program()))
    assert lines == ["fc_0", "encoder.0…11 x 12", "  mlp", "    up", "    down", "  elementwise_add", "scores"]


def test_dotted_names_of_parameters_are_groups() -> None:
    h = layer.data("x", shape=["batch", 4])
    for block in range(3):
        for part in ("query", "value"):
            h = layer.fc(h, 4, "relu", weight=f"body.{block}.{part}.weight", bias=f"body.{block}.{part}.bias")
    assert outline(folded_layers(fs.default_main_program())) == ["body.0…2 x 3", "  query", "  value"]


def test_layers_of_other_sizes_or_settings_are_not_the_same() -> None:
    h = layer.data("x", shape=["batch", 8])
    for size in (8, 8, 8, 4, 4):
        h = layer.fc(h, size, "relu")
    layer.scale(layer.scale(h, 2.0), 3.0)
    assert outline(folded_layers(fs.default_main_program())) == ["fc_0…2 x 3", "fc_3", "fc_4"]


def test_blocks_with_a_mask_and_a_memory_for_all_are_repeated() -> None:
    h = layer.embedding(layer.data("ids", shape=["batch", "time"], dtype="int64"), (10, 8))
    h = layer.transformer_encoder(h, 3, 2, 16, mask=layer.data("is_word", ["batch", "time"], "bool"))
    layer.transformer_decoder(layer.embedding(layer.data("out", shape=["batch", "time"], dtype="int64"), (10, 8)), h, 4, 2, 16)
    lines = outline(folded_layers(fs.default_main_program()))
    assert [line for line in lines if " x " in line] == ["  0…2 x 3", "  0…3 x 4"]


def test_branches_that_are_alike_and_beside_each_other_are_one() -> None:
    x = layer.fc(layer.data("x", shape=["batch", 8]), 8)
    towers = [layer.fc(layer.fc(x, 4, "relu"), 6) for _ in range(3)]
    layer.concat([*towers, layer.fc(x, 6)], 1)
    layers = folded_layers(fs.default_main_program())
    assert outline(layers) == ["fc_0", "fc_1…5 x 3", "  fc_1", "  fc_2", "fc_7", "concat"]
    assert [one.times_words() for one in layers] == ["", "x 3 in parallel", "", ""]
    assert "fc_1…5 x 3 in parallel" in str(fs.default_main_program().summary()) and "x 3 in parallel" in str(fs.default_main_program().graph())
    with fs.program() as other:
        h = layer.fc(layer.data("x", shape=["batch", 8]), 8)
        layer.concat([layer.fc(layer.fc(h, 8, "relu"), 8), layer.fc(h, 8)], 1)  # what is joined reads different things: no branches that are alike
    assert " x " not in " ".join(outline(folded_layers(other)))


def test_a_training_program_has_three_sections() -> None:
    h = layer.data("x", shape=["batch", 8])
    for _ in range(3):
        h = layer.fc(h, 8, "relu")
    cost = layer.mean(layer.square(layer.fc(h, 1)))
    assert not is_sections(folded_sections(fs.default_main_program()))
    fs.optimizer.Adam(0.1).minimize(cost)
    program = fs.default_main_program()
    sections = folded_sections(program)
    assert is_sections(sections) and [s.name for s in sections] == ["forward", "backward", "updates"]
    assert sorted(id(op) for s in sections for op in s.all_ops()) == sorted(id(op) for op in program.all_ops())
    assert outline(sections[0].children) == outline(folded_layers(program))
    assert outline(sections[1].children) == ["fill_constant", "mean_grad", "square_grad", "fc_3", "fc_2…1 x 2", "fc_0"]


@pytest.mark.long_cases("clas_SwinTransformer_tiny_patch4_window7_224")
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n == OF_THE_ZOO[-1] else n for n in NETWORKS])
def test_every_op_is_in_one_layer_and_no_level_is_wide(name: str) -> None:
    program = corpus(name)
    layers = folded_layers(program)
    found = [id(op) for one in layers for op in one.all_ops()]
    inner = [op for block in program.blocks[1:] for op in block.ops]
    assert sorted(found) == sorted(id(op) for op in [*forward_ops(program.global_block.ops), *forward_ops(inner)])
    waiting = [layers]
    while waiting:
        level = waiting.pop()
        assert len(level) <= WIDEST
        waiting += [one.children for one in level]


# --- the table


@pytest.mark.long_cases("clas_SwinTransformer_tiny_patch4_window7_224")
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n == OF_THE_ZOO[-1] else n for n in NETWORKS])
def test_a_summary_is_one_screen_of_80_columns(name: str, update: bool) -> None:
    summary = corpus(name).summary()
    text = str(summary)
    assert max(map(len, text.split("\n"))) <= 80 and text.count("\n") < ROWS + 12
    compare(f"{name}.txt", text, update)
    for width in (60, 100):
        assert max(map(len, summary.text(width).split("\n"))) <= width


def test_sizes_that_are_given_stand_in_the_dims_and_others_give_way_as_wholes() -> None:
    x = layer.data("x", shape=["batch", 3, "height", "width"])
    h = layer.pool2d(layer.conv2d(x, 8, 3, stride=2, padding=1, activation="relu"), 2, stride=2)
    h = layer.conv2d(h, 16, 3, stride=2, padding=1, name="a_rather_long_name_of_a_layer")
    layer.fc(layer.reduce_mean(h, [2, 3]), 10)
    program = fs.default_main_program()
    plain, given, some = (str(program.summary(**sizes)) for sizes in ({}, {"batch": 16, "height": 48, "width": 48}, {"height": 48, "width": 48}))
    assert "input x  [batch, 3, height, width]" in plain and "input x  [16, 3, 48, 48]" in given and "input x  [batch, 3, 48, 48]" in some
    assert "[16,8,24,24]" in given and "[16,16,6,6]" in given and not re.search(r"batch,|height,|width[,)]", given)
    assert "[batch,8,24,24]" in some and not re.search(r"\[[^\]]*…", some)
    assert "[batch,8,…,…]" in plain  # no dim is cut in its middle
    for width in (24, 40, 60, 100):
        shown = [part.strip() for dims in re.findall(r"\[(.*?)\]", program.summary().text(width).partition("layer")[2]) for part in dims.split(",")]
        assert {part for part in shown if "…" in part} <= {"…"}, width
    with pytest.raises(fs.SchemaError, match="whole number of at least 0; seen batch=-1"):
        program.summary(batch=-1)


def test_columns_stand_below_each_other_whatever_the_letters_of_names() -> None:
    x = layer.data("图像", shape=["批", 12])
    hidden = layer.fc(x, 5, "relu", name="模型的第一层")
    layer.fc(hidden, 3, name="out")
    for width in (100, 62):
        lines = fs.default_main_program().summary().text(width).split("\n")
        head = next(line for line in lines if line.startswith("layer "))
        ends = {wide(line[: line.index("%") + 1]) for line in lines if line.startswith(("模型", "out"))}
        assert ends == {head.index("parameters") + len("parameters")} and max(map(wide, lines)) <= width


def test_the_figures_of_a_summary_are_those_of_the_network() -> None:
    program = corpus("resnet50")
    summary = program.summary(batch=4)
    elements = sum(v.spec.elements for v in program.all_variables() if v.persistable)
    assert sum(r.measure.parameters for r in summary.rows if r.depth == 0) == 25_610_152 == elements
    one = program.summary()
    assert summary.total.work == 4 * one.total.work and summary.total.result_bytes < 4 * one.total.result_bytes  # statistics have no batch
    for row in (*one.rows, *program.summary(depth=3, rows=1000).rows):
        assert row.measure.work <= one.total.work and row.times >= 1
    deep = program.summary(depth=2)
    for at, row in enumerate(deep.rows):
        inside = deep.rows[at + 1 :]
        below = inside[: next((k for k, r in enumerate(inside) if r.depth == 0), len(inside))]
        if row.depth == 0 and below:
            assert sum(r.measure.work for r in below) == row.measure.work and sum(r.measure.parameters for r in below) == row.measure.parameters


def test_the_output_of_a_layer_is_what_it_gives_and_not_what_its_gradient_needs() -> None:
    """PaddlePaddle's schemas often have such a result first: the probabilities of a loss, the sums of a chain."""
    x = layer.data("x", shape=["batch", 4])
    layer.softmax_with_cross_entropy(x, layer.data("label", 1, "int64"))
    layer.linear_chain_crf(layer.data("scores", 5, lod_level=1), layer.data("tags", 1, "int64", lod_level=1))
    found = {row.types: row.output for row in fs.default_main_program().summary().rows}
    assert found == {"softmax_with_cross_entropy": "[batch, 1]", "linear_chain_crf": "[batch, 1]"}


def test_a_summary_of_a_training_program_tells_gradients_and_updates() -> None:
    loss = layer.mean(layer.fc(layer.data("x", shape=["batch", 4]), 2))
    fs.optimizer.SGD(0.1).minimize(loss)
    summary = fs.default_main_program().summary()
    assert [r.name for r in summary.rows] == ["fc_0", "mean"] and [r.name for r in summary.more] == ["gradients", "updates"]
    assert "parameters: 10 numbers, 40B" in str(summary)


def test_a_summary_refuses_sizes_that_no_input_has() -> None:
    layer.relu(layer.data("x", shape=["batch", "length"]))
    assert "for batch = 2, length = 7: results 56B" in str(fs.default_main_program().summary(batch=2, length=7))
    with pytest.raises(fs.SchemaError, match="no input has a size 'width'; sizes that are open are: batch, length"):
        fs.default_main_program().summary(width=3)
    with pytest.raises(fs.SchemaError, match="a summary has at least one level"):
        fs.default_main_program().summary(depth=0)
    assert "parameters: 0 numbers" in str(fs.Program().summary())


# --- the drawing


@pytest.mark.parametrize("name", ["resnet50", "transformer_adamw", "while_loop"])
def test_a_drawing_is_the_same_each_time(name: str, update: bool) -> None:
    picture = corpus(name).graph()
    assert picture.svg == corpus(name).graph().svg == str(picture)
    ElementTree.fromstring(picture.svg)
    compare(f"{name}.svg", picture.svg, update)


def test_a_drawing_has_the_layers_their_times_and_the_connection_around_them(tmp_path: Path) -> None:
    pictured.encoder(12)
    picture = fs.default_main_program().graph()
    root = ElementTree.fromstring(picture.svg)
    texts = ["".join(t.itertext()) for t in root.iter() if t.tag.endswith("}text")]
    assert {"x", "[batch, 8]", "fc_0", "mlp", "add", "x 12", "scores"} <= set(texts)
    assert [p for p in root.iter() if p.get("class") == "arrow far"]  # the residual connection goes around the mlp
    assert texts.count("up") == 1
    picture.save(tmp_path / "net.svg")
    assert (tmp_path / "net.svg").read_text(encoding="utf-8") == picture.svg + "\n"
    with pytest.raises(fs.FormatError, match=r"ends in \.svg"):
        picture.save(tmp_path / "net.png")
    assert len(repr(picture)) < 120 and picture._repr_svg_() == picture.svg
    flat = fs.default_main_program().graph(depth=1)
    assert "mlp" not in flat.svg and "x 12" in flat.svg
    with pytest.raises(fs.SchemaError, match="a drawing has at least one level"):
        fs.default_main_program().graph(depth=0)


def test_gradients_and_updates_are_a_box_each_until_they_are_asked_for() -> None:
    cost = layer.mean(layer.fc(layer.data("x", shape=["batch", 4]), 3, "tanh"))
    alone = fs.default_main_program().graph()
    program = fs.training_program(cost, fs.optimizer.Adam(0.1)).program

    def texts(part: str | None) -> list[str]:
        root = ElementTree.fromstring(program.graph(part=part).svg)
        return ["".join(t.itertext()) for t in root.iter() if t.tag.endswith("}text")]

    assert {"x", "forward", "fc_0", "mean", "backward", "updates"} <= set(texts(None)) and not {"mean_grad", "adam"} & set(texts(None))
    assert program.graph(part="forward").svg == alone.svg and program.graph(part="forward").svg != program.graph().svg
    assert "mean_grad" in texts("backward") and not {"x", "mean", "updates"} & set(texts("backward"))
    assert "adam" in " ".join(texts("updates")) and "mean_grad" not in texts("updates")
    with pytest.raises(fs.SchemaError, match="part must be one of 'forward'; seen 'updates'"):
        fs.default_main_program().graph(part="updates")


def test_thousands_of_ops_are_few_boxes() -> None:
    program = pictured.long_chain(400)
    assert len(program.graph().svg) < 200_000
    assert str(program.summary()).count("\n") < ROWS + 8


def test_names_from_a_file_are_text_in_table_and_drawing() -> None:
    program = pictured.hostile()
    svg = program.graph(depth=3).svg
    root = ElementTree.fromstring(svg)
    assert not [e for e in root.iter() if e.tag.rpartition("}")[2] in ("script", "img", "image")] and 'onerror="' not in svg
    text = str(program.summary())
    assert text.replace("\n", "").isprintable() and max(map(len, text.split("\n"))) <= 80


def test_many_inputs_are_one_box() -> None:
    layer.concat([layer.data(f"x{k}", shape=["batch", 4]) for k in range(300)], 1)
    assert "300 inputs" in (svg := fs.default_main_program().graph().svg) and "x299" not in svg and svg.count('class="head"') == 1


def test_a_wide_group_in_which_nothing_repeats_is_divided_too() -> None:
    random = Random(0)
    values = [layer.data("x", shape=["batch", 3])]
    with fs.name_scope("wide"):
        for _ in range(60):
            values.append(random.choice([layer.relu, layer.tanh, layer.exp, layer.abs])(random.choice(values) + random.choice(values)))
        out = layer.concat(values, 1)
    layer.fc(out, 2)
    text = str(fs.default_main_program().summary())
    assert "wide" in text and "8 layers" in text
