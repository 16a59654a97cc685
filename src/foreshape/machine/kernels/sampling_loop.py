"""The choice of a next word from its scores in machine code: the instruction `SAMPLING` of `foreshape.machine.kernels.word_loop`.

The words to draw among (``top_k``, ``top_p``, ``min_p``) are the first ones by their scores. No sort is needed to draw one: sums over ranges of scores tell
the range of a border, and a few rounds reach the word (`_crossing`).

Sums in fp64 are rounded in another order than torch's. A border within the rounding of both, and equal scores in an order of torch's own, leave the word
`UNDECIDED`: torch's kernels then choose it, with the same random number. So the words are theirs always.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from foreshape.machine.kernels.instructions import floats, with_names

if TYPE_CHECKING:
    import numpy as np

    from foreshape.machine.kernels.word_loop import doubles, whole_numbers

ADD, REPEAT, SET = range(3)
"""Kinds of changes of a score: a number is added; it divides a positive score and multiplies a negative one; it takes the score's place."""
ROW: Final = 7
"""The numbers of a choice: temperature, ``top_k``, ``top_p``, ``min_p``, the random number, the first change, and the one behind the last."""
CHANGE: Final = 3
"""The numbers of a change: a word, the kind, the number."""
UNDECIDED: Final = -1
_BUCKETS: Final = 2048
_FEW: Final = 32
_BLOCK: Final = 64
_INFINITY: Final = 0x7F800000
_MINUS_INFINITY: Final = -0x7F800001
"""Keys of scores: more is inf or NaN, less is NaN."""
_ROUNDING: Final = 2.0**-50
"""For each addend: some times the rounding of a sum in fp64, of torch's and of the one here."""
_SHIFT: Final = 1.5 * 2.0**52
"""A number in fp64 with this one added is rounded to whole ones."""


def power_of_shifted(shifted: float) -> Any:
    """Return 2 to the power of a whole number above -1022, from its sum with `_SHIFT`. (In machine code; see `sampling_functions`.)"""
    raise NotImplementedError


def _power(y: Any) -> Any:
    """Return e to the power of a number up to 0, within some units of the last place, 0 for ones below e^-700; for several numbers at once."""
    shifted = y * 1.4426950408889634 + _SHIFT
    whole = shifted - _SHIFT
    rest = (y - whole * 6.93147180369123816490e-01) - whole * 1.90821492927058770002e-10
    total = rest * (1 / 6227020800) + 1 / 479001600
    total = total * rest + 1 / 39916800
    total = total * rest + 1 / 3628800
    total = total * rest + 1 / 362880
    total = total * rest + 1 / 40320
    total = total * rest + 1 / 5040
    total = total * rest + 1 / 720
    total = total * rest + 1 / 120
    total = total * rest + 1 / 24
    total = total * rest + 1 / 6
    total = total * rest + 0.5
    total = total * rest + 1.0
    total = total * rest + 1.0
    return total * power_of_shifted(shifted) if y >= -700.0 else 0.0


def _key(bits: Any) -> Any:
    """Return a whole number for the bits of an fp32 number, in the order of these numbers: 0 for both zeros."""
    bits = np.int64(bits)
    return np.int64(0) if bits == -0x80000000 else bits ^ ((bits >> 31) & 0x7FFFFFFF)


def _mass(p: Any, words: Any, count: int) -> Any:
    total = 0.0
    for i in range(count):
        total += p[words[i]]
    return total


def _crossing(bits: Any, p: Any, words: Any, count: int, other: Any, sums: Any, target: float) -> Any:
    """Return the first word, by its score, with more than a target as the sum of ``p`` up to it; and the sum before it. Of equal scores the first one counts.

    Each round sums up ranges of scores and goes on with the range of the target. ``other``: memory for as many words; ``sums``: for `_BUCKETS` sums.
    """
    before, low, high = 0.0, _key(bits[words[0]]), _key(bits[words[0]])
    for i in range(count):
        other[i] = words[i]
        key = _key(bits[words[i]])
        low, high = min(low, key), max(high, key)
    while count > _FEW and low < high:
        shift = 0
        while (high - low) >> shift >= _BUCKETS:
            shift += 1
        last = (high - low) >> shift
        for bucket in range(last + 1):
            sums[bucket] = 0.0
        for i in range(count):
            sums[(high - _key(bits[other[i]])) >> shift] += p[other[i]]
        bucket = 0
        while bucket < last and before + sums[bucket] <= target:
            before += sums[bucket]
            bucket += 1
        remaining, top, low, high = 0, high, high, low
        for i in range(count):
            word = other[i]
            key = _key(bits[word])
            if (top - key) >> shift == bucket:
                other[remaining] = word
                remaining += 1
                low, high = min(low, key), max(high, key)
        count = remaining
    if low < high:
        for i in range(1, count):
            word, index = other[i], i
            while index > 0 and _key(bits[other[index - 1]]) < _key(bits[word]):
                other[index] = other[index - 1]
                index -= 1
            other[index] = word
    index = 0
    while index < count - 1 and before + p[other[index]] <= target:
        before += p[other[index]]
        index += 1
    return np.int64(other[index]), before


