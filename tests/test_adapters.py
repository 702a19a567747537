"""Fine-tuning by low-rank adapters: the start is the saved model, the rest stays, and what is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from command import done, refused
from test_resume import check_ends_as_whole

from pipeline.errors import UserError
from pipeline.experiment.settings import Adapting, Starting
from pipeline.models import Shapes, torch_adapters
from pipeline.models.adapters import adapters_of
from pipeline.models.gpt import Gpt
from pipeline.models.patterns import matching
from pipeline.models.weights import from_torch
from pipeline.runs import adapters, weights
from pipeline.runs.code.code_hash import hash_of
from pipeline.runs.json_files import read_json, write_json
from pipeline.runs.records import read_metrics
from pipeline.runs.result import metrics_of, read_result
from pipeline.runs.saved import check_hashes

TINY = (
    *("stage=transformer", "dataset=python_docs", "dataset.context=32", "model.layers=2", "model.heads=2"),
    *("model.width=16", "training.batch_size=8", "training.validate_every=10", "training.log_every_n_steps=1"),
    *("stage.baselines=false", "stage.attention=false", "tracking=none", "precision=fp64"),
)
SHORT = ("training.steps=20", "schedule.warm_up=2")
LAYERS = [f"blocks.{number}.attention.{name}" for number in range(2) for name in ("query", "value")]
ADAPTED = ("model.adapters.rank=4", "model.adapters.alpha=8", "model.adapters.layers=[*.query,*.value]")
NET = Gpt(layers=2, heads=2, width=16)
SHAPES = Shapes((8,), (8, 11), vocabulary=11)


def starts(base: weights.Weights, seed: int = 0, **settings: Any) -> adapters.Adapters:
    """The adapters that a training with these settings starts with."""
    experiment = SimpleNamespace(starting=Starting(start="base.npz", adapters=Adapting(**settings)), seed=seed)
    dense = torch_adapters.dense_layers(cast(torch.nn.Module, NET.torch(SHAPES)))
    found = adapters_of(cast(Any, experiment), base, dense, weights.digest(base))
    assert found is not None
    return found


@pytest.fixture
def net() -> Any:
    torch.manual_seed(0)
    return cast(torch.nn.Module, NET.torch(SHAPES)).double()


def test_the_start_is_the_saved_model_to_the_bit_and_merging_changes_no_output(net: Any) -> None:
    tokens = torch.arange(16).reshape(2, 8) % 11
    base, before = from_torch(net), net(tokens)
    found = starts(base, rank=3)
    with torch_adapters.adapted(net, found):
        assert torch.equal(net(tokens), before)
    with torch.no_grad():
        for layer in found.layers:
            net.get_submodule(layer).adapter_b.normal_()
    after = net(tokens)
    assert (after - before).abs().max() > 1e-3
    merged, alone = found.split(from_torch(net))
    assert list(merged) == list(base)
    assert list(alone) == [f"{layer}.{one}" for layer in found.layers for one in ("adapter_a", "adapter_b")]
    plain = cast(torch.nn.Module, NET.torch(SHAPES)).double()
    from pipeline.models.weights import to_torch

    to_torch(plain, merged, "merged")
    torch.testing.assert_close(plain(tokens), after, rtol=0, atol=1e-12)


def test_every_dense_layer_has_one_unless_layers_are_named(net: Any) -> None:
    base = from_torch(net)
    every = [name.removesuffix(".kernel") for name in base if name.endswith(".kernel")]
    assert starts(base, rank=2).layers == every
    found = starts(base, rank=2, layers=("*.query", "*.value"))
    assert found.layers == LAYERS
    assert found.plain() | {"base_sha256": ""} == {
        "rank": 2,
        "alpha": 2.0,
        "layers": LAYERS,
        "parameters": 4 * 2 * (16 + 16),
        "base_sha256": "",
    }


def test_tied_logits_have_none() -> None:
    """Their kernel is the tokens' embeddings, which merging would change."""
    tied = cast(torch.nn.Module, Gpt(layers=1, heads=2, width=16, tied=True).torch(SHAPES))
    assert "logits" not in torch_adapters.dense_layers(tied)


def test_a_begins_normal_by_the_seed_and_b_at_zero(net: Any) -> None:
    base = from_torch(net)
    one, same, other = starts(base, rank=8), starts(base, rank=8), starts(base, rank=8, seed=1)
    drawn = np.concatenate([array.ravel() for name, array in one.values.items() if name.endswith("_a")])
    assert np.std(drawn) == pytest.approx(np.sqrt(1 / 16), rel=0.3)
    assert all(np.array_equal(array, same.values[name]) for name, array in one.values.items())
    assert all(
        array.any() != name.endswith("_b") and np.array_equal(array, other.values[name]) == name.endswith("_b")
        for name, array in one.values.items()
    )


