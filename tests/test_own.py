"""Any torch.nn.Module and any keras.Model trains, is saved, read back and gives the same; what cannot is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from command import TORCH_THEN_WIDE, done, failed, pipeline, refused, runs, without_place, write_files
from own_nets import ChannelsFirst
from safetensors.numpy import save_file

from pipeline.errors import UserError
from pipeline.models import Shapes, takes_channels_first
from pipeline.models.start import _frozen, _loaded
from pipeline.runs import weights
from pipeline.runs.result import metrics_of, read_result

HERE = Path(__file__).parent
QUICK = ("dataset=digits", "dataset.train_size=320", "training.epochs=1", "tracking=none")
NAMES = {
    "torch": {
        "place": (8, 16),
        "scale": (),
        "steps": (8,),
        "enter.weight": (16, 32),  # its layer has a parameter with the common name, kernel
        "enter.kernel": (1,),
        "blocks.1.attend.in_proj_weight": (48, 16),
        "blocks.1.attend.out_proj.kernel": (16, 16),
        "blocks.1.mlp.up.parametrizations.weight.original1": (32, 16),
        "lstm.weight_hh_l1_reverse": (32, 8),
        "lazy.kernel": (3, 12),
        "heads.0": (12, 10),
    },
    "keras": {
        "place": (8, 16),
        "bare": (),
        "block_1.multi_head_attention_1.query.kernel": (16, 2, 8),
        "one.kernel": (8, 12),
    },
}


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The user's folder: a module, and a choice for each of its models."""
    folder = tmp_path_factory.mktemp("mine")
    write_files(folder, {"own_nets.py": (HERE / "own_nets.py").read_text()})
    for name in ("Anything", "Tcn", "Liquid", "ChannelsFirst"):
        write_files(folder, {f"conf/model/{name.lower()}.yaml": f"_target_: own_nets.{name}\n"})
    write_files(folder, {"conf/model/wrong.yaml": "_target_: own_nets.Wrong\nhow: pair\n"})
    return folder


def allowed(mine: Path) -> dict[str, str]:
    return {"PIPELINE_MODULES": "own_nets", "PYTHONPATH": str(mine)}


def trained_and_evaluated(mine: Path, folder: Path, *choices: str) -> Path:
    """The run, whose metrics its saved weights give again."""
    run = done(folder, "--config-dir", str(mine / "conf"), *QUICK, *choices, **allowed(mine))
    again = done(folder, "stage=evaluate", f"run={run.name}", "tracking=none", **allowed(mine))
    then, now = ({name: one.value for name, one in metrics_of(each).items()} for each in (run, again))
    assert {name: then[name] for name in ("test/loss", "test/accuracy")} == {
        name: now[name] for name in ("test/loss", "test/accuracy")
    }
    return run


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_any_model_trains_and_is_read_back(mine: Path, tmp_path: Path, backend: str) -> None:
    run = trained_and_evaluated(mine, tmp_path, "model=anything", f"backend={backend}")
    with np.load(run / "artifacts/model/weights.npz") as kept:
        shapes = {name: array.shape for name, array in kept.items()}
    wanted = NAMES["torch" if backend == "torch" else "keras"]
    assert {name: shapes.get(name) for name in wanted} == wanted
    started = json.loads((run / "receipt.json").read_text())["initial_weights"]
    assert (started["shared"], started["own"]) == ([], list(shapes))


@pytest.mark.parametrize(
    ("model", "package", "backend"),
    [
        ("tcn", "pytorch_tcn", "torch"),
        pytest.param("liquid", "ncps", "torch", marks=pytest.mark.wide),
        pytest.param("liquid", "ncps", "jax", marks=pytest.mark.wide),
    ],
)
@pytest.mark.wide
def test_models_of_public_packages_train(mine: Path, tmp_path: Path, model: str, package: str, backend: str) -> None:
    pytest.importorskip(package)
    trained_and_evaluated(mine, tmp_path, f"model={model}", f"backend={backend}")


@pytest.mark.wide
@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_module_takes_channels_first(mine: Path, tmp_path: Path, backend: str) -> None:
    if backend == "tensorflow" and "avx512" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("TensorFlow takes channels first from oneDNN alone, which it has on for processors with AVX-512")
    trained_and_evaluated(mine, tmp_path, "model=channelsfirst", f"backend={backend}")


