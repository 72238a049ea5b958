"""Files: what `verify` and `quantize` accept, and that everything else is an error that says what to do."""

from __future__ import annotations

import os

import pytest
import torch

from iq_ops import dumps, files


def read(path):
    file = files.read(path)
    return dumps.read_dump(file, dumps.read_inputs(file))


@pytest.mark.parametrize("fmt", ["fp8", "mxfp4"])
def test_round_trip(make_dump, save, fmt):
    dump = make_dump(fmt)
    again = read(save(dump))
    assert again.fmt == fmt
    assert torch.equal(again.codes, dump.codes)
    assert torch.equal(again.weights_out, dump.weights_out)
    assert fmt == "fp8" or torch.equal(again.scale, dump.scale)
    assert again.inputs.weights_head_scale == dump.inputs.weights_head_scale


def test_engines_dtypes_are_taken(make_dump, save):
    fp8, mxfp4 = make_dump("fp8"), make_dump("mxfp4")
    assert torch.equal(read(save(fp8, q_fp8=fp8.codes)).codes, fp8.codes)
    assert torch.equal(read(save(fp8, weights_out=fp8.weights_out[..., None])).weights_out, fp8.weights_out)
    words = mxfp4.scale.contiguous().view(torch.int32).squeeze(-1)
    packed = mxfp4.codes.view(torch.int8)
    again = read(save(mxfp4, q_scale=words, q_packed=packed))
    assert torch.equal(again.scale, mxfp4.scale)
    assert torch.equal(again.codes, mxfp4.codes)


def test_metadata_is_read(make_dump, save):
    meta = {"weights_softmax_scale": "0.5", "weights_head_scale": "0.25", "hadamard": "true", "rope_at": "head"}
    dump = read(save(make_dump("fp8"), meta))
    assert (dump.inputs.weights_softmax_scale, dump.inputs.weights_head_scale) == (0.5, 0.25)
    assert dump.spec == {"hadamard": True, "rope_at": "head"}


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"hadamard": "yes"}, ["metadata hadamard", "'yes'"]),
        ({"rope_style": "gptj"}, ["metadata rope_style", "'interleaved' or 'neox'", "'gptj'"]),
        ({"weights_head_scale": "big"}, ["metadata weights_head_scale", "a number", "'big'"]),
    ],
)
def test_bad_metadata(make_dump, save, meta, words):
    with pytest.raises(files.DumpError) as error:
        read(save(make_dump("fp8"), meta))
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize(
    ("fmt", "changes", "words"),
    [
        ("fp8", {"positions": None, "q": None}, ["positions, q", "a file that holds cos_sin_cache, q_fp8, weights"]),
        ("fp8", {"weights_out": None}, ["weights_out", "a tensor of this name"]),
        ("mxfp4", {"q_scale": None}, ["q_scale", "a tensor of this name"]),
        ("fp8", {"q_fp8": None}, ["either q_fp8", "neither"]),
        ("fp8", {"q_packed": torch.zeros(1)}, ["either q_fp8", "both"]),
        ("fp8", {"q": torch.zeros(48, 6, 128)}, ["q: expected dtype torch.bfloat16", "torch.float32"]),
        ("fp8", {"q": torch.zeros(48, 6, 96, dtype=torch.bfloat16)}, ["head dim", "96"]),
        (
            "fp8",
            {"positions": torch.zeros(47, dtype=torch.int64)},
            ["size T = 47", "(48, 6, 128)", "must be of one call"],
        ),
        ("fp8", {"q_fp8": torch.zeros(48, 6, 128)}, ["q_fp8", "torch.float32", "encoded bytes"]),
        (
            "fp8",
            {"q_fp8": torch.zeros(48, 6, 64, dtype=torch.uint8)},
            ["q_fp8", "size D = 128", "(48, 6, 64)", "must be of one call"],
        ),
        ("fp8", {"weights_out": torch.zeros(48, 6, dtype=torch.float16)}, ["weights_out", "torch.float16"]),
        ("fp8", {"q_scale": torch.zeros(48, 5)}, ["q_scale beside q_fp8", "(48, 6)", "(48, 5)"]),
        ("mxfp4", {"q_scale": torch.zeros(48, 5, dtype=torch.int32)}, ["q_scale", "(48, 5, 4)"]),
        ("mxfp4", {"q_packed": torch.zeros(48, 6, 128, dtype=torch.uint8)}, ["q_packed", "D/2 = 64"]),
    ],
)
def test_wrong_tensors(make_dump, save, fmt, changes, words):
    with pytest.raises(files.DumpError) as error:
        read(save(make_dump(fmt), **changes))
    assert all(word in str(error.value) for word in words), error.value


