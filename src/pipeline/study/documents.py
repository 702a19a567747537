"""The files that DVC shares with the study, read as DVC reads them (YAML 1.2: 1e-3 is a number)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pipeline.errors import UserError
from pipeline.runs.json_files import cannot_write


def read(path: Path, if_missing: str) -> dict[str, Any]:
    """A mapping. Raises UserError where the file is missing (with `if_missing`, what to do), damaged or no mapping.

    What ends in .json is read as JSON, of whose escapes YAML makes halves of characters.
    """
    try:
        text = path.read_text(encoding="utf-8")
        value = json.loads(text) if path.suffix == ".json" else YAML(typ="safe").load(text)
    except FileNotFoundError as error:
        raise UserError(f"{path}: not there; {if_missing}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}: not JSON: {error}") from error
    except YAMLError as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}: holds no mapping of stages")
    return value


def write(path: Path, value: dict[str, Any], heading: str) -> None:
    """Replace `path`; the same value gives the same bytes. Raises UserError where that cannot be."""
    import yaml

    text = yaml.safe_dump(value, sort_keys=False, width=120, allow_unicode=True)
    temporary = path.with_name(f"{path.name}.new")
    try:
        temporary.write_text(f"# {heading}\n{text}", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise cannot_write(path, error, key="") from error
