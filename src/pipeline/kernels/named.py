"""What `stage.kernels` names: a kernel of ours by its word, a user's by its file, by a dotted name or as a node."""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.contracts.kernels import NAME_LENGTH, Kernel
from pipeline.errors import UserError, bad_choice, cut, shown
from pipeline.spec import build, own_settings

KEY = "stage.kernels"
FOLDERS = ("cpu", "cuda", "torch", "triton")  # of pipeline.kernels; a word is a module in one, with its class
PROCESSORS = ("cpu", "gpu")
FILES = {
    ".cpp": "pipeline.kernels.cpu.of_file.Source",
    ".cc": "pipeline.kernels.cpu.of_file.Source",
    ".cu": "pipeline.kernels.cuda.of_file.Source",
}


def kernels_of(value: object) -> object:
    """The specs that a list of kernels names; anything but a list is left to the check of types. Raises UserError."""
    if not isinstance(value, tuple | list):
        return value
    found = tuple(_one_of(value, number) for number in range(len(value)))
    _check_names(found, list(map(_given, value)))
    return found


def _one_of(values: Sequence[object], number: int) -> Kernel:
    """A kernel of a list. What is wrong in the settings of a node does not say of which kernel they are."""
    value = values[number]
    try:
        return _kernel(value)
    except UserError as error:
        if len(values) == 1 or not (isinstance(value, Mapping) and "_target_" in value):
            raise
        raise UserError(f"{error}; this is kernel {number + 1} of {len(values)}, {_given(value)}") from error


def _check_names(kernels: Sequence[Kernel], given: Sequence[str]) -> None:
    """Refuse two of one name, which is that of a row and of metrics."""
    names = [kernel.name for kernel in kernels]
    for number, name in enumerate(names):
        first = names.index(name)
        if first == number:
            continue
        one, other = given[first], given[number]
        if one == other and kernels[first] == kernels[number]:
            raise UserError(f"{KEY}=[{','.join(given)}]: {one} is named twice; leave one out")
        if one == other:
            raise UserError(
                f"{KEY}=[{','.join(given)}]: {one} with {_settings(kernels[first])} and with "
                f"{_settings(kernels[number])} are both called {name}; let the property `name` of the class say what "
                "differs"
            )
        raise UserError(
            f"{KEY}=[{','.join(given)}]: {one} and {other} are both called {name}: a kernel is called by its file's "
            "stem, its class or its word; rename one"
        )


def _settings(kernel: Kernel) -> str:
    """In words, for a message."""
    return ", ".join(f"{name}={cut(value)}" for name, value in own_settings(kernel).items()) or "no settings"


def _given(value: object) -> str:
    """What the user has named it by."""
    if isinstance(value, Mapping):
        return str(value.get("file") or value.get("_target_"))
    return str(getattr(value, "file", value.name)) if isinstance(value, Kernel) else str(value)


def with_own(config: dict[str, Any]) -> dict[str, Any]:
    """A composed config without words of the user's, for which its nodes stand: only the command knows the folders that
    have them, and not a cell of its grid, or whoever continues the run. Raises UserError."""
    stage = config.get("stage")
    words = stage.get("kernels") if isinstance(stage, dict) else None
    if isinstance(stage, dict) and isinstance(words, list):
        stage["kernels"] = [(_own(one) if isinstance(one, str) else None) or one for one in words]
    return config


def every() -> tuple[Kernel, ...]:
    """Each kernel of ours: folder by folder, the ladder by its rungs, then the others."""
    found = [cls() for cls in words().values()]
    return tuple(sorted(found, key=lambda one: (one.processor, one.rung is None, one.rung or 0)))


@cache
def words() -> Mapping[str, type[Kernel]]:
    """The kernels of ours by their words. A stage asks for them a thousand times."""
    found: dict[str, type[Kernel]] = {}
    for folder in FOLDERS:
        package = importlib.util.find_spec(f"pipeline.kernels.{folder}")
        assert package is not None
        files = [file for at in package.submodule_search_locations or () for file in sorted(Path(at).glob("[a-z]*.py"))]
        here = {file.stem: _of_word(file.stem, folder) for file in files}
        found |= {word: cls for word, cls in here.items() if cls is not None}
    return found


def _kernel(value: object) -> Kernel:
    from pipeline.kernels.gemm import DTYPES  # with NumPy, which the stages that are about runs do without

    made = value if isinstance(value, Kernel) else _built(value)
    _check_name(made.name)
    _check_choices(made, "processor", (made.processor,), PROCESSORS)
    _check_choices(made, "dtypes", made.dtypes, DTYPES)
    return made