def _best_blocks(x: int, n: int, top_k: int, best: Any, rounding: Any, scratch: int) -> int:
    """Gather words, ``top_k`` best ones among them, and return their number: the best scores of so many blocks are a bound; n, and no words, if there is none.

    ``scratch``: as of `_chosen`, with the bits of the best score of each block.
    """
    scores, tops, words = floats(x), whole_numbers(scratch), whole_numbers(scratch + 8 * n)
    blocks, count = (n + _BLOCK - 1) // _BLOCK, 0
    if top_k > blocks // 2:
        return n
    units = doubles(scratch + 8 * ((n + 1) // 2))
    for block in range(blocks):
        words[block], units[block] = block, 1.0
    edge, _ = _crossing(tops, units, words, blocks, whole_numbers(scratch + 12 * n), doubles(scratch + 16 * n), top_k - 0.5)
    bound = (np.float64(floats(scratch)[edge]) - best) * (1.0 + 2.0 * rounding)
    for block in range(blocks):
        if np.float64(floats(scratch)[block]) - best >= bound:
            for j in range(_BLOCK * block, min(n, _BLOCK * block + _BLOCK)):
                if np.float64(scores[j]) - best >= bound:
                    words[count] = j
                    count += 1
    return count


def _keep(bits: Any, words: Any, count: int, edge: int) -> Any:
    """Keep the words with scores from the one of ``edge`` up, of equal ones up to it; return their number."""
    cut, remaining = _key(bits[edge]), 0
    for i in range(count):
        key = _key(bits[words[i]])
        if key > cut or (key == cut and words[i] <= edge):
            words[remaining] = words[i]
            remaining += 1
    return remaining


def _has_rival(bits: Any, p: Any, words: Any, count: int, word: int, rounding: Any, limited: bool) -> bool:
    """Tell whether the place of a word among the others is not known: by torch's ``topk`` equal scores have any order, and rounding orders close ones."""
    rivals = 0
    for i in range(count):
        is_close = abs(p[words[i]] - p[word]) <= rounding * p[word]
        rivals += 1 if is_close and words[i] != word and (limited or bits[words[i]] != bits[word]) else 0
    return rivals > 0


def _chosen(x: int, n: int, row: int, scratch: int) -> int:
    """Return the word for scores x [n] by the numbers of a choice."""
    scores, bits, numbers = floats(x), whole_numbers(x), doubles(row)
    temperature, top_k, top_p, min_p, number = numbers[0], int(numbers[1]), numbers[2], numbers[3], numbers[4]
    blocks, least, top, index = (n + _BLOCK - 1) // _BLOCK, _INFINITY, _MINUS_INFINITY, 0
    tops = whole_numbers(scratch)
    for block in range(blocks):
        best_key = _MINUS_INFINITY
        for j in range(_BLOCK * block, min(n, _BLOCK * block + _BLOCK)):
            key = _key(bits[j])
            best_key, least = max(best_key, key), min(least, key)
        tops[block] = _key(best_key)  # the bits of a key are its key
        if best_key > top:
            top, index = best_key, block
    if least < _MINUS_INFINITY or top > _INFINITY or top == _MINUS_INFINITY:
        return UNDECIDED
    first = _BLOCK * index
    while _key(bits[first]) != top:
        first += 1
    if temperature == 0.0:
        return first
    if top == _INFINITY or number == 0.0:  # which of the least likely words is the first one?
        return UNDECIDED
    best, rounding = np.float64(scores[first]), _ROUNDING * (n + 64)
    p, words, other, sums = doubles(scratch), whole_numbers(scratch + 8 * n), whole_numbers(scratch + 12 * n), doubles(scratch + 16 * n)
    limited = 0 < top_k < n
    count = _best_blocks(x, n, top_k, best, rounding, scratch) if limited else n
    if count == n:
        for j in range(n):
            words[j] = j
    if limited:
        for i in range(count):
            p[words[i]] = 1.0
        edge, _ = _crossing(bits, p, words, count, other, sums, top_k - 0.5)
        cut, remaining = (np.float64(scores[edge]) - best) * (1.0 + rounding), 0
        for i in range(count):
            if np.float64(scores[words[i]]) - best >= cut:
                words[remaining] = words[i]
                remaining += 1
        count = remaining
        if count != top_k:
            return UNDECIDED
        for i in range(count):
            p[words[i]] = _power((np.float64(scores[words[i]]) - best) / temperature)
    else:
        for j in range(n):
            p[j] = _power((np.float64(scores[j]) - best) / temperature)
    total = _mass(p, words, count)
    if top_p < 1.0:
        target = top_p * total
        edge, before = _crossing(bits, p, words, count, other, sums, target)
        after = before + p[edge]
        if (before > 0.0 and target - before <= rounding * total) or abs(after - target) <= rounding * total:
            return UNDECIDED
        if _has_rival(bits, p, words, count, edge, rounding, limited):
            return UNDECIDED
        count = _keep(bits, words, count, edge)
        total = after
    if min_p > 0.0:
        remaining = 0
        for i in range(count):
            part = p[words[i]]
            if abs(part - min_p) <= rounding * min_p and _key(bits[words[i]]) != top:
                return UNDECIDED
            if part >= min_p:
                words[remaining] = words[i]
                remaining += 1
        count = remaining
        total = _mass(p, words, count)
    if count == 1:
        return words[0]
    target = number * total
    if limited or top_p < 1.0:
        word, before = _crossing(bits, p, words, count, other, sums, target)
        is_first = before == 0.0
        if _has_rival(bits, p, words, count, word, rounding, limited):
            return UNDECIDED
    else:
        index, before = 0, 0.0
        while index < count - 1 and before + p[words[index]] <= target:
            before += p[words[index]]
            index += 1
        word, is_first = int(words[index]), index == 0
    after = before + p[word]
    if (not is_first and target - before <= rounding * total) or after - target <= rounding * total:
        return UNDECIDED
    return word


def sample_word(x: int, n: int, row: int, changes: int, scratch: int) -> int:
    """Return the word chosen from scores x [n], or `UNDECIDED`. The scores are changed for it, and as before behind it.

    Args:
        x: the address of the scores.
        n: their number.
        row: the address of the `ROW` numbers of the choice; nothing is chosen by a temperature below 0.
        changes: the address of the changes of all texts. Their numbers are lost.
        scratch: the address of `sampling_scratch` numbers of fp32.
    """
    if doubles(row)[0] < 0.0:
        return UNDECIDED
    scores, numbers, first, last = floats(x), doubles(changes), int(doubles(row)[5]), int(doubles(row)[6])
    for at in range(CHANGE * first, CHANGE * last, CHANGE):
        word, kind, number = int(numbers[at]), int(numbers[at + 1]), np.float32(numbers[at + 2])
        old = scores[word]
        scores[word] = number if kind == SET else old + number if kind == ADD else old * number if old < np.float32(0) else old / number
        numbers[at + 2] = old
    chosen = _chosen(x, n, row, scratch)
    for at in range(CHANGE * (last - 1), CHANGE * (first - 1), -CHANGE):
        scores[int(numbers[at])] = np.float32(numbers[at + 2])
    return chosen


def sampling_scratch(n: int) -> int:
    """Return the numbers of fp32 in a thread's scratch of a choice among n words."""
    return 4 * n + 2 * _BUCKETS


def sampling_functions(names: dict[str, Any]) -> dict[str, Any]:
    """Return `sample_word` for numba by its name, with these global names."""
    numba = importlib.import_module("numba")
    intrinsic, ir = importlib.import_module("numba.extending").intrinsic, importlib.import_module("llvmlite.ir")
    number, whole = ir.DoubleType(), ir.IntType(64)

    def power(context: Any, shifted: Any) -> Any:
        def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            exponent = builder.add(builder.bitcast(arguments[0], whole), whole(1023))  # bits above those of the exponent are shifted out
            return builder.bitcast(builder.shl(exponent, whole(52)), number)

        return numba.types.float64(numba.types.float64), build

    names = {**globals(), **names, "power_of_shifted": intrinsic(power)}
    for function in (_power, _key):
        names[function.__name__] = numba.njit(error_model="numpy", inline="always")(with_names(function, names))
    names["_mass"] = numba.njit(error_model="numpy", fastmath=True)(with_names(_mass, names))  # in any order, the same for each text
    for function in (_crossing, _best_blocks, _keep, _has_rival, _chosen, sample_word):
        names[function.__name__] = numba.njit(error_model="numpy")(with_names(function, names))
    return {"sample_word": names["sample_word"]}
