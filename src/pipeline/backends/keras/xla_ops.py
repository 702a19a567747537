"""XLA's instructions in its profiler's trace: what a compiled step consists of."""

from __future__ import annotations

import re

from pipeline.backends.keras.hlo import Program, Sizes, part_of_step
from pipeline.backends.shared import gpu_kernels
from pipeline.backends.shared.trace import Event

WRAPPERS = ("while", "conditional", "call")  # their instructions are timed one by one
COPIES = {"copy", "copy-start", "copy-done", "convert", "bitcast-convert", "transpose"}
FREE = {"fusion", "parameter", "constant", "bitcast", "reshape", "broadcast", "tuple", "get-tuple-element"}


class Operations:
    """The instructions of a program (HLO text), by name; on a GPU also kernels that are of none."""

    def __init__(self, hlo: str) -> None:
        self.program = Program(hlo)
        self.instructions = self.program.instructions
        self.kernels = {re.sub(r"[.-]", "_", name): name for name in self.instructions}  # as a GPU's are called

    def owner(self, event: Event) -> str | None:
        """The instruction that an event is of; on a GPU a kernel's name where it is of none."""
        name: str | None = event.stats.get("hlo_op")
        wraps = name in self.instructions and self.instructions[name].opcode in WRAPPERS
        if event.on_gpu and (wraps or name not in self.instructions):
            return self.kernels.get(event.name, event.name)
        return None if wraps else name

    def kind(self, name: str) -> str:
        """What an instruction is. Several that are fused count as their last, or as a product if one is among them."""
        one = self.instructions.get(name)
        if one is None:
            return gpu_kernels.kind(name)
        part = part_of_step(one.attribute("op_name"))
        if part is not None:
            return part
        inside = list(self.program.parts(one))
        if any(each.is_product for each in inside):
            return "products"
        codes = {each.opcode for each in inside} - FREE
        return "copies" if codes and codes <= COPIES else "other"

    def label(self, name: str) -> str:
        """The instruction, and which part of the model it is of if XLA has kept that."""
        one = self.instructions.get(name)
        origin = re.split(r"(?:^|/)body/(?:_\d+/)?", one.attribute("op_name"))[-1] if one else ""
        return f"{name} ({origin})" if origin else name

    def sizes(self, name: str) -> list[Sizes]:
        """The products that an instruction holds."""
        one = self.instructions.get(name)
        return [] if one is None else self.program.sizes(one)
