"""Models of a user's own in every backend (`in_backend.own_models`): what is kept of them, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from command import DIGITS, TORCH_THEN_WIDE, done, refused, without_place, write_files
from findings import OwnModels
from in_backend import Outcomes, outcomes, own_models

from pipeline.models.weights import kind_of
from pipeline.runs.json_files import read_json
from pipeline.runs.weights import Weights, digest, load
from pipeline.stages import course

OTHERS = TORCH_THEN_WIDE[1:]
CLOSE = {"fp32": 1e-4, "fp64": 1e-10}
NORMALIZATION = ("gamma", "beta", "moving_mean", "moving_variance")
KINDS = ["kernel", "bias", *NORMALIZATION, "kernel", "bias", *NORMALIZATION]
KEYS = [f"{place} {kind}" for place, kind in enumerate(KINDS)]  # frameworks name layers differently, in one order
PATHS = {
    "torch": ["1.0", "1.0", *["1.1"] * 4, "4", "4", *["5"] * 4],
    "keras": [
        *["sequential.conv2d"] * 2,
        *["sequential.batch_normalization"] * 4,
        *["dense"] * 2,
        *["batch_normalization_1"] * 4,
    ],
}
STEPS, BATCH, PIXELS, MOMENTUM = 20, 16, 64, 0.9


@pytest.fixture(scope="module")
def found() -> Outcomes[OwnModels]:
    return outcomes(own_models)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.parametrize("precision", CLOSE)
@pytest.mark.wide
def test_a_normalizations_statistics_are_kept(found: Outcomes[OwnModels], backend: str, precision: str) -> None:
    result = found[backend].normalized[precision]
    paths = PATHS["torch" if backend == "torch" else "keras"]
    assert list(result.trained) == [f"{path}.{kind}" for path, kind in zip(paths, KINDS, strict=True)]
    assert result.parameters == (9 * 4 + 4) + 2 * 4 + (256 * 10 + 10) + 2 * 10  # what is trained, not what is gathered
    variances = [array.shape for name, array in result.trained.items() if kind_of(name) == "moving_variance"]
    assert variances == [(4,), (10,)]
    assert result.validation == pytest.approx(result.validation_by_the_predictor, abs=1e-5)
    assert result.loss_of_fresh_statistics > result.validation[0] + 0.01, "the statistics make no difference"


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_the_start_of_a_normalization(found: Outcomes[OwnModels], backend: str) -> None:
    start = found[backend].normalized["fp32"].start
    ends = {"gamma": 1, "moving_variance": 1, "beta": 0, "moving_mean": 0, "bias": 0}
    assert {kind_of(name) for name in start} == {*ends, "kernel"}
    for name, (least, most) in start.items():
        kind = kind_of(name)
        assert least == most == ends[kind] if kind != "kernel" else least < 0 < most, name


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("precision", CLOSE)
def test_normalized_steps_are_the_same(found: Outcomes[OwnModels], other: str, precision: str) -> None:
    """But for the variance: torch gathers the unbiased one, n / (n - 1) of Keras's."""
    for place, key in enumerate(KEYS):
        ours, theirs = (
            list(found[backend].normalized[precision].trained.values())[place] for backend in ("torch", other)
        )
        if key.endswith("moving_variance"):
            n = BATCH * PIXELS if key.startswith("5 ") else BATCH  # the first one is of a convolution
            rest = MOMENTUM**STEPS  # of the 1 that it started from
            ours = (ours - rest) * (n - 1) / n + rest
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=CLOSE[precision], err_msg=key)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("precision", {"fp32": 1e-5, "fp64": 1e-12})
def test_statistics_moved_across_give_the_same_logits(found: Outcomes[OwnModels], other: str, precision: str) -> None:
    ours, theirs = (found[backend].logits[precision] for backend in ("torch", other))
    assert ours.shapes == theirs.shapes
    np.testing.assert_array_equal(theirs.given, ours.given)
    np.testing.assert_array_equal(theirs.returned, ours.given)
    limit = {"fp32": 1e-5, "fp64": 1e-12}[precision]
    np.testing.assert_allclose(ours.logits, theirs.logits, rtol=0, atol=limit)


@pytest.mark.wide
def test_digest_and_file_hold_the_statistics(found: Outcomes[OwnModels]) -> None:
    kept = dict(zip(KEYS, found["torch"].normalized["fp32"].trained.values(), strict=True))
    moved = {**kept, "4 moving_mean": kept["4 moving_mean"] + 1}
    assert digest(kept) != digest(moved)


@pytest.mark.wide
@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_layer_of_unknown_layout_keeps_its_tensors_names_and_start(found: Outcomes[OwnModels], backend: str) -> None:
    result = found[backend].unknown
    assert result is not None
    stretched, dense = ("1", "2") if backend == "torch" else ("stretched", "dense")
    assert result.names == [f"{stretched}.strength", f"{dense}.kernel", f"{dense}.bias"]
    assert result.start == [[0.5]] * 3
    assert all(end != [0.5] for end in result.end)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.wide
