"""paged_decode on a GPU: graphs that outlive their lengths, pools beyond 2^31 bytes, long contexts, determinism."""

import pytest
import torch

from helpers.decode import Step
from helpers.pages import DEVICE, dense
from sawbench.throughput.decode_cases import random_pages
from sawbench_kernels.paged_decode import DecodeSpec, PagedDecode, naive
from sawbench_kernels.pages import PageLayout

pytestmark = pytest.mark.gpu


def error(out: torch.Tensor, reference: torch.Tensor) -> float:
    return float((out.double() - reference).norm() / reference.norm())


@pytest.mark.parametrize("options", [{"key_rotation": 128}, {"key_rotation": "dense"}], ids=["bdr", "hessian"])
def test_a_graph_follows_lengths_and_block_tables(options: dict[str, object]) -> None:
    options = {k: dense(128) if v == "dense" else v for k, v in options.items()}
    step = Step(dim=128, page=64, lengths=(900, 30, 400, 1), options=options)
    layer = PagedDecode(step.spec, DEVICE, 1024)
    layer(step.q, step.planes, step.table, step.counts)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(step.q, step.planes, step.table, step.counts)
    for lengths in ((900, 30, 400, 1), (1, 1, 1, 0), (640, 30, 64, 1)):
        step.counts.copy_(torch.tensor(lengths))
        graph.replay()
        assert error(out, step.reference()) < 5e-3
    step.table.copy_(step.table[[2, 1, 0, 3]])
    step.counts.copy_(torch.tensor((300, 30, 900, 1)))
    step.q.copy_(step.q.flip(0))
    graph.replay()
    assert error(out, step.reference()) < 5e-3


def test_a_pool_beyond_two_gigabytes() -> None:
    layout = PageLayout(8, 128)
    pages = (5 << 30) // layout.page_bytes
    planes = random_pages(layout, pages, DEVICE)
    table = torch.tensor([[pages - 1, 0, pages // 2], [pages // 2 + 1, pages - 2, 5]], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([384, 300], dtype=torch.int32, device=DEVICE)
    spec = DecodeSpec(layout, 128**-0.5)
    q = torch.randn(2, 32, 128, dtype=torch.bfloat16, device=DEVICE)
    out = PagedDecode(spec, DEVICE)(q, planes, table, lengths)
    assert error(out, naive.paged_decode(q, planes, table, lengths, spec, torch.float64)) < 5e-3


@pytest.mark.parametrize("splits", [0, 1])
def test_the_error_does_not_grow_with_context(splits: int) -> None:
    """``splits`` 1: one program sums all 131,072 tokens of a head."""
    layout = PageLayout(2, 128)
    planes = random_pages(layout, 1024, DEVICE)
    spec = DecodeSpec(layout, 128**-0.5)
    q = torch.randn(1, 8, 128, dtype=torch.bfloat16, device=DEVICE)
    table = torch.randperm(1024, device=DEVICE).to(torch.int32)[None]
    errors = []
    for context in (1024, 16384, 131072):
        lengths = torch.tensor([context], dtype=torch.int32, device=DEVICE)
        out = PagedDecode(spec, DEVICE, splits=splits)(q, planes, table, lengths)
        errors.append(error(out, naive.paged_decode(q, planes, table, lengths, spec, torch.float64)))
    assert max(errors) < 5e-3
    assert errors[-1] < 1.5 * errors[0]


def test_the_same_bits_twice() -> None:
    book = torch.randn(2, 256, 128, device=DEVICE)
    options = {"key_codebook": book, "value_codebook": book.flip(0)}
    layout = {"key_centroids": 256, "value_centroids": 256}
    step = Step(dim=128, page=64, lengths=(900, 30), options=options, layout_options=layout)
    first = step.run(splits=0)
    assert all(torch.equal(first, step.run(splits=0)) for _ in range(5))


def test_another_device_than_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    step = Step(dim=128, page=64, lengths=(100,))
    other = torch.device("cuda", 1)
    planes = step.layout.view(step.pool.to(other))
    out = PagedDecode(step.spec, other)(step.q.to(other), planes, step.table.to(other), step.counts.to(other))
    assert error(out.to(DEVICE), step.reference()) < 5e-3
