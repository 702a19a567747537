"""stage=transformer through the command: what a training on text leaves, and what is refused in one message."""

from __future__ import annotations

import base64
import json
import math
import re
import shutil
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from command import TORCH_THEN_WIDE, done, pipeline, refused, runs, status

from pipeline.experiment.settings import Adapting, Starting
from pipeline.machine.device import Device, gpus
from pipeline.models.gpt import Gpt
from pipeline.profilers.memory import Memory
from pipeline.profilers.none import Off
from pipeline.report import table
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.records import read_config
from pipeline.runs.result import Metric, Result, metrics_of, read_result
from pipeline.stages import transformer_extras
from pipeline.stages.transformer_extras import sentence
from pipeline.tokens import from_plain, learned

TINY: tuple[str, ...] = (
    "model.layers=2",
    "model.heads=2",
    "model.width=16",
    "training.batch_size=8",
    "schedule.warm_up=2",
)
TINY += ("tracking=none", "dataset.context=32", "training.steps=6", "training.validate_every=3")
KERAS = ("tensorflow", "jax")
QUICK = ("training.steps=3", "stage.baselines=false", "stage.attention=false")
DOCS = ("stage=transformer", "dataset=python_docs", *TINY)
PRODUCTS = ("mm", "addmm", "bmm", "_linear_pointwise")  # as torch names them


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run by its backend."""
    made: dict[str, Path] = {}

    def run_on(backend: str) -> Path:
        if backend not in made:
            words = (*DOCS, "device.placement_log=true", f"backend={backend}")
            made[backend] = done(tmp_path_factory.mktemp(backend), *words)
        return made[backend]

    return run_on


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_training_on_text(trained: Any, backend: str) -> None:
    metrics = metrics_of(trained(backend))
    bits, nats = metrics["test/bits_per_byte"], metrics["test/loss"]
    assert bits.value == pytest.approx(nats.value / math.log(2), rel=0.01)  # nearly all characters are one byte
    assert (bits.unit, bits.direction, metrics["tokens_per_s"].unit) == ("bits/byte", "min", "tokens/s")
    last = read_json(trained(backend) / "result.json")["last_epoch"]["validation/loss"]
    assert metrics["validation/bits_per_byte"].value == pytest.approx(last / math.log(2), rel=0.01)
    others = [metrics[f"baseline/{name}"] for name in ("5_gram", "3_gram", "xz")]
    assert 1 < others[0].value < others[1].value < 3.5 < bits.value
    assert {one.unit for one in others} == {"bits/byte"}
    used = metrics["model_flop_utilization"]
    assert 0 < used.value < 1
    assert (used.kind, used.direction) == ("time", "max")
    names = [name for name, _ in read_json(trained(backend) / "result.json")["table"]]
    assert names[3:6] == ["test bits_per_byte", "utilization", "baselines"]


def test_the_wall_time_is_also_of_what_is_measured_and_drawn_after_the_training(trained: Any) -> None:
    """It ended before the baselines and the attention maps: 50 s of a run that took 66."""
    run = trained("torch")
    wall, status = read_json(run / "receipt.json")["wall_time_s"], read_json(run / "status.json")
    assert wall >= (run / "artifacts" / "attention.html").stat().st_mtime - status["started"]
    assert dict(read_json(run / "result.json")["table"])["wall time"].startswith(f"{table.seconds(wall)}, of which ")


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_attention_is_drawn_and_its_page_needs_nothing_else(trained: Any, backend: str) -> None:
    artifacts = trained(backend) / "artifacts"
    assert (artifacts / "figures" / "attention.png").stat().st_size > 5_000
    page = (artifacts / "attention.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|src=|href=|@import|url\(", page)
    found = json.loads(re.search(r"const data = (.*);$", page, re.MULTILINE)[1])  # type: ignore[index]
    assert (found["layers"], found["heads"], found["length"]) == (2, 2, 32)
    maps = np.frombuffer(base64.b64decode(found["weights"]), np.uint8).reshape(2, 2, 32, 32) / 255
    np.testing.assert_allclose(maps.sum(-1), 1, atol=0.5 * 32 / 255)
    assert not np.triu(maps, 1).any()
    vocabulary = from_plain(read_json(artifacts / "model" / "card.json")["tokens"])
    assert vocabulary.decode(vocabulary.encode("".join(found["tokens"]).encode(), "page")).decode()[:1].isupper()


def test_characters_that_no_font_here_has_are_noted(tmp_path: Path) -> None:
    """Each token beside a map was a box, without a word. No font has characters for private use."""
    (tmp_path / "mine.txt").write_text("\ue000a\ue001b\uf8ffc\n" * 300)
    words = ("stage=transformer", "dataset=text", "dataset.path=mine.txt", *TINY, "stage.baselines=false")
    result = read_result(done(tmp_path, *words))
    assert result is not None
    (note,) = (one for one in result.notes if "boxes" in one)
    assert note == (
        "attention.png: the fonts of matplotlib here lack 3 of its characters, which are boxes there; "
        "attention.html has them"
    )
    without = read_result(done(tmp_path, *words, "stage.attention=false"))
    assert without is not None and not any("boxes" in one for one in without.notes)


def test_the_saved_vocabulary_reads_text_as_the_training_did(trained: Any) -> None:
    card = read_json(trained("torch") / "artifacts" / "model" / "card.json")
    vocabulary = from_plain(card["tokens"])
    assert (card["task"], card["x"], card["outputs"]) == ("languagemodelling", [32], [32, vocabulary.size])
    assert vocabulary.decode(vocabulary.encode(b"def run():", "test")) == b"def run():"


def test_a_saved_run_is_evaluated_and_predict_names_its_task(trained: Any) -> None:
    run = trained("torch")
    again = done(run.parents[1], "stage=evaluate", f"run={run.name}", "tracking=none")
    now, then = metrics_of(again), metrics_of(run)
    assert now["test/bits_per_byte"].value == then["test/bits_per_byte"].value
    said = refused(run.parents[1], "stage=predict", f"run={run.name}")
    assert said.endswith(
        "its task is LanguageModelling; stage=predict takes images or rows of numbers; stage=generate writes text"
    )


def test_a_saved_run_is_evaluated_on_another_text(trained: Any) -> None:
    """All of it, in the tokens of the run: the text's own alphabet is another."""
    run, text = trained("torch"), "def run(x):\n    return x\n" * 20
    folder = run.parents[1]
    (folder / "mine.txt").write_text(text)
    words = ("stage=evaluate", f"run={run.name}", "dataset=text", "dataset.path=mine.txt")
    result = read_result(done(folder, *words))
    assert result is not None
    on = "dataset=text dataset.path=mine.txt dataset.context=32: all 15 sequences; not the run's own test set"
    assert dict(result.table)["measured on"] == on  # 480 of its 500 characters
    bits, loss = (
        next(one.value for one in result.metrics if one.name == f"other_data/{name}")
        for name in ("bits_per_byte", "loss")
    )
    assert bits == pytest.approx(loss / math.log(2))  # a character of it is a byte
    (folder / "greek.txt").write_text(text + "\u03b1")
    said = refused(folder, *words[:-1], "dataset.path=greek.txt")
    assert said.startswith("dataset=text: greek.txt: the character 'α' at ")


