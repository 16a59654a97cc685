"""Parameter files: written and read, refused with the tensor's name and the byte offset where they are not what they should be."""

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.some import examples

import foreshape as fs
from foreshape.core.spec import BF16, DTYPES, FP32, INT64, tensor
from foreshape.interop import read_parameters, write_parameters
from foreshape.interop.parameters import bf16_bits
from foreshape.language.wire.tensors import encode_tensor_desc

VALUES = {
    "b": np.arange(3, dtype=np.float32),
    "a/w": np.arange(6, dtype=np.float64).reshape(2, 3),
    "n": np.array([[1, 2], [3, -4]], np.int64),
    "empty": np.zeros((0, 4), np.float32),
    "scalar": np.float32(2.5),
    "flag": np.array([True, False]),
}


def piece(dims, data, of=FP32, version=0, levels=(), inner=0, description=None):
    """The bytes of one tensor, with whatever is to be wrong in them."""
    body = encode_tensor_desc(of, dims) if description is None else description
    lod = b"".join(struct.pack("<Q", len(o) * 8) + np.asarray(o, "<u8").tobytes() for o in levels)
    return struct.pack("<IQ", version, len(levels)) + lod + struct.pack("<Ii", inner, len(body)) + body + data


FLOATS = np.arange(6, dtype="<f4").tobytes()


@pytest.fixture
def written(tmp_path):
    write_parameters(tmp_path / "p", VALUES)
    return (tmp_path / "p").read_bytes()


def test_what_is_written_is_read_back(tmp_path, written):
    for source in (tmp_path / "p", str(tmp_path / "p"), written, memoryview(written)):
        seen = read_parameters(source, reversed(VALUES))
        assert list(seen) == sorted(VALUES)
        for name, value in VALUES.items():
            assert seen[name].dtype == value.dtype and np.array_equal(seen[name], value) and seen[name].shape == np.shape(value)


