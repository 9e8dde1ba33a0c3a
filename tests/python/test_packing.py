"""Which inputs of a batch are compressed for ranks of other machines."""

import zlib

import numpy as np
import pytest
from tacc.live.packing import Packer

SLOW, FAST = 1e5, 1e12
TOKENS = np.random.default_rng(0).integers(0, 30_000, (64, 512), np.int32)


@pytest.mark.parametrize("part", [TOKENS, TOKENS.astype(np.int64), TOKENS > 10_000, (TOKENS % 3).astype(np.uint8)], ids=["i32", "i64", "bool", "u8"])
def test_whole_numbers_and_masks_go_compressed_over_a_slow_link(part):
    packed = Packer().pack("x", part, SLOW)
    assert len(packed) < 0.75 * part.nbytes
    assert zlib.decompress(packed) == part.tobytes()


@pytest.mark.parametrize("part", [TOKENS.astype(np.float32), TOKENS[:1, :16], np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8),
                                  np.ones((64, 512), np.uint16)[:0]], ids=["floats", "small", "noise", "empty"])
def test_what_gains_nothing_is_sent_as_it_is(part):
    assert Packer().pack("x", part, SLOW) is None


def test_a_link_that_is_faster_than_zlib_gets_all_as_it_is():
    packer = Packer()
    assert packer.pack("x", TOKENS, FAST) is None
    assert packer.pack("x", TOKENS, SLOW) is None, "it is not tried at each batch"
    assert packer.pack("y", TOKENS, SLOW) is not None
    for _ in range(100):
        packer.pack("x", TOKENS, SLOW)
    assert packer.pack("x", TOKENS, SLOW) is not None, "but again later"