def test_missing_foreign_and_truncated_files(make_dump, save, tmp_path):
    with pytest.raises(files.DumpError, match="no such file"):
        files.read(tmp_path / "none.safetensors")
    with pytest.raises(files.DumpError, match="a folder"):
        files.read(tmp_path)
    foreign = tmp_path / "foreign.safetensors"
    for content in (b"", b"PK\x03\x04 not a safetensors file at all", b"\x08\x00\x00\x00\x00\x00\x00\x00garbage!"):
        foreign.write_bytes(content)
        with pytest.raises(files.DumpError, match="no safetensors file, or damaged"):
            files.read(foreign)
    path = save(make_dump("fp8"))
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(files.DumpError, match="does not match its header"):
        files.read(path)


def test_a_file_with_more_bytes_is_not_called_truncated(make_dump, save):
    path = save(make_dump("fp8"))
    path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(files.DumpError, match=r"its size of [\d,]+ bytes does not match its header: truncated, or"):
        files.read(path)


def test_a_pipe_is_no_regular_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(files.DumpError, match=r"pipe: no regular file\."):
        files.read(tmp_path / "pipe")


def test_a_shape_past_64_bits_is_a_damaged_file(tmp_path):
    path = tmp_path / "wide.safetensors"
    header = b'{"q":{"dtype":"BF16","shape":[9223372036854775808,0],"data_offsets":[0,0]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(files.DumpError, match="no safetensors file, or damaged"):
        files.read(path)


def test_a_name_that_is_too_long_is_no_file(tmp_path):
    path = tmp_path / ("x" * 300)
    with pytest.raises(files.DumpError, match="no such file"):
        files.read(path)
    with pytest.raises(files.DumpError, match="cannot be written"):
        files.write(path, {"x": torch.zeros(1)}, {})


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_regular_file_stays_as_it_is(tmp_path, make):
    path = tmp_path / "out.safetensors"
    make(path)
    before = path.stat()
    with pytest.raises(files.DumpError, match="cannot be written: it is there already, and no regular file"):
        files.write(path, {"x": torch.zeros(1)}, {})
    assert (path.stat().st_ino, path.stat().st_mode) == (before.st_ino, before.st_mode)
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_a_file_is_unwritable(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(files.DumpError, match="cannot be written"):
        files.write(tmp_path / "file" / "out.safetensors", {"x": torch.zeros(1)}, {})


def test_a_link_is_followed(tmp_path):
    link, target = tmp_path / "link.safetensors", tmp_path / "target.safetensors"
    link.symlink_to(target)
    files.write(link, {"x": torch.zeros(1)}, {})
    assert link.is_symlink()
    assert files.read(target).tensors["x"].tolist() == [0.0]


def test_writing_touches_no_other_file(tmp_path):
    target, other = tmp_path / "out.safetensors", tmp_path / "out.safetensors.part"
    other.write_bytes(b"mine")
    files.write(target, {"x": torch.zeros(1)}, {})
    assert other.read_bytes() == b"mine"
    assert sorted(tmp_path.iterdir()) == [target, other]


def test_permissions_are_those_of_open(tmp_path):
    target, plain = tmp_path / "out.safetensors", tmp_path / "plain"
    before = os.umask(0o027)
    try:
        plain.touch()
        files.write(target, {"x": torch.zeros(1)}, {})
        assert target.stat().st_mode == plain.stat().st_mode
        target.chmod(0o604)
        files.write(target, {"x": torch.ones(1)}, {})
    finally:
        assert os.umask(before) == 0o027
    assert target.stat().st_mode & 0o777 == 0o604


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch, error):
    def fail(*args):
        raise error

    target = tmp_path / "out.safetensors"
    target.write_bytes(b"old")
    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises((files.DumpError, KeyboardInterrupt)):
        files.write(target, {"x": torch.zeros(1)}, {})
    assert list(tmp_path.iterdir()) == [target]
    assert target.read_bytes() == b"old"


def test_an_unwritable_place_leaves_nothing(tmp_path):
    with pytest.raises(files.DumpError, match="cannot be written"):
        files.write(tmp_path / "no" / "such" / "folder.safetensors", {"x": torch.zeros(1)}, {})
    assert list(tmp_path.iterdir()) == []


def test_the_public_functions_names_are_taken(make_dump, save):
    dump = make_dump("fp8")
    inputs = dump.inputs
    public = {"index_q": inputs.q, "index_q_cos_sin_cache": inputs.cos_sin_cache, "index_weights": inputs.weights}
    own = {"q": None, "cos_sin_cache": None, "weights": None}
    again = read(save(dump, **own, **public))
    assert torch.equal(again.inputs.q, inputs.q)
    assert torch.equal(again.codes, dump.codes)
    with pytest.raises(files.DumpError, match=r"index_q: expected dtype torch\.bfloat16"):
        read(save(dump, **own, **{**public, "index_q": inputs.q.float()}))
    with pytest.raises(files.DumpError, match=r"q and index_q.*leave one out"):
        read(save(dump, index_q=inputs.q.clone()))
