"""python -m bench table: the README's table of figures on GPUs, from results/<device>/<date>.json alone.

`--write` puts it into the README, between its two marks. A column is a GPU that has a file; of each figure the newest.
Each figure has a letter in brackets, the last line the date and commit that it stands for. Parts of `make gpu` of which
no GPU has a figure share one line.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from bench.measure import with_range
from pipeline.runs.json_files import read_json

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- by `python -m bench table --write` -->\n", "<!-- end of the table -->\n"
NONE, NOT_A_NUMBER = "not measured", "not a number"
NOT_MET = "not met: "  # as a part says that ended well and missed a limit
TO_REACH = "to reach: "  # as a row begins that is there for its limit
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Line:
    """One line of the table: the row of a part of `bench gpu` that begins with `what`, and how it is written."""

    label: str
    part: str
    what: str
    written: Callable[[Row], str]


def rate(row: Row) -> str:
    """A rate with its unit, to three digits, and of how many measurements it is the median."""
    median = row["median"]
    digits = f"{median:,.0f}" if median >= 100 else f"{median:.3g}"
    return f"{digits} {row['unit']} (n = {row['n']})"


def fastest(row: Row) -> str:
    """The rate of the fastest kernel, by name and size."""
    size, kernel = row["what"].removeprefix("fastest: ").split("/")
    return f"{rate(row)}: `{kernel}`, {size.replace('x', '×')}"


def of_integers(row: Row) -> str:
    """As `fastest`, of operations that are none of floating point."""
    return fastest({**row, "unit": "TOP/s"})


def ceiling(row: Row) -> str:
    """A rate, and the instruction that made it."""
    return f"{number(row)} by `{row['what'].rpartition(' ')[2]}`"


def share(row: Row) -> str:
    """In per cent, of the library that it is a share of where the row names one, and how far it may be off."""
    of = row["what"].partition("share of ")[2]
    spread = f" ({row['min']:.0%} to {row['max']:.0%}, n = {row['n']})" if row["n"] > 1 else ""
    return f"{row['median']:.1%}{f' of {of}' if of else ''}{spread}"


def ratio(row: Row) -> str:
    """How many times as fast, and where more than one was measured how far that may be off."""
    spread = f" ({row['min']:.2f} to {row['max']:.2f}, n = {row['n']})" if row["n"] > 1 else ""
    return f"{row['median']:.2f}×{spread}"


def number(row: Row) -> str:
    """A number with its unit."""
    return f"{row['median']:,.4g} {row['unit']}".strip()


def memory(row: Row) -> str:
    """Megabytes, and whether the limit was kept."""
    return f"{row['median'] / 1e6:,.0f} MB: {'kept' if row.get('met') else 'NOT KEPT'}"


def _precisions(backend: str, name: str) -> tuple[Line, ...]:
    part, right = f"precisions, {backend}", "receipts that show what was asked for"
    return (
        Line(f"GPT of 25 M parameters on {name}, float32", part, "fp32", rate),
        Line(f"{name}: mixed_bf16 / fp32", part, "mixed_bf16 / fp32", ratio),
        Line(f"{name}: tf32 / fp32", part, "tf32 / fp32", ratio),
        Line(f"{name}: {right}", part, right, number),
    )


def _kernels(dtype: str, part: str, sizes: str) -> tuple[Line, ...]:
    what = f"matmuls in {dtype} at {sizes}"
    return (
        Line(f"{what}: our fastest kernel, at the largest size timed", part, "fastest: ", fastest),
        Line(f"{what}: its share of the library's rate", part, "fastest: share", share),
    )


LINES = (
    *_kernels("fp16", "kernels, fp16", "4096³"),
    *_kernels("fp16", "reach, fp16", "6144³ and 8192³"),
    Line("ceiling of matmuls in fp16: operands that are never fetched", "kernels, fp16", "highest ceiling: ", ceiling),
    *_kernels("bf16", "kernels, bf16", "4096³"),
    Line("ceiling of matmuls in bf16: operands that are never fetched", "kernels, bf16", "highest ceiling: ", ceiling),
    *_kernels("tf32", "reach, tf32", "4096³"),
    Line("matmuls in int8 at 4096³: our fastest kernel", "reach, int8", "fastest: ", of_integers),
    Line(
        "off multiples of 8 at 1024 in fp16: what padding gains with cuBLAS",
        "reach, padding",
        "padding/cublas/gain",
        ratio,
    ),
    *_precisions("torch", "PyTorch"),
    *_precisions("jax", "JAX"),
    *_precisions("tensorflow", "TensorFlow"),
    Line("`experiment=amp_ladder`: its first rung", "ladder", "baseline/images_per_s", rate),
    Line("`experiment=amp_ladder`: its rung of mixed precision", "ladder", "amp/images_per_s", rate),
    Line("`experiment=amp_ladder`: its last rung", "ladder", "compiled/images_per_s", rate),
    Line("`experiment=amp_ladder`: time of the whole training, first rung / last", "ladder", "gain", ratio),
    Line("`experiment=gpt_gpu`", "gpt_gpu", "training", rate),
    Line("`experiment=gpt_gpu`: share of a matmul's FLOP/s", "gpt_gpu", "model FLOP utilization", share),
    Line("`experiment=gpt_gpu`: bits per byte of the test text", "gpt_gpu", "test/bits_per_byte", number),
    Line("its step compiled / as torch runs it", "gpt_gpu", "training / eager", ratio),
    Line("`device.memory_limit=1GB`, PyTorch's peak", "memory limit, torch", "torch, peak", memory),
    Line("`device.memory_limit=1GB`, JAX's peak", "memory limit, jax", "jax, peak", memory),
    Line("tests of `make gpu` that passed", "tests", "passed", number),
)


def table(root: Path) -> str:
    """The table in Markdown. Without a file of a GPU it has one column, in which nothing is measured."""
    devices = by_device(root)
    heads = [*devices] or ["an NVIDIA GPU"]
    lines = [f"| | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    has = {line.part for line in LINES if any(figure(files, line) for files in devices.values())}
    for line in (line for line in LINES if line.part in has):
        cells = [cell(figure(files, line), line, origins(files)) for files in devices.values()]
        lines.append(f"| {line.label} | {' | '.join(cells)} |")
    lacking = "; ".join(dict.fromkeys(line.part for line in LINES if line.part not in has))
    if lacking:
        lines.append(f"| parts that were {NONE} | {' | '.join([lacking] * len(heads))} |")
    measured = [named(origins(files)) for files in devices.values()] or [NONE]
    short = [missed(files) for files in devices.values()] or [NONE]
    lines.append(f"| limits that were missed | {' | '.join(short)} |")
    return "\n".join([*lines, f"| measured on, at commit | {' | '.join(measured)} |"]) + "\n"


def by_device(root: Path) -> dict[str, list[dict[str, Any]]]:
    """The files of each GPU, by its name, the oldest first; those of processors and of rehearsals are left out."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(root.glob("*/*.json"), key=lambda one: one.name):
        kept = read_json(path)
        where = kept.get("machine", {})
        if "gpu" in where and not where.get("rehearsal"):
            found.setdefault(where["gpu"]["name"], []).append(kept)
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class Figure:
    """A row with the date and the entry that it is of."""

    row: Row
    date: str
    entry: Mapping[str, Any]


def figure(files: Sequence[Mapping[str, Any]], line: Line) -> Figure | None:
    """The newest figure of a line; None where no file has one."""
    for kept in reversed(files):
        entry = kept["results"].get(line.part, {})
        found = next((row for row in entry.get("rows", ()) if is_of(row["what"], line.what)), None)
        if found is not None:
            rows = [numbers(row) for row in entry["rows"]]
            return Figure(ranged(numbers(found), rows), kept["machine"]["date"], entry)
    return None


def numbers(row: Row) -> Row:
    """A row whose numbers are numbers: JSON has no NaN, which lies in a file as a text."""
    return {**row, **{name: float(row[name]) for name in ("median", "min", "max") if row.get(name) is not None}}


def ranged(row: Row, rows: Sequence[Row]) -> Row:
    """A share of a library with the range that the rates beside it allow: files of before have it as one number."""
    ours, of, library = row["what"].removeprefix("fastest: ").partition(", share of ")
    if not of or row["n"] > 1:
        return row
    return with_range(row, {one["what"]: one for one in rows}, ours, f"{ours.partition('/')[0]}/{library}")


def cell(found: Figure | None, line: Line, letters: Mapping[str, str]) -> str:
    """The figure as it is written, how its part ended where it did not pass, and the letter of its date and commit."""
    if found is None:
        return NONE
    state = found.entry["state"]
    if missed_limits(found.entry):  # which the last line has
        state = "missed" if found.row.get("met") is False else "passed"
    later = f", later {found.entry['later']['state']}" if "later" in found.entry else ""
    ended = f"{state}{later}".removeprefix("passed, ")
    written = NOT_A_NUMBER if isnan(found.row["median"]) else line.written(found.row)
    return f"{written}{'' if ended == 'passed' else f' ({ended})'} {letters[origin(found)]}"


def missed_limits(entry: Mapping[str, Any]) -> list[Row]:
    """The rows that missed their limit in a part that ended well; none of a part that went wrong."""
    well = ended_well(entry.get("state", ""), entry.get("message"))
    return [row for row in entry.get("rows", ()) if well and row.get("met") is False]


def ended_well(state: str, message: str | None) -> bool:
    """Whether a part has measured all that it should: it passed, or missed limits."""
    return state == "passed" or (message or "").startswith(NOT_MET)


def missed(files: Sequence[Mapping[str, Any]]) -> str:
    """All limits that were missed, by the newest row of each, as `figure` has it; of a part that has ended well since
    by that alone."""
    newest: dict[str, dict[str, str | None]] = {}  # by part and row
    for kept in files:
        for part, entry in kept["results"].items():
            short, rows = missed_limits(entry), entry.get("rows", ())
            found = {row["what"]: limit(row) if row in short else None for row in rows}
            whole = bool(found) and ended_well(entry.get("state", ""), entry.get("message"))
            newest[part] = found if whole else newest.get(part, {}) | found
    return "; ".join(one for rows in newest.values() for one in rows.values() if one) or "none"


def limit(row: Row) -> str:
    """A row that missed its limit: by which number, where it has one."""
    found = f"{row['median']:.3g}" if row["n"] else NONE
    return f"{row['what'].removeprefix(TO_REACH)} {found} ({row['limit']})"


def is_of(what: str, wanted: str) -> bool:
    """Whether a row is the one that a line is about, by its name, or where that ends with a colon by how it begins; of
    the fastest kernel there are two, its rate and its share."""
    begin, colon, rest = wanted.partition(": ")
    if not colon or rest not in ("", "share"):
        return what == wanted
    return what.startswith(begin + colon) and ("share of" in what) == (rest == "share")


def origin(found: Figure) -> str:
    """The date and the commit, in short, of a figure."""
    return f"{found.date}, {commit(found.entry['git'])}"


def origins(files: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The letter, in brackets, of each date and commit of which a column shows a figure, the oldest first."""
    shown = [found for line in LINES if (found := figure(files, line)) is not None]
    return {one: f"[{letter}]" for one, letter in zip(sorted({*map(origin, shown)}), ascii_lowercase, strict=False)}


def named(letters: Mapping[str, str]) -> str:
    """What the letters stand for."""
    return "; ".join(f"{letter} {one}" for one, letter in letters.items()) or NONE


def commit(git: Mapping[str, Any]) -> str:
    """A commit in short, with + where files had changed since; `no commit` where none is known."""
    return f"{git['commit'][:7]}{'+' if git['dirty'] else ''}" if git["commit"] else "no commit"


def instead(text: str, new: str) -> str:
    """`text` with `new` between the marks. Raises ValueError where it has none."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError("the README has no marks for the table")
    return f"{before}{begin}{new}{end}{after}"


def main(arguments: Sequence[str]) -> None:
    """Print the table, or write it into the README."""
    parser = argparse.ArgumentParser(prog="python -m bench table")
    parser.add_argument("--write", action="store_true", help="into the README, between the marks")
    readme = ROOT / "README.md"
    if parser.parse_args(arguments).write:
        readme.write_text(instead(readme.read_text(encoding="utf-8"), table(ROOT / "results")), encoding="utf-8")
    else:
        print(table(ROOT / "results"), end="")