WRONG = {
    (
        "torch",
        "first",
    ): "model: fails on a batch of shape (1, 8, 8, 1), but takes (1, 1, 8, 8): images are (N, H, W, C) "
    'here; write layout: ClassVar = "channels_first" in its class',
    ("torch", "narrow"): "model: fails on a batch of shape (1, 8, 8, 1): RuntimeError: mat1 and mat2 shapes cannot be "
    "multiplied (64x1 and 3x10)",
    ("torch", "lightning"): "model: LightningModule is a LightningModule, and this stage would never call its "
    "training_step; use stage=lightning, or give the module that it trains",
    (
        "torch",
        "bilinear",
    ): "model: fails on a batch of shape (1, 8, 8, 1): RuntimeError: All tensors must have the same "
    "dtype, got input1: c10::BFloat16, input2: c10::BFloat16, weight: float, bias: float",
    ("torch", "pair"): "model: gives a tuple; give one tensor",
    ("torch", "heads"): "model: its builder fails: AssertionError: embed_dim must be divisible by num_heads",
    ("torch", "none"): "model: torch() gives a NoneType; give a torch.nn.Module",
    ("torch", "frozen"): "model=wrong: has nothing that would be trained; leave some of its weights unfrozen, "
    "or train others beside them (model.adapters.rank)",
    ("jax", "frozen"): "model=wrong: has nothing that would be trained; leave some of its weights unfrozen, "
    "or train others beside them (model.adapters.rank)",
    ("jax", "compiled"): "model: sequential is compiled, and this stage uses the loss and the optimizer of the config; "
    "give it uncompiled, or use stage=keras",
    (
        "jax",
        "kernels",
    ): "model: sequential adds losses, and this stage trains by the loss of the config alone; take its "
    "regularizers out (optimizer=adamw has weight decay), or use stage=keras",
    ("jax", "activity"): "model: sequential adds losses (last), and this stage trains by the loss of the config alone; "
    "take its regularizers out (optimizer=adamw has weight decay), or use stage=keras",
    ("jax", "pair"): "model: gives a tuple; give one tensor",
    ("jax", "unbuilt"): "model: fails on a batch of shape (1, 8, 8, 1): AttributeError: 'LSTMCell' object has no "
    "attribute 'recurrent_kernel'; Keras could not build its layers narrow, last",
    ("jax", "none"): "model: keras() gives a NoneType; give a keras.Model",
}


@pytest.mark.parametrize(
    ("backend", "how"),
    [pytest.param(*each, marks=pytest.mark.wide) if each[0] == "jax" else each for each in WRONG],
)
def test_what_cannot_be_trained_is_refused_before_the_run(mine: Path, tmp_path: Path, backend: str, how: str) -> None:
    named: tuple[str, ...] = (
        "--config-dir",
        str(mine / "conf"),
        "model=wrong",
        f"model.how={how}",
        f"backend={backend}",
    )
    if how == "bilinear":  # which torch's autocast leaves out
        named = (*named, "precision=mixed_bf16")
    said = refused(tmp_path, *QUICK, *named, **allowed(mine))
    assert without_place(said) == WRONG[backend, how]
    (line,) = (
        at for at, text in enumerate((HERE / "own_nets.py").read_text().splitlines(), 1) if '"heads": lambda' in text
    )
    assert how != "heads" or said.endswith(f", in <lambda> ({mine / 'own_nets.py'}, line {line})")


def test_channels_first_is_of_images() -> None:
    with pytest.raises(UserError) as caught:
        takes_channels_first(ChannelsFirst(), Shapes((5,), (2,)))
    assert str(caught.value) == (
        "model: layout=channels_first takes images (height, width, channels); "
        "the examples of this dataset have shape (5,)"
    )


WIDE = """
from pipeline.contracts import Model
from pipeline.spec import spec

@spec
class Wide(Model):
    def keras(self, shapes):
        import keras
        return keras.Sequential([keras.Input(shapes.x), {layers}])
"""
ONE_LEFT = re.compile(
    r"error: model=normalized, in step 2 on a batch of 1 example \(the last of an epoch; choose another "
    r"training\.batch_size\), raises ValueError: Expected more than 1 value per channel when training, got input size "
    r"torch\.Size\(\[1, 10\]\); artifacts/traceback\.txt has the traceback"
)
TORCHS = "mine.safetensors"  # under torch's names and in its layout
NET = ("model=normalized", "training.batch_size=64")


