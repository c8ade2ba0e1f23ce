"""What every method in configs/method keeps: laws of its parts, bytes as advertised, codes that depend on nothing.

Laws of codes are those of methods whose tokens become bytes one by one; the others keep them in what their stores end
up with (windows and groups made small enough for a few tokens), and further ones in test_windows.py.
"""

import pytest
import torch

from helpers.methods import WINDOWED, bind, load_method, make_facts, small_method
from sawbench.core.errors import UserError
from sawbench.methods.method import BoundSide
from sawbench.methods.store import SideStore
from sawbench_kernels.hadamard.naive import hadamard

POSITIONS = torch.arange(12).expand(2, 12)
FACTS = make_facts()


def draw(seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(2, 12, 2, 64, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_name_is_file_stem(method_name: str) -> None:
    method = load_method(method_name)
    assert method.name == method_name
    assert method.about


def test_query_key_product_survives_the_transform(method_name: str) -> None:
    side = bind(load_method(method_name), FACTS)[0].key
    q, k = draw(1), draw(2)
    rotated = side.transform.query(q) * side.transform.forward(k)
    assert torch.allclose(rotated.sum(-1), (q * k).sum(-1), atol=1e-5)


def test_value_path_inverts(method_name: str) -> None:
    layer = bind(load_method(method_name), FACTS)[1]
    for side in (layer.key, layer.value):
        assert torch.allclose(side.transform.inverse(side.transform.forward(draw())), draw(), atol=1e-5)


def written(side: BoundSide, x: torch.Tensor, *chunks: int) -> SideStore:
    """A store of ``side`` that x [B, T, H, D] went into, ``chunks`` tokens at a time."""
    store, start = side.new_store(), 0
    for size in chunks or (x.shape[1],):
        where = torch.arange(start, start + size).expand(len(x), size)
        store.append(x[:, start : start + size], where)
        start += size
    return store


def test_any_chunking_ends_in_the_same_values_and_bytes(method_name: str) -> None:
    """Known fault 5 for every method: a store's last state is that of the stream, however it came."""
    layer = bind(small_method(method_name), FACTS)[0]
    x = torch.cat((draw(3), draw(4), draw(5)), 1)
    for side in (layer.key, layer.value):
        whole, streamed = written(side, x), written(side, x, 1, 1, 9, 1, 2, 20, 2)
        assert torch.equal(whole.values(torch.float64), streamed.values(torch.float64))
        assert whole.bytes() == streamed.bytes()


def test_a_row_does_not_depend_on_its_neighbours(method_name: str) -> None:
    """Known fault 4 for every method."""
    layer = bind(small_method(method_name), FACTS)[0]
    x = torch.cat((draw(3), draw(4), draw(5)), 1)
    disturbed = x.clone()
    disturbed[1] *= 1000
    for side in (layer.key, layer.value):
        together = written(side, disturbed, 30, 6).values(torch.float64)
        assert torch.equal(together[:1], written(side, x[:1], 30, 6).values(torch.float64))


def test_any_chunking_gives_the_same_bytes(tokenwise_name: str) -> None:
    """Known fault 5: streamed and one-shot writes."""
    layer = bind(load_method(tokenwise_name), FACTS)[0]
    x = draw()
    for side in (layer.key, layer.value):
        whole = side.encode(x, POSITIONS)
        for start, stop in ((0, 1), (1, 8), (8, 12)):
            part = side.encode(x[:, start:stop], POSITIONS[:, start:stop])
            assert all(torch.equal(part[name], whole[name][:, start:stop]) for name in whole)


def test_codes_do_not_depend_on_neighbours(tokenwise_name: str) -> None:
    """Known faults 3 and 4: other rows and padding lanes must not enter a range."""
    layer = bind(load_method(tokenwise_name), FACTS)[0]
    x = draw()
    disturbed = x.clone()
    disturbed[1] *= 1000
    disturbed[0, 5:] = 77
    for side in (layer.key, layer.value):
        before, after = side.encode(x, POSITIONS), side.encode(disturbed, POSITIONS)
        assert all(torch.equal(before[name][0, :5], after[name][0, :5]) for name in before)


def test_encoding_what_was_decoded_changes_nothing(tokenwise_name: str) -> None:
    """Known fault 6: errors must not compound when stored values are encoded again."""
    layer = bind(load_method(tokenwise_name), FACTS)[0]
    for side in (layer.key, layer.value):
        planes = side.encode(draw(), POSITIONS)
        once = side.decode(planes, POSITIONS, torch.float64)
        if "index" in planes:  # a centroid may change once the residual moved: the value then may too
            continue
        twice = side.decode(side.encode(once, POSITIONS), POSITIONS, torch.float64)
        assert torch.allclose(once, twice, atol=0.02 * draw().abs().max())


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 3e4])
def test_rows_of_any_size_stay_finite(method_name: str, scale: float) -> None:
    """Known fault 2: zero, tiny, constant and huge rows."""
    layer = bind(small_method(method_name), make_facts(bias=0.0))[0]
    many = torch.cat((draw(), draw(1)), 1)
    for x in (many * scale / 8, torch.full_like(many, scale / 8)):
        for side in (layer.key, layer.value):
            decoded = side.read(written(side, x), torch.arange(24).expand(2, 24), torch.float64)
            assert decoded.isfinite().all()


