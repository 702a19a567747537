"""stage=compare: what differs between runs that the journal wrote, and what it concludes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import pipeline, refused

from pipeline.experiment import load
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.runs.differences import account_of, by_seed, differing
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.receipt import before
from pipeline.runs.result import Metric, Result, rate, read_result
from pipeline.stages.about_runs.compare import _are_unlike, signed

SEEDLESS = "config_without_seed_sha256"
RECEIPT: dict[str, Any] = {
    "code_sha256": "c0de" * 16,
    "git": {"pipeline": {"commit": "f" * 40, "dirty": False}},
    "data_sha256": "da7a" * 16,
    "weights_sha256": "abc",
    "versions": {"python": "3.11.7", "torch": "2.13.0"},
    "environment": {},
    "device": {"effective": "cpu", "hardware": {"name": "a CPU", "vector": "avx avx2 f16c fma"}},
    "precision": {"effective": "fp32", "observed": {"matrix_products": {"float32": 5}}},
}


def a_run(root: Path, accuracy: float, seed: int = 0, lr: float = 0.1, speed: float = 9.0, **receipt: Any) -> Path:
    """A finished run."""
    optimizer = {"_target_": "pipeline.optimizers.sgd.Sgd", "learning_rate": lr}
    journal = Journal.begin(root, "compared", {"seed": seed, "optimizer": optimizer, "output_dir": str(root)})
    journal.write_receipt({**RECEIPT, **receipt})
    metrics = (Metric("test/accuracy", accuracy, direction="max"), rate("images_per_s", speed, "images"))
    journal.write_result(Result(metrics=metrics))
    journal.finish("FINISHED")
    return journal.folder


def compared(*runs: Path) -> str:
    """What the command prints on a terminal of 80 columns."""
    names = ",".join(run.name for run in runs)
    found = pipeline(runs[0].parents[1], "stage=compare", f"stage.runs=[{names}]", COLUMNS="80")
    assert found.returncode == 0, found.stderr
    assert max(map(len, found.stdout.splitlines())) <= 80
    return found.stdout


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_a_task_s_name_as_older_versions_wrote_it_is_no_difference(tmp_path: Path) -> None:
    names = ("languagemodelling", "language_modelling", "regression")
    old, new, other = (account_of(a_run(tmp_path, 0.5, task={"name": name})) for name in names)
    assert not differing([old, new], "data")
    assert [*differing([old, other], "data")] == ["task"]


def of_passes(root: Path, compile: bool, **receipt: Any) -> Path:
    """A run of stage=inference, with what its config and its receipt have of compiling."""
    run = a_run(root, 0.5, **receipt)
    config = yaml.safe_load((run / "config.yaml").read_text())
    stage = {"_target_": "pipeline.stages.inference.stage.Inference"}
    backend = {"_target_": "pipeline.backends.torch.Torch", "compile": compile}
    config |= {"stage": stage, "run": "runs/trained", "backend": backend}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    return run


def test_passes_of_an_older_version_were_not_compiled(tmp_path: Path) -> None:
    """Its config keeps backend.compile of the training, and its receipt does not say what compiled the passes."""
    asked: dict[str, Any] = {"passes": [], "config_sha256": "a" * 64}
    old = account_of(of_passes(tmp_path, True, **asked))
    plain = account_of(of_passes(tmp_path, False, compiled_by=None, **{**asked, "config_sha256": "b" * 64}))
    compiled = account_of(of_passes(tmp_path, True, compiled_by="torch.compile", **asked))
    assert differing([old, compiled], "config") == {"backend.compile": [False, True]}
    assert differing([old, plain], "config") == {}
    assert differing([plain, compiled], "config") == {"backend.compile": [False, True]}
    failed = of_passes(tmp_path, True, config_sha256="a" * 64)
    write_json(failed / "receipt.json", {"config_sha256": "a" * 64})  # before a pass was timed
    assert differing([account_of(failed), compiled], "config") == {}


def test_each_difference_is_named_by_section_and_key(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    hardware = {"effective": "cuda:0", "hardware": {"name": "a CPU", "vector": "avx avx512f f16c fma"}}
    other: dict[str, Any] = {
        "versions": {"python": "3.11.7", "jax": "0.10"},
        "device": hardware,
        "code_sha256": "beef" * 16,
    }
    text = compared(a_run(root, 0.5), a_run(root, 0.75, lr=0.2, **other))
    found = words(text)
    for row in (
        ["optimizer.learning_rate", "0.1", "0.2"],
        ["code_sha256", "c0dec0dec0de", "beefbeefbeef"],
        ["torch", "2.13.0", "-"],
        ["jax", "-", "0.10"],
        ["device", "cpu", "cuda:0"],
        ["vector", "avx2", "avx512f"],
        ["test/accuracy", "0.5000", "0.7500", "+0.25"],
    ):
        assert row in found, text
    assert "The same: data." in text and "python" not in text


def test_a_run_that_failed_is_called_so(tmp_path: Path) -> None:
    """A run of two cells of three stood beside a whole one, and nothing differed."""
    root = tmp_path / "runs"
    runs = [a_run(root, 0.5), a_run(root, 0.5)]
    status = read_json(runs[1] / "status.json")
    write_json(runs[1] / "status.json", {**status, "state": "FAILED", "error": "1 of 3 cells have no result"})
    lines = compared(*runs).splitlines()
    (failed,) = [line for line in lines if "FAILED" in line]
    assert failed.split()[:4] == ["b", runs[1].name, "FAILED:", "1"]


def test_a_metric_that_is_no_number_is_counted_and_not_ordered(tmp_path: Path) -> None:
    """The median of five runs was that of their order, and could be nan in a range of numbers."""
    values = (0.1, math.nan, 0.3, 0.5, 0.4)
    runs = [a_run(tmp_path / "runs", value, lr=0.1 * at) for at, value in enumerate(values)]
    for order in (runs, runs[::-1]):
        assert ["test/accuracy", "0.3500", "(0.1000", "to", "0.5000,", "n=4,", "1", "nan)"] in words(compared(*order))
    seeds = [a_run(tmp_path / "more" / "runs", value, seed=at) for at, value in enumerate(values[:4])]
    (row,) = [line for line in words(compared(*seeds)) if line[:1] == ["test/accuracy"]]
    assert row[1:6] == ["3,", "1", "nan", "0.3000", "0.2000"]


def test_of_many_runs_no_range_is_of_different_losses(tmp_path: Path) -> None:
    made = []
    entropy, hinge = "cross_entropy.CrossEntropy", "hinge.Hinge"
    for seed, kind in enumerate((entropy, entropy, hinge, entropy, hinge)):
        loss = {"_target_": f"pipeline.losses.{kind}"}
        journal = Journal.begin(tmp_path / "runs", "of", {"loss": loss, "model": {"width": seed}})
        journal.write_receipt(RECEIPT)
        journal.write_result(Result((Metric("test/loss", 1.5), Metric("test/accuracy", 0.5, direction="max"))))
        journal.finish("FINISHED")
        made.append(journal.folder)
    found = words(compared(*made))
    assert ["test/loss", "of", "different", "losses,", "settings,", "code", "or", "examples,", "n=5"] in found
    assert ["test/accuracy", "0.5000", "(0.5000", "to", "0.5000,", "n=5)"] in found


def test_a_loss_of_another_kind_is_not_subtracted(tmp_path: Path) -> None:
    made = []
    for name, kind in (("cross_entropy", "CrossEntropy"), ("hinge", "Hinge")):
        journal = Journal.begin(tmp_path / "runs", "of", {"loss": {"_target_": f"pipeline.losses.{name}.{kind}"}})
        journal.write_receipt(RECEIPT)
        journal.write_result(Result((Metric("test/loss", 1.5), Metric("test/accuracy", 0.5, direction="max"))))
        journal.finish("FINISHED")
        made.append(journal.folder)
    found = words(compared(*made))
    assert ["loss", "cross_entropy", "hinge"] in found
    assert ["test/loss", "1.5000", "1.5000"] in found
    assert ["test/accuracy", "0.5000", "0.5000", "0"] in found


def test_edited_modules_are_named_apart_from_other_ones(tmp_path: Path) -> None:
    """Of another model nothing was edited; an edit is named with its module."""
    root = tmp_path / "runs"
    shared = {"pipeline.tasks": "a" * 64, "pipeline.models.start": "e" * 64, "mine": "c" * 64}
    codes = [shared | {"pipeline.models.cnn": "1" * 64}, shared | {"pipeline.models.mlp": "2" * 64}]
    codes.append(codes[1] | {"mine": "d" * 64, "pipeline.models.start": "f" * 64})
    made = [a_run(root, 0.5, code_sha256=f"{n}" * 64) for n in range(3)]
    for run, code in zip(made, codes, strict=True):
        write_json(run / "code.json", code)
    text = compared(*made[:2])
    assert ["only", "here", "models.cnn", "models.mlp"] in words(text)
    assert "No module was edited" in text
    write_json(made[0] / "code.json", codes[0] | {f"pipeline.z{n:02}": "8" * 64 for n in range(30)})
    text = " ".join(compared(*made[:2]).split())
    assert "28 more" in text and "z02" not in text  # another backend has dozens of other modules
    write_json(made[1] / "code.json", codes[1] | {f"pipeline.y{n:02}": "8" * 64 for n in range(40)})
    text = " ".join(compared(*made[:2]).split())
    assert "28 more" in text and "38 more" in text and text.count(" and ") >= 2  # words that both rows have
    write_json(made[1] / "code.json", codes[1])
    text = compared(*made[1:])
    assert ["mine", "c" * 12, "d" * 12] in words(text)
    assert ["models.start", "or", "its", "files", "e" * 12, "f" * 12] in words(text)
    assert "No module was edited" not in text and "only here" not in text
    third = a_run(root, 0.5, code_sha256="3" * 64)  # which has no module of the first two's
    write_json(third / "code.json", {"pipeline.tasks": "a" * 64, "pipeline.models.gru": "4" * 64})
    text = compared(*made[1:], third)
    assert ["mine", "c" * 12, "d" * 12, "-"] in words(text) and "No module was edited" not in text
    assert ["only", "here", "models.mlp", "models.mlp", "models.gru"] in words(text)


def test_of_many_edited_modules_those_of_the_choices_and_the_users_own_are_named(tmp_path: Path) -> None:
    """Between two versions of the package up to 90 rows stood above the metrics."""
    root = tmp_path / "runs"
    many = [f"pipeline.z{n:02}" for n in range(30)]
    names = [*many, "mine", "pipeline.optimizers.sgd"]
    made = [a_run(root, 0.5, code_sha256=f"{n}" * 64) for n in range(2)]
    for run, digest in zip(made, "ab", strict=True):
        write_json(run / "code.json", dict.fromkeys(names, digest * 64))
    text = compared(*made)
    for name in ("mine", "optimizers.sgd"):
        assert [name, "a" * 12, "b" * 12] in words(text), text
    assert "z00" not in text
    said = (
        "32 modules were edited, 30 of them not shown; code.json in the folder of each run lists all with their hashes"
    )
    assert said in " ".join(text.split()) and text.index("32 modules") < text.index("metrics")
    for run, digest in zip(made, "ab", strict=True):  # as many as fit beside the metrics
        write_json(run / "code.json", dict.fromkeys(names[-10:], digest * 64))
    text = compared(*made)
    assert "not shown" not in text and all(f"z{n}" in text for n in range(22, 30))


def test_an_edit_that_no_module_shows_is_not_denied(tmp_path: Path) -> None:
    """Of a repository with an edit, and of a module that was imported by a computed name, nobody says that nothing was
    edited; and runs with another such module are no repetitions."""
    root = tmp_path / "runs"
    first, dirty, beside = (
        a_run(
            root,
            0.5,
            seed=seed,
            git={"pipeline": {"dirty": seed == 1}},
            imported_beside={"mine": {"sha256": name * 64}},
        )
        for seed, name in ((0, "a"), (1, "a"), (2, "b"))
    )
    for run in (first, dirty, beside):
        write_json(run / "code.json", {"pipeline.tasks": "a" * 64})
    text = compared(first, dirty)
    assert ["pipeline.dirty", "false", "true"] in words(text) and "No module was edited" not in text
    assert "seeds 0, 1" in text
    text = compared(first, beside)
    assert ["beside.mine.sha256", "a" * 12, "b" * 12] in words(text)
    assert "No module was edited" not in text and "seeds" not in text


def test_a_loss_of_other_settings_or_examples_is_not_subtracted(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    made = []
    for margin, examples in ((1.0, "a"), (2.0, "a"), (2.0, "b")):
        loss = {"_target_": "pipeline.losses.hinge.Hinge", "margin": margin}
        journal = Journal.begin(root, "of", {"loss": loss})
        journal.write_receipt({**RECEIPT, "held_out": {"test": examples}})
        journal.write_result(Result((Metric("test/loss", 1.5), Metric("test/accuracy", 0.5, direction="max"))))
        journal.finish("FINISHED")
        made.append(journal.folder)
    found = words(compared(*made[:2]))
    assert ["test/loss", "1.5000", "1.5000"] in found
    assert ["test/accuracy", "0.5000", "0.5000", "0"] in found
    found = words(compared(*made[1:]))
    assert ["test/loss", "1.5000", "1.5000"] in found
    assert ["test/accuracy", "0.5000", "0.5000"] in found


def test_a_metric_of_other_settings_is_not_subtracted(tmp_path: Path) -> None:
    """The recall of one digit was subtracted from that of another, which has the same name."""
    accounts = []
    for settings in ({"digit": 0}, {"digit": 0, "called": None}, {"digit": 3}):
        nodes = [{"_target_": "mine.Recall", **settings}, {"_target_": "pipeline.metrics.brier.Brier"}]
        journal = Journal.begin(tmp_path / "runs", "of", {"training": {"metrics": nodes}})
        accounts.append(account_of(journal.folder))
    for metric, unlike in (("test/recall", [False, False, True]), ("test/brier", [False] * 3)):
        assert [_are_unlike((accounts[0], one), metric) for one in accounts] == unlike


def test_a_metric_of_the_users_whose_code_was_edited_is_not_subtracted(tmp_path: Path) -> None:
    """Twice the recall was subtracted from the recall, beside a row that names the module."""
    accounts = []
    config = {"training": {"metrics": ["mine.Recall"]}, "loss": {"_target_": "losses.Loss"}}
    for number, (metric, loss) in enumerate((("a", "a"), ("b", "a"), ("a", "b"))):
        journal = Journal.begin(tmp_path / "runs", f"of-{number}", config)
        write_json(journal.folder / "code.json", {"mine": metric, "losses": loss, "pipeline.models.mlp": str(number)})
        accounts.append(account_of(journal.folder))
    for name, unlike in (("recall", [False, True, False]), ("loss", [False, False, True]), ("accuracy", [False] * 3)):
        assert [_are_unlike((accounts[0], one), f"test/{name}") for one in accounts] == unlike


def test_a_metric_whose_class_sets_its_name_is_found_in_the_config(tmp_path: Path) -> None:
    """The receipt has the names. The recall of one digit was subtracted from that of another."""
    accounts = []
    nodes: tuple[object, ...] = ("mine.Recall", {"_target_": "mine.Recall"}, {"_target_": "mine.Recall", "digit": 3})
    for node in nodes:
        journal = Journal.begin(tmp_path / "runs", "of", {"training": {"metrics": ["brier", node]}})
        journal.write_receipt({"metrics": ["brier", "zero_recall"]})
        accounts.append(account_of(journal.folder))
    for metric, unlike in (("zero_recall", [False, False, True]), ("brier", [False] * 3), ("recall", [False] * 3)):
        assert [_are_unlike((accounts[0], one), f"test/{metric}") for one in accounts] == unlike


def test_a_setting_of_the_loss_that_an_older_run_lacks_and_that_is_unset_is_no_difference(tmp_path: Path) -> None:
    loss = {"_target_": "pipeline.losses.cross_entropy.CrossEntropy"}
    accounts = []
    for settings in ({}, {"class_weights": None}, {"class_weights": [1.0, 2.0]}):
        journal = Journal.begin(tmp_path / "runs", "of", {"loss": {**loss, **settings}})
        accounts.append(account_of(journal.folder))
    assert [_are_unlike((accounts[0], one), "test/loss") for one in accounts] == [False, False, True]


def test_a_setting_that_an_older_run_lacks_and_that_does_nothing_is_no_row(tmp_path: Path) -> None:
    """Nor is the choice of a group that did not exist: `schedule  -  ->  constant`, in each comparison with them."""
    stage, model = {"_target_": "pipeline.stages.train.Train"}, {"_target_": "pipeline.models.mlp.Mlp"}
    constant = {"_target_": "pipeline.schedules.constant.Constant"}
    cosine = {"_target_": "pipeline.schedules.cosine.Cosine", "warm_up": 0}
    off: dict[str, object] = {"start": None, "freeze": [], "adapters": {"rank": 0}}
    accounts = []
    configs: list[dict[str, object]] = [
        {"model": model},
        {"model": model | off, "schedule": constant},
        {"model": model | {"dropout": 0.1}},
        {"model": model, "schedule": cosine},
        {"model": model | {"dropout": 0.0}},
    ]
    for number, config in enumerate(configs):
        journal = Journal.begin(tmp_path / "runs", "of", {"stage": stage, **config})
        journal.write_receipt({**RECEIPT, "config_sha256": f"{number}" * 64})
        accounts.append(account_of(journal.folder))
    old, same, other, scheduled, none = accounts
    assert differing([old, same], "config") == {}
    assert differing([old, other], "config") == {"model.dropout": ["-", 0.1]}
    assert differing([old, scheduled], "config") == {"schedule": ["constant", "cosine"]}
    assert differing([none, other], "config") == {"model.dropout": [0.0, 0.1]}


def test_a_setting_that_does_nothing_does_not_explain_other_values_of_the_environment(tmp_path: Path) -> None:
    """The configs read alike, but for a setting that one run lacks; what stood behind a variable may differ."""
    accounts = []
    for number, more in enumerate(({}, {"dropout": 0.0})):
        model = {"_target_": "pipeline.models.mlp.Mlp", "units": "${oc.env:UNITS}", **more}
        journal = Journal.begin(tmp_path / "runs", "of", {"model": model})
        journal.write_receipt({**RECEIPT, "config_sha256": f"{number}" * 64})
        accounts.append(account_of(journal.folder))
    assert differing(accounts, "config") == {"config_sha256": ["0" * 64, "1" * 64]}


def test_a_name_of_the_users_that_a_run_lacks_is_a_difference_whatever_its_value(tmp_path: Path) -> None:
    """Their function may do by default what `stage.arguments.shuffle=false` turns off."""
    accounts = []
    for arguments in ({}, {"shuffle": False}, {"shuffle": False, "net": {"width": 0}}):
        stage = {"_target_": "pipeline.stages.lightning.Lightning", "arguments": arguments}
        accounts.append(account_of(Journal.begin(tmp_path / "runs", "of", {"stage": stage}).folder))
    none, one, nested = accounts
    assert differing([none, one], "config") == {"stage.arguments.shuffle": ["-", False]}
    assert differing([one, nested], "config") == {"stage.arguments.net.width": ["-", 0]}


def test_differences_have_two_digits_and_no_powers_of_ten_above_one() -> None:
    found = [signed(one) for one in (0.0, 0.25, -1234.5678, 12345.6, 99.7, 45.3, 1e-7)]
    assert found == ["0", "+0.25", "-1,235", "+12,346", "+100", "+45", "+1e-07"]


@pytest.mark.parametrize(
    ("accuracy", "speed", "weights", "said"),
    [
        (0.5, 9.0, "abc", "Nothing differs."),
        (0.5, 8.0, "abc", "and the results are the same; only times and memory differ."),
        (0.6, 9.0, "abc", "except for what came out: test/accuracy. The computation is not repeatable"),
        (0.5, 9.0, "xyz", "except for what came out: the weights."),
        (float("nan"), 9.0, "abc", "except for what came out: test/accuracy."),
    ],
)
def test_what_is_said_where_nothing_recorded_differs(
    tmp_path: Path, accuracy: float, speed: float, weights: str, said: str
) -> None:
    one, other = a_run(tmp_path / "runs", 0.5), a_run(tmp_path / "runs", accuracy, speed=speed, weights_sha256=weights)
    assert said in " ".join(compared(one, other).split())


def test_how_rates_were_timed_is_said_below_them(tmp_path: Path) -> None:
    """A rate of half a machine, or of a hundredth of a second, stood beside another as if it were as sure."""
    root = tmp_path / "runs"
    busy: dict[str, Any] = {"training_rate": {"cores_of_others": 0.5, "timed_s": 0.02, "cold": True}}
    alone: dict[str, Any] = {"training_rate": {"cores_of_others": 0.0, "timed_s": 9.0, "cold": False}}
    said = " ".join(compared(a_run(root, 0.5, **busy), a_run(root, 0.5, speed=4.0, **alone)).split())
    for part in (
        "other processes had 50% of the cores at most, in 1 of 2 runs, which slowed them",
        "the rates of 1 of 2 runs are of one epoch or period, which starts cold",
        "the rates of 1 of 2 runs are uncertain: timed over 20.0 ms at least",
    ):
        assert part in said
    assert "the rates" not in compared(*(a_run(root, 0.5, **alone) for _ in range(2)))
    passes = [a_run(root, 0.5, cores_of_others=share) for share in (0.5, 0.0)]  # as stage=inference keeps it
    assert "other processes had 50% of the cores at most, in 1 of 2 runs" in " ".join(compared(*passes).split())


def test_runs_that_differ_in_their_seed_alone_give_a_spread(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    seeds = [a_run(root, 0.5 + 0.1 * n, seed=n, data_sha256=f"{n}" * 64) for n in range(5)]
    text = compared(*seeds, a_run(root, 0.1, seed=9, lr=0.3))
    # mean 0.7, deviation sqrt(0.025), half of the interval 2.776 * deviation / sqrt(5)
    assert ["test/accuracy", "5", "0.7000", "0.1581", "0.5000", "0.9000", "±0.1963"] in words(text)
    assert "metrics of a, b, c, d, e: seeds 0, 1, 2, 3, 4" in text
    assert ["optimizer.learning_rate", "0.1", "(a,", "b,", "c,", "d,", "e)"] in words(text)
    assert ["test/accuracy", "0.1000"] in words(text)


def test_two_settings_with_the_same_seeds_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """The seeds lie ten times as far apart as the two settings, which is what their intervals are of."""
    root = tmp_path / "runs"
    first = [a_run(root, 0.5 + 0.1 * n, seed=n, speed=9.0 + n) for n in range(3)]
    better = [a_run(root, 0.51 + 0.1 * n + 0.001 * n, seed=n, speed=9.5 - n, lr=0.2) for n in range(3)]
    text = compared(*first, *better)
    assert "d, e, f minus a, b, c, seed by seed" in text
    # 0.010, 0.011, 0.012: mean 0.011, half of the interval 4.303 * 0.001 / sqrt(3)
    assert ["test/accuracy", "3", "+0.0110", "±0.0025", "they", "differ"] in words(text)
    assert ["images_per_s", "3", "-1.5000", "±4.9683", "not", "shown", "to", "differ"] in words(text)
    assert "seed by seed" not in compared(*first[:2], *better)
    lost = [a_run(root, value, seed=n, lr=0.3) for n, value in enumerate((0.5, 0.6, math.inf))]
    assert ["test/accuracy", "3", "nan", "not", "shown", "to", "differ"] in words(compared(*first, *lost))


def test_two_runs_of_several_seeds_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """They stood side by side with each seed's results as further rows, and nothing said whether they differ."""
    root = tmp_path / "runs"
    lists = ([0.5, 0.6, 0.7], [0.51, 0.611, 0.712], [0.9, 0.1])
    first, second, short = (a_run(root, 0.6, lr=0.1 * n) for n in range(1, 4))
    for run, values in zip((first, second, short), lists, strict=True):
        metrics = read_result(run).metrics  # type: ignore[union-attr]
        each = [Metric(f"seed_{n}/test_accuracy", one, direction="max", role="seed") for n, one in enumerate(values)]
        write_json(run / "result.json", Result(metrics=(*metrics, *each)).plain())
    text = compared(first, second)
    assert "b minus a, seed by seed" in text
    assert ["test/accuracy", "3", "+0.0110", "±0.0025", "they", "differ"] in words(text)
    assert "seed_0/" not in text
    assert "seed by seed" not in compared(first, short)  # two in common


