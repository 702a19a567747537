"""Generation: the same tokens with a cache as without, on every backend; how tokens are chosen; stage=generate."""

from __future__ import annotations

import copy
import json
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import done, failed, pipeline, refused, script, write_files
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from in_backend import experiment
from in_generation import KINDS, SHAPES, Compared, compared, random_weights

from pipeline import tokens
from pipeline.backends.shared.generation import Generated, Row, Uncached, generate
from pipeline.backends.shared.sampling import Sampling
from pipeline.errors import UserError
from pipeline.machine.capability import Resolved
from pipeline.machine.device import Place
from pipeline.runs.json_files import read_json
from pipeline.runs.result import metrics_of, read_result
from pipeline.spec import build_as
from pipeline.stages import generated_text
from pipeline.stages.generate import Generate, read_card
from pipeline.stages.generated_text import Stops, readable

HERE = Path(__file__).parent
SAME = 1e-12  # of logits in float64


def hold(name: str, found: Compared) -> None:
    assert found.from_uncached < SAME, name
    assert found.from_alone < SAME, name
    assert found.from_formulas < SAME, name
    assert found.same_tokens, name
    assert found.same_alone, name
    assert found.moved > 1, name  # so that windows that move are compared too


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_changes_no_token_and_no_logit_on_torch(kind: str) -> None:
    hold(kind, compared("torch", KINDS[kind]))


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Also where the machine has one core."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("width", "expected"), [(32, 1), (512, 2)])
def test_a_token_of_a_large_model_gets_all_threads(width: int, expected: int) -> None:
    import torch

    model = ("gpt", {"layers": 2, "heads": 4, "width": width})
    of = experiment("torch", stage="train", dataset="moby_dick", model=model)
    of.backend.load()
    from pipeline.backends.torch.generate import Steps

    steps = Steps(of, SHAPES, random_weights(of), Resolved(Place("cpu"), "fp32", "", ""))
    threads: list[int] = []
    layer = next(one for one in steps.net.modules() if isinstance(one, torch.nn.Linear))
    layer.register_forward_pre_hook(lambda *_: threads.append(torch.get_num_threads()))
    steps.prefill(np.array([[3]]), np.array([1]))
    steps.step(np.array([5]), np.array([1]))
    assert threads == [expected] * 2
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("width", "quicker", "expected"), [(512, True, True), (512, False, False), (32, True, False)])
def test_a_large_model_is_read_by_the_quicker_library(
    width: int, quicker: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same float32 logits, but for rounding, as the net's own products of its kernels as they were made."""
    import torch

    of = experiment(
        "torch", stage="train", dataset="moby_dick", model=("gpt", {"layers": 2, "heads": 4, "width": width})
    )
    of.backend.load()
    from pipeline.backends.torch import generate
    from pipeline.models.torch_quick import Linear

    if expected and not torch.backends.mkldnn.is_available():
        pytest.skip("this torch was built without oneDNN")
    monkeypatch.setattr(generate, "onednn_is_quicker", lambda: quicker)  # whichever processor this is
    steps = generate.Steps(of, SHAPES, random_weights(of), Resolved(Place("cpu"), "fp32", "", ""))
    plain = copy.deepcopy(steps.net)
    for layer in (one for one in plain.modules() if isinstance(one, Linear)):
        layer.weight.data, layer.by_onednn = layer.weight.data.contiguous(), False
    with torch.profiler.profile() as seen:
        steps.prefill(np.array([[3, 5, 2]]), np.array([3]))
        found = steps.step(np.array([1]), np.array([3]))
    assert any("_linear_pointwise" in event.name for event in seen.events()) is expected
    with torch.inference_mode():
        whole = plain(torch.tensor([[3, 5, 2, 1]]))[0, -1].double().numpy()
    assert np.abs(found[0] - whole).max() < 1e-5 * np.abs(whole).max()


@pytest.mark.parametrize("read_bytes", [1e6, 1e9])
def test_layers_of_the_users_own_are_stored_for_rows_too(read_bytes: float) -> None:
    """torch multiplies by them, which asks MKL: along their longer side, whatever the model's size."""
    import torch

    experiment(
        "torch", stage="train", dataset="moby_dick", model=("gpt", {"layers": 1, "heads": 1, "width": 8})
    ).backend.load()
    from pipeline.backends.torch.generate import lay_for_rows

    net = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Linear(32, 8))
    lay_for_rows(net, read_bytes)
    assert [one.is_contiguous() for one in net.parameters() if one.ndim == 2] == [False, True]


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_a_cache_changes_no_token_and_no_logit_in_keras(backend: str, tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = script(tmp_path, backend, HERE / "in_generation.py", backend, str(file))
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(file.read_text())
    assert found.keys() == KINDS.keys()
    for name, one in found.items():
        hold(name, Compared(**one))


class Next:
    """Steps that want the token after the last one, and keep what they were asked."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        self.windows: list[list[list[int]]] = []
        self.lengths: list[int] = []  # of the prefills

    def prefill(self, tokens_BT: np.ndarray, lengths_B: np.ndarray, /) -> np.ndarray:
        self.lengths.append(tokens_BT.shape[1])
        rows = zip(tokens_BT, lengths_B, strict=True)
        self.now = [[int(token) for token in tokens[:length]] for tokens, length in rows]
        return self._wanted()

    def step(self, tokens_B: np.ndarray, at_B: np.ndarray, /) -> np.ndarray:
        for window, token, at in zip(self.now, tokens_B, at_B, strict=True):
            window[at:] = [int(token)]
        return self._wanted()

    def _wanted(self) -> np.ndarray:
        self.windows.append([list(window) for window in self.now])
        return np.array([np.eye(self.vocabulary)[(window[-1] + 1) % self.vocabulary] for window in self.now])


def test_every_token_sees_all_before_it_up_to_the_context_and_half_of_it_at_least() -> None:
    steps = Next(1000)
    prompts = [np.array([0]), np.array([100, 101, 102, 103, 104, 105])]
    found = generate(steps, prompts, 6, 20, Sampling(temperature=0))
    assert [row.tokens for row in found.rows] == [list(range(21)), list(range(100, 126))]
    for number, windows in enumerate(steps.windows[-20:]):
        for prompt, window in zip(prompts, windows, strict=True):
            last = int(prompt[-1]) + number
            assert window == list(range(last - len(window) + 1, last + 1))
            assert len(window) in range(3, 7) or window[0] == prompt[0]
    assert [row.moved for row in found.rows] == [4, 5]
    assert len(found.prefill_s) + len(found.moved_s) + len(found.step_s) == len(found.choose_s) == 20
    timed = 1 + len(found.moved_s)
    assert set(steps.lengths[-timed:]) <= set(steps.lengths[:-timed])  # each has been compiled before it is timed


def test_a_row_that_ends_leaves_the_others_alone() -> None:
    prompts = [np.array([0]), np.array([50, 51])]

    def ended(row: int, token: int) -> str | None:
        return "enough" if row == 0 and token == 3 else None

    found = generate(Next(100), prompts, 4, 9, Sampling(temperature=0), ended)
    assert [row.tokens for row in found.rows] == [list(range(4)), list(range(50, 61))]
    assert [row.ended for row in found.rows] == ["enough", None]
    both = generate(Next(100), prompts, 4, 9, Sampling(temperature=0), lambda *_: "at once")
    assert [len(row.tokens) for row in both.rows] == [2, 3]


LOGITS = arrays(np.float64, (2, 7), elements=st.floats(-20, 20))


@given(logits=LOGITS, temperature=st.floats(0.1, 10), seed=st.integers(0, 2**32 - 1))
def test_probabilities_are_those_of_the_softmax(logits: np.ndarray, temperature: float, seed: int) -> None:
    order, likely = Sampling(temperature, seed=seed).likely(logits)
    powers = np.exp(logits / temperature - (logits / temperature).max(axis=1, keepdims=True))
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(likely, np.take_along_axis(expected, order, axis=1), atol=1e-12)
    assert (np.diff(likely, axis=1) <= 0).all()


@given(logits=LOGITS, top_k=st.integers(1, 7), top_p=st.floats(0.01, 1), seed=st.integers(0, 100))
def test_what_is_left_out_is_never_chosen(logits: np.ndarray, top_k: int, top_p: float, seed: int) -> None:
    sampling = Sampling(1.0, top_k, top_p, seed)
    order, likely = sampling.likely(logits)
    _, among_k = Sampling(1.0, top_k).likely(logits)
    for row in range(2):
        kept = int((likely[row] > 0).sum())
        assert kept <= top_k
        assert kept == 1 or among_k[row, : kept - 1].sum() < top_p + 1e-12  # without the last they do not reach it
        assert among_k[row, :kept].sum() > top_p - 1e-12 or kept == top_k
        assert likely[row].sum() == pytest.approx(1)
        assert sampling.choose(logits, 0)[row] in order[row, :kept]


@given(logits=LOGITS)
def test_greedy_is_the_limit_of_a_low_temperature_and_of_one_token(logits: np.ndarray) -> None:
    greedy = Sampling(temperature=0).choose(logits, 0)
    np.testing.assert_array_equal(greedy, Sampling(top_k=1).choose(logits, 0))
    np.testing.assert_array_equal(greedy, Sampling(top_p=1e-9).choose(logits, 0))
    assert all(logits[row, token] == logits[row].max() for row, token in enumerate(greedy))


def test_a_very_low_temperature_leaves_the_most_probable_token() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sampling(temperature=1e-320).choose(np.array([[0.0, 2.0, 1.0]]), 0).tolist() == [1]


def test_draws_follow_the_probabilities_and_depend_on_seed_row_and_number() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.2]] * 40))
    drawn = np.array([Sampling(seed=1).choose(logits, number) for number in range(100)])
    share = np.bincount(drawn.ravel(), minlength=3) / drawn.size
    np.testing.assert_allclose(share, [0.5, 0.3, 0.2], atol=4 * 0.5 / np.sqrt(drawn.size))
    np.testing.assert_array_equal(drawn[7], Sampling(seed=1).choose(logits, 7))
    np.testing.assert_array_equal(drawn[7, :3], Sampling(seed=1).choose(logits[:3], 7))  # whatever rows come after
    assert (drawn != [Sampling(seed=2).choose(logits, number) for number in range(100)]).any()
    assert len({tuple(row) for row in drawn}) == 100


@pytest.mark.parametrize(
    ("stop", "made"),
    [("end", "all of it the "), ("f it", "all o"), ("a", ""), ("d. t", "all of it the en"), ("zzz", None)],
)
def test_a_text_ends_before_a_stop_text_whatever_the_tokens(stop: str, made: str | None) -> None:
    text = "all of it the end. the"
    learned = tokens.learned("bpe", [b"the end. the end. the end of it all. " * 20], 300, "text")
    stops = Stops(learned, ["no such", stop], (), 2)
    encoded = learned.encode(text.encode(), "text")
    assert len(encoded) < len(text)  # so that a token may hold a stop text and more
    ended = next(filter(None, (stops.ended(1, int(token)) for token in encoded)), None)
    assert ended == (None if made is None else f"the text {stop!r}")
    assert stops.texts == [b"", (text if made is None else made).encode()]


def test_a_text_ends_before_a_stop_token() -> None:
    stops = Stops(tokens.learned("bytes", [], 256, "text"), (), (ord("\n"),), 1)
    assert [stops.ended(0, token) for token in b"ab\n"] == [None, None, "token 10"]
    assert stops.texts == [b"ab"]


def test_what_a_terminal_would_obey_is_not_shown() -> None:
    """What is in a Windows text, and in one of Chinese, was shown as if it were no characters."""
    assert readable(b"a\x1b[2Jb\r\xff\n\tc\xc3\xa9") == "a\\x1b[2Jb\\r\ufffd\n\tcé"
    assert readable("世\u3000界\u202e".encode()) == "世\u3000界\\u202e"


def test_a_context_of_one_token_has_a_rate() -> None:
    """Its window is computed anew for each token, without a step: the headline was missing, without a word."""

    def decode_of(count: int) -> tuple[list[str], str]:
        steps = Uncached(lambda x_BT: np.eye(5)[(x_BT + 1) % 5], 1, None)
        found = generate(steps, [np.array([1])], 1, count, Sampling(temperature=0))
        assert found.rows[0].tokens == [1, 2, 3, 4][: count + 1]
        text, resolved = generated_text.Text(found.rows[0], 1, b""), Resolved(Place("cpu"), "fp32", "", "")
        shown = generated_text.rows(["a"], [text], found, resolved)
        return [metric.name for metric in generated_text.metrics(found)], dict(shown)["decode"]

    names, said = decode_of(3)
    assert Generate.headline in names
    assert re.fullmatch(r"[\d,]+ tokens/s of all rows; medians: .* ms a window computed again \(n=2\)", said)
    names, said = decode_of(1)
    assert Generate.headline not in names and said == "no rate: each text has one token, which the prefill gives"


def test_the_milliseconds_of_a_step_are_said_to_be_medians() -> None:
    """Beside a rate that is of all time: 392 tokens/s of two rows stood before 1.76 ms a step, which came to 1,136."""
    row, resolved = Row([1, 2, 3, 4, 5], 8), Resolved(Place("cpu"), "fp32", "", "")
    times: dict[str, Any] = {"prefill_s": [0.1], "step_s": [0.001, 0.001, 0.018], "choose_s": [0.0] * 4}
    found = Generated([row], generated=4, prompted=1, **times)
    shown = generated_text.rows(["a"], [generated_text.Text(row, 1, b"")], found, resolved)
    assert dict(shown)["decode"] == ("150 tokens/s of all rows; medians: 1.00 ms a step and 0.00 ms to choose (n=3)")


TEXT = "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse.\n" * 30
TRAIN = (
    *("stage=train", "dataset=text", "dataset.path=whale.txt", "dataset.context=16"),
    *("training.epochs=2", "training.batch_size=16", "tracking=none"),
)
GPT = ("model=gpt", "model.layers=1", "model.heads=2", "model.width=16", "model.positions=rotary")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of a small model of a small text."""
    folder = tmp_path_factory.mktemp("trained")
    write_files(folder, {"whale.txt": TEXT})
    done(folder, *TRAIN, *GPT)
    return folder


def texts(folder: Path, *words: str, **variables: str) -> tuple[list[dict[str, Any]], Path]:
    """What stage=generate wrote, and the folder of its run."""
    run = done(folder, "stage=generate", "run=latest", "tracking=none", *words, **variables)
    return json.loads((run / "artifacts" / "generated" / "generated.json").read_text()), run


MANY = ("stage.prompt=[Call me,S]", "stage.tokens=40", "stage.seed=5", "stage.top_k=9", "stage.top_p=0.99")


def test_a_run_goes_on_with_prompts(trained: Path) -> None:
    found, run = texts(trained, *MANY)
    kept = read_result(run)
    assert kept is not None and kept.table[-1][0] == "run"  # which `latest` was
    assert (trained / "runs" / kept.table[-1][1] / "artifacts" / "model" / "weights.npz").is_file()
    assert [len(one["tokens"]) for one in found] == [40, 40]
    for number, one in enumerate(found, 1):
        file = run / "artifacts" / "generated" / f"{number}.txt"
        assert file.read_text() == one["prompt"] + one["text"]
    summary = (run / "artifacts" / "summary.md").read_text()
    assert [line for line in summary.splitlines() if line.startswith("Behind")] == [
        "Behind 'Call me', 40 tokens:",
        "Behind 'S', 40 tokens:",
    ]
    shown = dict(read_json(run / "result.json")["table"])
    assert shown["text 2"] == f"S{found[1]['text']}"
    metrics = metrics_of(run)
    assert metrics["generated"].value == 80
    assert min(metrics[f"{part}/tokens_per_s"].value for part in ("prefill", "decode")) > 0
    about = read_json(run / "receipt.json")
    made = about["generation"]
    assert made["moved"] == [4, 3]
    assert sum(made[f"{part}_s"]["n"] for part in ("prefill", "moved", "step")) == made["choose_s"]["n"] == 40
    again, other = texts(trained, *MANY, "stage.cache=false")
    assert again == found
    without = read_json(other / "receipt.json")
    assert (made["cached"], without["generation"]["cached"]) == (True, False)
    assert made["text_sha256"] == without["generation"]["text_sha256"]
    assert about["weights_sha256"] == without["weights_sha256"]
    source = f"run={about['source_run']}"
    words = ("-m", "stage=generate", source, "tracking=none", *MANY[1:], "stage.prompt=[Call me,S]")
    grid = pipeline(trained, *words, "sweep.dry_run=true").stdout
    assert f"finished as {run.name}" in grid, grid


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["tensorflow", "jax"])
def test_every_backend_writes_the_same(trained: Path, backend: str) -> None:
    assert texts(trained, *MANY, f"backend={backend}")[0] == texts(trained, *MANY)[0]


