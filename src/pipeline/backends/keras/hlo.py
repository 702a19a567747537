"""Reading XLA's optimized program (HLO text): its instructions, and its matrix products with their sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

_NAMES = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<type>\(.*?\)|\S+) "
    r"(?P<opcode>[a-z][\w-]*)\((?P<operands>[^)]*)\)(?P<rest>.*)"
)
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,]*)\]")
_LIBRARY = re.compile(r"custom_call_target=\"[^\"]*(?:gemm|matmul|conv|fmha)", re.IGNORECASE)
_ATTENTION = "__cudnn$fmha"  # in whose call there are two products or more

RANGES = ("data", "optimizer")  # parts of a step, as the engines name their operations

Sizes = tuple[str, int, int, int, int]  # name, m, n, k, how many of them


@dataclass(frozen=True)
class Instruction:
    """One line of a program. A tuple has the dtype and the shape of its first part."""

    name: str
    opcode: str
    dtype: str
    shape: tuple[int, ...]
    operands: tuple[str, ...]
    rest: str

    def attribute(self, name: str) -> str:
        """What stands behind `name=`, without quotes, braces and the %; empty where there is no such attribute."""
        found = re.search(rf'\b{name}=(?:"([^"]*)"|{{([^}}]*)}}|%?([^\s,]+))', self.rest)
        return next(filter(None, found.groups()), "") if found else ""

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product, a convolution, or a library's function for either."""
        return self.opcode in ("dot", "convolution") or bool(
            self.opcode == "custom-call" and _LIBRARY.search(self.rest)
        )


class Program:
    """A compiled program, its instructions by name."""

    def __init__(self, hlo: str) -> None:
        self.instructions: dict[str, Instruction] = {}
        self.computations: dict[str, list[Instruction]] = {}
        self.entry: list[Instruction] = []
        inside: list[Instruction] = []
        for line in hlo.splitlines():
            found = _INSTRUCTION.match(line)
            if found:
                one = _instruction(found)
                self.instructions[one.name] = one
                inside.append(one)
            elif line.endswith("{") and not line.startswith(" "):
                inside = self.computations.setdefault(line.removeprefix("ENTRY ").split()[0].lstrip("%"), [])
                self.entry = inside if line.startswith("ENTRY ") else self.entry

    def parts(self, one: Instruction) -> Iterator[Instruction]:
        """The instruction, and those that are fused in it."""
        yield one
        for inner in self.computations.get(one.attribute("calls"), ()):
            yield from self.parts(inner)

    def executed(self, inside: list[Instruction] | None = None) -> Iterator[Instruction]:
        """The instructions, each as often as it is called or fused; not those of loops and branches, which do not say
        how often they run.
        """
        for one in self.entry if inside is None else inside:
            yield one
            called = one.attribute("to_apply" if one.opcode == "call" else "calls")
            yield from self.executed(self.computations.get(called, []))

    def sizes(self, one: Instruction) -> list[Sizes]:
        """The products in an instruction; not those of a library that does not say which sides it multiplies."""
        found = (self._sizes(part) for part in self.parts(one) if part.is_product)
        return [sizes for sizes in found if sizes is not None]

    def _sizes(self, one: Instruction) -> Sizes | None:
        if _ATTENTION in one.rest:
            return None
        shapes = [self.instructions[name].shape for name in one.operands[:2]]
        if one.attribute("dim_labels"):
            return _convolution(one, *shapes)
        sides = [_dimensions(one, f"{side}_contracting_dim") for side in ("lhs", "rhs")]
        if not sides[0]:
            return None
        k = math.prod(shapes[0][i] for i in sides[0])
        count = math.prod(shapes[0][i] for i in _dimensions(one, "lhs_batch_dim"))
        m, n = (math.prod(shape) // (k * count) for shape in shapes)
        return "product", m, n, k, count


def products(hlo: str) -> Iterator[str]:
    """The dtype of the first operand of every dot, convolution and library matrix product in `hlo`."""
    program = Program(hlo)
    for one in program.instructions.values():
        if one.is_product:
            first = program.instructions.get(one.operands[0]) if one.operands else None
            dtype = (first or one).dtype
            yield _NAMES.get(dtype, dtype)


def flop(hlo: str) -> float | None:
    """Floating-point operations of the products of a program; None where one of them does not say its sides, or how
    often it runs.
    """
    program = Program(hlo)
    ran = [one for one in program.executed() if one.is_product]
    sizes = [program.sizes(one) for one in ran]
    elsewhere = {name for name, one in program.instructions.items() if one.is_product} - {one.name for one in ran}
    if elsewhere or not all(sizes):
        return None
    return sum(2.0 * m * n * k * count for found in sizes for _, m, n, k, count in found) or None


def allows_tf32(hlo: str) -> bool | None:
    """Whether a program lets a GPU multiply float32 in TF32: what the precision of its products says.

    None where it has no product of float32, or a library's that does not say its precision.
    """
    program = Program(hlo)
    found = set()
    for one in program.instructions.values():
        first = program.instructions.get(one.operands[0]) if one.operands else None
        if one.is_product and (first or one).dtype == "f32":
            found.add(_allows_tf32(one))
    return None if not found or (None in found and True not in found) else True in found


def _allows_tf32(one: Instruction) -> bool | None:
    """By the algorithm where one is named, else by the operands' precision: XLA writes none for the default."""
    algorithm = re.search(r'(?:\balgorithm=|"algorithm":"ALG_)(dot_\w+)', one.rest, re.IGNORECASE)
    if algorithm:
        return "tf32" in algorithm[1].lower() or "bf16" in algorithm[1].lower()
    written = re.search(r'operand_precision(?:={|":\[)([^}\]]*)', one.rest)
    if written:
        return {part.strip('" ').lower() for part in written[1].split(",")} != {"highest"}
    return True if one.opcode != "custom-call" else None


def _instruction(found: re.Match[str]) -> Instruction:
    array = _ARRAY.search(found["type"])
    dtype, sides = array.groups() if array else ("", "")
    operands = found["operands"]
    named = re.findall(r"%([\w.-]+)", operands) if "%" in operands else operands.split(", ")
    shape = tuple(int(side) for side in sides.split(",") if side)
    return Instruction(found["name"], found["opcode"], dtype, shape, tuple(filter(None, named)), found["rest"])


def part_of_step(path: str) -> str | None:
    """The part of the step that an operation belongs to, where the engine has named it in the operation's name."""
    return next((name for name in RANGES if name in path.split("/")), None)


def _dimensions(one: Instruction, name: str) -> list[int]:
    """A dot's, as HLO has them (`lhs_batch_dims={0}`), or a library's (`"lhs_batch_dimensions":["0"]`)."""
    found = re.search(rf'{name}(?:s={{([\d,]*)}}|ensions":\[([^\]]*)\])', one.rest)
    return [int(digits) for digits in re.findall(r"\d+", found[0].partition(name)[2])] if found else []


def _convolution(one: Instruction, first: tuple[int, ...], second: tuple[int, ...]) -> Sizes:
    """The product of image patches that it is. cuDNN's gradients have the labels of their forward convolution."""
    backward = re.search(r"convBackward(Input|Filter)", one.rest)
    kernel, output = second, one.shape
    if backward:
        kernel, output = (second, first) if backward[1] == "Input" else (one.shape, second)
    _, of_kernel, of_output = re.split("_|->", one.attribute("dim_labels"))
    n = output[of_output.index("f")]
    k = math.prod(kernel) // kernel[of_kernel.index("o")]
    return "convolution", math.prod(output) // n, n, k, 1
