"""Why a precision did not gain: a page on where the time of its steps goes, and what to try first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.machine.others import said_of
from pipeline.machine.precision import FORMATS, bytes_per_number
from pipeline.report.table import digits
from pipeline.runs.listing import flat_config
from pipeline.runs.records import read_config
from pipeline.stages.amp import BASELINE
from pipeline.stages.amp.compare import Compared
from pipeline.stages.amp.measured import Measured

ATTENTION = "attention"  # in the name of a fused operation, forwards and backwards
MUCH = 0.25  # of a step, from which on a single operation of attention is named
MULTIPLE_BYTES = 16  # Tensor Cores take rows of 16 bytes: multiples of 8 for 16-bit operands (NVIDIA's guide, GEMM)
SAME = 1.5  # up to this ratio, either way, the step under the profiler counts as the one that was timed
NOT_SEEN = "the profiler did not see a step as it was timed (above), so the shares advise nothing"
KINDS = {
    "products": "matrix products: what a narrower dtype or Tensor Cores can speed up",
    "copies": "copies and casts between dtypes",
    "data": "getting the batch",
    "optimizer": "the optimizer's update",
    "other": "everything else: activations, pooling, loss, patches of images",
    "outside": "no operation at all: Python and launching (on a GPU: it waits)",
}

ABOVE = "above it"
ABOVE_NOTE = (
    f"{ABOVE[0].upper()}{ABOVE[1:]}: the step's product is quicker than the bare one, which is then no ceiling. A "
    "convolution need not be run as one product of image patches; and two timings of one short product differ by what "
    "else the machine does.",
    "",
)

TIPS = {
    "outside": "Fewer launches: a larger training.batch_size.",
    "data": "loader=memory, which keeps the data on the device.",
    "copies": "A precision without casts (bf16 or fp16 in place of mixed), or wider layers, which cast less often.",
    "optimizer": "An optimizer of fewer passes over the weights (optimizer=sgd), or a larger training.batch_size.",
    "other": "Wider layers or more filters, beside whose products the rest weighs less.",
}
ON_TORCH = {  # whose step is not compiled unless it is asked for
    "outside": "Fewer launches: a larger training.batch_size; the compiled step (backend.compile=true).",
    "other": "The compiled step (backend.compile=true), which fuses activations and the like into few passes.",
}


def page(row: Compared, baseline: Compared) -> str:
    """A page in Markdown about why a precision is faster or slower than the baseline."""
    assert row.speedup is not None
    speed = row.speedup
    known = (
        f"95 % interval {speed.low:.2f} to {speed.high:.2f}" if speed.low else f"{speed.no_interval} for an interval"
    )
    run, before = row.runs[0], baseline.runs[0]
    rates = [one.median(lambda run: run.units_per_s) for one in (row, baseline)]
    machine, plain, busy = run.step["machine"], before.step["machine"], _busy(row, baseline)
    lines = [
        f"# Why {row.precision} does not gain here",
        "",
        f"Seed by seed it has {speed.mean:.2f} times the rate of {BASELINE} (n={speed.n}, {known}) on "
        f"{run.receipt['device']['hardware']['name']}; the medians are {rates[0]:,.0f} and {rates[1]:,.0f} {row.unit}.",
        "",
        "## What this device does at these dtypes, apart from the model",
        "",
        f"A product of {machine['side']} x {machine['side']} matrices: {machine['FLOP_per_s'] / 1e9:,.1f} GFLOP/s in "
        f"{FORMATS[row.effective].compute}, {plain['FLOP_per_s'] / 1e9:,.1f} in {FORMATS[baseline.effective].compute}: "
        f"{machine['FLOP_per_s'] / plain['FLOP_per_s']:.2f}x{f'; uncertain: {busy}' if busy else ''}.",
        "",
    ]
    step_breakdown = run.step["step_breakdown"]
    bound = _bound(step_breakdown) if explains(row) else []
    lines += [*_shares(row, baseline), *bound, *_products(row, step_breakdown), *_longest(step_breakdown)]
    lines += ["## What to try first", "", *(f"{n}. {text}" for n, text in enumerate(advice(row, baseline), 1)), ""]
    return "\n".join(lines)


def _busy(row: Compared, baseline: Compared) -> str | None:
    """What other processes had of the cores while the products of either were measured, where it disturbs."""
    return said_of(max(one.runs[0].cores_of_others_beside_step or 0 for one in (row, baseline)))


def explains(row: Compared) -> bool:
    """Whether the step under the profiler took about as long as the one that was timed, in the same run."""
    return 1 / SAME <= row.runs[0].step["step_breakdown"]["step_s"] / row.runs[0].training_step_s <= SAME


def _shares(row: Compared, baseline: Compared) -> list[str]:
    step_breakdown, usual = (one.runs[0].step["step_breakdown"] for one in (row, baseline))
    trained = [one.runs[0].training_step_s * 1e3 for one in (baseline, row)]
    watched = [one["step_s"] * 1e3 for one in (usual, step_breakdown)]
    lines = [
        "## Where a step's time goes",
        "",
        f"By {step_breakdown['how']}. Of the first seed.",
        "",
        *(line for one in (baseline, row) for line in _unexplained(one)),
        f"| | {BASELINE} | {row.precision} |",
        "|---|---|---|",
        f"| a step of the training, as it was timed | {trained[0]:.2f} ms | {trained[1]:.2f} ms |",
        f"| the same under the profiler, of which | {watched[0]:.2f} ms | {watched[1]:.2f} ms |",
    ]
    for kind, meaning in KINDS.items():
        lines.append(f"| {meaning} | {_percent(usual['shares'][kind])} | {_percent(step_breakdown['shares'][kind])} |")
    if step_breakdown["tensor_core_share"] is not None:
        before, now = usual["tensor_core_share"] or 0, step_breakdown["tensor_core_share"]
        lines.append(f"| of the GPU's busy time on Tensor Cores, by the kernels' names | {before:.1%} | {now:.1%} |")
    return [*lines, ""]


def _unexplained(row: Compared) -> list[str]:
    """That the profiler did not see the step that was timed, where it did not."""
    if explains(row):
        return []
    seen, timed = row.runs[0].step["step_breakdown"]["step_s"] * 1e3, row.runs[0].training_step_s * 1e3
    return [
        f"**{row.precision}: the step that was timed could not be explained.** It took {timed:.2f} ms in the training "
        f"and {seen:.2f} ms under the profiler ({seen / timed:.1f} times). The profiler costs much in so short a step, "
        "or other work kept the machine busy, or the training was one cold epoch. The shares are of the step under "
        "the profiler alone, and no advice is drawn from them.",
        "",
    ]


def _percent(share: float | None) -> str:
    """A share; None where other operations have taken in what it is of."""
    return "not separable" if share is None else f"{share:.1%}"


def _bound(step_breakdown: Mapping[str, Any]) -> list[str]:
    share = step_breakdown["shares"]["products"]
    among = " (attention among them)" * any(ATTENTION in one["name"] for one in step_breakdown["longest"])
    return [
        f"Were products{among} free, a step would be {1 / max(1 - share, 1e-9):.2f}x as fast; at twice their rate "
        f"{1 / (1 - share / 2):.2f}x (Amdahl).",
        "",
    ]


def _products(row: Compared, step_breakdown: Mapping[str, Any]) -> list[str]:
    lines = [
        "## Its products beside bare ones of the same sizes on this machine",
        "",
        "| product | m x n x k | ms a step | GFLOP/s | bare | share of bare | not a multiple |",
        "|---|---|---|---|---|---|---|",
    ]
    for product in step_breakdown["products"]:
        rate = 2.0 * product["m"] * product["n"] * product["k"] * product["calls"] / max(product["seconds"], 1e-12)
        bare, missed = product["ceiling_FLOP_per_s"], ", ".join(misses(row, product)) or "-"
        sizes = f"{product['m']} x {product['n']} x {product['k']} | {product['seconds'] * 1e3:.3f}"
        ceiling = "not measured | -" if bare is None else f"{digits(bare / 1e9)} | {_of_bare(rate / bare)}"
        rates = f"{digits(rate / 1e9)} | {ceiling}"
        lines.append(f"| {product['name']} | {sizes} | {rates} | {missed} |")
    above = any(ABOVE in line for line in lines)
    return [*lines, "", *(ABOVE_NOTE if above else ())]


def _of_bare(ratio: float) -> str:
    """The rate of a step's product as a share of a bare one's; above 1 as a factor."""
    return f"{ratio:.0%}" if ratio <= 1 else f"{ABOVE} ({ratio:.2f}x)"


def _longest(step_breakdown: Mapping[str, Any]) -> list[str]:
    lines = ["## Its longest operations", "", "| operation | kind | ms a step | share |", "|---|---|---|---|"]
    for one in step_breakdown["longest"]:
        share = one["seconds"] / step_breakdown["step_s"]
        lines.append(f"| `{one['name']}` | {one['kind']} | {one['seconds'] * 1e3:.3f} | {share:.1%} |")
    return [*lines, ""]


def _attention(row: Compared, baseline: Compared) -> list[str]:
    """What to try where a fused operation of attention takes most of a step: its rate is not that of bare products."""
    now, before = (one.runs[0].step["step_breakdown"] for one in (row, baseline))
    one = max(now.get("longest", ()), key=lambda one: one["seconds"], default=None)
    if one is None or ATTENTION not in one["name"] or one["seconds"] / now["step_s"] < MUCH:
        return []
    usual = next((other["seconds"] for other in before["longest"] if other["name"] == one["name"]), None)
    took = f"{digits(one['seconds'] * 1e3)} ms"
    took += f", {digits(usual * 1e3)} ms in {baseline.precision}" if usual else ""
    return [
        f"Shorter sequences: the time of attention grows with their square. `{one['name']}` alone is "
        f"{one['seconds'] / now['step_s']:.0%} of the step ({took}); the rate of bare products above is not that of "
        "attention."
    ]


def tips(run: Measured) -> dict[str, str]:
    """What to try, by what most of a step's time goes to, without what the run does already."""
    config = flat_config(read_config(run.folder))
    found = TIPS | (ON_TORCH if run.receipt["backend"] == "torch" and not config.get("backend.compile") else {})
    if config.get("loader") == "memory":
        del found["data"]
    if config.get("optimizer") == "sgd" and not config.get("optimizer.momentum"):
        found["optimizer"] = "A larger training.batch_size."
    form = FORMATS[run.effective]
    if form.compute == form.parameters:
        found["copies"] = "Wider layers, beside whose products copies weigh less."
    return found


