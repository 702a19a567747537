"""The names of metrics, params and tags, as MLflow takes them."""

from __future__ import annotations

import re
import zlib

NAME_LENGTH = 250  # MLflow's limit


def legal_name(name: str) -> str:
    """The one rule for names: what MLflow does not take becomes `_`, and a name that was changed ends in a checksum.

    MLflow takes letters, digits and `_ - . : / space`, in a form that is also a plain relative path, of 250 characters.
    Without the checksum `acc@1` and `acc_1` would be one metric. The index of a list, `a[0]`, is `a_0_`.
    """
    plain = re.sub(r"\[(\d+)\]", r"_\1_", name)
    legal = re.sub(r"[^/\w.\- :]", "_", plain)
    legal = "/".join("_" if part in ("", ".", "..") else part for part in legal.split("/"))
    legal = f"_{legal[1:]}" if legal.startswith("..") else legal
    if legal != plain or len(legal) > NAME_LENGTH:
        legal = f"{legal[: NAME_LENGTH - 9]}_{zlib.crc32(name.encode('utf-8', 'replace')):08x}"
    return legal