def test_a_difference_lies_in_the_middle_of_its_interval(tmp_path: Path) -> None:
    """The mean had two digits: -1.2 with an interval of 0.0043 round it, in which the difference, -1.164, was not."""
    root = tmp_path / "runs"
    first = [a_run(root, 2.0, seed=n) for n in range(3)]
    second = [a_run(root, 0.836 + 0.001 * (n - 1) * 1.7286, seed=n, lr=0.2) for n in range(3)]
    assert ["test/accuracy", "3", "-1.1640", "±0.0043", "they", "differ"] in words(compared(*first, *second))


def test_seeds_that_were_tested_on_other_examples_are_noted(tmp_path: Path) -> None:
    """Where the seed decides the test set, the interval is not of trainings alone."""
    root = tmp_path / "runs"
    runs = [a_run(root, 0.5 + 0.1 * n, seed=n, held_out={"validation": f"{n}", "test": "a"}) for n in range(4)]
    assert "sets of" not in compared(*runs)
    other = a_run(root, 0.9, seed=4, held_out={"validation": "4", "test": "b"})
    said = "tested on 2 different sets of examples: the spread of the metrics is also that of the sets"
    assert said in " ".join(compared(*runs, other).split())


def test_seeds_are_taken_together_by_config_and_code(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, 0.5, seed=0), a_run(tmp_path, 0.5, seed=1), a_run(tmp_path, 0.5, seed=1)]
    runs += [a_run(tmp_path, 0.5, seed=2, code_sha256="beef" * 16), a_run(tmp_path, 0.5, seed=3, lr=0.3)]
    assert by_seed([account_of(run) for run in runs]) == [[0, 1], [2], [3], [4]]


