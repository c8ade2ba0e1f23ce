"""Questions from a local file or from the hub, and their repeats: what the lm-eval definitions load."""

import csv
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from sawbench.core.errors import UserError

Row = dict[str, Any]
READERS = ("jsonl", "jsonl.gz", "json", "csv", "parquet")


def rows(data: str | None, hub: str, config: str | None = None, split: str = "test") -> list[Row]:
    """Rows of ``data`` (a local file of the hub's columns) or, without it, of the hub's data set.

    Raises:
        UserError: the file is missing or of no known kind, or the hub gives nothing.
    """
    return read_file(Path(data)) if data else read_hub(hub, config, split)


def read_file(path: Path) -> list[Row]:
    """Rows of a .jsonl, .jsonl.gz, .json (a list), .csv or .parquet file."""
    kind = next((k for k in READERS if path.name.endswith(f".{k}")), None)
    if not path.is_file() or kind is None:
        raise UserError(f"task.data={path} is not a file of one of these kinds: {', '.join(READERS)}")
    try:
        return list(_read(path, kind))
    except (ValueError, OSError) as error:
        raise UserError(f"task.data={path} cannot be read: {error}") from error


def _read(path: Path, kind: str) -> Iterable[Row]:
    if kind == "parquet":
        import pandas  # a second to import, and the rarest kind

        return json.loads(pandas.read_parquet(path).to_json(orient="records"))
    with _opened(path) as file:
        if kind == "csv":
            return list(csv.DictReader(file))
        if kind == "json":
            return list(json.load(file))
        return [json.loads(line) for line in file if line.strip()]


def _opened(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8", newline="")


def read_hub(hub: str, config: str | None, split: str) -> list[Row]:
    """Rows of a data set that ``datasets`` loads; its errors (offline, gated, gone) in one line."""
    import datasets  # half a second to import; a local file does without

    try:
        return list(datasets.load_dataset(hub, config, split=split))
    except Exception as error:  # the hub's clients raise a dozen kinds, all of which mean that there is no data
        first = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise UserError(f"data set {hub} cannot be loaded ({first}); task.data=FILE takes a local file") from error


def require(row: Row, *columns: str) -> Row:
    """The row, or UserError where a column is missing: a file of another shape."""
    if missing := [c for c in columns if c not in row]:
        raise UserError(f"task.data: a row lacks {', '.join(missing)}; it has {', '.join(row)}")
    return row


def repeated(items: Iterable[Row], repeats: int = 1, limit: int | None = None) -> Iterator[Row]:
    """Each of the first ``limit`` items ``repeats`` times, with the field ``repeat``; ``item`` must name it alone."""
    seen: set[str] = set()
    for index, item in enumerate(items):
        if index == limit:
            return
        if item["item"] in seen:
            raise UserError(f"task.data: two rows have the id {item['item']}")
        seen.add(item["item"])
        yield from ({**item, "repeat": repeat} for repeat in range(repeats))


def as_split(items: Iterable[Row]) -> dict[str, Any]:
    """The shape that lm-eval wants of a custom data set."""
    import datasets

    documents = list(items)
    if not documents:
        raise UserError("task.data: there are no rows")
    return {"test": datasets.Dataset.from_list(documents)}