def test_a_stop_text_ends_a_text(trained: Path) -> None:
    greedy = ("stage.prompt=Call me", "stage.temperature=0", "stage.tokens=30")
    (whole,), _ = texts(trained, *greedy)
    stop = whole["text"][9:11]
    (short,), run = texts(trained, *greedy, f"stage.stop=['{stop}']")
    assert short["text"] == whole["text"].partition(stop)[0]
    assert short["ended_by"] == f"the text {stop!r}"
    assert dict(read_json(run / "result.json")["table"])["ended"].startswith(f"by the text {stop!r} after ")


def test_a_stop_token_ends_one_of_two_prompts_where_it_comes(trained: Path) -> None:
    """By the setting, and not by the part that follows it alone; the other text goes on as it did."""
    whole, _ = texts(trained, *MANY)
    mine, others = (one["tokens"] for one in whole)
    token = next((one for one in mine if one not in others), mine[3])
    short, _ = texts(trained, *MANY, f"stage.stop_tokens=[{token}]")
    for before, now in zip(whole, short, strict=True):
        count = before["tokens"].index(token) + 1 if token in before["tokens"] else 40
        assert now["tokens"] == before["tokens"][:count]
        assert now["ended_by"] == (f"token {token}" if token in before["tokens"] else None)
    assert len(short[0]["text"]) == len(short[0]["tokens"]) - 1  # of characters: all but the one that ended it


