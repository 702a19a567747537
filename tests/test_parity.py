"""Parity: the same config means the same net, the same loss and the same steps in torch, TensorFlow and JAX.

Each backend runs its own code in its own process (`in_backend.parity`); the weights are noted after every step of
the shipped training loop. torch is the side that the two others are held against.
"""

from __future__ import annotations

from collections.abc import Sequence

import in_backend
import numpy as np
import pytest
import yaml
from findings import Parity
from in_backend import CLASS_WEIGHTS, LOSSES, MODELS, OF_MATRICES, OPTIMIZERS, STEPS, Outcomes, outcomes
from scipy import special
from scipy.special import log_softmax, softmax

from pipeline.cli.conf_path import conf_path
from pipeline.models.weights import STATISTICS

pytestmark = pytest.mark.timeout(3000)  # three frameworks side by side compile 30 programs each, on two cores
OTHERS = ("tensorflow", pytest.param("jax", marks=pytest.mark.wide))
EACH = ("torch", *OTHERS)
STEPPED = {"fp32": 1e-4, "fp64": 1e-10}  # weights after each of 20 steps
# A ReLU whose input is rounding alone lets a gradient through on one backend and not on another: of the many of a
# convolutional net with normalisation one does so in some step (the 17th on one processor), and weights go apart.
KINKED = ("resnet sgd", "fp32")
SMOOTH = 10  # steps before that
LOGITS = {"fp32": 1e-5, "fp64": 1e-12}
Both = Outcomes[Parity]
TRAINED = [
    pytest.param(f"{name} {optimizer}", marks=() if name in in_backend.FIRST else pytest.mark.wide)
    for name in MODELS
    for optimizer in ("sgd", "adam")
]


@pytest.fixture(scope="module")
def found() -> Both:
    return outcomes(in_backend.parity)


@pytest.fixture(scope="module")
def more() -> Both:
    return outcomes(in_backend.more_parity)


def trained(name: str) -> Both:
    """What the training of a model by an optimizer came to."""
    first = name.rpartition(" ")[0] in in_backend.FIRST
    return outcomes(in_backend.parity if first else in_backend.more_parity)


@pytest.mark.parametrize(
    ("group", "tried"),
    [("optimizer", ["sgd", "adam", *OPTIMIZERS.values(), *OF_MATRICES.values()]), ("loss", [*LOSSES.values()])],
)
def test_every_optimizer_and_loss_is_compared(group: str, tried: list[in_backend.Choice]) -> None:
    """By its class: two choices may be the same one with other settings."""
    nodes = {path.stem: yaml.safe_load(path.read_text()) for path in (conf_path() / group).glob("*.yaml")}
    classes = {name: node["_target_"] for name, node in nodes.items() if "_target_" in node}
    names = [choice if isinstance(choice, str) else choice[0] for choice in tried if not isinstance(choice, dict)]
    assert {classes[name] for name in names} == set(classes.values()), "add the new one to tests/in_backend.py"


def furthest(left: np.ndarray, right: np.ndarray) -> float:
    """The largest difference."""
    assert left.shape == right.shape
    return float(np.abs(left - right).max())


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("precision", STEPPED)
@pytest.mark.parametrize("name", TRAINED)
def test_every_step_is_the_same(name: str, precision: str, other: str) -> None:
    check_steps(trained(name), name, precision, other)


@pytest.mark.wide
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", OPTIMIZERS | OF_MATRICES)
def test_every_step_of_every_optimizer_is_the_same(more: Both, name: str, other: str) -> None:
    check_steps(more, f"mlp {name}", "fp64", other)


@pytest.mark.parametrize("backend", EACH)
@pytest.mark.parametrize("name", ["muon", "adamw"])
@pytest.mark.wide
def test_a_matrix_in_bfloat16_decays_by_as_much_as_in_float64(name: str, backend: str) -> None:
    found, (start, _) = outcomes(in_backend.narrow)[backend], in_backend.narrow_start()
    wide, narrow = (np.vdot(found[name, dtype], start) / np.vdot(start, start) for dtype in ("float64", "bfloat16"))
    assert wide == pytest.approx((1 - 0.002) ** 40, abs=0.02)
    assert narrow == pytest.approx(wide, abs=0.01)


@pytest.mark.parametrize("backend", EACH)
@pytest.mark.parametrize("name", ["momentum", "rmsprop", "muon"])
@pytest.mark.wide
def test_a_matrix_in_bfloat16_moves_as_far_as_in_float64(name: str, backend: str) -> None:
    found, (start, _) = outcomes(in_backend.narrow)[backend], in_backend.narrow_start()
    wide, narrow = (found[name, dtype] - start for dtype in ("float64", "bfloat16"))
    assert np.vdot(narrow, wide) / np.vdot(wide, wide) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("backend", EACH)