@pytest.fixture(scope="module")
def start(mine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trained run of a model that normalizes."""
    folder = tmp_path_factory.mktemp("start")
    write_files(mine, {"own_models.py": (HERE / "own_models.py").read_text()})
    write_files(mine, {"conf/model/normalized.yaml": "_target_: own_models.Normalized\n"})
    done(folder, "--config-dir", str(mine / "conf"), *QUICK, *NET, "backend=torch", **with_models(mine))
    return folder


@pytest.mark.wide
@pytest.mark.usefixtures("start")  # has written the model
def test_what_a_model_raises_in_a_step_is_one_message_with_the_batch(mine: Path, tmp_path: Path) -> None:
    """torch normalizes no batch of one example, and no file of the user's is in its traceback."""
    words = ("--config-dir", str(mine / "conf"), *QUICK, "model=normalized", "training.batch_size=319", "backend=torch")
    result = pipeline(tmp_path, *words, **with_models(mine))
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    assert ONE_LEFT.fullmatch(result.stderr.splitlines()[-1]), result.stderr
    (run,) = runs(tmp_path)
    assert (run / "artifacts/traceback.txt").read_text().startswith("Traceback (most recent call last)")


FAILS = """
from pipeline.contracts import Model
from pipeline.spec import spec

@spec
class Fails(Model):
    broken: bool = True

    def keras(self, shapes):
        import keras

        class Halves(keras.layers.Layer):
            def call(layer, x, training=False):
                if training and self.broken:
                    raise KeyError("half of it is missing")
                return keras.ops.reshape(x, (-1, x.shape[-1] // 2)) if training else x

        return keras.Sequential([keras.Input(shapes.x), keras.layers.Flatten(), Halves(), keras.layers.Dense(10)])
"""
ENDS = {  # the second is raised by Keras's own layer, in the step that the user's made too narrow for it
    "true": r"raises KeyError: half of it is missing, in call \(.*own_fails\.py, line 15\)",
    "false": r"raises ValueError: Input 0 with name 'None' of layer 'dense' is incompatible .* shape \(64, 32\)",
}


@pytest.mark.wide
@pytest.mark.parametrize("broken", ENDS)
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_what_a_layer_on_keras_raises_in_a_step_is_one_message(backend: str, broken: str, tmp_path: Path) -> None:
    chosen = "_target_: own_fails.Fails\nbroken: true\n"
    write_files(tmp_path, {"own_fails.py": FAILS, "conf/model/fails.yaml": chosen})
    words = ("--config-dir=conf", "dataset=digits", "model=fails", f"model.broken={broken}", f"backend={backend}")
    named = {"PIPELINE_MODULES": "own_fails", "PYTHONPATH": str(tmp_path)}
    result = pipeline(tmp_path, *words, "training.epochs=1", **named)
    assert result.returncode == 1 and "Traceback" not in result.stderr, result.stderr
    begins = r"error: model=fails, in step 1 on a batch of 32 examples, "
    whole = f"{begins}{ENDS[broken]}; artifacts/traceback.txt has the traceback"
    assert re.fullmatch(whole, result.stderr.splitlines()[-1]), result.stderr


def with_models(mine: Path) -> dict[str, str]:
    return {**allowed(mine), "PIPELINE_MODULES": "own_nets,own_models"}


def kept(run: Path) -> dict[str, np.ndarray]:
    with np.load(run / "artifacts/model/weights.npz") as found:
        return dict(found)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_training_starts_from_a_run_and_frozen_layers_stay(mine: Path, start: Path, backend: str) -> None:
    """Also on another backend than the run's, where the layers have other names; statistics are frozen too."""
    first = kept(runs(start)[0])
    frozen = ["1.0", "1.1"] if backend == "torch" else ["sequential.conv2d", "sequential.batch_normalization"]
    wanted = (f"model.start={runs(start)[0].name}", f"model.freeze=[{','.join(frozen)}]", f"backend={backend}")
    run = done(start, "--config-dir", str(mine / "conf"), *QUICK, *NET, *wanted, **with_models(mine))
    whole = json.loads((run / "receipt.json").read_text())
    receipt = whole["initial_weights"]
    second = kept(run)
    assert receipt["loaded"] == list(second)
    assert receipt["source"].endswith(f"{runs(start)[0].name}/artifacts/model/weights.npz")
    assert receipt["frozen"] == list(second)[:6]
    stays = sum(second[name].size for name in receipt["frozen"] if "moving" not in name)
    assert whole["parameters_frozen"] == stays
    assert whole["parameters"] + stays == sum(array.size for name, array in second.items() if "moving" not in name)
    said = dict(json.loads((run / "result.json").read_text())["table"])["parameters"]
    assert said == f"{whole['parameters']:,} trained; {stays:,} frozen by model.freeze ({', '.join(receipt['frozen'])})"
    for number, (before, after) in enumerate(zip(first.values(), second.values(), strict=True)):
        assert np.array_equal(before, after) == (number < 6), number


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "jax"])
@pytest.mark.usefixtures("start")  # has written the model
def test_running_statistics_beside_averaged_weights_are_noted(mine: Path, tmp_path: Path, backend: str) -> None:
    words = ("--config-dir", str(mine / "conf"), *QUICK, *NET, f"backend={backend}")
    names = ("1.1", "5") if backend == "torch" else ("sequential.batch_normalization", "batch_normalization_1")
    said = (
        f"training.ema=0.5: the running statistics of {' and '.join(names)} are not averaged; the average is judged "
        "and saved with those of the weights themselves: recompute them on training examples before you use it"
    )
    for more, noted in (("training.ema=0.5",), True), ((), False):
        result = read_result(done(tmp_path, *words, *more, **with_models(mine)))
        assert result is not None and (said in result.notes) is noted


