"""`examples/segment_words.py`: the network that it describes, how tags become words; and the whole, with jieba's parameters.

These are not part of this project: jieba 0.42.1 is installed, or FORESHAPE_JIEBA names its folder.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import foreshape as fs
from foreshape.core.dims import symbol

EXAMPLE = Path(__file__).parents[2] / "examples" / "segment_words.py"


def opened() -> ModuleType:
    spec = importlib.util.spec_from_file_location("segment_words", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


segment_words = opened()


def test_a_word_begins_where_a_tag_says_so() -> None:
    assert segment_words.words_of("abcdef", ["n-B", "n-I", "v-B", "O", "O", "n-B"]) == [("ab", "n"), ("c", "v"), ("de", "O"), ("f", "n")]
    assert segment_words.words_of("abc", ["n-I", "n-I", "v-I"]) == [("abc", "n")]  # with no beginning the first character is one
    assert segment_words.words_of("", []) == []


def test_the_tagger_is_described_as_its_files_are() -> None:
    program, words, path = segment_words.describe(50, 7)
    assert path.spec.known_dims == (symbol("characters"), 1) and path.spec.lod is not None and path.dtype == words.dtype
    parameters = {p.name: tuple(p.shape) for p in program.parameters()}
    assert parameters["word_emb"] == (50, 128) and parameters["crfw"] == (9, 7) and parameters["fc_4.w_0"] == (256, 7)
    assert all(parameters[f"gru_{i}.w_0"] == (128, 384) and parameters[f"gru_{i}.b_0"] == (1, 384) for i in range(4))
    assert [parameters[f"fc_{i}.w_0"] for i in range(4)] == [(128, 384)] * 2 + [(256, 384)] * 2 and len(parameters) == 20
    assert [op.attrs["is_reverse"] for op in program.global_block.ops if op.type == "gru"] == [False, True, False, True]


def test_a_folder_without_the_lists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"has no lac_small/word\.dic"):
        segment_words.model_folder(tmp_path)


@pytest.mark.long
def test_sentences_are_divided(tmp_path: Path) -> None:
    given = os.environ.get("FORESHAPE_JIEBA")
    if given is None and importlib.util.find_spec("jieba") is None:
        pytest.skip("jieba 0.42.1, of which the parameters are, is not installed, and FORESHAPE_JIEBA does not name its folder")
    folder = [] if given is None else ["--jieba", given]
    command = [sys.executable, str(EXAMPLE), *folder, "--save", str(tmp_path / "tagger")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONIOENCODING": "utf-8"}, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[1] == "李明/PER 在/p 北京大学/ORG 学习/v 计算机/n 科学/n 。/n"
    assert lines[3] == "他/r 于/p 2008年8月8日/TIME 观看/v 了/u 奥运会/nz 开幕式/n"
    assert [line.replace(" ", "") != line for line in lines] == [True] * 5

    tagger = segment_words.Tagger(segment_words.model_folder(given))
    together = tagger(segment_words.SENTENCES)
    assert together == [tagger([sentence])[0] for sentence in segment_words.SENTENCES]  # neighbours change nothing
    ids = np.array([number for sentence in segment_words.SENTENCES for number in tagger.numbers_of(sentence)])
    (saved,) = fs.Predictor(tmp_path / "tagger").run({"words": fs.LoDTensor(ids, [[len(s) for s in segment_words.SENTENCES]])}).values()
    tags = [[tagger.tags[int(t)] for t in np.ravel(rows)] for rows in saved.to_list()]
    assert [segment_words.words_of(s, t) for s, t in zip(segment_words.SENTENCES, tags, strict=True)] == together
