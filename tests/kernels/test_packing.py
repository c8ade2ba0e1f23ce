"""Packing: exact for every width and head size, and laid out as the kernels read it."""

import pytest
import torch

from sawbench_kernels.packing import fields_per_word, pack, packed_bytes, unpack


@pytest.mark.parametrize("dim", [32, 64, 80, 96, 100, 128, 256])
@pytest.mark.parametrize("bits", range(2, 9))
def test_round_trip(bits: int, dim: int) -> None:
    codes = torch.randint(0, 1 << bits, (3, 2, dim), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (3, 2, packed_bytes(bits, dim))
    assert packed.shape[-1] >= bits * dim / 8
    assert torch.equal(unpack(packed, bits, dim), codes)


def test_four_bits_are_fields_of_16_bit_words() -> None:
    """Field i of word w is dimension i * D / 4 + w."""
    codes = torch.arange(64).remainder(16).to(torch.uint8)
    words = pack(codes, 4).view(torch.int16).to(torch.int32) & 0xFFFF
    for field in range(4):
        assert torch.equal(words >> 4 * field & 15, codes[16 * field : 16 * field + 16].int())


def test_widths_that_do_not_fit_a_word_use_bit_planes() -> None:
    assert fields_per_word(4, 64) == 4
    assert fields_per_word(4, 66) == fields_per_word(3, 64) == 0
    codes = torch.tensor([5, 0, 0, 0, 0, 0, 0, 1], dtype=torch.uint8)
    assert pack(codes, 3).tolist() == [0b10000001, 0, 0b00000001]
