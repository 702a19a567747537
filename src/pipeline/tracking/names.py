"""The names of metrics, params and tags, as MLflow takes them."""

from __future__ import annotations

import re
import zlib

NAME_LENGTH = 250  # MLflow's limit


def legal_name(name: str) -> str:
    """The one rule for names: what MLflow does not take becomes `_`, and a long name is cut and marked by a checksum.

    MLflow takes letters, digits and `_ - . : / space`, in a form that is also a plain relative path.
    """
    legal = re.sub(r"[^/\w.\- :]", "_", name)
    legal = "/".join("_" if part in ("", ".", "..") else part for part in legal.split("/"))
    if len(legal) > NAME_LENGTH:
        legal = f"{legal[: NAME_LENGTH - 9]}_{zlib.crc32(name.encode('utf-8', 'replace')):08x}"
    return legal
