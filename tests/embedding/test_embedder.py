"""Vectors of texts and scores of pairs: what folders of sentence-transformers say, against the rows of the network pooled here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import TEXTS, VOCABULARY, write_dense, write_json, write_model, write_tokenizer
from test_encoders import write_folder

import foreshape as fs
from foreshape.errors import FeedError, ForeshapeWarning, FormatError, SchemaError

POOLED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda x: x[0],
    "max": lambda x: x.max(0),
    "mean": lambda x: x.mean(0),
    "mean_sqrt_len_tokens": lambda x: x.sum(0) / len(x) ** 0.5,
    "weightedmean": lambda x: (x * np.arange(1, len(x) + 1)[:, None]).sum(0) / np.arange(1, len(x) + 1).sum(),
    "lasttoken": lambda x: x[-1],
}


def close(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("mode", POOLED)
def test_rows_are_pooled_as_the_folder_says(mode: str, tmp_path: Path) -> None:
    model = fs.Embedder(write_model(tmp_path, {"pooling_mode": mode}))
    vectors = model.encode(TEXTS)
    assert vectors.dtype == np.float32 and vectors.shape == (len(TEXTS), 16) and model.width == 16
    close(vectors, [POOLED[mode](rows) for rows in model.tokens(TEXTS)])


def test_older_folders_join_several_modes_in_one_order(tmp_path: Path) -> None:
    names = ("pooling_mode_lasttoken", "pooling_mode_mean_tokens", "pooling_mode_cls_token", "pooling_mode_weightedmean_tokens")
    model = fs.Embedder(write_model(tmp_path, {"word_embedding_dimension": 16, **dict.fromkeys(names, True)}))
    order = ("cls", "mean", "weightedmean", "lasttoken")
    close(model.encode(TEXTS), [np.concatenate([POOLED[mode](rows) for mode in order]) for rows in model.tokens(TEXTS)])
    assert model.width == 64


def test_a_texts_vector_is_its_own_whatever_is_beside_it(tmp_path: Path) -> None:
    model = fs.Embedder(write_model(tmp_path, {"pooling_mode": "mean"}, "Normalize"))
    alone = [model.encode(text) for text in TEXTS]
    assert alone[0].shape == (16,)
    close(model.encode(TEXTS), alone, 1e-6)
    close(model.encode(TEXTS[::-1] * 40)[: len(TEXTS)][::-1], alone, 1e-6)
    close(list(model.encode_stream(iter(TEXTS * 40)))[-len(TEXTS) :], alone, 1e-6)
    close(fs.Embedder(tmp_path, memory="2GiB", threads=1).encode(TEXTS * 3)[: len(TEXTS)], alone, 1e-6)
    close(np.linalg.norm(alone, axis=1), np.ones(len(TEXTS)))
    assert model.encode([]).shape == (0, 16)


def test_a_dense_part_its_activation_fewer_columns_and_length_one(tmp_path: Path) -> None:
    write_model(tmp_path, {"pooling_mode": "mean"}, "Dense")
    weight, bias = write_dense(tmp_path / "2_Dense", 16, 6, "Tanh")
    model = fs.Embedder(tmp_path)
    want = np.tanh(np.stack([rows.mean(0) for rows in model.tokens(TEXTS)]) @ weight.T + bias)
    close(model.encode(TEXTS), want)
    cut = want[:, :4]
    close(model.encode(TEXTS, dims=4), cut)
    close(model.encode(TEXTS, dims=4, normalize=True), cut / np.linalg.norm(cut, axis=1, keepdims=True))
    with pytest.raises(SchemaError, match="from 1 to the 6 columns"):
        model.encode(TEXTS, dims=7)


def test_prompts_by_name_and_by_text(tmp_path: Path) -> None:
    texts = {"prompts": {"query": "query : ", "passage": "find "}, "default_prompt_name": "query", "similarity_fn_name": "dot"}
    model = fs.Embedder(write_model(tmp_path, {"pooling_mode": "mean"}, texts=texts))
    close(model.encode("dawn"), model.encode("query : dawn", prompt=""))
    close(model.encode_query("dawn"), model.encode("dawn"))
    close(model.encode_document("dawn"), model.encode("find dawn", prompt=""))
    close(model.encode("dawn", prompt_name="passage"), model.encode("dawn", prompt="find "))
    assert abs(model.encode("dawn") - model.encode("dawn", prompt="")).max() > 1e-3
    a, b = model.encode(TEXTS[:3]), model.encode(TEXTS[2:6])
    close(model.similarity(a, b), a @ b.T)
    for prompt in (None, "find "):
        with pytest.raises(SchemaError, match="did you mean 'passage'"):
            model.encode("dawn", prompt_name="pasage", prompt=prompt)
    close(model.encode("dawn", prompt_name="passage", prompt=""), model.encode("dawn", prompt=""))


@pytest.mark.quick_cases("mean")
@pytest.mark.parametrize("mode", ["mean", "cls", "weightedmean"])
def test_the_words_of_a_prompt_are_left_out_of_pooling(mode: str, tmp_path: Path) -> None:
    model = fs.Embedder(write_model(tmp_path, {"pooling_mode": mode, "include_prompt": False}))
    words = 3  # [CLS] query :
    for text in TEXTS[2:4]:
        rows = model.tokens("query : " + text)
        want = rows[words:].mean(0) if mode == "mean" else rows[words]
        if mode == "weightedmean":
            weights = np.arange(words + 1, len(rows) + 1)
            want = (rows[words:] * weights[:, None]).sum(0) / weights.sum()
        close(model.encode([text], prompt="query : ")[0], want)
    close(model.encode(["a"]), model.encode(["a"], prompt=""))


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("cosine", lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b)),
        ("euclidean", lambda a, b: -np.linalg.norm(a - b)),
        ("manhattan", lambda a, b: -abs(a - b).sum()),
    ],
)
def test_the_similarity_is_the_folders(name: str, way: Callable[[Any, Any], float], tmp_path: Path) -> None:
    model = fs.Embedder(write_model(tmp_path, {"pooling_mode": "mean"}, texts={"similarity_fn_name": name}))
    vectors = model.encode(TEXTS[:3])
    close(model.similarity(vectors, vectors[:2]), [[way(a, b) for b in vectors[:2]] for a in vectors])
    assert model.similarity_name == name


def test_texts_are_cut_at_the_folders_length_and_not_the_tokenizers_own(tmp_path: Path) -> None:
    model = fs.Embedder(write_model(tmp_path, {"pooling_mode": "mean"}))
    assert model.max_length == 30 and [len(rows) for rows in model.tokens([TEXTS[3], TEXTS[0]])] == [30, 7]
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 8, "do_lower_case": True})
    model = fs.Embedder(tmp_path)
    close(model.tokens("one two three one two three"), model.tokens("one two three one two three one"))
    close(model.encode("A ship"), model.encode("a ship"))
    write_json(tmp_path / "sentence_bert_config.json", {"max_seq_length": 900})
    assert fs.Embedder(tmp_path).max_length == 40  # the network's positions


def test_special_words_in_a_text_are_special(tmp_path: Path) -> None:
    model = fs.Embedder(write_model(tmp_path, {"pooling_mode": "mean"}))
    assert len(model.tokens("a [SEP] a")) == 5
    with pytest.raises(FeedError, match="surrogates"):
        model.encode("half \ud800")
    with pytest.raises(FeedError, match="seen int"):
        model.encode([3])  # type: ignore[list-item]


def test_a_plain_folder_has_the_mean_of_its_rows_with_a_warning(tmp_path: Path) -> None:
    write_folder(tmp_path, "DistilBertModel")
    write_tokenizer(tmp_path)
    model = fs.Embedder(tmp_path)
    with pytest.warns(ForeshapeWarning, match="mean of its rows"):
        vectors = model.encode(TEXTS)
    close(vectors, [rows.mean(0) for rows in model.tokens(TEXTS)])
    with pytest.raises(SchemaError, match="predict"):
        model.predict([("a", "b")])


def test_scores_of_pairs_and_the_order_of_documents(tmp_path: Path) -> None:
    write_folder(tmp_path, "BertForSequenceClassification", id2label={"0": "x"})
    write_tokenizer(tmp_path)
    model = fs.Embedder(tmp_path)
    pairs = [("the ship", text) for text in TEXTS]
    raw = model.predict(pairs, raw=True)
    assert raw.shape == (len(TEXTS),) and np.ptp(raw) > 0.05
    close(model.predict(pairs), 1 / (1 + np.exp(-raw)))
    close(raw, [model.predict([pair], raw=True)[0] for pair in pairs])
    assert model.rank("the ship", TEXTS, top=3) == np.argsort(-raw)[:3].tolist()
    write_tokenizer(tmp_path, model_input_names=["input_ids"])  # without the numbers of texts
    assert abs(fs.Embedder(tmp_path).predict(pairs, raw=True) - raw).max() > 1e-3
    config = json.loads((tmp_path / "config.json").read_text())
    write_json(tmp_path / "config.json", config | {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}})
    write_tokenizer(tmp_path)
    close(fs.Embedder(tmp_path).predict(pairs), raw)
    with pytest.raises(SchemaError, match="has predict and rank"):
        model.encode("a")


def test_several_scores_stay_as_they_are(tmp_path: Path) -> None:
    write_model(tmp_path, case="RobertaForSequenceClassification", texts={"model_type": "CrossEncoder"})
    model = fs.Embedder(tmp_path)
    scores = model.predict([("a", "b"), ("one two", "three")])
    assert scores.shape == (2, 3)
    close(scores, model.predict([("a", "b"), ("one two", "three")], raw=True))
    with pytest.raises(SchemaError, match="3 scores"):
        model.rank("a", ["b"])


def test_sparse_weights_of_words(tmp_path: Path) -> None:
    write_model(tmp_path, None, "SpladePooling", case="BertForMaskedLM")
    model = fs.Embedder(tmp_path)
    matrix = model.sparse(TEXTS)
    assert matrix.format == "csr" and matrix.shape == (len(TEXTS), 60)
    network = model._network
    for row, words in zip(matrix.toarray(), model._words(TEXTS), strict=True):
        scores = np.asarray(network.run(network.result, [words.ids], [words.types]))
        close(row, np.log1p(np.maximum(scores, 0)).max(0))
    with pytest.raises(SchemaError, match="no pooling"):
        model.encode("a")


def test_modules_and_files_that_are_not_known_are_named(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="WordWeights"):
        fs.Embedder(write_model(tmp_path / "a", {"pooling_mode": "mean"}, "WordWeights"))
    with pytest.raises(SchemaError, match="median"):
        fs.Embedder(write_model(tmp_path / "b", {"pooling_mode": "median"}))
    folder = write_model(tmp_path / "c", {"pooling_mode": "mean"})
    (folder / "tokenizer.json").unlink()
    with pytest.raises(FormatError, match=r"tokenizer\.json, or vocab\.txt is missing"):
        fs.Embedder(folder)
    with pytest.raises(FormatError, match="must be a folder"):
        fs.Embedder(tmp_path / "d")
    write_json(folder / "modules.json", [{"type": "x.Transformer", "path": "../b"}])
    with pytest.raises(FormatError, match="within the folder"):
        fs.Embedder(folder)
    with pytest.raises(fs.MemoryPlanError, match=r'memory="1\.0 KiB" has no room for the tokenizer'):
        fs.Embedder(write_model(tmp_path / "e", {"pooling_mode": "mean"}), memory="1KiB")


def test_a_table_of_words_alone_is_a_tokenizer(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {"pooling_mode": "mean"})
    want = fs.Embedder(folder).encode(["the ship left", "a"])
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    close(fs.Embedder(folder).encode(["The SHIP left", "a"]), want)


def test_words_of_bytes_and_their_merges_are_a_tokenizer(tmp_path: Path) -> None:
    folder = write_model(tmp_path, {"pooling_mode": "mean"}, case="RobertaModel", tokenizer={"tokenizer_class": "RobertaTokenizer"})
    (folder / "tokenizer.json").unlink()
    write_json(folder / "vocab.json", {w: i for i, w in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a", "b", "ab", "Ġ", "Ġa"])})
    (folder / "merges.txt").write_text("#version: 0.2\na b\nĠ a\n")
    model = fs.Embedder(folder)
    assert [list(t.ids) for t in model._words(["ab a", "b<s>"])] == [[0, 6, 8, 2], [0, 5, 0, 2]]


@pytest.mark.parametrize("texts", [[("a", "b")], {"a": 1}.items(), [1]])
def test_what_is_no_text_is_refused_where_vectors_are_asked(texts, tmp_path):
    model = fs.Embedder(write_model(tmp_path, {"pooling_mode": "mean"}))
    with pytest.raises(fs.errors.FeedError, match="a text must be a str"):
        model.encode(texts)
    with pytest.raises(fs.errors.SchemaError, match="dims must be from 1"):
        model.encode("a", dims="3")
    with pytest.raises(fs.errors.SchemaError, match="threads must be a whole number"):
        fs.Embedder(tmp_path, threads="2")


CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "no texts": ("sentences must be an iterable of texts, or a text; seen None", lambda m: m.encode(None)),
    "a number for texts": ("sentences must be .*; seen 5", lambda m: m.tokens(5)),
    "a prompt that is no text": ("a text must be a str; seen int", lambda m: m.encode("a", prompt=5)),
    "a prompt before a number": ("a text must be a str; seen int", lambda m: m.tokens([3], prompt="find ")),
    "a prompt before a pair": ("a text must be a str; seen tuple", lambda m: m.tokens([("a", "b")], prompt="find ")),
    "tokens of a text alone": ("texts must be an iterable of texts, or of pairs; seen 'a str'", lambda m: m.tokenize("a str")),
    "three texts for a pair": ("each entry must be a text, or a pair of two", lambda m: m.tokenize([("a", "b", "c")])),
    "tokens of no text": ("a text must be a str; seen NoneType", lambda m: m.text_tokens(None)),
    "a stream of letters": ("sentences must be an iterable of texts; seen 'abc'", lambda m: m.encode_stream("abc")),
    "other widths": (r"vectors of one width, .*; seen \[2, 16\] and \[3, 15\]", lambda m: m.similarity(np.ones((2, 16)), np.ones((3, 15)))),
    "a width of 1": (r"vectors of one width, .*; seen \[2, 16\] and \[1\]", lambda m: m.similarity(np.ones((2, 16)), [1.0])),
    "three dims": (r"vectors of one width, .*; seen \[1, 2, 16\]", lambda m: m.similarity(np.ones((1, 2, 16)), np.ones((2, 16)))),
    "a text for vectors": ("a and b must be vectors of numbers; seen could not convert", lambda m: m.similarity("a", np.ones((2, 16)))),
    "rows of other lengths": ("a and b must be vectors of numbers", lambda m: m.similarity([[1.0], [1.0, 2.0]], np.ones((2, 16)))),
}
SCORE_CALLS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "documents of letters": ("documents must be an iterable of texts; seen 'the ship'", lambda m: m.rank("a", "the ship")),
    "no documents": ("documents must be .*; seen None", lambda m: m.rank("a", None)),
    "a question that is no text": ("a text must be a str; seen int", lambda m: m.rank(5, ["a"])),
    "pairs of letters": ("a pair must be an iterable of two texts; seen 'ab'", lambda m: m.predict(["ab"])),
    "a pair of three": ("a pair must be an iterable of two texts; seen .*'c'", lambda m: m.predict([("a", "b", "c")])),
    "a pair alone": ("pairs must be an iterable of pairs of texts; seen 'ab'", lambda m: m.predict("ab")),
}


def test_a_call_with_other_things_says_the_required_and_the_seen(tmp_path: Path) -> None:
    model = fs.Embedder(write_model(tmp_path / "vectors", {"pooling_mode": "mean"}, texts={"similarity_fn_name": "euclidean"}))
    scores = fs.Embedder(write_model(tmp_path / "scores", case="BertForSequenceClassification", id2label={"0": "x"}, texts={"model_type": "CrossEncoder"}))
    for cases, receiver in ((CALLS, model), (SCORE_CALLS, scores)):
        for words, call in cases.values():
            with pytest.raises(FeedError, match=words):
                call(receiver)
    with pytest.raises(SchemaError, match="no prompts; seen prompt_name="):
        model.encode("a", prompt_name=["a"])  # type: ignore[arg-type]
    assert model.similarity(np.ones((0, 16)), np.ones((2, 16))).shape == (0, 2)
    assert len(model.tokens("the ship")) == 4 and len(scores.rank("a", iter(["the ship", "a"]))) == 2


DAMAGES: dict[str, dict[str, Any]] = {
    "config.json": {"vocab_size": "abc", "hidden_size": None, "num_attention_heads": 0, "num_hidden_layers": [1], "layer_norm_eps": {}, "architectures": 5,
                    "model_type": [1], "hidden_act": 5, "type_vocab_size": "2", "pad_token_id": "0", "id2label": 3, "max_position_embeddings": True},
    "modules.json": {},
    "1_Pooling/config.json": {"pooling_mode": 5},
    "tokenizer_config.json": {"model_max_length": "long", "model_input_names": 5, "truncation_side": "middle", "tokenizer_class": 5, "cls_token": 5,
                              "added_tokens_decoder": {"a": "b"}, "strip_accents": "no"},
    "special_tokens_map.json": {"unk_token": [1], "sep_token": {"content": 5}},
    "sentence_bert_config.json": {"max_seq_length": "abc"},
    "config_sentence_transformers.json": {"prompts": 5, "default_prompt_name": [1], "similarity_fn_name": 5, "model_type": 5, "activation_fn": {}},
}  # fmt: skip
"""From a file of a folder to fields of another kind."""


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_of_settings_is_named(name: str, tmp_path: Path) -> None:
    write_model(tmp_path, {"pooling_mode": "mean"}, settings={"max_seq_length": 20}, texts={"prompts": {"q": "query : "}})
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    write_json(tmp_path / "special_tokens_map.json", {"cls_token": "[CLS]"})
    assert fs.Embedder(tmp_path).encode("a").shape == (16,)
    file = tmp_path / name
    whole = file.read_bytes()
    for damage, words in [(whole[:-3], "no JSON"), (b"\xff", "no JSON"), (b"[" * 100_000, "no JSON"), (b"null", "must hold"), (b"3", "must hold")]:
        file.write_bytes(damage)
        with pytest.raises(FormatError, match=rf"{re.escape(name)}:? {words}"):
            fs.Embedder(tmp_path)
    for field, value in DAMAGES[name].items():
        write_json(file, json.loads(whole) | {field: value})
        with pytest.raises((FormatError, SchemaError), match=rf"{re.escape(name)}: (the .* must have )?{field}( must be|$)") as caught:
            fs.Embedder(tmp_path)
        assert "Error" not in str(caught.value), field
