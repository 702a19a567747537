"""Where in the user's code an exception comes from, and whose a message says that it is."""

from __future__ import annotations

import ast
import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline import raised
from pipeline.errors import Readable, Stopped, UserError
from pipeline.raised import first_line, in_words, shortened
from pipeline.runs.user_errors import as_run_error
from pipeline.runs.weights import digest
from pipeline.tokens.character import UnknownCharacter

RAISED = [  # one of each class whose __init__ is not its base's, and of one that inherits it
    Readable("a message"),
    UserError("a message"),
    Stopped("SIGTERM", 143),
    UnknownCharacter("dataset=text", "\u4e16", 7, 65),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
def test_an_error_reaches_another_process_as_it_was(error: BaseException) -> None:
    """Workers and loaders send theirs by pickle: a class that cannot be read there hides what went wrong."""
    there = pickle.loads(pickle.dumps(error))
    assert (type(there), str(there), vars(there)) == (type(error), str(error), vars(error))


def test_every_error_with_an_init_of_its_class_is_sent_to_another_process_here() -> None:
    package = Path(raised.__file__).parent
    classes = [
        node
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    names = {"BaseException", "Exception", "ValueError"}
    while more := {one.name for one in classes if names & {ast.unparse(base) for base in one.bases}} - names:
        names |= more
    with_init = {
        one.name
        for one in classes
        if one.name in names
        and any(isinstance(part, ast.FunctionDef) and part.name in ("__init__", "__new__") for part in one.body)
    }
    assert with_init == {type(error).__name__ for error in RAISED} - {"UserError"}


def caught(fails: Callable[[], object], *, here: bool = True) -> Exception:
    """The exception of a call; without `here` as if this file had not made it."""
    try:
        fails()
    except Exception as error:
        begun = error.__traceback__
        return error if here else error.with_traceback(begun and begun.tb_next)
    raise AssertionError("it did not fail")


def mistaken() -> None:
    json.loads("{")


def ours() -> None:
    digest({"a": "no array"})  # type: ignore[dict-item]


def test_the_innermost_function_of_the_users_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[1])
    said = in_words(caught(mistaken))
    assert said.startswith("JSONDecodeError: Expecting property name")
    assert ", in mistaken (tests/test_raised.py, line " in said


def test_a_traceback_that_is_quoted_counts() -> None:
    """As a loader's process and TensorFlow's graphs quote it."""
    quoted = f'Caught KeyError in worker 0.\n  File "{json.__file__}", line 1, in loads\n'
    quoted += f'  File "{__file__}", line 7, in load\nKeyError: 3\n\n\t [[node]]'
    assert in_words(caught(lambda: (_ for _ in ()).throw(RuntimeError(quoted)))).startswith("KeyError: 3, in load (")


def test_a_long_word_in_a_message_takes_no_time() -> None:
    """Each of its letters was tried as the beginning of an exception's name."""
    assert in_words(caught(lambda: (_ for _ in ()).throw(ValueError("A" * 10**6)))).startswith("ValueError: AAA")


OF_KERAS = "Exception encountered when calling Odd.call().\n\n\x1b[1mit breaks.\x1b[0m\n\nArguments received by Odd"
IN_A_GRAPH = 'in user code:\n\n    File "{}", line 7, in call\n        raise\n\n    {}: {}'


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TypeError(OF_KERAS), "TypeError: it breaks"),
        (KeyError(OF_KERAS), "KeyError: it breaks"),
        (ValueError(IN_A_GRAPH.format(json.__file__, "ValueError", OF_KERAS)), "ValueError: it breaks"),
        (RuntimeError(IN_A_GRAPH.format(json.__file__, "KeyError", repr(OF_KERAS))), "KeyError: it breaks"),
    ],
)
def test_what_keras_says_around_a_message_is_left_out(error: Exception, said: str) -> None:
    """The layer and what it was called with: in a graph of TensorFlow's below a traceback, of a KeyError in quotes."""
    assert in_words(error) == said


def test_what_tensorflow_makes_of_a_function_is_not_the_users_file(tmp_path: Path) -> None:
    generated = tmp_path / "__autograph_generated_file_x7.py"
    generated.write_text("")
    assert in_words(ValueError(f'in user code: File "{generated}", line 1, in tf__step')).endswith("in tf__step")


