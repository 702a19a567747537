"""Stages of the study that start from the run of another stage: what is composed, chained, kept, rerun and refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_study import Copy

from pipeline.cli.conf_path import conf_path
from pipeline.errors import RunError, UserError
from pipeline.runs import adapters
from pipeline.runs.journal import Journal
from pipeline.runs.lookup import find_run
from pipeline.runs.result import Metric, Result, read_result
from pipeline.runs.start import SAVED
from pipeline.study import documents, saved
from pipeline.study.compose import compose
from pipeline.study.composed import read as read_composed
from pipeline.study.data import fetch, hashes
from pipeline.study.run import refuse_other_settings, run
from pipeline.study.watched import refuse_unchained

pytestmark = pytest.mark.timeout(3600)

TRAINED = "{dataset: digits, model: mlp, training: {epochs: 1}, tracking: {wait: 100.0}}"
STAGE = """\
  {name}:
    cmd: python -m pipeline.study run {name}
    params:
      - composed.yaml: [{name}.config, {name}.code, {name}.writers]
{data}    deps: [{deps}]
    outs: [study/{name}/receipt.json, study/{name}/timings.json{outs}]
    metrics: [study/{name}/metrics.json: {{cache: false}}]
"""
COMPOSE = """\
stages:
  compose:
    cmd: python -m pipeline.study compose
    deps: [params.yaml, conf, src/pipeline, mine]
    outs: [composed.yaml: {cache: false, persist: true}]
  data:
    cmd: python -m pipeline.study data
    params: [composed.yaml: [data]]
    outs: [study/data.json: {cache: false, persist: true}]
