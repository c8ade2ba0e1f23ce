"""Every kernel compiles for Hopper, and two for Ampere, on a machine without a GPU; none spills.

Each op folder lists its specializations in ``variants.py``. They compile in a process of their own, since here kernels
are interpreted.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton

KERNELS = Path(__file__).parents[2] / "kernels" / "sawbench_kernels"
REGISTERS = Path(__file__).with_name("registers.json")
"""Registers of a thread by Triton version and variant: what ``python -m sawbench_kernels.aot`` prints, merged."""
SHARED = 227 * 1024
MOST = 24
AMPERE = ("store bdr", "dequantize int4")
SLOW = ("store bdr k8v4, head 96", "store kbias_bdr")
"""What takes longest to compile waits for the full run."""

COMPILE = """
import json, sys
from sawbench_kernels.aot import resources, variants
wanted = json.loads(sys.argv[1])
for variant in variants():
    for capability in wanted.get(variant.name, ()):
        print(json.dumps([variant.name, capability, resources(variant.compile(capability))]), flush=True)
"""


def names() -> list[str]:
    script = "import json; from sawbench_kernels.aot import variants; print(json.dumps([v.name for v in variants()]))"
    return json.loads(run("-c", script))


def run(*arguments: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(KERNELS.parent)}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def check(wanted: dict[str, list[int]]) -> None:
    table = json.loads(REGISTERS.read_text()).get(triton.__version__, {})
    lines = run("-c", COMPILE, json.dumps(wanted)).splitlines()
    assert len(lines) == sum(map(len, wanted.values()))
    for name, capability, used in map(json.loads, lines):
        assert used["stack"] == 0, f"{name} for sm_{capability} spills {used['stack']} bytes"
        assert used["shared"] <= SHARED, f"{name} for sm_{capability} takes {used['shared']} bytes of shared memory"
        if capability == 90 and table:
            assert used["registers"] == table[name], name


def test_every_op_lists_its_variants() -> None:
    folders = {path.parent.name for path in KERNELS.glob("*/kernel.py")}
    assert folders == {path.parent.name for path in KERNELS.glob("*/variants.py")}
    listed = names()
    assert len(listed) == len(set(listed)) <= MOST
    assert all(set(listed) == set(table) for table in json.loads(REGISTERS.read_text()).values())


def test_variants_compile_without_spills() -> None:
    check({name: [90, 80] if name in AMPERE else [90] for name in names() if name not in SLOW})


@pytest.mark.slow
def test_large_variants_compile_without_spills() -> None:
    check({name: [90] for name in SLOW})
