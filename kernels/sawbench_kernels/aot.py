"""Ahead-of-time compilation of a kernel, on a machine without the GPU it is for.

An op's ``variants.py`` lists ``AOT_VARIANTS``; a test compiles them all and reads what the assembler says.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@dataclass(frozen=True)
class Variant:
    """One kernel as a launch would specialize it.

    ``types``: Triton types of the arguments that are not compile-time constants ("*i32", "i64", ...); every argument of
    the kernel that is named neither there nor in ``constants`` is None. Pointers are 16-byte aligned, and so are the
    integers named in ``divisible`` multiples of 16.
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
        aligned = [n for n, t in self.types.items() if t.startswith("*") or n in self.divisible]
        attributes = {(names.index(n),): [["tt.divisibility", 16]] for n in aligned}
        source = ASTSource(self.kernel, signature=signature, constexprs=constants, attrs=attributes)
        options = {"num_warps": self.warps, **self.options}
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
