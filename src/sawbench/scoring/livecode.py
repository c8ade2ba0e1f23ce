"""LiveCodeBench's tests: unpacked without running anything, put to a program, and compared with what it says."""

import base64
import io
import json
import pickle
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from sawbench.core.engine import Score
from sawbench.core.progress import Progress
from sawbench.scoring.code import Attempt
from sawbench.scoring.sandbox import Outcome, Program, Sandbox, available_workers
from sawbench.scoring.text import answer_of, final_code

Row = dict[str, Any]
UNPACKED = 1 << 30  # bytes that one problem's tests may unpack to
MODULES = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json",
)  # fmt: skip
"""What the benchmark's own harness gives a program without an import: their names, and then themselves."""
IMPORTS = "".join(f"from {name} import *\n" for name in (*MODULES, "builtins", "typing"))
IMPORTS += f"import {', '.join(MODULES)}, os\nsys.setrecursionlimit(50000)\n"
"""Built-in names and modules come last, as there: math.pow takes no modulus, the function bisect has no bisect_left."""
CALL = """
import json as _json, sys as _sys
_arguments = [_json.loads(line) for line in _sys.stdin.read().split("\\n") if line.strip()]
_function = Solution().{name} if "Solution" in globals() else {name}
_result = _function(*_arguments)
print("\\n{mark}" + _json.dumps(_result))
"""
MARK = "result: "


@dataclass(frozen=True)
class Case:
    """One test: what goes in and what must come out, as text; ``function`` names what is called, None reads stdin."""

    given: str
    expected: str
    function: str | None = None


class NoClasses(pickle.Unpickler):
    """Strings, numbers and containers alone: whatever names a class or a function is refused."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"a packed test names {module}.{name}")


def unpacked(text: str) -> list[dict[str, Any]]:
    """Tests as JSON, or as base64 of zlib of a pickle that holds the JSON.

    Raises:
        ValueError: it is neither, names a class, or unpacks to more than 1 GiB.
    """
    if text.lstrip().startswith("["):
        return list(json.loads(text))
    stream = zlib.decompressobj()
    try:
        data = stream.decompress(base64.b64decode(text, validate=True), UNPACKED)
        if stream.unconsumed_tail:
            raise ValueError("packed tests unpack to more than 1 GiB")
        content = NoClasses(io.BytesIO(data)).load()
    except (zlib.error, pickle.UnpicklingError, EOFError, IndexError) as error:
        raise ValueError(f"packed tests cannot be read: {error}") from error
    return list(json.loads(content) if isinstance(content, str | bytes) else content)


def cases(row: Row) -> list[Case]:
    """Public tests, then private ones, of one row of the data set."""
    metadata = row.get("metadata") or "{}"
    function = (json.loads(metadata) if isinstance(metadata, str) else metadata).get("func_name")
    tests = [*unpacked(row["public_test_cases"]), *unpacked(row["private_test_cases"])]
    return [
        Case(test["input"], test["output"], function if test["testtype"] == "functional" else None) for test in tests
    ]


def attempt(text: str, thought_open: bool = False) -> Attempt:
    answer = answer_of(text, thought_open)
    if answer is None:
        return Attempt(None, "the thought was not closed")
    code = final_code(answer)
    return Attempt(code) if code is not None else Attempt(None, "no code block")


def judge_all(sandbox: Sandbox, attempts: Sequence[Attempt], rows: Sequence[Row], progress: Progress) -> list[Score]:
    """1 where every test of a problem (its row of the data set) passes, 0 at the first that does not."""

    def judged(pair: tuple[Attempt, Row]) -> Score:
        found, row = pair
        return judge(sandbox, found, cases(row) if found.code is not None else ())  # unpacked late: they are large

    with ThreadPoolExecutor(available_workers()) as pool:
        verdicts = pool.map(judged, list(zip(attempts, rows, strict=True)))
        return list(progress(verdicts, len(attempts), "running code"))


def judge(sandbox: Sandbox, found: Attempt, tests: Sequence[Case]) -> Score:
    if found.code is None:
        return Score(0.0, None, found.reason)
    for number, case in enumerate(tests, 1):
        outcome = sandbox.run(program(found.code, case))
        if outcome.error or not passed(case, outcome):
            reason = outcome.error or "another output than expected"
            return Score(0.0, found.code, f"test {number} of {len(tests)}: {reason}")
    return Score(1.0, found.code, f"{len(tests)} tests passed")


def program(code: str, case: Case) -> Program:
    """The program of one test: it reads stdin, or its function is called with one JSON argument a line."""
    whole = Program(f"{IMPORTS}\n{code}\n", stdin=case.given)
    if case.function is None:
        return whole
    call = CALL.format(name=case.function, mark=MARK)
    return replace(whole, source=whole.source + call, run_name="solution")


def passed(case: Case, outcome: Outcome) -> bool:
    if case.function is None:
        return same_output(case.expected, outcome.stdout)
    _, marked, result = outcome.stdout.rpartition(f"\n{MARK}")
    return bool(marked) and json.loads(result) == json.loads(case.expected)


def same_output(expected: str, printed: str) -> bool:
    """Line by line, blanks at the ends aside; numbers in a line are compared by value."""
    ours, theirs = ([line.split() for line in text.strip().splitlines()] for text in (expected, printed))
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _same_line(expected: list[str], printed: list[str]) -> bool:
    return len(expected) == len(printed) and all(map(_same_word, expected, printed))


def _same_word(expected: str, printed: str) -> bool:
    if expected == printed:
        return True
    try:
        return Decimal(expected) == Decimal(printed)
    except InvalidOperation:
        return False
