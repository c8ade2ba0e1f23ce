"""Ahead-of-time compilation of a kernel, on a machine without the GPU it is for.

An op's ``variants.py`` lists ``AOT_VARIANTS``; a test compiles them all and reads what the assembler says.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@dataclass(frozen=True)
class Variant:
    """One kernel as a launch would specialize it.

    ``types``: Triton types of the arguments that are not compile-time constants ("*i32", "i64", ...); every argument of
    the kernel that is named neither there nor in ``constants`` is None. Pointers are 16-byte aligned, and the integers
    named in ``divisible`` are multiples of 16.
    """

    name: str
    kernel: Any
    types: Mapping[str, str]
    constants: Mapping[str, Any]
    warps: int
    divisible: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def compile(self, capability: int) -> Any:
        """The compiled kernel for compute capability 90, 80, ...: ``asm`` and ``metadata`` of Triton."""
        names = self.kernel.arg_names
        absent = [n for n in names if n not in self.types and n not in self.constants]
        signature = {n: self.types.get(n, "constexpr") for n in names}
        constants = {(names.index(n),): v for n, v in {**self.constants, **dict.fromkeys(absent)}.items()}
        aligned = [n for n, kind in self.types.items() if kind.startswith("*") or n in self.divisible]
        attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in aligned}
        source = ASTSource(self.kernel, signature=signature, constexprs=constants, attrs=attributes)
        options = {"num_warps": self.warps, **self.options}
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def variants() -> Iterator[Variant]:
    """The AOT_VARIANTS of every op."""
    for path in sorted(Path(__file__).parent.glob("*/variants.py")):
        yield from import_module(f"sawbench_kernels.{path.parent.name}.variants").AOT_VARIANTS


def resources(compiled: Any) -> dict[str, int]:
    """Registers of a thread, bytes of its stack (spills), and bytes of shared memory of a program."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", usage)[-1]
    return {"registers": int(registers), "stack": int(stack), "shared": compiled.metadata.shared}


def main() -> None:
    """Print the registers of every variant for sm_90 under this version of Triton, as the test's table has them."""
    table = {variant.name: resources(variant.compile(90))["registers"] for variant in variants()}
    print(json.dumps({triton.__version__: table}, indent=1))


if __name__ == "__main__":
    main()