def test_a_file_goes_with_its_base_alone(net: Any, tmp_path: Path) -> None:
    base, file = from_torch(net), tmp_path / "adapters.npz"
    found = starts(base, rank=2, alpha=3.0, layers=("logits",))
    found.save(file, found.values)
    again = starts(base, start=str(file))
    assert (again.alpha, again.rank, again.layers, again.source) == (3.0, 2, ["logits"], str(file))
    np.testing.assert_array_equal(again.values["logits.adapter_a"], found.values["logits.adapter_a"])
    other = {**base, "logits.kernel": base["logits.kernel"] + 1}
    with pytest.raises(
        UserError, match=r"these adapters belong to other weights \(sha256 .{12}\.\.\.\) than those of "
    ):
        starts(other, start=str(file))
    found.save(file, {**found.values, "logits.adapter_b": np.zeros((3, 11))})
    with pytest.raises(UserError, match=r"adapters.npz: damaged: its adapters do not have the shapes of this model's "):
        starts(base, start=str(file))
    weights.save(file, base)
    with pytest.raises(UserError, match=r"adapters.npz: holds no adapters; training with model.adapters.rank saves "):
        starts(base, start=str(file))


UNFIT = (
    (
        {"rank": 17, "layers": ("*.query",)},
        r"rank=17: larger than blocks.0.attention.query, whose kernel is 16 x 16; choose 1 to 16, or name ",
    ),
    ({"rank": 12}, r"rank=12: larger than logits, whose kernel is 16 x 11; choose 1 to 11"),
    (
        {"rank": 1, "layers": ("tokens",)},
        r"layers=\[tokens\]: matches no dense layer; this model has blocks.0.attention",
    ),
)


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("*.querry", "*.query"),
        ("*querry*", "*query*"),
        ("blocks.*.atention.query", "blocks.*.attention.query"),
        ("nothing*", None),
        ("tokens", None),
    ],
)
def test_a_mistyped_pattern_is_said_as_it_was_meant(pattern: str, meant: str | None) -> None:
    names = ["blocks.0.attention.query", "blocks.0.attention.key", "blocks.0.mlp.inner", "logits"]
    with pytest.raises(UserError) as refusal:
        matching("layers", ["logits", pattern], names)
    said = re.search(r" \(did you mean (.*)\?\); ", str(refusal.value))
    assert (said and said[1]) == meant


@pytest.mark.parametrize(("settings", "said"), UNFIT)
def test_what_does_not_fit_the_model_is_refused(net: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=rf"^model.adapters.{said}"):
        starts(from_torch(net), **settings)


def test_a_layer_that_is_never_called_is_refused(net: Any) -> None:
    net.unused = torch.nn.Linear(2, 2)
    found = adapters.Adapters(1.0, "", {"unused.adapter_a": np.ones((2, 1)), "unused.adapter_b": np.ones((1, 2))})
    said = "model.adapters: the model never calls its layer unused"
    with pytest.raises(UserError, match=said), torch_adapters.adapted(net, found):
        net(torch.zeros(1, 8, dtype=torch.int32))


REFUSED = {
    "model.adapters.rank=0": "model.adapters.rank=0: should be greater than 0",
    "model.adapters.rank=4": "model.adapters.rank=4: without model.start; name the saved run there whose model is",
    "model.adapters.alpha=4": "model.adapters.alpha=4.0: without model.adapters.rank; there are no adapters",
    "model.adapters.rank=4 model.adapters.start=x.npz": "model.adapters.start=x.npz: no such file; name a saved ",
}


@pytest.mark.parametrize("words", REFUSED)
def test_settings_that_do_not_go_together_are_refused(tmp_path: Path, words: str) -> None:
    assert refused(tmp_path, "dataset=digits", *words.split()).startswith(REFUSED[words])


def test_frozen_or_chosen_weights_with_adapters_are_refused() -> None:
    said = r"model.adapters.rank=4 with model.freeze=\[a\]: all weights of the saved model are taken, and stay"
    with pytest.raises(UserError, match=said):
        Starting(start="x", freeze=("a",), adapters=Adapting(rank=4))
    with pytest.raises(UserError, match=r"model.adapters.rank=4 with model.adapters.start: those adapters have "):
        Adapting(rank=4, start="x.npz")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    return done(folder, *TINY, "training.steps=3", "schedule.warm_up=1")


@pytest.fixture(scope="module")
def tuned(base: Path) -> Path:
    return done(base.parents[1], *TINY, *SHORT, *ADAPTED, f"model.start={base.name}", "seed=1")


def kept(run: Path, name: str = "weights") -> weights.Weights:
    return weights.load(run / "artifacts" / "model" / f"{name}.npz")