def _check_name(name: object) -> None:
    """A metric's name has it between slashes."""
    is_part = isinstance(name, str) and name.isprintable() and "/" not in name and name not in ("", ".", "..")
    if not is_part or len(str(name)) > NAME_LENGTH:
        raise UserError(
            f"{KEY}: a kernel is called {cut(repr(name))}; choose 1 to {NAME_LENGTH} printable characters, without "
            "a slash (the property `name` of a class, or a file's name without its ending)"
        )


def _check_choices(kernel: Kernel, name: str, values: object, choices: Iterable[str]) -> None:
    if not isinstance(values, tuple | list) or not values:
        raise UserError(
            f"{KEY}={kernel.name}: {name}={cut(values)}: give a tuple of one at least of {', '.join(choices)}"
        )
    for one in values:
        if one not in choices:
            raise bad_choice(f"{KEY}={kernel.name}: {name}", one, choices)


def _built(value: object) -> Kernel:
    node = _node(value) if isinstance(value, str) else value
    if not isinstance(node, Mapping):
        raise UserError(
            f"{KEY}: {shown(value)}: name a kernel, as numpy, my/fast.cpp or mine.Fast, or give {{_target_: ...}}"
        )
    if "_target_" not in node:
        of_file = FILES.get(Path(str(node.get("file", ""))).suffix)
        such = f", such as {of_file} for that file" if of_file else ""
        raise UserError(f"{KEY}: {shown(dict(node))}: needs _target_: <module>.<class>{such}")
    made: Kernel = build(node, KEY, (Kernel,))
    return made


def _node(word: str) -> Mapping[str, object]:
    of_file = FILES.get(Path(word).suffix)
    if of_file:
        if not Path(word).is_file():
            raise UserError(f"{KEY}={word}: no such file")
        return {"_target_": of_file, "file": word}
    if "/" in word or ("." in word and Path(word).is_file()):
        raise UserError(f"{KEY}={cut(word)}: {_no_kernel(Path(word))}")
    if "." in word:
        return {"_target_": word}
    own = _own(word)
    if own is not None:
        return own
    cls = next((found for folder in FOLDERS if (found := _of_word(word, folder))), None)
    if cls is None:
        own_words = [file.stem for folder in _folders() for file in (folder / "kernel").glob("*.yaml")]
        raise bad_choice(KEY, word, [*words(), *own_words])
    return {"_target_": f"{cls.__module__}.{cls.__name__}"}


def _no_kernel(file: Path) -> str:
    """Why a file cannot be a kernel."""
    if not file.exists():
        return "no such file"
    if file.suffix == ".py":
        return f"of a kernel in Python name the class, as {file.stem}.Fast"
    if file.is_dir():
        kernels = sorted(one.name for one in file.iterdir() if one.suffix in FILES)
        return f"a folder; name a file in it, as {file.name}/{(kernels or ['fast.cpp'])[0]}"
    *most, last = FILES
    return f"files of kernels end in {', '.join(most)} or {last}; rename it"


def _folders() -> list[Path]:
    """Those of configs, the user's among them: only while Hydra composes the command, which knows them."""
    from hydra.core.global_hydra import GlobalHydra

    if not GlobalHydra.instance().is_initialized():
        return []
    path = GlobalHydra.instance().config_loader().get_search_path().get_path()
    return [Path(one.path.removeprefix("file://")) for one in path if not one.path.startswith(("pkg://", "structured"))]


def _own(word: str) -> dict[str, object] | None:
    """The node in `kernel/<word>.yaml` of a folder that the user added (`--config-dir`); None where there is none."""
    if not re.fullmatch(r"\w+", word):
        return None
    file = next((file for folder in _folders() if (file := folder / "kernel" / f"{word}.yaml").is_file()), None)
    if file is None:
        return None
    try:
        node = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{KEY}={word}: {file}: not YAML: {str(error).splitlines()[0]}") from error
    if not isinstance(node, dict) or "_target_" not in node:
        raise UserError(f"{KEY}={word}: {file}: needs _target_: <module>.<class>")
    return node


def _of_word(word: str, folder: str) -> type[Kernel] | None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", word):
        return None
    name, class_name = f"pipeline.kernels.{folder}.{word}", "".join(part.capitalize() for part in word.split("_"))
    module = importlib.util.find_spec(name)
    if module is None or module.origin is None or f"class {class_name}(" not in Path(module.origin).read_text("utf-8"):
        return None  # anything else is not imported: it may need a framework
    cls = getattr(importlib.import_module(name), class_name, None)
    is_kernel = isinstance(cls, type) and issubclass(cls, Kernel)
    return cls if is_kernel and cls.__dict__.get("__is_spec__", False) else None