@pytest.mark.wide
def test_classes_that_the_started_model_did_not_have_are_noted(tmp_path: Path) -> None:
    """Unless the layers that are taken are named: then the last one may be a new one."""
    x, y = np.random.default_rng(0).random((40, 3), np.float32), np.arange(40) % 2
    for name, classes in (("pets", ["cat", "dog"]), ("insects", ["ant", "bee"])):
        np.savez(tmp_path / f"{name}.npz", x=x + len(name), y=np.array(classes)[y])
    words = ("dataset=npz", "model=mlp", "training.epochs=1", "training.batch_size=8", "tracking=none")
    run = done(tmp_path, *words, "dataset.file=pets.npz")
    said = (
        "model.start: 2 of the 2 outputs were for other classes when that model was trained (output 0 was cat and is "
        "ant); model.start_layers can leave the last layer out"
    )
    for file, more, noted in (
        ("insects.npz", (), True),
        ("insects.npz", ("model.start_layers=[1.*]",), False),
        ("pets.npz", (), False),
    ):
        found = read_result(done(tmp_path, *words, f"model.start={run}", f"dataset.file={file}", *more))
        assert found is not None
        assert (said in found.notes) == noted, (file, more)


@pytest.mark.wide
def test_examples_that_a_saved_model_was_trained_on_are_no_test_of_it(tmp_path: Path) -> None:
    """Labels by chance: what was trained on them seemed to know 81 % of a larger test set, and 90 % of another
    validation, both of them its training examples."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "noise.npz", x=rng.normal(size=(200, 8)).astype(np.float32), y=rng.integers(0, 2, 200))
    words = ("dataset=npz", "dataset.file=noise.npz", "model=linear", "training.epochs=1", "training.batch_size=32")
    first = done(tmp_path, *words)
    start = f"model.start={first.name}"
    said = failed(tmp_path, *words, start, "dataset.test=0.6")
    assert (
        "trained on another split of the same data (dataset.test=0.2, seed=0), so it may have seen examples of this "
        "test set; split them as it did"
    ) in said
    flatters = re.compile(
        rf"model.start: {first.name} was trained on \d+ of the \d+ validation examples \(contamination\): validation "
        "is optimistic, and so is what is chosen by it"
    )
    for seed, noted in ((0, False), (1, True)):
        result = read_result(done(tmp_path, *words, start, f"seed={seed}"))
        assert result is not None and any(map(flatters.fullmatch, result.notes)) is noted
    np.savez(tmp_path / "noise.npz", x=rng.normal(size=(200, 8)).astype(np.float32), y=rng.integers(0, 2, 200))
    other = read_result(done(tmp_path, *words, start, "seed=1"))  # other examples: nothing is known of them
    assert other is not None and not any(map(flatters.fullmatch, other.notes))


def test_a_start_of_another_size_says_which_settings_that_run_has(tmp_path: Path) -> None:
    first = done(tmp_path, *QUICK, "model=mlp", "model.units=[16,8]")
    said = refused(tmp_path, *QUICK, "model=mlp", f"model.start={first.name}")
    assert said.startswith(
        f"model.start={first.name}: weights of another model: "
    )  # and not by the path of its weights
    assert said.endswith("; that run has model.units=[16, 8]")
    said = refused(tmp_path, *QUICK, "model=linear", f"model.start={first.name}")
    assert ": weights of another model: " in said and said.endswith("; that run has model=mlp")


def test_running_statistics_of_few_steps_are_noted(mine: Path, start: Path, tmp_path: Path) -> None:
    """Classes that training tells apart were all one on the test set, after 15 steps of a residual net."""
    run = runs(start)[0]
    said = "the running statistics of 1.1 and 5 are of 5 steps: of fewer than 50 they still hold some of the values "
    result = read_result(run)
    assert result is not None and [note.startswith(said) for note in result.notes] == [True]
    words = ("--config-dir", str(mine / "conf"), *QUICK, NET[0], "training.batch_size=5", "backend=torch")
    result = read_result(done(tmp_path, *words, **with_models(mine)))
    assert result is not None and not result.notes  # of 58 steps


def test_some_layers_from_a_file(mine: Path, start: Path, tmp_path: Path) -> None:
    """Trained by next to nothing, the layers that were asked for are those of the file, and no others."""
    first = {name: array + 1 for name, array in kept(runs(start)[0]).items()}
    weights.save(tmp_path / "mine.npz", first)
    wanted = ("model.start=mine.npz", "model.start_layers=[1.0,*.gamma]", "optimizer.learning_rate=1e-9")
    run = done(tmp_path, "--config-dir", str(mine / "conf"), *QUICK, *NET, *wanted, **with_models(mine))
    taken = [name for name, array in kept(run).items() if np.abs(array - first[name]).max() < 1e-4]
    assert taken == ["1.0.kernel", "1.0.bias", "1.1.gamma", "5.gamma"]
    assert json.loads((run / "receipt.json").read_text())["initial_weights"]["loaded"] == taken


@pytest.mark.wide
@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_all_layers_from_an_export(mine: Path, start: Path, tmp_path: Path, backend: str) -> None:
    """Under the framework's own names: `0.weight` (out, in) in torch, `sequential/dense/kernel` in Keras."""
    common = ("--config-dir", str(mine / "conf"), *QUICK, *NET, f"backend={backend}")
    first = runs(start)[0] if backend == "torch" else done(tmp_path, *common, **with_models(mine))
    export = ("stage=export", f"run={first}", "stage.format=safetensors", "tracking=none")
    (file,) = done(tmp_path, *export, **with_models(mine)).rglob("*.safetensors")
    slow = ("optimizer.learning_rate=1e-9", f"model.start={file}")
    run = done(tmp_path, *common, *slow, **with_models(mine))
    before, after = kept(first), kept(run)
    trained = [name for name in before if "moving" not in name]
    assert len(trained) > 6
    assert max(np.abs(before[name] - after[name]).max() for name in trained) < 1e-5
    receipt = json.loads((run / "receipt.json").read_text())["initial_weights"]
    assert (sorted(receipt["loaded"]), receipt["source"]) == (sorted(before), str(file))


