"""What Lightning's import leaves out, and that the rest of the process does not notice."""

from __future__ import annotations

import subprocess
import sys

import pytest

SIGNAL = """
import sys
{before}
import pipeline.backends.torch.fit
early = "scipy.stats" in sys.modules
import scipy.signal
print(early, scipy.signal.windows.hamming(3)[1], scipy.signal is sys.modules["scipy.signal"])
"""
TRANSFORMERS = """
import sys
import pipeline.backends.torch.fit
print("transformers" in sys.modules)
from torchmetrics.functional.text import bert
import transformers
print(all(vars(bert)[name].from_pretrained == vars(transformers)[name].from_pretrained for name in {names}))
"""
STEP = """
import sys, torch
import pipeline.backends.torch.fit
from pipeline.backends.torch.observer import Observer
from pipeline.runs.fit import Observation
net = torch.nn.Linear(3, 1)
optimizer = torch.optim.Adam(net.parameters())
with Observer(Observation("")):
    net(torch.ones(2, 3)).sum().backward()
    optimizer.step()
print("torch._dynamo.eval_frame" in sys.modules)
"""
# Ways to ask for the compiler, and what each should print.
ASKS = {
    "import torch._dynamo; print(torch._dynamo.config.cache_size_limit > 0)": "True",
    "import torch._dynamo.testing; print(torch._dynamo.testing.CompileCounter().frame_count)": "0",
    "from torch._dynamo import eval_frame; print(eval_frame.__name__)": "torch._dynamo.eval_frame",
    "from torch._dynamo import *; print(optimize.__module__)": "torch._dynamo.eval_frame",
    "from torch._dynamo.utils import counters; print(len(counters))": "0",
    "print(torch.compile(net, backend='eager')(torch.ones(1, 3)).shape)": "torch.Size([1, 1])",
}


def run(script: str) -> list[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("before", "early"), [("", "False"), pytest.param("import scipy.signal", "True", marks=pytest.mark.wide)]
)
@pytest.mark.wide
def test_scipy_signal_and_the_compiler_are_imported_by_who_wants_them_and_not_before(before: str, early: str) -> None:
    """A step under the Observer, as the first of every training, took two seconds more than one without it."""
    assert run(SIGNAL.format(before=before) + STEP) == [f"{early} 1.0 True", "False"]


@pytest.mark.wide
def test_transformers_are_imported_by_the_metric_that_wants_them_and_not_before() -> None:
    """torchmetrics imports them, a second of a core, wherever they are installed."""
    assert run(TRANSFORMERS.format(names=("AutoModel", "AutoTokenizer"))) == ["False", "True"]


@pytest.mark.wide
def test_whoever_looks_at_every_module_does_not_wake_it() -> None:
    look = "import inspect\nfor module in list(sys.modules.values()):\n    hasattr(module, '__file__')\n"
    assert run(STEP + look + "print('torch._dynamo.eval_frame' in sys.modules)") == ["False", "False"]


@pytest.mark.wide
def test_a_step_does_not_import_the_compiler_and_who_wants_it_has_it() -> None:
    """All ways in one process after a step; each again at once, in its own, before anything else has asked."""
    real = "print('torch._dynamo.eval_frame' in sys.modules, torch._dynamo is sys.modules['torch._dynamo'])"
    disabled = "print(hasattr(torch.optim.Optimizer.zero_grad.__wrapped__, '__dynamo_disable'))"
    assert run("\n".join([STEP, *ASKS, real, disabled])) == ["False", *ASKS.values(), "True True", "False"]


@pytest.mark.wide
def test_what_the_user_keeps_from_the_compiler_is_kept_from_it() -> None:
    """A function that Lightning keeps from it does not import it; one of the user's is for the compiler to see."""
    mine = "mine = torch.compiler.disable(lambda x: x + 1)\nprint(mine._torchdynamo_disable, mine(1))"
    again = "print(torch.compiler.disable(recursive=False)(lambda x: x)(2))"
    assert run(f"{STEP}\n{mine}\n{again}") == ["False", "True 2", "2"]


@pytest.mark.wide
@pytest.mark.parametrize("ask", ASKS)
def test_any_way_to_ask_for_the_compiler_is_the_first(ask: str) -> None:
    assert run(STEP + ask) == ["False", ASKS[ask]]