def test_seeds_are_not_taken_together_across_values_of_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """config.yaml keeps `${oc.env:SLOPE}`; a receipt of before it held a hash without the seed cannot tell."""
    composed = pipeline(tmp_path, "dataset=digits", "model=mlp", "device=cpu", "--cfg", "job", "--resolve")
    config = yaml.safe_load(composed.stdout)
    config["model"]["activation"] = "${oc.env:SLOPE}"
    runs = []
    for seed, slope in enumerate(("relu", "relu", "tanh", "tanh")):
        monkeypatch.setenv("SLOPE", slope)
        journal = Journal.begin(tmp_path, "of", {**config, "seed": seed})
        resolved = Resolved(Place("cpu"), "fp32", "", "")
        receipt = before(load({**config, "seed": seed}), resolved)
        assert slope not in json.dumps(receipt)
        journal.write_receipt(receipt)
        runs.append(account_of(journal.folder))
    assert by_seed(runs) == [[0, 1], [2, 3]]
    found = differing(runs[1:3], "config")
    assert found["seed"] == [1, 2] and [*found] == ["seed", SEEDLESS]
    assert [*differing(runs[:2], "config")] == ["seed"]
    for run in runs:
        receipt = read_json(run.folder / "receipt.json")
        write_json(run.folder / "receipt.json", {name: one for name, one in receipt.items() if name != SEEDLESS})
    assert by_seed([account_of(run.folder) for run in runs]) == [[0], [1], [2], [3]]