"""


def stage(name: str, deps: str = "", outs: str = "", *, reads_data: bool = True) -> str:
    """A stage of dvc.yaml."""
    data = f"      - study/data.json: [{name}]\n" if reads_data else ""
    return STAGE.format(name=name, deps=deps, outs=outs, data=data)


def composed_of(blocks: str) -> dict[str, Any]:
    """composed.yaml of the blocks, in the current folder."""
    Path("params.yaml").write_text(blocks)
    compose()
    return documents.read(Path("composed.yaml"), "")


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (
            "{stage: evaluate}",
            "stage=evaluate: starts from a saved run, and DVC tracks that of a block alone; add run:",
        ),
        ("{stage: evaluate, run: latest}", "run=latest: no block of the study, and DVC tracks no other saved run; "),
        (
            "{stage: evaluate, run: traind}",
            "run=traind: no block of the study (did you mean trained?), and DVC tracks ",
        ),
        ("{stage: evaluate, run: 7}", "run=7: no block of the study, and DVC tracks no other saved run; "),
        ("{stage: evaluate, run: [trained]}", "run=['trained']: needs the name of a block"),
        ("{stage: evaluate, run: {of: trained}}", "run.of=trained: needs the name of a block: run: <block>"),
        ("{stage: evaluate, run: several}", "run=several: this block trains several models (stage=seeds), each in an"),
        ("{stage: evaluate, run: devices}", "run=devices: this block trains nothing (stage=devices); "),
        ("{stage: evaluate, run: one}", "run=one: this block starts from a saved run and trains nothing; "),
        ("{stage: evaluate, run: tested}", "run=tested: this block starts from a saved run and trains nothing; "),
        ("{dataset: digits, run: trained}", "run=trained with stage=classifier: this stage does not start from a "),
        (
            "{stage: evaluate, run: trained, seed: 3}",
            "seed=3 with stage=evaluate: run trained was made with seed=0 and",
        ),
        ("{stage: evaluate, run: trained, resume: auto}", "resume=auto with stage=evaluate: trains nothing to go on "),
        ("{dataset: digits, resume: latest}", "resume=latest: a stage goes on with its own run where "),
        ("{stage: export, run: trained, precision: mixed}", "precision=mixed with stage=export: what is written "),
        ("{stage: evaluate, run: trained, precision: tf32, device: cpu}", "precision=tf32 with backend=torch on cpu: "),
    ],
)
def test_what_no_stage_can_start_from_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    others = {
        "devices": "{stage: devices}",
        "several": "{stage: seeds, dataset: digits, model: mlp}",
        "tested": "{stage: evaluate, run: trained}",
    }
    beside = "".join(f"{name}: {other}\n" for name, other in others.items() if name in block)
    with pytest.raises(UserError) as result:
        composed_of(f"{beside}one: {block}\ntrained: {TRAINED}\n")
    assert str(result.value).startswith(f"params.yaml: one: {expected}")
    if "no block" in expected or "this block" in expected or "add run" in expected:
        assert str(result.value).rstrip(")").endswith("blocks that train one model: trained")  # and none of the others
    assert not Path("composed.yaml").exists()


OTHERS = {  # what is trained, beside a classifier of images
    "text": "{stage: transformer, dataset: text, dataset.path: one.txt, training.steps: 2, schedule: constant}",
    "table": "{stage: train, dataset: diabetes, loss: squared_error, model: mlp}",
    "solved": "{stage: pinn, dataset: ode, solver.steps: 10}",
}


@pytest.mark.parametrize(
    ("of", "block", "expected"),
    [
        ("trained", "stage: generate, stage.prompt: a", "run=trained: its task is Classification; stage=generate "),
        ("solved", "stage: generate, stage.prompt: a", "run=solved: solved a problem; stage=generate takes a language"),
        ("text", "stage: generate", "stage.prompt=null: give a text, as "),
        ("text", "stage: generate, stage.prompt: ''", "stage.prompt='': is empty; the model needs one token at least"),
        ("text", "stage: generate, stage.prompt: [a, '']", "stage.prompt='': is empty; "),
        ("text", "stage: generate, stage.prompt: a, stage.stop: ['']", "stage.stop='': is empty; every text would end"),
        ("text", "stage: predict", "run=text: its task is LanguageModelling; stage=predict takes images or rows of "),
        ("trained", "stage: predict", "stage.images=[]: name at least one image or IDX file, such as "),
        ("trained", "stage: predict, stage.images: [no.png]", "stage.images=no.png: no such file"),
        ("trained", "stage: predict, stage.images: [one.txt]", "stage.images=one.txt: neither an image (.png, "),
        ("table", "stage: predict, stage.images: [no.png]", "run=table: its task is Regression; stage.images is for "),
        ("table", "stage: predict, stage.rows: no.csv", "stage.rows=no.csv: no such file"),
        ("table", "stage: predict, stage.rows: one.txt", "stage.rows=one.txt: needs a .npy or a .csv file"),
        ("solved", "stage: predict", "stage.points=null: name a .npy or .csv file with a point a row"),
        ("solved", "stage: predict, stage.points: no.csv", "stage.points=no.csv: no such file"),
        ("solved", "stage: predict, stage.points: far.csv", "stage.points=far.csv: 1 of 1 points lie outside the dom"),
        ("solved", "stage: evaluate", "stage=evaluate with a run that solved a problem: "),
        ("trained", "stage: inference, stage.batches: [1, 2, 1]", "stage.batches=[1,2,1]: 1 is there twice"),
        ("trained", "stage: export, stage.format: onxx", "stage.format=onxx: no such choice (did you mean onnx?); "),
        ("trained", "stage: export, stage.format: keras", "stage.format=keras with backend=torch: it writes "),
        ("trained", "stage: inference, device: gpu", "device=gpu: no NVIDIA GPU found on this machine; "),
    ],
)
def test_settings_of_the_second_stage_are_refused_before_the_first_one_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, of: str, block: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.txt").write_text("to be or not to be, that is the question. " * 100)
    Path("far.csv").write_text("1000\n")
    with pytest.raises(UserError) as result:
        composed_of(f"one: {{run: {of}, {block}}}\n{of}: {({'trained': TRAINED} | OTHERS)[of]}\n")
    assert str(result.value).startswith(f"params.yaml: one: {expected}")
    assert not Path("composed.yaml").exists()


def test_what_the_run_or_an_earlier_export_shows_is_left_to_the_second_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study is composed at every edit: also where the folder of an export is there already."""
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    found = composed_of(
        f"trained: {TRAINED}\n"
        "made: {stage: export, run: trained, stage.path: out}\n"
        f"text: {OTHERS['text'].replace('one.txt', 'params.yaml')}\n"
        "written: {stage: generate, run: text, stage.prompt: Ω, stage.top_k: 100000}\n"
    )
    assert {"made", "written"} < found.keys()


def test_no_block_is_called_as_the_folder_of_saved_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"saved: no name for a stage; .* none of compose, data, report, saved"):
        composed_of(f"saved: {TRAINED}\n")