def test_a_run_leaves_merged_weights_and_the_adapters_alone(base: Path, tuned: Path) -> None:
    before, after = kept(base), kept(tuned)
    found = adapters.load(tuned / "artifacts" / "model" / "adapters.npz")
    assert list(before) == list(after)
    for name, array in before.items():
        layer = name.removesuffix(".kernel")
        changed = 2 * found.values[f"{layer}.adapter_a"] @ found.values[f"{layer}.adapter_b"] if layer in LAYERS else 0
        np.testing.assert_allclose(after[name], array + changed, rtol=0, atol=1e-14, err_msg=name)
        assert np.array_equal(after[name], array) == (layer not in LAYERS)
    receipt = read_json(tuned / "receipt.json")
    sha256 = read_json(base / "receipt.json")["weights_sha256"]
    said = receipt["initial_weights"]
    expected = {"rank": 4, "alpha": 8.0, "layers": LAYERS, "parameters": 512, "base_sha256": sha256}
    assert (said["adapters"], said["frozen"], receipt["parameters"]) == (expected, list(before), 512)
    assert found.base_sha256 == sha256
    assert "rank 4 and alpha 8 on 4 dense layers: 512 numbers trained beside" in str(read_json(tuned / "result.json"))


def test_the_merged_model_is_evaluated_and_generates(tuned: Path) -> None:
    again = done(tuned.parents[1], "stage=evaluate", f"run={tuned.name}", "tracking=none")
    assert metrics_of(again)["test/loss"].value == metrics_of(tuned)["test/loss"].value
    made = done(
        tuned.parents[1], "stage=generate", f"run={tuned.name}", "tracking=none", "stage.prompt=The", "stage.tokens=5"
    )
    assert (made / "artifacts" / "generated" / "1.txt").read_text().startswith("The")


def test_a_base_that_is_gone_is_no_alarm_and_an_edited_model_is(base: Path, tuned: Path, tmp_path: Path) -> None:
    """The merged weights need it no more."""
    copied = tmp_path / tuned.name
    shutil.copytree(tuned, copied)
    receipt, code = read_json(copied / "receipt.json"), read_json(copied / "code.json")
    saved = {"weights": receipt["weights_sha256"]}
    assert check_hashes(copied, saved) == ()
    file = base / "artifacts" / "model" / "weights.npz"
    file.rename(tmp_path / "moved.npz")
    try:
        (said,) = check_hashes(copied, saved)
        assert said == f"run={copied.name}: its model.start is gone; the saved weights do not need it"
        edited = dict(sorted({**code, "pipeline.models.gpt": "0"}.items()))
        write_json(copied / "code.json", edited)
        write_json(copied / "receipt.json", receipt | {"code_sha256": hash_of(edited)})
        (said,) = check_hashes(copied, saved)
        assert said.startswith(f"run={copied.name}: the code, or a file or variable that it reads, is not what trained")
    finally:
        (tmp_path / "moved.npz").rename(file)


@pytest.mark.wide
def test_a_run_without_the_run_that_it_began_from_is_evaluated_as_before(tmp_path: Path) -> None:
    """Its weights and its tokens were another run's, which is deleted."""
    (tmp_path / "mine.txt").write_text("A whale is no fish, and swims in the sea. " * 99)
    words = [word for word in TINY if not word.startswith("dataset=")]
    words += ["dataset=text", "dataset.path=mine.txt", "training.steps=2", "schedule.warm_up=1"]
    first = done(tmp_path, *words)
    tuned = done(tmp_path, *words, f"model.start={first.name}", f"dataset.tokens={first.name}")
    shutil.rmtree(first)
    found = read_result(done(tmp_path, "stage=evaluate", f"run={tuned.name}"))
    assert found is not None
    said = f"run={tuned.name}: its model.start and dataset.tokens are gone; the saved weights do not need them"
    assert said in found.notes


@pytest.mark.parametrize(("file", "key"), [("weights", "model.start"), ("adapters", "model.adapters.start")])
@pytest.mark.wide
def test_what_is_not_what_its_run_saved_starts_no_training(
    base: Path, tuned: Path, tmp_path: Path, file: str, key: str
) -> None:
    """As for stage=evaluate. A copy of the file elsewhere is the user's own."""
    copy = tmp_path / "runs" / tuned.name
    shutil.copytree(tuned, copy)
    path = copy / "artifacts" / "model" / f"{file}.npz"
    found = weights.load(path)
    name = next(iter(found))
    weights.save(path, {**found, name: found[name] + 1})
    words = [f"model.start={copy}"] if file == "weights" else [f"model.start={base}", f"model.adapters.start={copy}"]
    said = refused(tmp_path, *TINY, *SHORT, *words)
    differs = f"artifacts/model/{file}.npz now differs from what it saved (another sha256)"
    assert said == f"{key}: run={tuned.name}: {differs}"
    if file == "weights":
        shutil.copyfile(path, tmp_path / "mine.npz")
        done(tmp_path, *TINY, *SHORT, "model.start=mine.npz")


