"""The demo's figures mean what they say: worse formats lose more, recall and decoding are as defined."""

from __future__ import annotations

import pytest
import torch

from iq_ops import demo


@pytest.fixture(scope="module")
def result():
    return demo.run()


def test_both_formats_ran_and_keep_the_expected_order(result):
    fp8, mxfp4 = result.formats
    assert (fp8.fmt, mxfp4.fmt) == ("fp8", "mxfp4")
    assert result.input_bytes == 2 * fp8.output_bytes
    assert mxfp4.output_bytes * 256 == result.input_bytes * 68
    assert 28 < fp8.median_snr_db < 36
    assert 12 < mxfp4.median_snr_db < 22
    for k in demo.TOP_K:
        assert 0.9 < mxfp4.recall[k] < fp8.recall[k] < 1.0


def test_the_backend_and_the_others_are_named(result):
    for part in result.formats:
        assert part.backend is not None
        assert part.backend not in part.refused
        assert len(part.refused) >= 2


def test_recall_counts():
    expected = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    assert demo._recall(expected, expected.flip(1)) == 1.0
    assert demo._recall(expected, torch.tensor([[0, 1, 9, 8], [9, 8, 7, 11]])) == 3 / 8


def test_mxfp4_decodes_to_the_format():
    packed = torch.tensor([[[0x20, 0xF7] + [0] * 62]], dtype=torch.uint8)  # codes 0, 2, 7, 15
    scale = torch.tensor([[128 | 127 << 8 | 127 << 16 | 127 << 24]], dtype=torch.int32)
    assert demo._decode_mxfp4(packed, scale)[0, 0, :4].tolist() == [0.0, 2.0, 12.0, -12.0]


def test_the_batch_is_the_same_every_time():
    (one, keys), (two, other) = demo.batch(seed=0), demo.batch(seed=0)
    assert torch.equal(one.q, two.q)
    assert torch.equal(keys, other)