def test_a_stage_has_the_config_of_the_run_that_it_starts_from_and_what_it_chooses_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there is a run; and the other blocks have what they had without it."""
    monkeypatch.chdir(tmp_path)
    alone = composed_of(f"trained: {TRAINED}\nother: {TRAINED}\n")
    found = composed_of(
        f"tested: {{stage: evaluate, run: trained, precision: fp64}}\ntrained: {TRAINED}\nother: {TRAINED}\n"
    )
    assert list(found) == ["tested", "trained", "other", "data", "report"]
    assert found["other"] == alone["other"]
    writers = found["trained"]["writers"]
    assert {**found["trained"], "writers": writers.keys() - {"pipeline.study.saved"}} == {
        **alone["trained"],
        "writers": alone["trained"]["writers"].keys(),
    }
    tested, trained = found["tested"]["config"], found["trained"]["config"]
    assert tested["stage"]["_target_"].endswith("Evaluate")
    assert tested["precision"]["name"] == "fp64"
    assert {key: tested[key] for key in ("model", "dataset", "training", "backend")} == {
        key: trained[key] for key in ("model", "dataset", "training", "backend")
    }
    assert found["tested"]["rest"]["run"] == "study/saved/trained"
    assert found["data"]["tested"] == found["data"]["trained"]


def test_other_text_is_read_by_the_tokens_that_the_run_will_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their card is not there when the study is composed, and its content changes no hash of code."""
    monkeypatch.chdir(tmp_path)
    Path("one.txt").write_text("to be or not to be, that is the question. " * 100)
    Path("other.txt").write_text("whether it is nobler to suffer in the mind. " * 100)
    blocks = (
        "written: {stage: transformer, dataset: text, dataset.path: one.txt, training.steps: 2, schedule: constant}\n"
        "tested: {stage: evaluate, run: written, dataset: text, dataset.path: other.txt}\n"
    )
    before = composed_of(blocks)
    card = Path("study/saved/written/artifacts/model/card.json")
    assert before["tested"]["config"]["dataset"]["tokens"] == str(card)
    assert before["data"]["tested"]["seed"] is None
    assert before["data"]["written"]["seed"] == 0
    fetch()
    assert hashes().keys() == {"written", "tested"}
    card.parent.mkdir(parents=True)
    card.write_text(json.dumps({"tokens": {"kind": "bytes"}}))
    assert composed_of(blocks) == before
    Path("other.txt").write_text("another text. " * 300)
    changed = composed_of(blocks)
    assert [name for name in before if changed[name] != before[name]] == ["tested", "data"]


def test_files_to_predict_from_are_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = Path("rows.npy")
    np.save(rows, np.zeros((2, 10)))
    blocks = (
        "trained: {stage: train, dataset: diabetes, loss: squared_error, model: mlp}\n"
        "seen: {stage: predict, run: trained, stage.rows: rows.npy}\n"
    )
    before = composed_of(blocks)
    assert "seen" not in before["data"]
    np.save(rows, np.ones((2, 10)))
    changed = composed_of(blocks)
    assert [name for name in before if changed[name] != before[name]] == ["seen"]


