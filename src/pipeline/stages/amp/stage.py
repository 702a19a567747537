"""stage=amp: one model at several precisions, several seeds each: what does mixed precision gain here, and why?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from pipeline.contracts import Stage
from pipeline.errors import RunError, UserError, bad_choice
from pipeline.machine.capability import Resolved
from pipeline.machine.precision import AUTO, FORMATS
from pipeline.report.table import markdown
from pipeline.runs import receipt as receipts
from pipeline.runs.beside import with_figures, with_pages
from pipeline.runs.result import Metric, Result, Table, memory, seconds
from pipeline.runs.run import Run
from pipeline.spec import spec
from pipeline.stages.amp import BASELINE, REFERENCE
from pipeline.stages.cells import (
    Variant,
    caveats,
    checked,
    experiments_of,
    of_data,
    of_tests,
    refuse_overruled,
    run_cells,
    variant,
    without_result,
)

if TYPE_CHECKING:
    from pipeline.experiment import Experiment
    from pipeline.stages.amp.compare import Compared


@spec
class Amp(Stage):
    """`precisions`: what to compare; those that do not run here are left out, with the reason.

    `repeats`: seeds of each, but of fp64, which is here as the reference. Speed is set against fp32 and numbers against
    fp64: without one of them that column stays empty. `initial_scale`: of the loss, where a precision scales it.
    """

    precisions: Annotated[tuple[str, ...], Field(min_length=2)] = ("fp64", "fp32", "bf16", "mixed")
    repeats: Annotated[int, Field(gt=0, le=1000)] = 3
    initial_scale: Annotated[float, Field(gt=0, le=1e38, allow_inf_nan=False)] | None = None

    has_cells: ClassVar[bool] = True
    seeds_by: ClassVar[str | None] = "repeats"
    headline: ClassVar[str] = "fp32/test_accuracy"
    probe: ClassVar[bool] = True
    varies_precision: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("scipy",)

    def __post_init__(self) -> None:
        for name in self.precisions:
            if name not in FORMATS and name != AUTO:
                raise bad_choice("stage.precisions", name, [*FORMATS, AUTO])
        if len(set(self.precisions)) < len(self.precisions):
            raise UserError(f"stage.precisions=[{','.join(self.precisions)}]: one precision is named twice")
        if self.initial_scale is not None and not any(map(scales_loss, self.precisions)):
            scaling = [name for name in FORMATS if scales_loss(name)]
            raise UserError(
                f"stage.initial_scale={self.initial_scale}: none of the precisions scales the loss; "
                f"{' and '.join(scaling)} does"
            )

    def check(self, experiment: Experiment) -> None:
        """Refuse what is a mistake in any of the cells, or leaves nothing to compare, before one runs."""
        cells = checked(self.variants(experiment))
        left = {cell.cell.swept["precision"] for cell in cells if cell.verdict == "run"}
        if len(left) < 2:
            reason = next(cell.reason for cell in cells if cell.verdict != "run")
            raise UserError(
                f"stage.precisions=[{','.join(self.precisions)}]: only {' '.join(left)} runs here, and a comparison "
                f"needs at least two; {reason}"
            )

    def check_keys(self, experiment: Experiment, keys: Sequence[str]) -> None:
        """Refuse a precision beside the study's own; precision.strict holds for all of them."""
        if "precision.initial_scale" in keys:
            raise UserError("precision.initial_scale: stage.initial_scale sets it for every cell; set that instead")
        refuse_overruled([key for key in keys if key != "precision.strict"], ["precision"], "stage.precisions")

    def run(self, experiment: Experiment, resolved: Resolved, run: Run) -> Result:
        """Train all, one at a time, and lay them side by side. Raises RunError where no two precisions are left."""
        from pipeline.stages.amp import compare, tables
        from pipeline.stages.amp.measured import Measured, is_probed

        receipt = receipts.before(experiment, resolved)
        run.journal.write_receipt(receipt)
        entries = run_cells(run, checked(self.variants(experiment)))
        ended = {entry.cell.label: entry.run for entry in entries if entry.state == "done" and entry.run is not None}
        done = [Measured.read(cell) for cell in ended.values() if is_probed(cell)]
        unprobed = [label for label, cell in ended.items() if not is_probed(cell)]
        order = {name: index for index, name in enumerate(self.precisions)}
        rows = compare.compare(sorted(done, key=lambda one: (order[one.precision], one.seed)))
        if len(rows) < 2:
            why = f" ({_left_out(unprobed)})" if unprobed else ""
            raise RunError(f"{len(rows)} of {len(self.precisions)} precisions have a result: nothing to compare{why}")
        of_each = [one.receipt for one in sorted(done, key=lambda one: one.seed)]
        run.journal.write_receipt(receipt | of_data(of_each))
        on_cpu = resolved.place.kind == "cpu"
        shown = (
            tables.seen(rows),
            tables.speed(rows),
            tables.numbers(rows),
            *tables.loss_scales(rows),
            tables.claimed(rows, on_cpu=on_cpu),
        )
        result = Result(
            metrics=metrics(rows),
            table=tuple(("verdict", line) for line in verdicts(rows)),
            notes=(*of_tests(of_each), *caveats(entries)),
            tables=shown,
            failed="; ".join(filter(None, (without_result(entries), _left_out(unprobed)))) or None,
        )
        result = with_pages(
            result,
            lambda: tables.write_csv(run.artifact("tables/runs.csv"), rows),
            lambda: explain(run, rows),
            lambda: summarize(run, verdicts(rows), shown),
        )
        return with_figures(result, partial(draw, run, experiment.name, rows))

    def kinds(self, experiment: Experiment) -> list[Experiment]:
        """The first cell of each precision, whose code, packages and configs count as the study's."""
        first = {one.swept["precision"]: one for one in reversed(self.variants(experiment))}
        return experiments_of(list(first.values()))

    def variants(self, experiment: Experiment) -> list[Variant]:
        """The cells, interleaved: every seed has all precisions in turn, every other seed backwards.

        A machine that slows down or warms up meanwhile then favours none. The reference, which is the slowest, has the
        first seed alone: the reference for the others' errors.
        """
        found = []
        for repeat in range(self.repeats):
            names = [name for name in self.precisions if repeat == 0 or name != REFERENCE]
            for name in names if repeat % 2 == 0 else reversed(names):
                seed = experiment.seed + repeat
                swept = {"precision": name, "seed": str(seed)}
                settings = [] if experiment.precision.strict else ["precision.strict=false"]
                if self.initial_scale is not None and scales_loss(name):
                    settings.append(f"precision.initial_scale={self.initial_scale!r}")
                one = variant(experiment, swept, f"precision={name} seed={seed}", *settings)
                stage = {**one.config["stage"], "probe": True}
                found.append(replace(one, config={**one.config, "stage": stage}))
        return found


