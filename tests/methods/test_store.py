"""Plane stores: every operation on bytes equals the same operation on an unquantized copy."""

import torch

from sawbench.methods.store import PlaneStore


def test_operations_follow_a_plain_tensor() -> None:
    """Known fault 13: crop, reorder, select and repeat touch every plane, lengths too."""
    plain = torch.randint(0, 255, (3, 6, 2, 4), dtype=torch.uint8)
    store = PlaneStore()
    store.append({"a": plain[:, :2], "b": plain[:, :2, 0]})
    store.append({"a": plain[:, 2:], "b": plain[:, 2:, 0]})
    rows = torch.tensor([2, 0, 0, 1])
    store.select(rows)
    store.repeat(2)
    store.drop_last(4)
    expected = plain[rows].repeat_interleave(2, 0)[:, :2]
    assert torch.equal(store.planes["a"], expected)
    assert torch.equal(store.planes["b"], expected[:, :, 0])
    assert store.tokens == 2


def test_bytes_are_those_of_the_allocations() -> None:
    store = PlaneStore()
    store.append({"codes": torch.zeros(2, 10, 3, 8, dtype=torch.uint8)})
    assert store.bytes() == {"codes": 480}
    store.drop_last(5)
    assert store.bytes() == {"codes": 240}
    store.clear()
    assert store.tokens == 0
    assert store.bytes() == {}


def test_a_slice_given_to_append_does_not_pin_its_parent() -> None:
    parent = torch.zeros(1, 100, 8, dtype=torch.uint8)
    store = PlaneStore()
    store.append({"codes": parent[:, :5]})
    store.append({"codes": parent[:, 5:6]})
    assert store.bytes() == {"codes": 48}