def test_a_chain_that_dvc_does_not_know_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them DVC would run the stages in any order, and the second not again."""
    from dvc.repo import Repo

    monkeypatch.chdir(tmp_path)
    with Repo.init(no_scm=True):
        pass
    of = "  of:\n    foreach: [it]\n    do: {{cmd: x, deps: [{}], outs: [made]}}\n"
    folder = "study/saved/trained"
    for deps, outs, expected in (
        ("", folder, f"dvc.yaml: of_it: of_it starts from the run of trained; add {folder} to the deps of the stage "),
        (folder, "x", f"dvc.yaml: trained: of_it starts from the run of trained; add {folder} to the outs of the "),
    ):
        Path("dvc.yaml").write_text(f"stages:\n  trained: {{cmd: x, outs: [{outs}]}}\n{of.format(deps)}")
        with pytest.raises(UserError) as result:
            refuse_unchained({"of_it": "trained"})
        assert str(result.value).startswith(expected)
    Path("dvc.yaml").write_text(f"stages:\n  trained: {{cmd: x, outs: [{folder}]}}\n{of.format(folder)}")
    refuse_unchained({"of_it": "trained"})


def test_a_saved_run_that_is_missing_or_of_another_execution_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    composed_of(f"trained: {TRAINED}\ntested: {{stage: evaluate, run: trained}}\n")
    with pytest.raises(UserError, match=r"^study/saved/trained: not there; `dvc repro` makes it"):
        run("tested")
    model = saved.folder("trained") / "artifacts/model"
    model.mkdir(parents=True)
    np.savez(model / "weights.npz", x=np.zeros(2))
    (saved.folder("trained") / "receipt.json").write_text('{"config_sha256": "0"}')
    with pytest.raises(UserError, match=r"^study/saved/trained: its run had another config than composed.yaml has; "):
        run("tested")


def test_settings_that_composed_yaml_does_not_have_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal leaves composed.yaml as it was, and `dvc repro --single-item` or `--ignore-errors` runs what it has."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(conf_path(), "conf")
    blocks = f"trained: {TRAINED}\ntested: {{stage: evaluate, run: trained}}\nother: {TRAINED}\n"
    composed_of(blocks)
    edited = blocks.replace("epochs: 1}", "epochs: 2, clip_norm: 3.0}", 1)
    Path("params.yaml").write_text(edited)
    for name in ("trained", "tested"):
        with pytest.raises(UserError) as result:
            run(name)
        assert str(result.value) == (
            f"composed.yaml: {name}: its settings have changed since it was written (training.clip_norm, "
            "training.epochs); `dvc repro` composes it again"
        )
    refuse_other_settings("other", read_composed()["other"].config)  # an edit of another block
    Path("params.yaml").write_text(edited.replace("epochs: 2", "epochs: -2"))  # as one that compose refused
    with pytest.raises(UserError, match=r"^params.yaml: trained: training.epochs=-2: "):
        run("trained")
    refuse_other_settings("other", read_composed()["other"].config)
    Path("params.yaml").write_text(f"other: {TRAINED}\n")
    with pytest.raises(UserError, match=r"^params.yaml: trained: no such block; choose from other$"):
        run("trained")
    Path("params.yaml").write_text(blocks)
    refuse_other_settings("trained", read_composed()["trained"].config)
    mlp = Path("conf/model/mlp.yaml")
    mlp.write_text(mlp.read_text().replace("128", "64"))
    with pytest.raises(UserError, match=r"^composed.yaml: trained: its settings have changed .*\(model.units\); "):
        run("trained")


def test_a_run_without_a_model_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    journal = Journal.begin(tmp_path / "runs", "trained", {})
    journal.finish("FINISHED")
    with pytest.raises(RunError, match=r"trained: the run .* saved no model, from which another stage is to start"):
        saved.keep("trained", journal.folder)


@pytest.mark.parametrize("weights_sha256", ["one", "other"])
def test_what_is_kept_of_a_run_is_the_same_for_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights_sha256: str
) -> None:
    """The second stage was run again after each run of the first, whose receipt has times."""
    monkeypatch.chdir(tmp_path)
    kept = []
    for number, sha256 in enumerate(("one", weights_sha256)):
        journal = Journal.begin(tmp_path / "runs", "trained", {"seed": 0})
        receipt = {"weights_sha256": sha256, "card_sha256": "card", "wall_time_s": 1.5 + number, "git": {"x": number}}
        journal.write_receipt(receipt)
        journal.write_code({"pipeline.models.mlp": "code"})
        rate = Metric("training/images_per_s", 100.0 + number, kind="time", direction="max")
        journal.write_result(
            Result((Metric("test/accuracy", 0.5), rate), notes=("seen",), table=(("time", str(number)),))
        )
        (journal.folder / saved.MODEL).mkdir(parents=True)
        np.savez(journal.folder / saved.MODEL / "weights.npz", x=np.zeros(2))
        journal.finish("FINISHED")
        saved.keep("trained", journal.folder)
        folder = saved.folder("trained")
        kept.append({path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()})
    assert (kept[0] == kept[1]) == (weights_sha256 == "one")
    result = read_result(folder)
    assert result is not None and [one.name for one in result.metrics] == ["test/accuracy"]
    assert result.notes == ("seen",)
    assert json.loads(kept[1][Path("receipt.json")]) == {"weights_sha256": weights_sha256, "card_sha256": "card"}


def test_what_a_study_keeps_of_a_run_is_found_where_its_model_will_do(tmp_path: Path) -> None:
    """And not by a stage that needs the run's status, as rerun and resume do, which ask for its config."""
    folder = tmp_path / "study/saved/trained"
    (folder / saved.MODEL).mkdir(parents=True)
    for name in ("config.yaml", "code.json", SAVED):
        (folder / name).touch()
    assert find_run(tmp_path / "runs", str(folder), SAVED) == folder
    for holding in ("status.json", "config.yaml"):
        with pytest.raises(UserError) as result:
            find_run(tmp_path / "runs", str(folder), holding)
        assert str(result.value) == (
            f"run={folder}: what a study keeps of a run, without a status; name the run, whose id is in "
            f"{tmp_path / 'study/trained/receipt.json'}"
        )
    with pytest.raises(UserError, match=r"^run=trained: has no artifacts/model/adapters.npz; it trained none; "):
        find_run(tmp_path / "runs", str(folder), adapters.SAVED)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """A training, its test, an export, and a prediction, reproduced."""
    copy = Copy(tmp_path_factory.mktemp("chain"))
    (copy.folder / "mine").mkdir()
    other = np.random.default_rng(0).integers(0, 255, (40, 8, 8, 1), np.uint8)
    np.savez(copy.folder / "mine/other.npz", x=other, y=np.arange(40) % 10)
    source = "study/saved/trained"
    stages = [
        stage("trained", outs=f", {source}"),
        stage("exported", source, ", study/exported/export"),
        stage("elsewhere", source),
    ]
    (copy.folder / "dvc.yaml").write_text(COMPOSE + "".join(stages))
    (copy.folder / "params.yaml").write_text(
        f"trained: {TRAINED}\n"
        "exported: {stage: export, run: trained, stage.format: safetensors, tracking: {wait: 100.0}}\n"
        "elsewhere:\n"
        "  {stage: evaluate, run: trained, dataset: npz, dataset.file: mine/other.npz, tracking: {wait: 100.0}}\n"
    )
    copy.dvc("init", "--no-scm", "--quiet")
    copy.dvc("repro")
    return copy


