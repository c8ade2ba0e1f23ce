"""Questions from files of every kind, and what is refused in one line."""

import gzip
import json
from pathlib import Path
from typing import Any

import pandas
import pytest

from sawbench.core.errors import UserError
from sawbench.tasks.documents import read_file, repeated, require, rows

ROWS: list[dict[str, Any]] = [{"id": "a", "text": "é, \n\u2028 x", "number": 1}, {"id": "b", "text": "", "number": 2}]
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)


def written(folder: Path, kind: str) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        pandas.DataFrame(ROWS).to_parquet(path)
    elif kind == "csv":
        pandas.DataFrame(ROWS).to_csv(path, index=False)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(LINES.encode()))
    else:
        path.write_text(LINES if kind == "jsonl" else json.dumps(ROWS))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "json", "parquet", "csv"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path, kind: str) -> None:
    found = read_file(written(tmp_path, kind))
    expected = [{k: str(v) for k, v in row.items()} for row in ROWS] if kind == "csv" else ROWS
    assert found == expected


@pytest.mark.parametrize("name", ["missing.jsonl", "rows.txt", "rows"])
def test_another_kind_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "rows.txt").write_text("x")
    with pytest.raises(UserError, match=r"is not a file of one of these kinds: jsonl, jsonl\.gz, json, csv, parquet"):
        read_file(tmp_path / name)


def test_a_hub_that_cannot_be_reached_is_one_line_with_the_way_out() -> None:
    with pytest.raises(UserError, match=r"data set nobody/nothing cannot be loaded .*task\.data=FILE") as caught:
        rows(None, "nobody/nothing")
    assert "\n" not in str(caught.value)


def test_missing_columns_are_named_with_those_that_are_there() -> None:
    with pytest.raises(UserError, match="a row lacks answer; it has id, text, number"):
        require(ROWS[0], "id", "answer")


def test_repeats_stand_beside_their_item() -> None:
    found = list(repeated([{"item": "a"}, {"item": "b"}, {"item": "c"}], 2, 2))
    assert [(row["item"], row["repeat"]) for row in found] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]


def test_two_rows_of_one_id_are_refused() -> None:
    with pytest.raises(UserError, match="two rows have the id a"):
        list(repeated([{"item": "a"}, {"item": "a"}]))