@pytest.mark.wide
def test_adapters_of_another_run_are_trained_further_or_refused(base: Path, tuned: Path) -> None:
    """With next to no learning rate they stay what they are; on the merged model they are of another base."""
    wanted = (*TINY, f"model.adapters.start={tuned.name}", "training.steps=1", "schedule.warm_up=0")
    run = done(base.parents[1], *wanted, f"model.start={base.name}", "optimizer.learning_rate=1e-12")
    for name, array in kept(tuned).items():
        np.testing.assert_allclose(kept(run)[name], array, rtol=0, atol=1e-9)
    said = refused(base.parents[1], *wanted, f"model.start={tuned.name}")
    assert said.startswith(f"model.adapters.start={tuned.name}: these adapters belong to other weights (sha256 ")
    said = refused(base.parents[1], *TINY, f"model.start={base.name}", f"model.adapters.start={base.name}")
    assert "has no artifacts/model/adapters.npz; it trained none; model.adapters.rank does" in said


def test_a_pattern_that_matches_no_layer_is_refused_before_the_run(base: Path) -> None:
    words = (*TINY, *SHORT, f"model.start={base.name}", "model.adapters.rank=2", "model.adapters.layers=[nothing*]")
    said = refused(base.parents[1], *words)
    assert said.startswith("model.adapters.layers=[nothing*]: matches no dense layer; this model has blocks.0.")
    said = refused(base.parents[1], *words, "-m", "seed=0,1")
    assert said.startswith("model.adapters.layers=[nothing*]: matches no dense layer; this model has blocks.0.")
    assert said.endswith(" (cell 1: seed=0)")


def losses(run: Path) -> list[float]:
    return [one.metrics["train/loss"] for one in read_metrics(run) if "train/loss" in one.metrics]


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_every_step_is_the_same_on_every_backend(base: Path, tuned: Path, tmp_path: Path, backend: str) -> None:
    run = done(tmp_path, *TINY, *SHORT, *ADAPTED, f"model.start={base}", "seed=1", f"backend={backend}")
    assert len(losses(run)) == 20
    np.testing.assert_allclose(losses(run), losses(tuned), rtol=0, atol=1e-10)
    for name in ("weights", "adapters"):
        ours, theirs = kept(tuned, name), kept(run, name)
        assert set(ours) == set(theirs)
        for key, array in ours.items():
            if array.dtype.kind == "f":
                np.testing.assert_allclose(theirs[key], array, rtol=0, atol=1e-8, err_msg=key)
            else:
                assert array == theirs[key]


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_every_kind_of_training_takes_adapters(tmp_path: Path, backend: str) -> None:
    """Convolutions and normalisations stay; also in mixed precision, compiled, by Muon, with an average."""
    usual = ("dataset=digits", "model=mnist_cnn", f"backend={backend}", "training.steps=20", "training.batch_size=16")
    start = done(tmp_path, *usual, "tracking=none")
    more = ("precision=mixed", "training.ema=0.9", "optimizer=muon", "model.adapters.rank=2", "tracking=none")
    compiled = ("backend.compile=true",) if backend == "torch" else ()
    run = done(tmp_path, *usual, *more, *compiled, f"model.start={start.name}")
    changed = [name for name, array in kept(run).items() if not np.array_equal(array, kept(start)[name])]
    assert len(changed) == 2
    assert all(name.endswith("kernel") and kept(run)[name].ndim == 2 for name in changed)


@pytest.mark.wide
def test_a_killed_training_of_adapters_ends_as_one_that_nobody_killed(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "base")
    words = (*TINY, *ADAPTED, f"model.start={tmp_path / 'base'}", "model.dropout=0.1", "training.steps=150")
    check_ends_as_whole(tmp_path, (*words, "training.checkpoint.every=5", "schedule.warm_up=5"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("8", "model.adapters=8: it has keys; write model.adapters.rank=8"),
        ("null", "model.adapters=null: it has keys; model.adapters.rank=null leaves adapters out"),
    ],
)
def test_a_number_in_place_of_the_keys_of_adapters_is_refused(tmp_path: Path, value: str, said: str) -> None:
    assert refused(tmp_path, "dataset=moby_dick", "model=gpt", f"model.adapters={value}") == said


def test_a_pattern_that_is_nearly_a_layer_is_recognized() -> None:
    """All weights were listed, and not what was meant."""
    names = [f"blocks.{block}.attention.{part}.kernel" for block in range(9) for part in ("key", "query", "value")]
    with pytest.raises(UserError) as refusal:
        matching("model.freeze", ["block.0"], names)
    said = str(refusal.value)
    assert said.startswith("model.freeze=[block.0]: matches no weight (did you mean blocks.0?); this model has ")
    assert len(said) < 350