def _left_out(unprobed: Sequence[str]) -> str:
    """The cells that trained and whose step could not be measured: their runs' notes say why."""
    return f"left out, since a step was not measured: {', '.join(unprobed)}" if unprobed else ""


def scales_loss(precision: str) -> bool:
    """Whether a precision scales the loss."""
    return precision in FORMATS and FORMATS[precision].loss_scaling


def draw(run: Run, title: str, rows: Sequence[Compared]) -> None:
    """Speed against error, memory, losses, loss scales."""
    from pipeline.stages.amp import figures

    figures.speed_against_error(run.artifact("figures/speed_against_error.png"), rows, title)
    figures.memory(run.artifact("figures/memory.png"), rows, title)
    figures.losses(run.artifact("figures/losses.png"), rows, title)
    if any(row.runs[0].loss_scale for row in rows):
        figures.loss_scales(run.artifact("figures/loss_scales.png"), rows, title)


def explain(run: Run, rows: Sequence[Compared]) -> None:
    """A page for each precision that did not gain."""
    from pipeline.stages.amp import why

    baseline = next((row for row in rows if row.precision == BASELINE), None)
    for row in rows:
        if baseline is not None and explained(row):
            run.artifact(f"why/{row.precision}.md").write_text(why.page(row, baseline), encoding="utf-8")


def verdicts(rows: Sequence[Compared]) -> list[str]:
    """A sentence for each precision but fp32, and where its page lies if it has one."""
    from pipeline.stages.amp.compare import verdict

    baseline = next((row for row in rows if row.precision == BASELINE), None)
    pages = {row.precision: f"; artifacts/why/{row.precision}.md" for row in rows if explained(row)}
    return [verdict(row, baseline) + pages.get(row.precision, "") for row in rows if row.precision != BASELINE]


def summarize(run: Run, verdicts: Sequence[str], tables: Sequence[Table]) -> None:
    """The verdicts and the tables in Markdown, as the study's report shows them."""
    text = "".join(f"- {line}\n" for line in verdicts) + "".join(f"\n{markdown(table)}" for table in tables)
    run.artifact("summary.md").write_text(text, encoding="utf-8")


def explained(row: Compared) -> bool:
    """Whether there is a page on why a precision did not gain: from fp64 nobody expects it to."""
    return row.speedup is not None and not row.speedup.seems_to_gain and row.effective != "fp64"


def metrics(rows: Sequence[Compared]) -> tuple[Metric, ...]:
    """The study in numbers. A speed-up is a ratio of times."""
    found: list[Metric] = []
    for row in rows:
        name, first = row.precision, row.runs[0]
        speed, score = row.median(lambda run: run.units_per_s), row.median(lambda run: run.score.value)
        found += [
            replace(first.rate, name=f"{name}/{first.rate.name}", value=speed),
            seconds(f"{name}/wall_s", row.median(lambda run: run.wall_s)),
            memory(f"{name}/peak_bytes", row.median(lambda run: run.peak_bytes)),
            replace(first.score, name=f"{name}/{first.score.name.replace('/', '_')}", value=score),
        ]
        if row.speedup is not None:
            found.append(Metric(f"{name}/speedup", row.speedup.mean, "x", "time", "max"))
        if row.errors is not None:
            errors = {"first_gradient_error": row.errors.first_gradient, "first_loss_error": row.errors.first_loss}
            found += [Metric(f"{name}/{what}", value, direction="min") for what, value in errors.items()]
    return tuple(found)
