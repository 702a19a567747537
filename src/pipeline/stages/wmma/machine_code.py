"""What compiling a kernel for GPUs tells, with or without one: registers, spills, its Tensor Core instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from pipeline.contracts.kernels import Kernel, MachineCode
from pipeline.errors import Readable
from pipeline.kernels.verify import in_words, is_ours
from pipeline.runs.result import Metric, Table, count

Built = dict[tuple[str, str, int], "MachineCode | str"]  # by kernel, dtype, architecture; a str: why there is none


def built(
    kernels: Sequence[Kernel], dtype_of: Callable[[Kernel], str | None], architectures: Sequence[int], cores: int
) -> Built:
    """Of each kernel that is compiled for a GPU, for those of `architectures` that it allows; none without a dtype."""
    asked = [(kernel, dtype, one) for kernel in kernels if (dtype := dtype_of(kernel)) for one in architectures]

    def build(asked_for: tuple[Kernel, str, int]) -> MachineCode | str | None:
        kernel, dtype, architecture = asked_for
        try:
            made: object = kernel.machine_code(dtype, architecture)
        except Exception as error:  # whatever the user's code may raise
            if is_ours(kernel) and not isinstance(error, Readable):
                raise
            return in_words(error).removeprefix(f"{kernel.name}, {dtype}, sm_{architecture}: ")
        if made is None or isinstance(made, MachineCode):
            return made
        return f"machine_code gave a {type(made).__name__}, not a MachineCode"

    with ThreadPoolExecutor(cores) as pool:
        found = zip(asked, pool.map(build, asked), strict=True)
        return {(kernel.name, dtype, one): made for (kernel, dtype, one), made in found if made is not None}


def table(found: Built) -> tuple[Table, ...]:
    """A row for each build, those that were refused beside the others; `summary` says why they were."""
    rows = tuple((name, f"{dtype}, sm_{one}", *_cells(made)) for (name, dtype, one), made in found.items())
    title = "As compiled: a thread's registers and spilled bytes, a block's shared memory, instructions in the code"
    return (Table(title, ("kernel", "for", "registers", "spilled", "shared", "instructions"), rows),) if rows else ()


def _cells(made: MachineCode | str) -> tuple[str, ...]:
    if isinstance(made, str):
        return "", "", "", "REFUSED"
    counted = ", ".join(f"{number} {name}" for name, number in made.instructions.items() if number)
    return str(made.registers), str(made.spilled), str(made.shared), counted


def summary(found: Built) -> list[tuple[str, str]]:
    """A row for each build that was refused: there it has the width of the page."""
    return [(f"{name} sm_{one}", f"REFUSED: {made}") for (name, _, one), made in found.items() if isinstance(made, str)]


def metrics(found: Built) -> tuple[Metric, ...]:
    """Registers and spilled bytes of each compiled kernel, by architecture."""
    made = {key: one for key, one in found.items() if isinstance(one, MachineCode)}
    registers = [count(f"sm_{at}/{name}/registers", one.registers, "") for (name, _, at), one in made.items()]
    spilled = [count(f"sm_{at}/{name}/spilled", one.spilled, "bytes") for (name, _, at), one in made.items()]
    return (*registers, *spilled)


def refused(found: Built) -> dict[str, str]:
    """What is wrong with each build that did not come about, or is not what the kernel promises."""
    return {f"{name}, {dtype}, sm_{one}": made for (name, dtype, one), made in found.items() if isinstance(made, str)}