@pytest.mark.parametrize(("file", "top"), [("lab/nets.py", "lab"), ("lab.py", "lab")])
def test_an_installed_package_that_the_user_names_is_theirs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, top: str
) -> None:
    place = tmp_path / "site-packages" / file
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("def build():\n    return {}['width']\n")
    namespace: dict[str, Callable[[], object]] = {}
    exec(compile(place.read_text(), str(place), "exec"), namespace)
    monkeypatch.setattr("pipeline.allowed._taken", None)
    error = caught(namespace["build"], here=False)
    assert in_words(error) == "KeyError: 'width'"
    monkeypatch.setenv("PIPELINE_MODULES", f"other,{top}.more")
    assert in_words(error) == f"KeyError: 'width', in build ({place}, line 2)"


def test_what_a_library_raises_is_about_what_it_trains(tmp_path: Path) -> None:
    library = caught(lambda: np.zeros(3).reshape(2), here=False)
    library = library.with_traceback(None)  # NumPy has no frame of Python there
    assert as_run_error(library, None, tmp_path) is None
    found = as_run_error(library, "stage.module=mine.Lit", tmp_path)
    assert str(found).startswith("stage.module=mine.Lit raises ValueError: cannot reshape array")
    assert str(found).endswith("; artifacts/traceback.txt has the traceback") and (tmp_path / "traceback.txt").is_file()


def test_what_this_package_raises_is_not_said_to_be_the_users(tmp_path: Path) -> None:
    """Its own faults keep their traceback."""
    fault = caught(ours, here=False)
    fault = fault.with_traceback(fault.__traceback__ and fault.__traceback__.tb_next)
    assert raised.is_of_this_package(caught(ours))
    assert as_run_error(fault, "stage.module=mine.Lit", tmp_path) is None
    assert not any(tmp_path.iterdir())


IN_A_STEP = """
import contextlib, json, pathlib, sys, types
import torch
from pipeline.backends.shared.model_errors import of_model
from pipeline.backends.torch.model_errors import in_model
from pipeline.backends.torch.step import Gathering, Step
from pipeline.models.mlp import Mlp
from pipeline.models.torch_layers import ChannelsFirst

class Mine: pass
class InPlace(torch.nn.Module):
    def forward(self, x):
        return x.exp().add_(1)
def said(net, model, loss=lambda outputs, _: (outputs.sum(), outputs.sum())):
    step = Step.__new__(Step)
    step.net, step.judged, step.scaler, step.phase = net, loss, None, contextlib.nullcontext
    step.lowering = types.SimpleNamespace(forward=contextlib.nullcontext)
    step.gathering, step.narrow = Gathering(torch.ones(()), fresh=False), set()
    experiment = types.SimpleNamespace(data_model=model, training=types.SimpleNamespace(batch_size=1))
    try:
        step(torch.ones(1, 3, requires_grad=True), None)
    except Exception as error:
        return str(of_model(error, in_model(error, step), experiment, 1234, 1, pathlib.Path(sys.argv[1])))
fails = lambda outputs, _: torch.nn.functional.nll_loss(outputs, torch.tensor([5]))
print(json.dumps({
    "forward": said(torch.nn.Linear(4, 2), Mine()),
    "backward": said(InPlace(), Mine()),
    "our model": said(torch.nn.Linear(4, 2), Mlp()),
    "our layer": said(torch.nn.Sequential(ChannelsFirst()), Mine()),
    "the loss": said(torch.nn.Linear(3, 2), Mine(), fails),
}))
"""


@pytest.mark.wide
def test_what_a_model_raises_in_a_step_of_torchs_is_its_own_and_nothing_else(tmp_path: Path) -> None:
    """Neither what our models and layers raise, nor a loss: these keep their traceback."""
    command = [sys.executable, "-c", IN_A_STEP, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    begins = "model=mine, in step 1,234 on a batch of 1 example, raises RuntimeError: "
    assert said.pop("forward").startswith(f"{begins}mat1 and mat2 shapes cannot be multiplied")
    assert said.pop("backward").startswith(f"{begins}one of the variables needed for gradient computation")
    assert said == dict.fromkeys(("our model", "our layer", "the loss"), "None")


def test_a_long_message_keeps_its_end() -> None:
    said = shortened("a" * 500 + " the reason")
    assert len(said) < 320 and said.startswith("aaa") and said.endswith(" the reason")
    assert first_line(ValueError("one\ntwo")) == "raised ValueError: one"