def ran(said: str) -> list[str]:
    """The stages that `dvc repro` has run, of what it says."""
    return [line.split("'")[1] for line in said.splitlines() if line.startswith("Running stage")]


def read(chain: Copy, name: str) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(chain.read(name))
    return found


@pytest.mark.wide
def test_a_chain_is_made_in_its_order_and_its_records_agree(chain: Copy) -> None:
    assert chain.dvc("repro").count("didn't change, skipping") == 5
    done = chain.study("check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row.split()[0] for row in done.stdout.splitlines()[1:]] == [
        "compose", "data", "trained", "exported", "elsewhere",
    ]  # fmt: skip
    trained = read(chain, "study/trained/receipt.json")
    for name in ("exported", "elsewhere"):
        receipt = read(chain, f"study/{name}/receipt.json")
        assert receipt["source_run"] == "trained"
        assert receipt["weights_sha256"] == trained["weights_sha256"]
        assert not any("not verified" in note or "another" in note for note in receipt["notes"])
    assert list((chain.folder / "study/exported/export").rglob("*.safetensors"))
    assert "accuracy" in read(chain, "study/elsewhere/metrics.json")["other_data"]
    assert str(chain.folder) not in chain.read("composed.yaml").decode()
    assert chain.study("report").returncode == 0
    assert "| elsewhere |" in chain.read("study/report/report.md").decode()


@pytest.mark.wide
def test_the_runs_are_not_needed_and_the_bytes_stay(chain: Copy) -> None:
    """On another machine there is what DVC pulls, and no runs/."""
    before = chain.read("study/elsewhere/metrics.json")
    runs = chain.folder / "runs"
    runs.rename(chain.folder / "runs_elsewhere")
    try:
        shutil.rmtree(chain.folder / "study/saved")
        chain.dvc("checkout", "study/saved/trained")
        assert ran(chain.dvc("repro", "--force", "--single-item", "elsewhere")) == ["elsewhere"]
        assert chain.read("study/elsewhere/metrics.json") == before
    finally:
        shutil.copytree(runs, chain.folder / "runs_elsewhere", dirs_exist_ok=True)
        shutil.rmtree(runs)
        (chain.folder / "runs_elsewhere").rename(runs)


@pytest.mark.wide
def test_the_same_model_reruns_nothing_that_starts_from_it(chain: Copy) -> None:
    """Though the first stage ran anew, with other times and under another id."""
    before = read(chain, "study/trained/receipt.json")["run"]
    assert ran(chain.dvc("repro", "--force", "--single-item", "trained")) == ["trained"]
    assert read(chain, "study/trained/receipt.json")["run"] != before
    assert ran(chain.dvc("repro")) == []
    assert chain.study("check").returncode == 0


@pytest.mark.wide
def test_an_edit_reruns_what_starts_from_it_and_one_of_the_second_stage_that_alone(chain: Copy) -> None:
    edited = chain.edited("params.yaml", "stage.format: safetensors", "stage.format: torch")
    with edited:
        assert ran(chain.dvc("repro")) == ["compose", "exported"]
    with chain.edited("params.yaml", "epochs: 1", "epochs: 2"):
        assert chain.study("compose").returncode == 0
        done = chain.study("run", "exported")  # by hand, past DVC
        assert done.returncode == 2
        assert done.stderr.startswith("error: study/saved/trained: its run had another config than composed.yaml has; ")
        assert ran(chain.dvc("repro")) == ["compose", "trained", "exported", "elsewhere"]
    chain.dvc("repro")
    with chain.edited("study/saved/trained/config.yaml", "epochs: 1", "epochs: 3"):
        done = chain.study("check")
        assert done.returncode == 1
        assert {line.split(":")[1].strip() for line in done.stderr.splitlines()} == {"trained", "exported", "elsewhere"}
