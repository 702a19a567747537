"""`--help`: examples, and what there is to choose, read off the files in conf/ (Hydra takes half a second for it).

Beside a choice it is the file of that choice: what its keys are, with their comments."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill

from pipeline.cli.conf_path import check_own, conf_path
from pipeline.errors import UserError, bad_choice

TEXT = """\
pipeline: declarative GPU machine-learning experiments, with a receipt of what
really ran.

After `python -m pipeline` write what you want as group=choice and key=value;
all else keeps its default. Alone it trains an MLP on Fashion-MNIST.

  precision=mixed model=cnn              another precision, another model
  backend=jax training.epochs=2          another framework, a shorter run
  -m precision=fp32,mixed model=mlp,cnn  a grid: every combination
  -m experiment=keras_search             a search: results choose the next cells
  experiment=softmax_regression          a recipe from conf/experiment/
  stage=amp training.epochs=2            what mixed precision gains, and why
  stage=transformer                      a GPT, trained on Moby-Dick
  stage=generate run=latest              text by a saved language model
  stage=wmma                             matmul kernels: verified, then timed
  stage=pinn dataset=ode                 differential equations, by a network
  experiment=amp_ladder                  what each change of a training gains
  stage=evaluate run=latest              a saved run, measured again
  stage=evaluate run=latest dataset=npz dataset.file=new.npz  on new data
  stage=predict run=latest stage.images=[shoe.png]  your own picture
  stage=inference run=latest             how fast a saved model predicts
  stage=runs stage.best=test/accuracy    the runs so far, the best first
  stage=devices                          what this machine can run

Groups and their choices (conf/<group>/<choice>.yaml says what each is):

{groups}

Any key of the configuration can be set, for example model.units=[256,128] or
optimizer.learning_rate=0.01. `--cfg job` prints the whole configuration,
`--cfg job --package model` only that part. Devices may be written cpu,
gpu, gpu:1, cuda:1, /GPU:1 and in TensorFlow's long forms.
Flags: -m/--multirun a grid, --cfg job|hydra|all print the configuration,
--config-dir DIR add a folder of your own choices, --version.
`stage=wmma --help` shows the keys of a choice.
PIPELINE_TRACEBACK=1 shows where an error message comes from."""


def help_asked_for(arguments: Sequence[str]) -> str | None:
    """The text for `--help` (with `--config-dir`, also the choices in there); None where it is not asked for.

    Raises UserError for a `--config-dir` or a choice that is not there.
    """
    if not {"-h", "--help"}.intersection(arguments):
        return None
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    own = parser.parse_known_args(list(arguments))[0].config_dir
    folders = [conf_path()]
    if own is not None:
        if not Path(own).is_dir():
            raise UserError(f"--config-dir {own}: no such folder")
        check_own(Path(own), f"--config-dir {own}")
        folders.append(Path(own))
    about = [text for word in arguments for text in choices_about(word, folders)]
    if about:
        return "\n\n".join([*about, "python -m pipeline --help shows what else there is to choose."])
    width = get_terminal_size(fallback=(120, 24)).columns
    groups = [f"{group}: {', '.join(found)}" for group, found in choices(folders).items()]
    return TEXT.format(groups="\n".join(fill(line, width, subsequent_indent="  ") for line in groups))


def choices_about(word: str, folders: Sequence[Path]) -> list[str]:
    """What the files of choices (`stage=wmma`, `model=mlp,cnn`) say of their keys; nothing where a word names none.

    Raises UserError for a choice that a group does not have.
    """
    group, _, names = word.lstrip("+").partition("=")
    every = choices(folders).get(group)
    if every is None or names == "null":  # experiment=null: none
        return []
    wrong = next((name for name in names.split(",") if name not in every), None)
    if wrong is not None:
        raise bad_choice(group, wrong, every)
    return [text for name in names.split(",") for text in _about(group, name, folders)]


def _about(group: str, name: str, folders: Sequence[Path], within: tuple[str, ...] = ()) -> list[str]:
    """A file, and those of its group that it begins from; the user's own come first.

    `within`: the choices that begin from it. Files that begin from each other are refused once they are composed.
    """
    path = next((folder / group / f"{name}.yaml" for folder in reversed(folders) if _has(folder, group, name)), None)
    if path is None:
        return []
    import yaml  # the other pages need it not

    text = path.read_text(encoding="utf-8", errors="replace").rstrip()
    key = "<group>.<key>" if "# @package _global_" in text else f"{group.replace('/', '.')}.<key>"
    try:
        begins = yaml.safe_load(text)
    except yaml.YAMLError:  # whoever chooses it is refused it when the config is composed
        begins = None
    defaults = begins.get("defaults") if isinstance(begins, dict) else None
    before = [one for one in defaults or () if isinstance(one, str) and one != "_self_"]
    within = (*within, name)
    inherited = [more for one in before if one not in within for more in _about(group, one, folders, within)]
    return [f"{group}={name}, in {path}; a key is set by {key}=<value>\n\n{text}", *inherited]


def _has(folder: Path, group: str, name: str) -> bool:
    return name in choices([folder]).get(group, ())


def choices(folders: Sequence[Path]) -> dict[str, list[str]]:
    """The choices of each group, sorted: the YAML files of each folder below `folders`. Hydra's own come last."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for path in folder.rglob("*.yaml"):
            if path.parent != folder:
                found.setdefault(path.parent.relative_to(folder).as_posix(), set()).add(path.stem)
    return {
        group: sorted(found[group]) for group in sorted(found, key=lambda group: (group.startswith("hydra/"), group))
    }