def test_a_models_own_initialization_stays(found: Outcomes[OwnModels], backend: str) -> None:
    """A layer set to 0.125 and trained at 1e-9 was saved with Glorot's values, from -0.1 to 0.1."""
    eighth = found[backend].eighth
    assert eighth is not None
    np.testing.assert_array_equal(eighth.start, 0.125)
    np.testing.assert_allclose(eighth.end, 0.125, rtol=0, atol=1e-6)
    assert found[backend].starts["eighth"] == {"shared": [], "own": eighth.names}
    linear = found[backend].starts["linear"]
    assert ([*map(kind_of, linear["shared"])], linear["own"]) == (["kernel", "bias"], [])


@pytest.mark.parametrize("backend", OTHERS)
def test_two_weights_of_one_path_are_numbered(found: Outcomes[OwnModels], backend: str) -> None:
    names = ["doubled.strength", "doubled#2.strength", "dense.kernel", "dense.bias"]
    assert found[backend].twins.receipt["initial_weights"]["own"] == names


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_what_a_builder_refuses_is_the_users_mistake(found: Outcomes[OwnModels], backend: str) -> None:
    choosy = found[backend].choosy
    for said, expected in (
        ("depth=3: too deep", "model.depth=3: too deep"),
        ("no such\n   image", "model: no such image"),
    ):
        assert without_place(str(choosy[said].failed)) == expected
        assert "own_models.py, line " in str(choosy[said].failed)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
@pytest.mark.parametrize("validation", [0, 20])
def test_a_divergence_in_the_last_step_fails_the_run(found: Outcomes[OwnModels], backend: str, validation: int) -> None:
    failed = found[backend].diverged_at_the_end[validation].failed
    what = "the validation loss" if validation else r"an output for test example \d+"
    hint = r"at step 1 \(epoch 1\); try a smaller optimizer\.learning_rate"
    assert re.fullmatch(rf"{what} became (nan|-?inf) {hint}", str(failed))


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_threads_that_were_asked_for_are_shown(found: Outcomes[OwnModels], backend: str) -> None:
    result = found[backend].one_thread.receipt["device"]["cpu_threads"]
    assert result == ("the framework's choice" if backend == "jax" else 1)


@pytest.mark.parametrize("backend", TORCH_THEN_WIDE)
def test_a_first_step_is_reported_where_it_has_an_end(found: Outcomes[OwnModels], backend: str) -> None:
    block, streamed = (ran.receipt for ran in (found[backend].one_thread, found[backend].streamed))
    marks = {name for name in block if name.startswith("first_")}
    assert marks == {"first_step_s" if backend == "torch" else "first_block_s"}
    assert streamed["first_step_s"] > 0
    assert "first_block_s" not in streamed


@pytest.mark.wide
def test_a_weight_that_the_loss_does_not_reach_has_a_gradient_of_zero_in_keras(tmp_path: Path) -> None:
    """TensorFlow has none for it; the norm, the bounds and the sums are of all weights."""
    words = (
        *(*DIGITS, "model=linear", "model._target_=own_models.Spare", "training.steps=6", "training.accumulate=2"),
        *("training.clip_norm=1", "training.clip_value=0.1", "training.log_gradient_norm=true"),
    )
    known = {"PIPELINE_MODULES": "own_models", "PYTHONPATH": str(Path(__file__).parent)}
    kept = [saved(done(tmp_path, *words, f"backend={backend}", **known)) for backend in ("tensorflow", "jax")]
    for name, array in kept[0].items():
        np.testing.assert_allclose(array, kept[1][name], atol=1e-6)


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_a_weight_decay_of_what_the_loss_does_not_reach_is_of_the_framework(tmp_path: Path, backend: str) -> None:
    """On TensorFlow and JAX it shrinks such a weight, which counts as changed; torch leaves it, and nobody said so."""
    words = (*DIGITS, "model=linear", "training.steps=6", f"backend={backend}", "model._target_=own_models.Spare")
    known = {"PIPELINE_MODULES": "own_models", "PYTHONPATH": str(Path(__file__).parent)}
    names, notes = left(done(tmp_path, *words, "optimizer=adamw", **known))
    kernels = [name for name in names if name.endswith("kernel")]
    assert (kernels, len(notes)) == (["spare.kernel"] if backend == "torch" else [], 1)  # the bias stays 0 on all
    assert all(one.endswith(f"dtype; {course.NOT_DECAYED}") for one in notes) == (backend == "torch")


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "tensorflow", "jax"])
def test_weights_that_a_training_left_as_they_were_are_named(tmp_path: Path, backend: str) -> None:
    """They were counted as trained without a word."""
    words = (*DIGITS, "model=linear", "training.steps=6", f"backend={backend}")
    known = {"PIPELINE_MODULES": "own_models", "PYTHONPATH": str(Path(__file__).parent)}
    spare, layer = ("model._target_=own_models.Spare", *words), "spare" if backend == "torch" else "dense_1"
    still = done(tmp_path, *words, "optimizer.learning_rate=1e-60")
    said = {
        "spare": left(done(tmp_path, *spare, "training.ema=0.5", **known)),
        "frozen": left(done(tmp_path, *spare, f"model.freeze=[{layer}*]", **known)),
        "rate": left(still),
        "one": left(done(tmp_path, *words[:-2], "training.steps=1", words[-1], "optimizer.learning_rate=1e-60")),
        "bf16": left(done(tmp_path, *words, "optimizer.learning_rate=1e-8", "precision=bf16")),
    }
    kernel = next(iter(saved(still)))
    why = "the loss does not depend on them, their gradient is 0, or their updates are too small for their dtype"
    assert said == {
        "spare": (
            [f"{layer}.kernel", f"{layer}.bias"],
            [f"the training has not changed {layer}.kernel, {layer}.bias in 6 steps: {why}"],
        ),
        "frozen": ([], []),
        "rate": (list(saved(still)), [f"the training has changed none of its weights in 6 steps: {why}"]),
        "one": ([], []),
        "bf16": ([kernel], [f"the training has not changed {kernel} in 6 steps: {why}"]),
    }