def test_a_run_is_not_evaluated_with_another_vocabulary(trained: Any, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / trained("torch").name
    shutil.copytree(trained("torch"), folder)
    path = folder / "artifacts" / "model" / "card.json"
    path.write_text(path.read_text().replace('"alphabet": "', '"alphabet": "?'))
    ended = pipeline(tmp_path, "stage=evaluate", "run=latest", "tracking=none")
    assert ended.returncode == 2
    assert "the vocabulary learned from the data now differs from the one" in ended.stderr.splitlines()[-1]


def test_another_vocabulary_is_refused_where_weights_are_taken_from(trained: Any, tmp_path: Path) -> None:
    run = trained("torch")
    said = refused(tmp_path, *DOCS, f"model.start={run}", "dataset.tokens=bytes")
    assert said.startswith(f"model.start={run.name}: it was trained with another")
    assert "vocabulary (characters) than that of dataset=python_docs (bytes)" in said


def test_a_number_of_tokens_that_nothing_learns_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, *DOCS, "dataset.vocabulary=300")
    assert said == (
        "dataset.vocabulary: says how many byte pairs to learn, and dataset.tokens=characters learns none; "
        "set dataset.tokens=bpe, or leave it out"
    )


@pytest.mark.wide
def test_another_text_is_trained_on_with_the_tokens_of_a_saved_run(trained: Any, tmp_path: Path) -> None:
    """The run stays readable where the one that the tokens came from is gone."""
    base, mine = tmp_path / trained("torch").name, tmp_path / "notes [1].txt"
    shutil.copytree(trained("torch"), base)
    mine.write_text("def f(x):\n    return x\n" * 200)
    words = ("stage=transformer", f"dataset.path='{mine}'", "dataset=text", *TINY, f"model.start={base}")
    run = done(tmp_path, *words, f"dataset.tokens={base}")
    cards = [read_json(one / "artifacts" / "model" / "card.json")["tokens"] for one in (base, run)]
    assert cards[0] == cards[1] and len(cards[0]["alphabet"]) > len(set(mine.read_text()))
    for layers in ((), ("model.start_layers=[tokens,blocks*]",)):
        said = refused(tmp_path, *words, *layers)
        letters = len(cards[0]["alphabet"])
        assert f"it was trained with another vocabulary ({letters} characters, " in said
        assert f"of dataset=text ({len(set(mine.read_text()))} characters); " in said
        assert "dataset.tokens=<that run> uses that run's" in said
    shutil.rmtree(base)
    assert metrics_of(done(tmp_path, "stage=evaluate", f"run={run}", "tracking=none"))
    said = refused(tmp_path, *words[:-1], f"dataset.tokens={base}")
    assert said.startswith(f"dataset.tokens={base}: ")
    said = refused(tmp_path, *words[:-1], "dataset.tokens=words")
    assert said.startswith("dataset.tokens=words: no such run")
    assert said.endswith("; tokens that are no run's: bytes, characters, bpe")
    said = refused(tmp_path, *words[:-1], "dataset.tokens=chars")
    assert said.endswith("; tokens that are no run's: bytes, characters, bpe (did you mean characters?)")
    said = refused(tmp_path, *words[:-1], f"dataset.tokens={run}", f"model.start={run}", "model.positions=rotary")
    assert "weights of another model: it has positions.embeddings (32, " in said and "which this model lacks" in said
    mine.write_text("\u4e16" + mine.read_text())
    said = refused(tmp_path, *words[:-1], f"dataset.tokens={run}")
    assert f"{mine}: the character '\u4e16' at 0 (line 1) is not among the" in said