def misses(row: Compared, product: Mapping[str, Any]) -> list[str]:
    """The sizes n and k that are not a multiple of what Tensor Cores take at this dtype; on a CPU there are none."""
    if row.runs[0].on_cpu:
        return []
    multiple = multiple_of(row)
    return [f"{name}={product[name]} (of {multiple})" for name in ("n", "k") if product[name] % multiple]


def multiple_of(row: Compared) -> int:
    """Of what the sizes of a product have to be multiples."""
    return MULTIPLE_BYTES // bytes_per_number(FORMATS[row.effective].compute)


def advice(row: Compared, baseline: Compared) -> Sequence[str]:
    """What to try, the most promising first, each with the figure that speaks for it.

    Why a precision gains nothing over the baseline rests on the steps of both: where one could not be explained,
    only what rests on neither is left.
    """
    machine, plain = row.runs[0].step["machine"], baseline.runs[0].step["machine"]
    gain = machine["FLOP_per_s"] / plain["FLOP_per_s"]
    found = []
    rates = f"multiplies at {gain:.2f}x the rate in {row.precision} that it has in {baseline.precision}"
    if gain < 1.2 and (busy := _busy(row, baseline)):
        found.append(f"Another measurement, on an idle machine: {busy}, with which this one {rates}.")
    elif gain < 1.2:
        found.append(f"Another device: this one {rates}, so no model can gain from it.")
    step_breakdown = row.runs[0].step["step_breakdown"]
    if not (explains(row) and explains(baseline)):
        return found or [f"A longer training on an idle machine: {NOT_SEEN}."]
    found += _attention(row, baseline)
    shares, advised = step_breakdown["shares"], tips(row.runs[0])
    largest = sorted((kind for kind in advised if (shares[kind] or 0) > 0.15), key=lambda kind: -shares[kind])
    found += [f"{advised[kind]} {KINDS[kind].partition(':')[0].capitalize()}: {shares[kind]:.0%}." for kind in largest]
    if any(misses(row, product) for product in step_breakdown["products"]):
        found.append(f"Sizes in multiples of {multiple_of(row)} (see the last column): filters, units, batch size.")
    return found or ["A larger model or batch: the products are too small to fill the device."]