def test_seeds_are_not_taken_together_across_classes_of_one_name(tmp_path: Path) -> None:
    runs = []
    for seed, module in enumerate(("lab.a", "lab.a", "lab.b", "lab.b")):
        journal = Journal.begin(tmp_path, "own", {"seed": seed, "model": {"_target_": f"{module}.Net"}})
        journal.write_receipt(RECEIPT)
        runs.append(account_of(journal.folder))
    assert by_seed(runs) == [[0, 1], [2, 3]]
    assert differing(runs, "config")["model"] == ["lab.a.Net", "lab.a.Net", "lab.b.Net", "lab.b.Net"]


def test_seeds_are_not_taken_together_across_software_environments_and_machines(tmp_path: Path) -> None:
    others: list[dict[str, Any]] = [
        {"versions": {"python": "3.11.7", "torch": "2.14.0"}},
        {"environment": {"ONEDNN_DEFAULT_FPMATH_MODE": "BF16"}},
        {"device": {"effective": "cpu", "hardware": {"name": "another CPU"}}},
    ]
    runs = [a_run(tmp_path, 0.5, seed=0), *(a_run(tmp_path, 0.5, seed=n, **one) for n, one in enumerate(others, 1))]
    assert by_seed([account_of(run) for run in runs]) == [[0], [1], [2], [3]]