@pytest.mark.wide
def test_cells_of_a_saved_run_have_that_runs_framework(trained: Any, tmp_path: Path) -> None:
    """The config of such a grid names another one, of the defaults."""
    words = ("stage=generate", "stage.prompt=a", "stage.tokens=2", "stage.temperature=0.5,1")
    grid = pipeline(tmp_path, "-m", f"run={trained('jax')}", *words, "tracking=none")
    assert (grid.returncode, "2 done · 0 failed" in grid.stderr) == (0, True), grid.stderr
    _, texts = grid.stdout.split("text of each cell")
    assert "stage.temperature=0.5  a" in texts and "*" not in grid.stdout.partition("text of")[0]
    (kept,) = [one for one in map(read_result, runs(tmp_path)) if one and one.title == "grid"]
    assert [name for name, _ in kept.table] == ["stage.temperature=0.5", "stage.temperature=1"]


@pytest.mark.wide
@pytest.mark.parametrize("context", [16, 64])
def test_another_context_than_the_saved_model_has_positions_for_is_refused(
    trained: Any, tmp_path: Path, context: int
) -> None:
    weights = trained("torch") / "artifacts" / "model" / "weights.npz"
    words = [word for word in DOCS if not word.startswith("dataset.context")]
    words += [f"dataset.context={context}", f"model.start={weights}"]
    said = refused(tmp_path, *words)
    assert said == (
        f"dataset.context={context} with model.start={weights.parents[2].name}: that model has learned 32 positions; "
        "choose dataset.context=32, or model.start_layers=[tokens,blocks,norm,logits] takes all but them"
    )
    made = done(tmp_path, *words, re.search(r"model\.start_layers=\S+", said)[0])  # type: ignore[index]
    start = read_json(made / "receipt.json")["initial_weights"]
    assert "positions.embeddings" not in start["loaded"]
    assert "logits.kernel" in start["loaded"]