def test_the_layout_is_paddlepaddles(tmp_path):
    write_parameters(tmp_path / "p", {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    assert (tmp_path / "p").read_bytes() == piece((2, 3), FLOATS)


@pytest.mark.parametrize("of", [d for d in DTYPES if d is not BF16], ids=lambda d: d.name)
def test_each_element_type(tmp_path, of):
    value = np.array([[0, 1, 1], [1, 0, 1]]).astype(of.numpy_name)
    write_parameters(tmp_path / "p", {"w": value})
    seen = read_parameters(tmp_path / "p", ["w"], {"w": tensor(of, 2, 3)})["w"]
    assert seen.dtype == value.dtype and np.array_equal(seen, value)


def test_other_byte_orders_and_strides_are_written_as_numbers(tmp_path):
    value = np.arange(12, dtype=">f4").reshape(3, 4).T[::-1]
    write_parameters(tmp_path / "p", {"w": value})
    assert np.array_equal(read_parameters(tmp_path / "p", ["w"])["w"], value)


def test_bf16_is_given_and_read_as_fp32(tmp_path):
    value = np.array([1.0, -2.5, 3.0e38, 1e-40, 0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    write_parameters(tmp_path / "p", {"w": value}, {"w": BF16})
    assert (tmp_path / "p").stat().st_size == 12 + 8 + len(encode_tensor_desc(BF16, (9,))) + 18
    seen = read_parameters(tmp_path / "p", ["w"], {"w": tensor(BF16, 9)})["w"]
    assert seen.dtype == np.float32
    assert np.allclose(seen[:3], value[:3], rtol=2**-8) and np.array_equal(np.signbit(seen[4:6]), [False, True])
    assert np.array_equal(seen[6:8], value[6:8]) and np.isnan(seen[8])
    write_parameters(tmp_path / "again", {"w": seen}, {"w": BF16})
    assert (tmp_path / "again").read_bytes()[:-2] == (tmp_path / "p").read_bytes()[:-2]


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.floats(width=32), max_size=20))
def test_bf16_rounds_as_torch_does(numbers):
    import torch

    array = np.array(numbers, np.float32)
    want = torch.from_numpy(array).to(torch.bfloat16)
    seen = torch.from_numpy(bf16_bits(array).view(np.int16).copy()).view(torch.bfloat16)
    assert torch.equal(torch.isnan(want), torch.isnan(seen)) and torch.equal(want.nan_to_num(7.0), seen.nan_to_num(7.0))


def test_a_nan_is_a_number_like_others(tmp_path):
    write_parameters(tmp_path / "p", {"w": np.array([np.nan, np.inf], np.float32)})
    assert np.isnan(read_parameters(tmp_path / "p", ["w"])["w"][0])


def test_a_file_that_is_cut_anywhere_is_refused(written):
    for size in range(len(written)):
        with pytest.raises(fs.FormatError, match=r"the parameter '.*byte \d+"):
            read_parameters(written[:size], VALUES)


def test_bytes_after_the_last_tensor_are_refused(written):
    with pytest.raises(fs.FormatError, match=f"1 bytes are left from byte {len(written)}"):
        read_parameters(written + b"\0", VALUES)
    with pytest.raises(fs.FormatError, match="left from byte 0, after nothing"):
        read_parameters(b"\0", [])
    assert read_parameters(b"", []) == {}


def test_a_missing_or_surplus_tensor_is_refused(written):
    with pytest.raises(fs.FormatError, match=r"'zz' is missing \(and 1 more\)"):
        read_parameters(written, [*VALUES, "zz", "zzz"])
    with pytest.raises(fs.FormatError, match="bytes are left"):
        read_parameters(written, sorted(VALUES)[:-1])


WRONG = {
    "version 7": piece((2, 3), FLOATS, version=7),
    "version 9": piece((2, 3), FLOATS, inner=9),
    "lod levels": struct.pack("<IQ", 0, 2**63) + b"\0" * 40,
    "lod level 0 takes": struct.pack("<IQQ", 0, 1, 2**62) + b"\0" * 40,
    "no 64-bit offsets": struct.pack("<IQQ", 0, 1, 7) + b"\0" * 40,
    "must rise from 0 to 2": piece((2, 3), FLOATS, levels=[[0, 3]]),
    "offsets of lod level 1": piece((2, 3), FLOATS, levels=[[0, 2], [0, 3, 2]]),
    "description has -5 bytes": struct.pack("<IQIi", 0, 0, 0, -5) + b"\0" * 40,
    "description has 2147483647 bytes": struct.pack("<IQIi", 0, 0, 0, 2**31 - 1) + b"\0" * 40,
    "description has 0 bytes": struct.pack("<IQIi", 0, 0, 0, 0) + b"\0" * 40,
    "not a tensor's description": piece((2, 3), FLOATS, description=b"\xff\xff\xff"),
    "element type is missing": piece((2, 3), FLOATS, description=b"\x08\x63\x10\x02"),
    "none of a tensor": piece((2, 3), FLOATS, description=b"\x08\x07\x10\x02"),
    "dims of at least 0": piece((2, -3), FLOATS),
    "at most 64 dims": piece((1,) * 65, FLOATS),
    "takes 9223372036854775807": piece((2**63 - 1, 1), b"", of=fs.INT8),
    "does not fit a 64-bit integer": piece((2**63 - 1,) * 2 + (1,), b"", of=FP32),
    "takes 24 bytes, and 23 are left": piece((2, 3), FLOATS[:-1]),
    "1 bytes are left": piece((2, 3), FLOATS + b"\0"),
    "the program says f32": piece((3, 2), FLOATS),
    "the file has i64": piece((2, 3), FLOATS * 2, of=INT64),
    "the file has f32\\[6\\]": piece((6,), FLOATS),
}


@pytest.mark.parametrize("says", WRONG)
def test_each_thing_that_can_be_wrong_is_named(says):
    spec = {} if says.startswith(("takes 9", "does not fit")) else {"w": tensor(FP32, 2, 3)}
    with pytest.raises(fs.FormatError, match=says) as error:
        read_parameters(WRONG[says], ["w"], spec)
    assert "byte" in str(error.value)


def test_offsets_of_a_ragged_parameter_are_read_over():
    assert read_parameters(piece((2, 3), FLOATS, levels=[[0, 1, 2]]), ["w"])["w"].shape == (2, 3)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_flipped_bytes_give_an_answer_or_a_format_error(data):
    whole = bytearray(piece((2, 3), FLOATS) + piece((2, 3), FLOATS, levels=[[0, 2]]))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_parameters(bytes(whole), ["a", "b"])
    except fs.FormatError as error:
        assert "byte" in str(error)


def test_a_folder_has_a_file_for_each_parameter(tmp_path):
    write_parameters(tmp_path / "w", {"w": np.arange(6, dtype=np.float32)})
    (tmp_path / "deep").mkdir()
    write_parameters(tmp_path / "deep" / "b", {"b": np.arange(2, dtype=np.float32)})
    seen = read_parameters(tmp_path, ["w", "deep/b"])
    assert seen["w"].shape == (6,) and seen["deep/b"].shape == (2,)


@pytest.mark.parametrize("name", ["../w", "/etc/passwd", "a/../../w", "", ".", "a\0b", "x" * 300, "link"])
def test_a_name_that_leads_out_of_the_folder_is_refused(tmp_path, name):
    write_parameters(tmp_path / "w", {"w": np.arange(6, dtype=np.float32)})
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "w")
    with pytest.raises(fs.FormatError):
        read_parameters(folder, [name])


def test_a_pickle_is_refused(tmp_path):
    import pickle

    (tmp_path / "p").write_bytes(pickle.dumps({"w": [1.0]}))
    with pytest.raises(fs.FormatError):
        read_parameters(tmp_path / "p", ["w"])


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(fs.FormatError, match="cannot be read"):
        read_parameters(tmp_path / "nothing", ["w"])
    (tmp_path / "file").touch()
    with pytest.raises(fs.FormatError, match="cannot be written: Not a directory"):
        write_parameters(tmp_path / "file" / "below", {"w": np.zeros(2)})