ELSEWHERE: dict[str, Any] = {
    "resumed": [
        {"step": 40, "differences": []},
        {"step": 80, "differences": ["code", "torch 2.12.0, now 2.13.0"]},
    ]
}


def test_what_a_run_went_on_with_is_a_difference(tmp_path: Path) -> None:
    """With training.checkpoint.strict=false a run goes on by other code or software, which its last process hides."""
    root = tmp_path / "runs"
    text = compared(a_run(root, 0.5), a_run(root, 0.6, **ELSEWHERE))
    assert ["from", "step", "80", "-", "['code',", "'torch", "2.12.0,", "now", "2.13.0']"] in words(text), text
    assert "step 40" not in text and "Nothing that is recorded differs" not in text
    assert "The same: config, code, data, software, machine." in " ".join(text.split())


def test_seeds_are_not_taken_together_with_what_went_on_otherwise(tmp_path: Path) -> None:
    """Nor two of these: "code" may be two different edits."""
    exact = [{"step": 40, "differences": []}]
    runs = [a_run(tmp_path, 0.5, seed=0), a_run(tmp_path, 0.5, seed=1, resumed=exact)]
    runs += [a_run(tmp_path, 0.5, seed=seed, **ELSEWHERE) for seed in (2, 3)]
    assert by_seed([account_of(run) for run in runs]) == [[0, 1], [2], [3]]