TO_GO_ON = {
    "dataset.context=16": ("[tokens,blocks]", ("model=gpt", "model.tied=true", "model.norm_place=after", *TINY[1:3])),
    "dataset.tokens=bytes": ("[units_0]", ("model=gru", "model.width=16")),
}


@pytest.mark.wide
@pytest.mark.parametrize("changed", TO_GO_ON)
def test_layers_that_a_message_proposes_are_those_of_the_model(tmp_path: Path, changed: str) -> None:
    """`norm` and `logits` were proposed to a model that has neither, and `blocks*` to one of recurrent units."""
    layers, model = TO_GO_ON[changed]
    context, more = ("16", ()) if "context" in changed else ("32", (changed,))
    words = ("stage=transformer", "dataset=python_docs", *model, *TINY[3:6], *QUICK)
    base = done(tmp_path, *words, "dataset.context=32")
    words += (f"dataset.context={context}", *more, f"model.start={base}")
    said = refused(tmp_path, *words)
    assert f"model.start_layers={layers} takes all but " in said
    assert done(tmp_path, *words, f"model.start_layers={layers}")


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
@pytest.mark.parametrize("tokens", ["bytes", "bpe"])
def test_other_tokens_and_mixed_precision(tmp_path: Path, backend: str, tokens: str) -> None:
    words = (f"dataset.tokens={tokens}", "dataset.vocabulary=300", "precision=mixed", f"backend={backend}")
    run = done(tmp_path, *DOCS, *words)
    metrics = metrics_of(run)
    assert 2 < metrics["test/bits_per_byte"].value < 9
    assert (run / "artifacts" / "attention.html").is_file()
    again = metrics_of(done(tmp_path, "stage=evaluate", f"run={run.name}", "tracking=none"))
    assert again["test/bits_per_byte"].value == metrics["test/bits_per_byte"].value


@pytest.mark.wide
@pytest.mark.timeout(3000)  # four commands, of which a slow machine took 300 s
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_studies_and_tools_take_a_language_model(tmp_path: Path, backend: str) -> None:
    changed = {"training.steps=6": "training.steps=90", "training.validate_every=3": "training.validate_every=null"}
    words_of = [changed.get(word, word) for word in TINY]  # enough for a profiler's window
    of_docs = (
        "model=gpt",
        "dataset=python_docs",
        *words_of,
        f"backend={backend}",
        "schedule=cosine",
        "optimizer=adamw",
    )
    left = [f"~stage.rungs.{name}" for name in ("baseline", "transfer", "workers", "compiled")]
    for words in (
        ("stage=amp", "stage.precisions=[fp32,mixed]", "stage.repeats=1", *of_docs),
        ("stage=ladder", *of_docs, *left),
        ("-m", "model.positions=none,rotary", *DOCS, f"backend={backend}"),
        ("profiler=memory", "profiler.skip=1", "profiler.steps=1", *DOCS, f"backend={backend}"),
    ):
        ended = pipeline(tmp_path, *words)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {status(run).state for run in runs(tmp_path)} == {"FINISHED"}
    (ladder,) = [run for run in runs(tmp_path) if (run / "artifacts" / "ladder.csv").exists()]
    assert "\namp," in (ladder / "artifacts" / "ladder.csv").read_text()


