"""Packed tests build nothing, outputs are compared by value, and a function's result is not its print-out."""

import base64
import builtins
import json
import os
import pickle
import zlib
from typing import Any

import pytest

from sawbench.scoring import livecode
from sawbench.scoring.livecode import Case, judge, same_output, unpacked
from sawbench.scoring.sandbox import Limits, Sandbox, refusal

needs_namespaces = pytest.mark.skipif(refusal("strict") is not None, reason="this machine forbids namespaces")
TESTS = [{"input": "1", "output": "2", "testtype": "stdin"}]


def packed(content: Any, protocol: int | None = None) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(content, protocol))).decode()


class Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("echo ran > /tmp/sawbench-bomb",)


@pytest.mark.parametrize(
    "text", [json.dumps(TESTS), packed(json.dumps(TESTS)), packed(TESTS), packed(json.dumps(TESTS), 2)]
)
def test_tests_are_read_however_they_are_packed(text: str) -> None:
    assert unpacked(text) == TESTS


@pytest.mark.parametrize("content", [Bomb(), [Bomb()], len, json.JSONDecoder, 1 + 2j])
def test_a_pickle_that_names_anything_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match="a packed test names"):
        unpacked(packed(content))
    assert not os.path.exists("/tmp/sawbench-bomb")


@pytest.mark.parametrize("text", ["", "!!", "AAAA", base64.b64encode(zlib.compress(b"")).decode()])
def test_what_is_no_pack_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        unpacked(text)


def test_a_pack_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livecode, "UNPACKED", 1000)
    with pytest.raises(ValueError, match="unpack to more than"):
        unpacked(packed("x" * 100_000))


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("3\n", "3", True),
        ("1 2\n3", "1  2 \n3\n\n", True),
        ("0.5", "0.50", True),
        ("1e3", "1000", True),
        ("YES", "yes", False),
        ("1\n2", "1 2", False),
        ("1", "1\n1", False),
        ("", "", True),
        ("nan", "1", False),
    ],
)
def test_outputs(expected: str, printed: str, same: bool) -> None:
    assert same_output(expected, printed) is same


@needs_namespaces
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("def f(a, b): return a + b", 1),
        ("class Solution:\n    def f(self, a, b): return a + b", 1),
        ("def f(a, b): print('debug 5'); return a + b", 1),
        ("def f(a, b): print('result: [1, 2]')", 0),
        ("def f(a, b): return sorted(Counter(a + b))", 1),
        ("def g(a, b): return a + b", 0),
        ("def f(a, b): return tuple(a + b)", 1),
        ("import sys\ndef f(a, b): sys.exit(0)", 0),
    ],
)
def test_functions_are_called_and_their_results_compared(code: str, value: float) -> None:
    tests = [Case("[1]\n[2]", "[1, 2]", "f"), Case("[]\n[7]", "[7]", "f")]
    assert judge(Sandbox(), livecode.Attempt(code), tests).value == value


NAMES = [name for name in dir(builtins) if not name.startswith("_")]
SHADOWED = f"import builtins\nshadowed = [n for n in {NAMES} if eval(n) is not getattr(builtins, n)]\n"


@needs_namespaces
@pytest.mark.parametrize(
    ("code", "case"),
    [
        (f"{SHADOWED}print(shadowed)", Case("", "[]")),
        (f"{SHADOWED}def f(): return shadowed", Case("", "[]", "f")),
        ("print(pow(3, 4, 5))", Case("", "1")),
        ("def f(a): return pow(a, -1, 7)", Case("3", "5", "f")),
        ("print(bisect.bisect_left([1, 2], 2), bisect_left([1, 2], 2), gcd(4, 6), deque([1])[0])", Case("", "1 1 2 1")),
        ("print(loads(dumps([1])), median([1, 3]), itemgetter(0)([5]), len(ascii_lowercase))", Case("", "[1] 2 5 26")),
        ("print(int(stdin.readline()) + 1, findall('a', 'ba')[0], copy.copy(2))", Case("4", "5 a 2")),
    ],
)
def test_what_is_imported_for_a_program_hides_no_built_in_name_and_no_module(code: str, case: Case) -> None:
    score = judge(Sandbox(), livecode.Attempt(code), [case])
    assert (score.value, score.reason) == (1, "1 tests passed")


@needs_namespaces
def test_the_first_failing_test_is_named() -> None:
    tests = [Case("1", "1"), Case("2", "2"), Case("3", "3")]
    score = judge(
        Sandbox("strict", Limits(seconds=1)), livecode.Attempt("n = input()\nwhile n == '2': pass\nprint(n)"), tests
    )
    assert (score.value, score.reason) == (0, "test 2 of 3: time limit")