def test_what_a_run_is_called_and_how_it_is_followed_is_no_difference(tmp_path: Path) -> None:
    one, other = a_run(tmp_path, 0.5), a_run(tmp_path, 0.5)
    (other / "config.yaml").write_text(
        (other / "config.yaml").read_text() + "name: other\nresume: null\ntracking: {wait: 5.0}\nsweep: {jobs: 2}\n"
    )
    assert differing([account_of(one), account_of(other)], "config") == {}


def test_a_profiler_is_compared_once_by_its_settings(tmp_path: Path) -> None:
    runs = [a_run(tmp_path, 0.5), a_run(tmp_path, 0.5, profiler={"_target_": "pipeline.profilers.torch.Torch"})]
    config = runs[1] / "config.yaml"
    config.write_text(config.read_text() + "profiler: {_target_: pipeline.profilers.torch.Torch}\n")
    accounts = [account_of(run) for run in runs]
    assert [*differing(accounts, "config")] == ["profiler"]
    assert differing(accounts, "machine") == {}


def test_what_computed_otherwise_is_a_difference_of_the_machine(tmp_path: Path) -> None:
    """The dtypes are those that were seen, whatever precision both had."""
    device = {**RECEIPT["device"], "cpu_threads": 1}
    observed = {"effective": "mixed_bf16", "observed": {"matrix_products": {"bfloat16": 5}}}
    runs = [a_run(tmp_path, 0.5), a_run(tmp_path, 0.5, device=device, precision=observed)]
    assert differing([account_of(run) for run in runs], "machine") == {
        "cpu_threads": [None, 1],
        "precision": ["fp32", "mixed_bf16"],
        "matrix_products.float32": [5, "-"],
        "matrix_products.bfloat16": ["-", 5],
    }