def test_maps_of_another_model_are_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, "stage=transformer", "stage.attention=true", "model=gru")
    assert said == "stage.attention=true with model=gru: maps are drawn of model=gpt alone; leave it out"


@pytest.mark.wide
def test_what_is_not_drawn_is_not_announced(tmp_path: Path) -> None:
    """Of other models than gpt neither maps nor a matmul, whose FLOP are counted."""
    words = [word for word in DOCS if not word.startswith("model.heads")]
    ended = pipeline(tmp_path, *words, "model=gru", "stage.baselines=false")
    assert ended.returncode == 0, ended.stderr
    assert "matmul" not in ended.stderr
    assert "drawing" not in ended.stderr
    assert "attention: not drawn with model=gru: for model=gpt alone" in ended.stderr


@pytest.mark.wide
def test_a_grid_of_all_positions(tmp_path: Path) -> None:
    off = ("stage.baselines=false", "stage.attention=false")
    ended = pipeline(tmp_path, "-m", "model.positions=none,linear,sinusoidal,learned,rotary", *DOCS, *off)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = {read_config(run).get("model", {}).get("positions"): status(run).state for run in runs(tmp_path)}
    found.pop(None, None)  # the grid's own run
    assert found == dict.fromkeys(("none", "linear", "sinusoidal", "learned", "rotary"), "FINISHED")


def test_fused_attention_counts_forward_and_backward(trained: Any) -> None:
    """Of two layers, once each way, beside the plain products of the same step."""
    fused = "_scaled_dot_product_flash_attention_for_cpu"
    rows = [row.split() for row in (trained("torch") / "artifacts" / "placement.txt").read_text().splitlines()[2:]]
    counts = {name: int(count) for name, _, _, count in rows if "attention" in name or name in PRODUCTS}
    assert {name: counts.pop(name) for name in (fused, f"{fused}_backward")} == {fused: 2, f"{fused}_backward": 2}
    observed = read_json(trained("torch") / "receipt.json")["precision"]["observed"]
    assert observed["attention"] == {fused.lstrip("_"): 2}
    assert observed["matrix_products"] == {"float32": sum(counts.values()) + 2 + 2}
    assert sum(counts.values()) == 3 * (2 * 6 + 1)  # of a block q, k, v, output, inner and outer; and the logits