REFUSED = {
    ("stage.prompt=null",): 'stage.prompt=null: give a text, as stage.prompt="Call me"',
    ("stage.prompt=[]",): 'stage.prompt=[]: give a text, as stage.prompt="Call me"',
    ("stage.prompt=''",): "stage.prompt='': is empty; the model needs one token at least to go on",
    ("stage.prompt=[Call me,Queequeg]",): "stage.prompt='Queequeg': the character 'Q' at 0 is not among the 26 that",
    (f"stage.prompt={'Call me ' * 3}",): "has 24 tokens, and the model was trained on sequences of 16; give a shorter",
    (f"stage.prompt='{'Call me ' * 11}'",): f"stage.prompt='{'Call me ' * 10}'... (88 characters): has 88 tokens, and",
    ("stage.prompt=a", "stage.tokens=0"): "stage.tokens=0: ",
    ("stage.prompt=a", "stage.temperature=-1"): "stage.temperature=-1: ",
    ("stage.prompt=a", "stage.top_p=0"): "stage.top_p=0: ",
    ("stage.prompt=a", "stage.top_p=1.5"): "stage.top_p=1.5: ",
    ("stage.prompt=a", "stage.top_k=0"): "stage.top_k=0: ",
    ("stage.prompt=a", "stage.top_k=99"): "stage.top_k=99: the model knows 26 tokens; choose 1 to 26",
    (
        "stage.prompt=a",
        "stage.temperature=0",
        "stage.top_k=3",
    ): "stage.top_k=3 with stage.temperature=0: takes",
    (
        "stage.prompt=a",
        "stage.temperature=0",
        "stage.seed=3",
    ): "stage.seed=3 with stage.temperature=0: nothing",
    ("stage.prompt=a", "stage.top_k=1", "stage.seed=3"): "stage.seed=3 with stage.top_k=1: nothing is drawn at random",
    ("stage.prompt=a", "stage.top_k=1", "stage.top_p=0.5"): "stage.top_p=0.5 with stage.top_k=1: nothing is drawn",
    ("stage.prompt=a", "backend=tensorflow", "backend.xla=true"): "backend.xla=true with stage=generate: is for tr",
    ("stage.prompt=a", "backend.compile=true"): "backend.compile=true with stage=generate: is for training steps",
    ("stage.prompt=a", "stage.stop=[Z]"): "stage.stop='Z': the character 'Z' at 0 is not among the 26 that",
    ("stage.prompt=a", "stage.stop=['']"): "stage.stop='': is empty; every text would end at once",
    ("stage.prompt=a", "stage.stop_tokens=[26]"): "stage.stop_tokens=26: tokens are 0 to 25",
    ("stage.prompt=a", "training.evaluation_batch_size=3"): "training.evaluation_batch_size with stage=generate: it re",
    (
        "stage.prompt=a",
        "dataset.context=64",
    ): "with dataset.context=16 and keeps it; what can be changed is backend, device, precision\n",
    (
        "stage.prompt=a",
        "model.layers=2",
    ): "model.layers=2 with stage=generate: run {run} was made with model.layers=1 and",
    ("stage.prompt=a", "model.patch=2"): "model.patch: no such key (model=vit has it); choose from model.",
    ("stage.prompt=a", "seed=2"): "with seed=0 and keeps it; stage.seed is that of this stage\n",
}