def test_a_run_without_a_receipt_is_compared_by_what_it_has(tmp_path: Path) -> None:
    one, other = a_run(tmp_path / "runs", 0.5), a_run(tmp_path / "runs", 0.5, lr=0.2)
    (other / "receipt.json").unlink()
    assert differing([account_of(one), account_of(other)], "config") == {"optimizer.learning_rate": [0.1, 0.2]}
    assert f"{other.name}: has no receipt.json; not compared" in " ".join(compared(one, other).split())


def test_nothing_is_concluded_where_no_run_has_a_receipt(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / "runs", 0.5), a_run(tmp_path / "runs", 0.7)]
    for run in runs:
        (run / "receipt.json").unlink()
    text = " ".join(compared(*runs).split())
    assert text.endswith(f"{runs[1].name}: has no receipt.json; not compared The same: config."), text


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([], ""),
        ([0.5], ""),
        ([0.6], "Nothing that is recorded differs, except for what came out: test/accuracy. The computation"),
    ],
)
@pytest.mark.parametrize("content", [None, "{"])
def test_nothing_is_concluded_from_a_result_that_is_lost(
    tmp_path: Path, others: list[float], said: str, content: str | None
) -> None:
    runs = [a_run(tmp_path / "runs", value) for value in (0.5, *others, 0.7)]
    (runs[-1] / "result.json").unlink() if content is None else (runs[-1] / "result.json").write_text(content)
    last = " ".join(compared(*runs).split()).partition(f"{runs[-1].name}: has no result.json; not compared ")[2]
    assert last.startswith(f"The same: config, code, data, software, machine. {said}".strip()), last
    assert ("Nothing" in last) is bool(said)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    run = a_run(tmp_path / "runs", 0.5)
    said = refused(tmp_path, "stage=compare", "run=latest")
    assert said == "stage.runs: name two runs or more, as stage.runs=[<id>,<id>], and none by run=<id>"
    said = refused(tmp_path, "stage=compare", f"stage.runs=[{run.name},latest]", "run=latest")
    assert said.startswith("run with stage=compare: ") and said.endswith("; it takes stage.runs, output_dir")
    twice = refused(tmp_path, "stage=compare", f"stage.runs=[{run.name},latest]")
    assert f"stage.runs: {run.name} is named twice" in twice
    assert "stage.runs=2030: no such run" in refused(tmp_path, "stage=compare", f"stage.runs=[{run.name},2030]")
