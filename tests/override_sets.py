"""Seeded override sets: what people and scripts type, sensible or not, for the check of the command line.

A set has one to three such words, most of them behind sensible ones (a stage, a grid, a search). Each is a key (of the
shipped configs, or misspelt, or Hydra's, or a strange one) and a value (sensible, of another type, too large, a list, a
mapping, an interpolation, quoted, with control characters).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).parents[1] / "conf"

NUMBERS = (
    "0", "1", "-1", "2", "3.5", "-0.0", "1e-3", "1e400", "nan", "inf", "-inf", "99999999999999999999", str(2**31),
    str(2**32), str(2**63), "-99999999999999999999", "1" + "0" * 400, "1_000", "0x10", "1e20", "1e-400", "007",
)  # fmt: skip
WORDS = (
    "", "null", "true", "false", "None", "'null'", "a", "cpu", "latest", "x.y", "a/b", "../x", ".", "..", "/", "~",
    "a b", "'a b'", '"a b"', "'", '"', "'\"'", "\\", "\\,", "a\\=b", "a=b", "==", "a:b", "gpu:99", "gpu:1,gpu:2",
    "a" * 2000, "é", "日本", "\u202e", "\x1b[31mred\x1b[0m", "'\x1b]0;t\x07'", "a\nb", "'a\nb'", "\t", "\r",
    "\x7f", "\udc80", "@", "#", "%s", "{}", "{0}", "!!python/object:os.system", "&a", "*a", "???", "'???'", "$HOME",
)  # fmt: skip
NESTED = (
    "[]", "[1]", "[1,2]", "[1,[2,[3]]]", "[null]", "[true,a]", "[,]", "[1", "1]", "{}", "{a:1}", "{a:{b:[1]}}", "{1:2}",
    "{null:1}", "{true:1}", "{a:1", "{_target_:os.system}", "[{_target_:os.system}]", "{units:[3]}", "[[]]", "[mlp]",
    "['a','b']", "{_target_:pipeline.models.mlp.Mlp}", "[99999999999999999999]", "[nan]", "[]" * 3, "[" * 60 + "]" * 60,
)  # fmt: skip
INTERPOLATIONS = (
    "${seed}", "${a.b}", "${..}", "${...}", "${.}", "${oc.env:NOPE}", "${oc.env:HOME}", "${oc.env:NOPE,1}", "${", "}",
    "${}", "${:}", "${model}", "${model.units}", "${hydra:runtime.cwd}", "${hydra:nope}", "${now:%Y}", "${nope:1}",
    "${oc.decode:'[1'}", "${oc.decode:${oc.env:HOME}}", "${oc.create:{a:1}}", "${oc.select:nope,3}", "a${seed}b",
    "${oc.dict.keys:model}", "${training.epochs}", "${training}", "\\${seed}", "[${seed}]", "{a:${nope}}", "${oc.env:}",
    "${oc.env:NOPE,null}", "${hydra.job.name}", "${.name}", "${oc.deprecated:seed}", "${oc.env:[1]}",
)  # fmt: skip
SWEEPS = (
    "1,2", "a,b", "range(3)", "range(0,0)", "range(1e9)", "interval(0,1)", "interval(1,0)", "choice(1,2)", "choice()",
    "glob(*)", "sort(3,1)", "shuffle(1,2)", "tag(log,interval(0,1))", "int(3.5)", "str([1])", "float(x)",
    "json_str({})",
    "extend_list(1)", "append(1)", "bool(2)", "1,", ",1", "[1],[2]", "null,1", "cast(1)", "range(1,5,0)",
)  # fmt: skip
HYDRA = (
    "hydra.run.dir", "hydra.output_subdir", "hydra.sweep.dir", "hydra.sweep.subdir", "hydra.job.chdir",
    "hydra.job.name", "hydra.job.env_set", "hydra.job.env_set.X", "hydra.job.config.override_dirname",
    "hydra.callbacks", "hydra.verbose", "hydra.callbacks.x._target_", "hydra.launcher._target_",
    "hydra.sweeper._target_", "hydra.sweeper", "hydra.launcher", "hydra.launcher.parameters", "hydra.sweeper.params",
    "hydra.sweeper.params.seed", "hydra.sweeper.trials", "hydra", "hydra.searchpath", "hydra.mode",
    "hydra.runtime.cwd", "hydra.overrides.task", "hydra.env", "hydra.help.template", "hydra/launcher", "hydra/sweeper",
    "hydra/job_logging", "hydra/hydra_logging", "hydra/callbacks", "hydra/help", "hydra/output", "hydra/env",
    "hydra.job_logging.handlers", "hydra.hydra_logging.root", "hydra.x", "hydra.sweeper.x", "hydra.launcher.cluster",
    "hydra.launcher.gpus", "hydra.sweeper.metric", "hydra.sweeper.seed", "hydra.job", "hydra.launcher.x._target_",
    "hydra@x", "hydra/sweeper@x",
)  # fmt: skip
STRANGE = (
    "", ".", "a..b", ".a", "a.", "a b", "1", "null", "_target_", "model._target_", "model._args_", "model._partial_",
    "x" * 2000, "é", "model.é", "model@x", "model@model", "model@_global_", "@x", "a@b@c", "model/x", "/model", "//",
    "model.units.0", "model.units[0]", "model.a.b.c", "modle", "seeds", "-seed", "seed.x", "name.x", "\x1b[1m", "a\nb",
    "model:mlp", "\udc80", "$seed", "${seed}", "[a]", "model.${seed}", "run", "name", "output_dir", "defaults", "self",
    "experiment", "experiment@x", "training.metrics.0", "package", "_self_", "_name_", "model._name_", "a=b", "~seed",
)  # fmt: skip
FLAGS = ("-m", "--cfg", "job", "--package", "model", "--resolve", "--info", "-r", "--config-dir", "--nope", "--", "-")


CONTEXTS = (
    "", "", "", "stage=pinn", "stage=pinn solver=adam backend=jax precision=fp64", "stage=amp", "stage=ladder",
    "stage=predict run=latest", "stage=evaluate run=latest", "stage=devices", "stage=pinn_comparison", "backend=jax",
    "backend=tensorflow loader=tfdata", "dataset=digits", "experiment=keras_search -m", "experiment=mnist_cnn",
    "-m seed=1,2", "-m hydra/sweeper=optuna seed=1,2", "-m hydra/launcher=submitit_local seed=1,2", "profiler=torch",
    "loader=dataloader", "-m hydra/launcher=ray seed=1,2", "model=cnn", "precision=mixed_fp16", "tracking=none",
)  # fmt: skip


def sets(seed: int, count: int) -> Iterator[list[str]]:
    """`count` override sets, the same for the same seed."""
    draw = random.Random(seed)
    for _ in range(count):
        words = [*draw.choice(CONTEXTS).split(), *(_word(draw) for _ in range(draw.choice((1, 1, 1, 1, 2, 3))))]
        if draw.random() < 0.1:
            words.insert(draw.randrange(len(words) + 1), "-m")
        if draw.random() < 0.03:
            words.insert(draw.randrange(len(words) + 1), draw.choice(FLAGS))
        yield words


def _word(draw: random.Random) -> str:
    known = keys()
    key = draw.choice(draw.choice((list(known), list(known), groups(), HYDRA, STRANGE)))
    key = draw.choice(("", "", "", "", "+", "++", "~")) + key
    if draw.random() < 0.05:
        return key
    return f"{key}={_value(draw, key.lstrip('+~'))}"


def _value(draw: random.Random, key: str) -> str:
    if draw.random() < 0.25:
        return draw.choice(keys().get(key, WORDS))
    return draw.choice(draw.choice((NUMBERS, WORDS, NESTED, INTERPOLATIONS, SWEEPS)))


@cache
def groups() -> tuple[str, ...]:
    """The groups of the shipped configs."""
    return tuple(sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name != "hydra"))


@cache
def keys() -> dict[str, tuple[str, ...]]:
    """The keys of the shipped configs, each with the values that they have there; a group with its choices."""
    found: dict[str, set[str]] = {"seed": {"0"}, "name": {"x"}, "run": {"latest"}, "output_dir": {"runs"}}
    for group in groups():
        for path in sorted((CONF / group).glob("*.yaml")):
            found.setdefault(group, set()).add(path.stem)
            node: Any = yaml.safe_load(path.read_text())
            for name, value in node.get(group, node).items() if group != "experiment" else ():
                if name not in ("defaults", "_target_"):
                    found.setdefault(f"{group}.{name}", set()).add(str(value).replace(" ", ""))
    return {key: tuple(sorted(values)) for key, values in sorted(found.items())}
