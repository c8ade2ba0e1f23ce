"""How a row is titled: by what changes what is measured."""

from sawbench.config import compose
from sawbench.verbs.labels import row_label


def test_how_much_runs_at_once_is_no_part_of_a_title() -> None:
    batching = ["engine.kv_bytes=3e8", "engine.max_running=4", "engine.gpu_memory=0.5"]
    assert row_label(compose("run", ["engine=paged", *batching])) == "bdr"
    assert row_label(compose("run", ["engine=paged", "engine.chunk=5", "method.options.order=16"])) == (
        "bdr order=16 engine.chunk=5"
    )