@pytest.mark.parametrize(
    ("backend", "profiler"),
    [
        ("torch", "memory"),
        ("torch", "tensorboard"),
        *(pytest.param(*each, marks=pytest.mark.wide) for each in product(KERAS, ("memory", "tensorboard"))),
    ],
)
@pytest.mark.wide
def test_other_profilers_leave_their_files(trained: Any, tmp_path: Path, backend: str, profiler: str) -> None:
    off = ("stage.baselines=false", "stage.attention=false", "training.validate_every=6")
    words = [word for word in DOCS if not word.startswith("training.validate_every")]
    window = ("profiler.skip=2", "profiler.steps=3")
    run = done(tmp_path, *words, *off, *window, f"backend={backend}", f"profiler={profiler}")
    assert read_json(run / "receipt.json")["profile"]["steps"] == [3, 5]
    if profiler == "memory":
        held = (run / "artifacts" / "profile" / "memory.csv").read_text().splitlines()
        assert held[0] == "seconds,step,process_bytes"
        assert {row.split(",")[1] for row in held[1:]} == {"3", "4", "5"}
        assert (run / "artifacts" / "profile" / "memory.png").stat().st_size > 5_000
    else:
        (trace,) = (run / "artifacts" / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb")
        assert trace.stat().st_size > 5_000
        assert len(list((run / "artifacts" / "tensorboard").glob("events.out.tfevents.*"))) == 1
    name = "receipt.json"
    assert read_json(run / name)["weights_sha256"] == read_json(trained(backend) / name)["weights_sha256"]


@pytest.mark.parametrize(
    ("part", "setting", "said"),
    [
        ("starting", Starting(freeze=("logits",)), "model.freeze: not all gradients are computed"),
        ("starting", Starting(start="x", adapters=Adapting(rank=2)), "model.adapters: not all gradients are computed"),
        ("device", Device(processes=2), "device.processes=2: the matmul beside it has one process and one device"),
        ("device", Device(split=2), "device.split=2: the matmul beside it has one process and one device"),
        ("profiler", Memory(), "profiler=memory: it slows the training down"),
    ],
)
def test_why_the_rate_is_no_share_of_a_matmuls_is_said(part: str, setting: Any, said: str) -> None:
    usual = {"model": Gpt(), "starting": Starting(), "device": Device(), "profiler": Off()}
    asked = cast(Any, SimpleNamespace(**{**usual, part: setting}))
    found = transformer_extras.utilization(asked, cast(Any, None), cast(Any, None), Result(()))
    assert (found.notes, found.table, found.metrics) == ((f"utilization: not measured with {said}",), (), ())


@pytest.mark.parametrize(
    ("share", "later", "cold", "end"),
    [
        (0.51, 0.02, False, "; uncertain: other processes had 51% of the cores"),
        (0.01, 0.4, False, "; uncertain: other processes had 40% of the cores beside the matmul"),
        (0.51, 0.4, False, "; uncertain: other processes had 51% of the cores, and 40% beside the matmul"),
        (0.01, None, True, "; uncertain: the rate is of a cold start"),
        (
            0.51,
            0.4,
            True,
            "; uncertain: the rate is of a cold start; other processes had 51% of the cores, and 40% beside the matmul",
        ),
        (0.01, 0.01, False, ""),
        (None, None, False, ""),
    ],
)
def test_a_utilization_beside_other_processes_is_marked(
    share: float | None, later: float | None, cold: bool, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood as if certain, a row above `other processes had 51% of the cores`; `later`: beside the matmul."""
    write_json(tmp_path / "receipt.json", {"training_rate": {"cores_of_others": share, "cold": cold}})
    monkeypatch.setattr(transformer_extras, "Others", lambda: SimpleNamespace(share=lambda: later))
    probe = SimpleNamespace(machine=lambda *_: SimpleNamespace(FLOP_per_s=40e9, side=512))
    monkeypatch.setattr(transformer_extras, "saved_card", lambda _: {"x": [8]})
    monkeypatch.setattr(transformer_extras, "weights", SimpleNamespace(load=lambda _: {}))
    monkeypatch.setattr(Gpt, "training_flop", lambda *_: 1e6)
    monkeypatch.setitem(sys.modules, "a_probe", cast(Any, probe))
    settings = {"model": Gpt(), "starting": Starting(), "device": Device(), "profiler": Off()}
    asked = cast(Any, SimpleNamespace(**settings, backend=SimpleNamespace(probe="a_probe")))
    run = cast(Any, SimpleNamespace(folder=tmp_path, say=print, artifact=tmp_path.joinpath))
    rate = Result((Metric("tokens_per_s", 20_000.0),))
    ((name, text),) = transformer_extras.utilization(asked, cast(Any, None), run, rate).table
    assert (name, text) == ("utilization", f"50.0% of the 40 GFLOP/s of a matmul of side 512; 1.00 MFLOP a token{end}")


@pytest.mark.wide
def test_torchs_profiler_sees_attention(tmp_path: Path) -> None:
    left = [word for word in DOCS if not word.startswith("training.steps")]
    run = done(tmp_path, *left, "training.steps=30", "profiler=torch", "profiler.skip=4", "profiler.steps=2")
    text = (run / "artifacts" / "profile" / "operations.txt").read_text()
    assert text.startswith("# profiler=torch: optimizer steps 5 to 6 (counted from 1)")
    assert "aten::scaled_dot_product_attention" in text
    assert "[8, 2, 32, 8]" in text  # batch, heads, positions, width of a head


@pytest.mark.wide
def test_a_text_of_ones_own(tmp_path: Path) -> None:
    """Its baselines are computed from the same file, and one sentence of it is drawn."""
    (tmp_path / "mine.txt").write_text("A whale is no fish, and swims in the sea. " * 200)
    run = done(tmp_path, "stage=transformer", "dataset=text", "dataset.path=mine.txt", *TINY)
    metrics = metrics_of(run)
    assert 0 < metrics["baseline/5_gram"].value < 0.2  # it repeats itself
    assert 2 < metrics["test/bits_per_byte"].value < 6
    card = read_json(run / "artifacts" / "model" / "card.json")
    assert card["tokens"]["alphabet"] == " ,.Aadefhilmnostw"
    assert (run / "artifacts" / "attention.html").is_file()


@pytest.mark.skipif(bool(gpus()), reason="a GPU: tests/test_gpu.py runs it")
def test_the_recipe_for_a_gpu_is_refused_without_one(tmp_path: Path) -> None:
    assert refused(tmp_path, "experiment=gpt_gpu").startswith("device=gpu: ")


@pytest.mark.wide
def test_the_recipe_for_a_gpu_runs_as_it_is_on_a_cpu(tmp_path: Path) -> None:
    """All but its sizes: its device, its steps, and the text that is fetched."""
    small = ("model.width=24", "training.batch_size=2", "training.steps=3", "training.validate_every=3")
    words = ("device=cpu", "dataset=python_docs", "dataset.context=64", "schedule.warm_up=1", "tracking=none", *small)
    run = done(tmp_path, "experiment=gpt_gpu", *words)
    assert set(read_json(run / "receipt.json")["precision"]["observed"]["matrix_products"]) == {"bfloat16"}
    assert metrics_of(run)["model_flop_utilization"].value > 0


@pytest.mark.wide
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("fp64", 1e-10)])
def test_backends_have_the_same_loss_at_each_of_100_steps(tmp_path: Path, precision: str, bound: float) -> None:
    losses = {}
    for backend in ("torch", "tensorflow", "jax"):
        words = ("training.steps=100", "training.validate_every=100", "training.log_every_n_steps=1")
        left = [word for word in DOCS if not word.startswith(("training.steps", "training.validate_every"))]
        folder = tmp_path / backend
        folder.mkdir()
        off = ("stage.baselines=false", "stage.attention=false", "optimizer.learning_rate=0.001")
        run = done(folder, *left, *words, *off, f"backend={backend}", f"precision={precision}")
        losses[backend] = [one["train/loss"] for _, one in records(run) if "train/loss" in one]
        assert len(losses[backend]) == 100
    for backend in ("tensorflow", "jax"):
        np.testing.assert_allclose(losses[backend], losses["torch"], rtol=0, atol=bound)
    assert losses["torch"][-1] < losses["torch"][0] - 0.5


def records(run: Path) -> list[tuple[int, dict[str, float]]]:
    """(step, metrics) of a run's journal."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [(one["step"], one["metrics"]) for one in map(json.loads, lines)]


def test_flop_of_a_token_are_those_of_its_products() -> None:
    model = Gpt(layers=2, heads=2, width=16)
    shapes = {"tokens.embeddings": (83, 16), "positions.embeddings": (32, 16), "logits.kernel": (16, 83)}
    weights = {name: np.zeros(shape) for name, shape in shapes.items()}
    assert model.training_flop(weights, 32) == 6 * 16 * 83 + 12 * 2 * 16 * (1 + 32) / 2
    tied = Gpt(layers=2, heads=2, width=16, tied=True)
    assert tied.training_flop({"tokens.embeddings": np.zeros((83, 16))}, 32) == model.training_flop(weights, 32)


@pytest.mark.parametrize(
    ("text", "chosen"),
    [
        (
            b"his end. The whale was white as snow in the winter! And then?",
            b"The whale was white as snow in the winter!",
        ),
        (b"no sentence at all", b"no sentence at all"),
        ("Ä. Ännchen ä".encode()[:-1], "Ä. Ännchen ".encode()),
    ],
)
def test_a_sentence_is_found(text: bytes, chosen: bytes) -> None:
    vocabulary = learned("bytes", [], 0, "text")
    assert vocabulary.decode(sentence(text, vocabulary)) == chosen


# Refusals


@pytest.mark.wide
def test_what_does_not_go_together_is_refused_before_the_run(tmp_path: Path) -> None:
    for words, said in {
        ("stage=train", "model=gpt", "dataset=digits"): (
            "model=gpt with dataset=digits: it takes tokens, and the examples of this dataset are numbers; "
            "use model=mlp or dataset=moby_dick"
        ),
        ("stage=train", "model=cnn", "dataset=python_docs"): (
            "model=cnn with dataset=python_docs: it takes numbers, and the examples of this dataset are tokens; "
            "use model=gpt or dataset=digits"
        ),
        ("stage=transformer", "dataset=digits"): (
            "dataset=digits with stage=transformer: its task is Classification, not LanguageModelling; "
            "use stage=classifier model=mlp; or dataset=moby_dick"  # all that goes with each, at once
        ),
        ("stage=transformer", "model=mlp"): (
            "model=mlp with dataset=moby_dick: it takes numbers, and the examples of this dataset are tokens; "
            "use model=gpt or stage=classifier dataset=digits"
        ),
        ("stage=classifier", "model=gpt"): (
            "model=gpt with dataset=fashion_mnist: it takes tokens, and the examples of this dataset are numbers; "
            "use model=mlp or stage=transformer dataset=moby_dick"
        ),
        ("stage=transformer", "dataset=recall"): (
            "dataset=recall with stage=transformer: its task is Recall, not LanguageModelling; "
            "use stage=long_range; or dataset=moby_dick"
        ),
        ("stage=transformer", "model.width=30"): (
            "model.width=30: not divisible by model.heads=4; the nearest that fits is model.heads=3"
        ),
        ("experiment=gpt_tiny", "model.heads=5"): (
            "model.width=128: not divisible by model.heads=5; the nearest that fits is model.heads=4"
        ),
        ("experiment=gpt_tiny", "model.width=12", "model.heads=5"): (  # 4 would be refused next: an odd width
            "model.width=12: not divisible by model.heads=5; the nearest that fits is model.heads=6"
        ),
        ("experiment=gpt_tiny", "model.width=15"): ("model.width=15: not divisible by model.heads=4"),
        (
            "stage=transformer",
            "dataset=text",
        ): ("dataset.path=null: name a file, a folder or a pattern, as 'texts/*.txt'"),
    }.items():
        assert refused(tmp_path, *words) == said


def test_texts_that_cannot_be_trained_on_are_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "tiny.txt").write_text("a few words")
    (tmp_path / "latin.txt").write_bytes("Älteste".encode("latin-1") * 100)
    for name, said in {
        "empty": "dataset.path=empty.txt: contains no text",
        "tiny": "dataset=text: the training text: has 9 tokens; dataset.context=32 needs 33 or more",
        "latin": "dataset.path=latin.txt: not UTF-8 at byte 0 (line 1): 0xc4; dataset.tokens=bytes takes any file",
    }.items():
        words = ("stage=transformer", "dataset=text", *TINY, f"dataset.path={name}.txt")
        assert refused(tmp_path, *words) == said
