"""What a run leaves on disk: content-addressed cells, samples as they are made, and tidy CSV files. No torch."""

from sawbench.results.cell import Cell
from sawbench.results.environment import environment
from sawbench.results.store import RunStore
from sawbench.results.tidy import write_tidy

__all__ = ["Cell", "RunStore", "environment", "write_tidy"]
