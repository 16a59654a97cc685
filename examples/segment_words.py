"""Divide Chinese sentences into words and say what each word is, with the trained tagger that the package jieba carries.

    pip install -e '.[train,examples]'
    python examples/segment_words.py [SENTENCE ...] [--jieba FOLDER] [--save PREFIX]

The model is `lac_small` of jieba 0.42.1 (https://github.com/fxsjy/jieba, MIT licence; the model was trained by PaddlePaddle's
authors, https://github.com/baidu/lac, Apache-2.0). It lies in jieba's folder `lac_small`: two lists, of characters and of tags, and the
parameters in PaddlePaddle's oldest format, one file for each. There is no program with them, so that it is described here: characters are
looked up in a table, two bidirectional GRUs read them, and a conditional random field chooses the most likely row of tags. Sentences are of
any length and nothing is padded. jieba itself is not run; its folder is all that is needed, and `--jieba` names one that lies elsewhere.

With `--save` the tagger is written as one program and one file of parameters, which `fs.load_inference_model` opens, and PaddlePaddle too.

Tags are those of the People's Daily corpus (n a noun, v a verb, a an adjective, d an adverb, m a number, p a preposition, r a pronoun,
u a particle, w punctuation, xc another function word, ...), and PER, LOC, ORG and TIME for names of persons, places, organisations and for times.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.interop import read_parameters

SENTENCES = [
    "今天天气很好，我们去公园散步。",
    "李明在北京大学学习计算机科学。",
    "百度是一家位于北京的高科技公司",
    "他于2008年8月8日观看了奥运会开幕式",
    "我爱自然语言处理",
]
HIDDEN = 128
PLAIN = {wide: wide - 0xFEE0 for wide in range(0xFF01, 0xFF5F)}  # from U+FF0C, the wide comma, to U+002C, and the like


def model_folder(given=None):
    """The folder `lac_small` of the folder that is given, or of the jieba that is installed."""
    if given is None:
        found = importlib.util.find_spec("jieba")  # found, but not run
        if found is None or not found.submodule_search_locations:
            raise SystemExit("jieba is not installed: pip install jieba==0.42.1, or name its folder with --jieba")
        given = found.submodule_search_locations[0]
    for folder in (Path(given), Path(given, "lac_small"), Path(given, "jieba", "lac_small")):
        if (folder / "word.dic").is_file():
            return folder
    raise SystemExit(f"{given} has no lac_small/word.dic; jieba 0.42.1 has it")


def read_list(path):
    """Lines "number, tab, text" as a dictionary from number to text."""
    pairs = [line.rstrip("\n").split("\t") for line in path.open(encoding="utf-8")]
    return {int(pair[0]): pair[1] for pair in pairs if len(pair) == 2}


def bidirectional_gru(x, first):
    """[characters, width] -> [characters, 2 HIDDEN]. The op `gru` is given its inputs' share of the gates by a layer before it; the
    parameters of the two directions carry the numbers first and first + 1.
    """
    block = fs.default_main_program().global_block
    states = []
    for number, is_reverse in ((first, False), (first + 1, True)):
        share = layer.fc(x, 3 * HIDDEN, weight=f"fc_{number}.w_0", bias=f"fc_{number}.b_0")
        weight = layer.create_parameter([HIDDEN, 3 * HIDDEN], "fp32", f"gru_{number}.w_0")
        bias = layer.create_parameter([1, 3 * HIDDEN], "fp32", f"gru_{number}.b_0")
        states.append(block.apply("gru", {"Input": share, "Weight": weight, "Bias": bias}, {"is_reverse": is_reverse})[-1])
    return layer.concat(states, 1)


def describe(characters_known, tags_known):
    """The tagger, with the parameters' names of the files: the program, its input and the tag of each character."""
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        words = layer.data("words", shape=["characters"], dtype="int64", lod_level=1)
        h = layer.embedding(words, [characters_known, HIDDEN], weight="word_emb")
        h = bidirectional_gru(bidirectional_gru(h, 0), 2)
        weights = layer.fc(h, tags_known, weight="fc_4.w_0", bias="fc_4.b_0")
        tags = layer.crf_decoding(weights, layer.create_parameter([tags_known + 2, tags_known], "fp32", "crfw"))
    return program, words, tags


def words_of(sentence, tags):
    """[(word, tag), ...] of a sentence with a tag like "n-B", "n-I" or "O" for each character. A word begins where a tag ends with B, or
    where characters begin to be in no word.
    """
    words = []
    before = None
    for character, tag in zip(sentence, tags, strict=True):
        if not words or tag.endswith("-B") or (tag == "O" and before != "O"):
            words.append((character, tag.split("-")[0]))
        else:
            words[-1] = (words[-1][0] + character, words[-1][1])
        before = tag
    return words


class Tagger:
    """The tagger with its parameters and lists; called with sentences, it gives each one's words with their tags."""

    def __init__(self, folder):
        characters = read_list(folder / "word.dic")
        self.numbers = {character: number for number, character in characters.items()}
        self.tags = read_list(folder / "tag.dic")
        self.program, self.words, self.path = describe(max(characters) + 1, max(self.tags) + 1)
        self.scope = fs.Scope()
        parameters = {p.name: p.spec for p in self.program.parameters()}
        for name, value in read_parameters(folder / "model_baseline", parameters, parameters).items():
            self.scope.set(name, value)
        self.executor = fs.Executor(frozen=True)

    def numbers_of(self, sentence):
        """The characters' numbers: wide letters and marks are read as their plain forms, as the network learned them."""
        return [self.numbers.get(character, self.numbers["OOV"]) for character in sentence.translate(PLAIN)]

    def __call__(self, sentences):
        lengths = [[len(sentence) for sentence in sentences]]
        ids = np.array([number for sentence in sentences for number in self.numbers_of(sentence)], "int64")
        (path,) = self.executor.run(self.program, {"words": fs.LoDTensor(ids, lengths)}, [self.path], self.scope)
        return [words_of(s, [self.tags[int(t)] for t in np.ravel(tags)]) for s, tags in zip(sentences, path.to_list(), strict=True)]


def main():
    parser = argparse.ArgumentParser(description="Words and tags of Chinese sentences.")
    parser.add_argument("sentences", nargs="*", help="some are given where there are none")
    parser.add_argument("--jieba", help="the package's folder where it is not installed")
    parser.add_argument("--save", metavar="PREFIX", help="write the tagger to PREFIX.pdmodel and PREFIX.pdiparams")
    given = parser.parse_args()
    sentences = [sentence for sentence in (s.strip() for s in given.sentences or SENTENCES) if sentence]
    if not sentences:
        sys.exit("there is nothing to read")
    tagger = Tagger(model_folder(given.jieba))
    for words in tagger(sentences):
        print(" ".join(f"{word}/{tag}" for word, tag in words))
    if given.save:
        fs.save_inference_model(given.save, [tagger.words], [tagger.path], program=tagger.program, scope=tagger.scope)


if __name__ == "__main__":
    main()