def test_bytes_are_as_advertised(method_name: str) -> None:
    """bytes_per_vector against the real allocation of what a group of tokens becomes; an offset's index apart."""
    layer = bind(load_method(method_name), FACTS)[0]
    for side in (layer.key, layer.value):
        tokens = 2 * side.quantizer.span
        x = torch.randn(2, tokens, 2, 64, generator=torch.Generator().manual_seed(0))
        described = side.offset.describe(x)
        planes = side.encode(x, torch.arange(tokens).expand(2, tokens))
        stored = sum(plane.nbytes for name, plane in planes.items() if name not in described)
        assert stored == side.quantizer.bytes_per_vector(64) * 2 * tokens * 2
        assert side.token_bytes(2) == sum(plane.nbytes for plane in planes.values()) / (2 * tokens)


@pytest.mark.parametrize("head_dim", [48, 80, 96, 192, 256])
def test_odd_head_sizes_are_right_or_refused(method_name: str, head_dim: int) -> None:
    """Known fault 1: never a crash from inside, never a rotation silently left out."""
    facts = make_facts(head_dim, bias=0.0)
    group = load_method(method_name).options.get("group", "head")
    if group != "head" and head_dim % group:
        with pytest.raises(UserError, match="not one of: head"):
            load_method(method_name).check(facts)
        return
    layer = bind(small_method(method_name), facts)[0]
    x = torch.randn(1, 24, 2, head_dim, dtype=torch.float64)
    for side in (layer.key, layer.value):
        error = (side.read(written(side, x), torch.arange(24)[None], torch.float64) - x).norm() / x.norm()
        assert error < (0.7 if method_name in WINDOWED else 0.35)  # two bits over a whole head of 256


def test_kernels_see_the_same_rotation_and_centroids(method_name: str) -> None:
    """``rotation`` and ``centroids`` are what forward and value do."""
    layer = bind(load_method(method_name), FACTS)[0]
    for side in (layer.key, layer.value):
        rotation = side.transform.rotation
        turned = hadamard(draw(), rotation) if isinstance(rotation, int) else draw() @ rotation.double()
        assert torch.allclose(side.transform.forward(draw()), turned, atol=1e-5)
        books = side.offset.centroids
        if books is not None:
            index = side.offset.describe(draw()).get("index", torch.zeros(2, 12, len(books), dtype=torch.uint8))
            picked = torch.cat([book[index[..., i].long()] for i, book in enumerate(books)], -2)
            assert torch.equal(side.offset.value({"index": index}, POSITIONS, torch.float32).expand_as(picked), picked)
