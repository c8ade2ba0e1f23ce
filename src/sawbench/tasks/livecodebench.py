"""LiveCodeBench (Jain et al. 2024), release 6, by date of contest.

The data set's loading script is refused by ``datasets``: its JSONL files are read directly.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

from sawbench.core.engine import Score
from sawbench.core.errors import UserError
from sawbench.core.progress import Progress
from sawbench.scoring.code import Attempt
from sawbench.scoring.livecode import attempt, judge_all
from sawbench.tasks.benchmark import Sample, thought_open
from sawbench.tasks.code import CodeBenchmark
from sawbench.tasks.documents import Row, as_split, read_file, repeated, require
from sawbench.tasks.protocol import Protocol

HUB = "livecodebench/code_generation_lite"
HUB_FILES = "test.jsonl", "test2.jsonl", "test3.jsonl", "test4.jsonl", "test5.jsonl", "test6.jsonl"
NEWEST = 2
"""Files that hold the window as shipped; the older ones, of gigabytes, are fetched for an earlier start alone."""
COLUMNS = (
    "question_id", "question_content", "contest_date", "starter_code", "public_test_cases", "private_test_cases",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LiveCodeBench(CodeBenchmark):
    """Options as in CodeBenchmark, and:

    Args:
        start, end: first and last contest date (ISO), both included.
    """

    start: str = "2025-01-05"
    end: str = "2025-04-07"

    output_bytes: ClassVar[int] = 16 << 20
    tests_in_data: ClassVar[bool] = True

    def extra(self) -> Mapping[str, Any]:
        return {"start": self.start, "end": self.end}

    def attempt(self, sample: Sample) -> Attempt:
        return attempt(sample["text"], thought_open(sample))

    def judge(self, attempts: Sequence[Attempt], samples: Sequence[Sample], progress: Progress) -> list[Score]:
        """Raises UserError where a sample's tests are not among the data."""
        rows = self._rows({str(sample["item"]) for sample in samples})
        return judge_all(self.jail, attempts, [rows[str(sample["item"])] for sample in samples], progress)

    def _rows(self, wanted: set[str]) -> dict[str, Row]:
        found = problems(self.data, self.start, self.end)
        rows = {row["question_id"]: row for row in found if row["question_id"] in wanted}
        if missing := wanted - rows.keys():
            raise UserError(f"task.data lacks the tests of {len(missing)} answered problems ({min(missing)}, ...)")
        return rows


def documents(
    data: str | None = None,
    repeats: int = 1,
    items: int | None = None,
    start: str = LiveCodeBench.start,
    end: str = LiveCodeBench.end,
    **_: Any,
) -> dict[str, Any]:
    """The lm-eval data set: a document for each (problem, repeat); tests stay in the file."""
    return as_split(repeated((_document(row) for row in problems(data, start, end)), repeats, items))


def problems(data: str | None, start: str, end: str) -> Iterator[Row]:
    """Rows whose contest lies in the window, in the order of the files. Raises UserError for a bad date or file."""
    first, last = _date(start, "start"), _date(end, "end")
    for path in [Path(data)] if data else _from_hub(hub_files(first)):
        for row in read_file(path):
            if first <= _date(require(row, *COLUMNS)["contest_date"][:10], "data") <= last:
                yield row


def _date(text: str, option: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise UserError(f"task.{option}={text} is not a date like 2025-01-05") from None


def hub_files(first: date) -> tuple[str, ...]:
    """The hub's files that may hold a contest of the day ``first`` or later."""
    return HUB_FILES if first < date.fromisoformat(LiveCodeBench.start) else HUB_FILES[-NEWEST:]


def _from_hub(names: Sequence[str]) -> list[Path]:
    from huggingface_hub import hf_hub_download

    try:
        return [Path(hf_hub_download(HUB, name, repo_type="dataset")) for name in names]
    except Exception as error:  # the hub's client raises a dozen kinds, all of which mean that there is no data
        first = str(error).strip().splitlines()[0][:200]
        raise UserError(f"data set {HUB} cannot be loaded ({first}); task.data=FILE takes a local file") from error


def _document(row: Row) -> Row:
    starter = row["starter_code"].strip()
    form = "Read from standard input, write to standard output."
    if starter:
        form = f"Complete this code:\n\n```python\n{starter}\n```"
    return {"item": row["question_id"], "question": row["question_content"].strip(), "form": form}


def process_results(document: Row, results: Sequence[str]) -> dict[str, float | None]:
    """For lm-eval itself; tests come from the hub's files."""
    task = LiveCodeBench(name="livecodebench", protocol=Protocol(), allow_code_execution=True)
    sample = {"item": document["item"], "text": results[0], "prompt": ""}
    return {"pass@1": task.score([sample])[0].value}