def test_a_file_of_tensors_is_read_whole_or_refused(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file as save_tensors

    file = tmp_path / "mine.safetensors"
    tensors = {"a": torch.randn(3, 2, dtype=torch.bfloat16), "b": torch.arange(4.0, dtype=torch.float64)}
    save_tensors(tensors, file)
    found = weights.safetensors(file)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(found[name], tensor.to(torch.float64).numpy())
    assert {name: str(array.dtype) for name, array in found.items()} == {"a": "float32", "b": "float64"}
    save_tensors({"c": torch.zeros(2, dtype=torch.complex64)}, file)
    with pytest.raises(UserError, match=r"mine.safetensors: c is C64; weights are F64, F32, .* or BF16"):
        weights.safetensors(file)
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(UserError, match=r"mine.safetensors: not a readable set of weights \("):
        weights.safetensors(file)


def test_a_file_of_tensors_matches_by_name_alone() -> None:
    made = {"a.kernel": np.zeros((3, 2)), "b.bias": np.zeros(3)}
    read = {"b.bias": np.ones(3), "a.kernel": np.ones((3, 2))}
    loaded = _loaded("x.safetensors", read, (), made)
    assert list(loaded) == list(made)
    for changed, said in (
        ({"a.kernel": np.ones((2, 3))}, "a.kernel has shape (2, 3); this model's has (3, 2)"),
        (
            {"c.bias": np.ones(3)},
            "c.bias (3,) is not in this model, which has a.kernel, b.bias; model.start_layers=[a,b] takes those and "
            "leaves the rest of the file out",
        ),
    ):
        with pytest.raises(UserError) as caught:
            _loaded("x.safetensors", read | changed, (), made)
        assert str(caught.value).startswith(f"model.start=x.safetensors: {said}")
    some = _loaded("x.safetensors", read | {"c.bias": np.ones(3)}, ("a", "b"), made)  # as the message has it
    assert {name: array.tolist() for name, array in some.items()} == {name: read[name].tolist() for name in made}
    with pytest.raises(UserError, match=r"x.safetensors: has no b.bias \(3,\); it has a.kernel"):
        _loaded("x.safetensors", {"a.kernel": np.ones((3, 2))}, (), made)


@pytest.mark.parametrize("start", ["x.npz", "x.safetensors"])
def test_a_start_that_holds_no_numbers_is_refused(start: str) -> None:
    """Text ended in a traceback, complex numbers lost a half, and NaN was blamed on the learning rate."""
    made = {"a.kernel": np.zeros((3, 2)), "b.bias": np.zeros(3)}
    read = {"a.kernel": np.ones((3, 2)), "b.bias": np.ones(3)}
    assert list(_loaded(start, read | {"b.bias": np.array([0, -np.inf, 1])}, (), made)) == list(made)  # as a mask has
    for values, said in (
        (np.array(["a", "b", "c"]), "holds no real numbers (<U1)"),
        (np.ones(3, complex), "holds no real numbers (complex128)"),
        (np.array([0, np.nan, 1]), "holds nan, which no training gets rid of"),
    ):
        with pytest.raises(UserError) as caught:
            _loaded(start, read | {"b.bias": values}, (), made)
        assert str(caught.value) == f"model.start={start}: b.bias {said}; name another file"
        assert list(_loaded(start, read | {"b.bias": values}, ("a*",), made)) == ["a.kernel"]  # not asked for


UNFIT = {
    "model.start=mine.safetensors": "model.start={folder}/mine.safetensors: 1.kernel has shape (3, 10); this model's "
    "has (64, 10)",
    "model.start=": "model.start='': an empty name; give a saved run, a file or null",
    "model.adapters.rank=2 model.adapters.start=": "model.adapters.start='': an empty name; give a saved run, a "
    "file or null",
    "model.start=nothing": "model.start=nothing: no such run in {folder}/runs; the folder has none yet",
    "model.start=none.npz": "model.start=none.npz: no such file; name a saved run or weights in .npz or .safetensors",
    "model.start=/dev/null": "model.start=/dev/null: the file does not end in .npz or .safetensors; name one "
    "that does, or a saved run",
    f"model.start={'a' * 260}": f"model.start={'a' * 260}: no such run in {{folder}}/runs; the folder has none yet",
    f"model.start={'a' * 260}.npz": f"model.start={'a' * 260}.npz: no such file; name a saved run or weights in .npz "
    "or .safetensors",  # both too long for a file's name
    "model.start=mine.npz": "model.start={folder}/mine.npz: weights of another model: 1.kernel has shape (3, 10); "
    "this model has (64, 10)",
    "model.start=mine.npz model.start_layers=[1.kernel]": "model.start={folder}/mine.npz: 1.kernel has shape (3, 10); "
    "this model's has (64, 10)",
    "model.start=mine.npz model.start_layers=[2]": "model.start_layers=[2]: matches no weight; this model has "
    "1.kernel, 1.bias",
    "model.start_layers=[1]": "model.start_layers=[1]: without model.start; name a run or a file there",
    "model.freeze=[conv*]": "model.freeze=[conv*]: matches no weight; this model has 1.kernel, 1.bias",
    "model.freeze=[1]": "model.freeze=[1]: freezes everything; leave some of 1.kernel, 1.bias out",
    "model.freeze=[1.10,1.bias]": "model.freeze=[1.10]: matches no weight; this model has 1.kernel, 1.bias",
}


def test_a_field_that_the_yaml_lacks_is_named(tmp_path: Path) -> None:
    imports = "from pipeline.contracts import Model\nfrom pipeline.spec import spec\n"
    code = f"{imports}\n\n@spec\nclass Bare(Model):\n    heads: int = 2\n"
    write_files(tmp_path, {"bare.py": code, "conf/model/bare.yaml": "_target_: bare.Bare\n"})
    words, known = ("--config-dir", "conf", "model=bare"), {"PIPELINE_MODULES": "bare", "PYTHONPATH": str(tmp_path)}
    assert refused(tmp_path, *words, "model.heads=3", **known) == (
        "model.heads: Bare has such a field and the YAML of this choice does not set it; +model.heads=<value> sets it, "
        "or a line `heads: <value>` in that file"
    )
    assert refused(tmp_path, *words, "model.haeds=3", **known).startswith("model.haeds: no such key")


@pytest.mark.parametrize("words", UNFIT)
def test_a_start_that_does_not_fit_is_refused(tmp_path: Path, words: str) -> None:
    weights.save(tmp_path / "mine.npz", {"1.kernel": np.zeros((3, 10)), "1.bias": np.zeros(10)})
    save_file({"1.weight": np.zeros((10, 3), "float32"), "1.bias": np.zeros(10, "float32")}, tmp_path / TORCHS)
    wanted = UNFIT[words].format(folder=tmp_path)
    assert refused(tmp_path, *QUICK, "model=linear", *words.split()) == wanted


def test_a_solver_starts_from_no_file(tmp_path: Path) -> None:
    said = refused(tmp_path, "stage=pinn", "dataset=ode", "model.freeze=[x]")
    assert said == "model.freeze with stage=pinn: it would be ignored; leave it out"


@pytest.mark.parametrize(
    ("trained", "text"), [(["a.kernel"], "nothing that would be trained"), (["b.kernel"], "everything")]
)
def test_a_freeze_of_nothing_or_everything(trained: list[str], text: str) -> None:
    made = {name: np.zeros((2, 2)) for name in ("a.kernel", "b.kernel")}
    with pytest.raises(UserError, match=rf"model.freeze=\[b\]: freezes {text}"):
        _frozen(["b"], made, set(trained))


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_freeze_that_matches_nothing_is_refused_on_keras(tmp_path: Path, backend: str) -> None:
    said = refused(tmp_path, *QUICK, "model=linear", f"backend={backend}", "model.freeze=[conv*]")
    assert said.startswith("model.freeze=[conv*]: matches no weight; this model has ")


@pytest.mark.wide
@pytest.mark.parametrize(
    "layers",
    [("DepthwiseConv2D(3, dtype='float64')",), ("Reshape((8, 8, 1, 1))", "Conv3D(2, (3, 3, 1), dtype='float64')")],
)
def test_every_convolution_of_tensorflow_is_seen(tmp_path: Path, layers: tuple[str, ...]) -> None:
    """A receipt said float32 where all but the last layer multiplied in float64."""
    made = ", ".join(f"keras.layers.{layer}" for layer in (*layers, "Flatten()", "Dense(10)"))
    write_files(
        tmp_path, {"own_wide.py": WIDE.format(layers=made), "conf/model/wide.yaml": "_target_: own_wide.Wide\n"}
    )
    known = {"PIPELINE_MODULES": "own_wide", "PYTHONPATH": str(tmp_path)}
    words = ("--config-dir", "conf", "model=wide", "backend=tensorflow", "dataset=digits", "training.steps=2")
    said = pipeline(tmp_path, *words, **known).stderr.splitlines()[-1]
    assert said.startswith(
        "error: precision=fp32 asks for float32 but the matrix products ran in float32 (3), float64 ("
    )