@pytest.mark.parametrize("name", ["adamw", "rmsprop"])
@pytest.mark.wide
def test_a_gradient_whose_square_overflows_float16_moves_a_matrix_as_in_float64(name: str, backend: str) -> None:
    """Keras had NaN; the size of its gradients does not matter to either optimizer."""
    found, (start, _) = outcomes(in_backend.narrow)[backend], in_backend.narrow_start()
    wide, narrow = (found[name, dtype] - start for dtype in ("float64", "float16"))
    assert np.vdot(narrow, wide) / np.vdot(wide, wide) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("backend", EACH)
@pytest.mark.wide
def test_the_running_variance_of_a_large_batch_in_float16_is_that_in_float64(backend: str) -> None:
    """It was NaN on Keras: the number of its values overflowed."""
    found = outcomes(in_backend.narrow)[backend]
    wide, narrow = (found["running variance", dtype] for dtype in ("float64", "float16"))
    np.testing.assert_allclose(narrow, wide, rtol=2e-3)


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", ["sgd", "adam", *OPTIMIZERS])
def test_every_optimizer_makes_the_same_updates(found: Both, name: str, other: str) -> None:
    ours, theirs = (found[backend].updates[name] for backend in ("torch", other))
    assert (np.abs(np.diff(ours, axis=0)) > 1e-5).all(), "an update that changes nothing proves nothing"
    # Keras takes AdamW's weight decay through float32 on TensorFlow: 1.5e-12
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-11)


def check_steps(found: Both, name: str, precision: str, other: str) -> None:
    """Hold the weights after each step against torch's."""
    ours, theirs = (found[backend].steps[name, precision].trail for backend in ("torch", other))
    assert ours.shape == theirs.shape
    assert len(ours) == STEPS + 1  # the weights at the start, and after each step
    moved = np.abs(np.diff(ours, axis=0)).max(axis=1)
    assert (moved > 1e-5).all(), "a step that changes nothing proves nothing"
    differs = np.abs(ours - theirs).max(axis=1)
    assert not differs[0], "the initial weights differ"
    for step, distance in enumerate(differs[: SMOOTH if (name, precision) == KINKED else None]):
        assert distance <= STEPPED[precision], f"step {step}: {distance:.1e}"


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", TRAINED)
def test_same_kinds_shapes_dtypes_and_count(name: str, other: str) -> None:
    for precision in STEPPED:
        dtype = {"fp32": "float32", "fp64": "float64"}[precision]
        ours, theirs = (trained(name)[backend].steps[name, precision] for backend in ("torch", other))
        assert ours.weights == theirs.weights
        assert {result for _, _, result in ours.weights} == {dtype}
        assert ours.parameters == theirs.parameters
        assert ours.parameters == sum(int(np.prod(shape)) for kind, shape, _ in ours.weights if kind not in STATISTICS)
        assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-3 if (name, precision) == KINKED else 1e-5)
        assert ours.train_score == theirs.train_score


@pytest.mark.parametrize("backend", EACH)
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("linear", 28 * 28 * 10 + 10), ("mlp", 101_770), ("cnn", 83_466), ("mnist_cnn", 1_199_882)],
)
def test_parameter_counts_are_those_of_the_sources(found: Both, name: str, parameters: int, backend: str) -> None:
    shapes = found[backend].logits[name, 28, "fp32"].shapes
    assert sum(int(np.prod(shape)) for _, shape in shapes) == parameters


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("precision", LOGITS)
@pytest.mark.parametrize("name", MODELS)
def test_weights_moved_across_give_the_same_logits(found: Both, name: str, precision: str, other: str) -> None:
    check_logits(found, name, 28, precision, other)


@pytest.mark.wide
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("precision", LOGITS)
@pytest.mark.parametrize("name", MODELS)
def test_and_on_small_images(more: Both, name: str, precision: str, other: str) -> None:
    check_logits(more, name, 8, precision, other)


def check_logits(found: Both, name: str, side: int, precision: str, other: str) -> None:
    """Hold logits, and the weights on their way through, against torch's."""
    ours, theirs = (found[backend].logits[name, side, precision] for backend in ("torch", other))
    assert ours.shapes == theirs.shapes
    for one in (ours, theirs):  # what goes in comes out again, and was the same in both
        np.testing.assert_array_equal(one.returned, ours.given)
    assert np.ptp(ours.logits, axis=0).min() > 1e-3, "the images make no difference"
    assert furthest(ours.logits, theirs.logits) <= LOGITS[precision]