def left(run: Path) -> tuple[list[str], list[str]]:
    """The weights that a run says it has left as they were: in the receipt, and in its notes."""
    notes = read_json(run / "result.json")["notes"]
    return read_json(run / "receipt.json").get("unchanged_weights", []), [one for one in notes if "changed" in one]


def saved(run: Path) -> Weights:
    return load(run / "artifacts/model/weights.npz")


@pytest.mark.wide
def test_a_graph_tells_the_device_of_each_operation(found: Outcomes[OwnModels]) -> None:
    result = set(found["tensorflow"].graph)
    first, second = (f"/job:localhost/replica:0/task:0/device:CPU:{index}" for index in (0, 1))
    wanted = {
        ("MatMul", second, "float32"),  # bound by the user's tf.device
        ("Cast", second, "float64"),
        ("Sin", first, "float32"),  # bound to nothing
        ("LogicalNot", first, "bool"),
        ("ReadVariableOp", first, "float32"),
        ("AssignAddVariableOp", first, "float32"),
        ("NoOp", first, "-"),
        ("Cos", second, "float64"),  # in a function that the graph calls
    }
    assert wanted <= result, sorted(result)


@pytest.mark.wide
def test_jax_takes_the_memory_that_it_may(found: Outcomes[OwnModels]) -> None:
    inside, after = (found["jax"].memory_fraction[name] for name in ("inside", "after"))
    assert inside["memory_fraction"] == 0.25
    assert inside["preallocate"] is False  # the user's own word
    assert after == {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.5", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}


OPTIMIZER = """
from pipeline.contracts import Optimizer
from pipeline.spec import spec

@spec
class Mine(Optimizer):
    learning_rate: float = 0.1
    momentum: float = -1.0
    def slots(self):
        return 1
    def torch(self, parameters):
        import torch
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)
    def keras(self):
        import keras
        return keras.optimizers.SGD(self.learning_rate, momentum=self.momentum)
"""


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("torch", "torch() raises ValueError: Invalid momentum value: -1.0, in torch (mine_opt.py, line 13)"),
        pytest.param("jax", "keras() raises ValueError: `momentum` must be a float between", marks=pytest.mark.wide),
    ],
)
def test_an_optimizer_of_ones_own_that_cannot_be_made_is_refused_before_the_run(
    tmp_path: Path, backend: str, said: str
) -> None:
    write_files(tmp_path, {"mine_opt.py": OPTIMIZER, "conf/optimizer/mine.yaml": "_target_: mine_opt.Mine\n"})
    known = {"PIPELINE_MODULES": "mine_opt", "PYTHONPATH": str(tmp_path)}
    words = ("--config-dir", "conf", "optimizer=mine", "dataset=digits", f"backend={backend}")
    assert refused(tmp_path, *words, **known).startswith(f"optimizer=mine: {said}")
    done(tmp_path, *words, "+optimizer.momentum=0.5", "training.epochs=1", **known)


COUNTING = """
import gc
from pipeline.contracts import Optimizer
from pipeline.spec import spec

@spec
class Counting(Optimizer):
    learning_rate: float = 0.1
    def slots(self):
        return 0
    def keras(self):
        import keras
        with open("models.txt", "a") as file:
            print(sum(isinstance(one, keras.Model) for one in gc.get_objects()), file=file)
        return keras.optimizers.SGD(self.learning_rate)
"""


@pytest.mark.wide
def test_the_model_that_an_optimizer_was_tried_on_is_gone_when_another_is_trained(tmp_path: Path) -> None:
    """A GPU that it fills by more than half had no room for both."""
    write_files(tmp_path, {"counting.py": COUNTING, "conf/optimizer/counting.yaml": "_target_: counting.Counting\n"})
    known = {"PIPELINE_MODULES": "counting", "PYTHONPATH": str(tmp_path)}
    words = ("--config-dir", "conf", "optimizer=counting", "dataset=digits", "backend=jax", "training.steps=2")
    done(tmp_path, *words, **known)
    tried, trained = (tmp_path / "models.txt").read_text().split()
    assert tried == trained