@pytest.mark.parametrize("words", REFUSED, ids=" ".join)
def test_what_cannot_be_generated_is_refused(trained: Path, words: tuple[str, ...]) -> None:
    said = refused(trained, "stage=generate", "run=latest", "tracking=none", *words)
    (run,) = (one.parents[1] for one in (trained / "runs").glob("*/artifacts/model"))
    assert REFUSED[words].format(run=run.name) in f"{said}\n"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (3, """=3: should be a valid string, or a valid list, and each value in it {text}: "stage.stop='3'\""""),
        (["a", 3], """.1=3: {text}: "stage.stop=['a','3']\""""),
        ([1.5], """.0=1.5: {text}: "stage.stop=['1.5']\""""),
        (["it's", 3], ".1=3: should be a valid string"),  # which needs quotes of two kinds
        (["a", ["b"]], ".1=['b']: should be a valid string"),
    ],
)
def test_a_number_in_the_place_of_a_text_is_answered_with_how_it_is_one(typed: object, said: str) -> None:
    """`[3]` was advised for `3`, and refused as well."""
    with pytest.raises(UserError) as refusal:
        build_as(Generate, {"stop": typed}, "stage")
    assert str(refusal.value) == f"stage.stop{said.format(text='should be a valid string; in quotes it is one')}"