@pytest.mark.wide
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("activation", in_backend.ACTIVATIONS)
def test_activations_keep_all_digits_of_float64(more: Both, activation: str, other: str) -> None:
    ours, theirs = (more[backend].logits[activation, 8, "fp64"].logits for backend in ("torch", other))
    assert furthest(ours, theirs) <= LOGITS["fp64"]


@pytest.mark.wide
@pytest.mark.parametrize("other", OTHERS)
def test_layers_with_dtypes_of_their_own(more: Both, other: str) -> None:
    ours, theirs = (more[backend].steps["mixed layers", "fp32"] for backend in ("torch", other))
    assert ours.weights == theirs.weights
    assert [dtype for _, _, dtype in ours.weights] == ["float64", "float64", "float32", "float32"]
    assert furthest(ours.trail, theirs.trail) <= STEPPED["fp32"]
    mixed, narrow = (
        furthest(*(more[backend].logits[f"{name} layers", 8, "fp32"].logits for backend in ("torch", other)))
        for name in ("mixed", "narrow")
    )
    assert mixed <= LOGITS["fp32"]
    # bfloat16 has 8 bits of mantissa: a hidden number may be rounded either way, the logits are of size 1
    assert narrow <= 2**-7


@pytest.mark.parametrize("backend", EACH)
@pytest.mark.parametrize(("dtype", "close"), [("float32", 2e-6), ("float64", 1e-13)])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_gradients(found: Both, name: str, dtype: str, close: float, backend: str) -> None:
    outputs, targets = in_backend.outputs_and_targets(in_backend.loss_of(LOSSES[name]), 3, dtype)
    value, gradient = REFERENCES[name](outputs.astype("float64"), targets)
    result = found[backend].losses[name, dtype]
    assert result.value == pytest.approx(value, rel=close / 4, abs=close)  # a squared error of numbers is 19
    np.testing.assert_allclose(result.gradient, gradient, rtol=0, atol=close / 10)


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_the_test_set_is_the_loss_that_is_trained(name: str) -> None:
    loss = in_backend.loss_of(LOSSES[name])
    for dtype in ("float32", "float64"):
        outputs, targets = in_backend.outputs_and_targets(loss, 4, dtype)
        result = loss.numpy(outputs, targets)
        assert isinstance(result, float)
        assert result == pytest.approx(REFERENCES[name](outputs.astype("float64"), targets)[0], abs=1e-12)


def cross_entropy(
    logits: np.ndarray, labels: np.ndarray, smoothing: float, class_weights: Sequence[float] = (1.0,) * 10
) -> tuple[float, np.ndarray]:
    """Independent of the package: targets as distributions, by SciPy."""
    target = np.eye(10)[labels] * (1 - smoothing) + smoothing / 10
    weight_N = np.array(class_weights)[labels]
    value = -(weight_N * (target * log_softmax(logits, axis=1)).sum(axis=1)).mean()
    return float(value), weight_N[:, None] * (softmax(logits, axis=1) - target) / len(labels)


def mse(logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    likely = softmax(logits, axis=1)
    off = likely - np.eye(10)[labels]
    inner = 2 * off / off.size
    return float((off**2).mean()), likely * (inner - (inner * likely).sum(axis=1, keepdims=True))


def hinge(logits: np.ndarray, labels: np.ndarray, margin: float) -> tuple[float, np.ndarray]:
    gradient = np.zeros_like(logits)
    total = 0.0
    for row, label in enumerate(labels):
        rival = max((c for c in range(10) if c != label), key=lambda c: logits[row, c])
        short = margin + logits[row, rival] - logits[row, label]
        if short > 0:
            total += short
            gradient[row, rival], gradient[row, label] = 1 / len(labels), -1 / len(labels)
    return total / len(labels), gradient


def squared(outputs: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    error = outputs - targets.astype("float64")
    return float((error**2).mean()), 2 * error / error.size


def huber(outputs: np.ndarray, targets: np.ndarray, delta: float) -> tuple[float, np.ndarray]:
    """By SciPy."""
    error = outputs - targets.astype("float64")
    return float(special.huber(delta, error).mean()), np.clip(error, -delta, delta) / error.size


REFERENCES = {
    "cross_entropy": lambda x, y: cross_entropy(x, y, 0.0),
    "smoothed": lambda x, y: cross_entropy(x, y, 0.1),
    "weighted": lambda x, y: cross_entropy(x, y, 0.1, CLASS_WEIGHTS),
    "mse": mse,
    "hinge": lambda x, y: hinge(x, y, 1.0),
    "wide hinge": lambda x, y: hinge(x, y, 5.0),
    "squared_error": squared,
    "huber": lambda x, y: huber(x, y, 1.0),
    "wide huber": lambda x, y: huber(x, y, 3.0),
}