@pytest.mark.wide
def test_a_key_of_the_framework_that_trained_it_is_taken(tmp_path: Path) -> None:
    write_files(tmp_path, {"whale.txt": TEXT})
    done(tmp_path, *TRAIN, *GPT, "backend=tensorflow")
    texts(tmp_path, "stage.prompt=a", "stage.tokens=2", "backend.xla=false")


def test_a_run_that_is_not_a_language_model_of_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its task is Classification; stage=generate takes a language model of text"):
        Generate(prompt="a").check(experiment("torch"))
    write_files(tmp_path, {"artifacts/model/card.json": '{"task": "x", "x": [3], "outputs": [3, 2], "vocabulary": 2}'})
    with pytest.raises(UserError, match=f"^run={tmp_path.name}: its tokens stand for no text"):
        read_card(tmp_path)


def test_another_vocabulary_than_the_one_that_was_saved_is_refused(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "runs", tmp_path / "runs")
    (run,) = (one for one in (tmp_path / "runs").iterdir() if (one / "artifacts" / "model").is_dir())
    card = run / "artifacts" / "model" / "card.json"
    card.write_text(card.read_text().replace("gh", "hg"))
    said = failed(tmp_path, "stage=generate", f"run={run}", "stage.prompt=a")
    assert said == f"run={run.name}: artifacts/model/card.json now differs from what it saved (another sha256)"


@pytest.mark.wide
@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_a_model_of_the_users_own_goes_on_without_a_cache(tmp_path: Path, backend: str) -> None:
    shutil.copyfile(HERE / "own_tasks.py", tmp_path / "own_tasks.py")
    write_files(
        tmp_path, {"whale.txt": TEXT, "conf/model/tiny.yaml": "_target_: own_tasks.TinyTransformer\ntied: false\n"}
    )
    allowed = {"PIPELINE_MODULES": "own_tasks", "PYTHONPATH": str(tmp_path)}
    where = f"hydra.searchpath=[file://{tmp_path / 'conf'}]"
    done(tmp_path, where, *TRAIN, "model=tiny", f"backend={backend}", **allowed)
    words = ("stage=generate", "run=latest", "stage.prompt=[Call me,So]", "stage.tokens=20", "tracking=none")
    ended = pipeline(tmp_path, *words, **allowed)
    assert ended.returncode == 0, ended.stderr
    assert "model=tinytransformer: has no cache; everything is computed again for each token" in ended.stderr
