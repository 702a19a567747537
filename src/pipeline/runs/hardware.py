"""How two devices differ, as receipts have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def device_differences(then: Mapping[str, Any], now: Mapping[str, Any], what: str = "the device") -> list[str]:
    """Another device, by its name; if it has the same name, by what differs (the stepping, an instruction).

    Of a GPU also the machine that it is in (`host`).
    """
    if then.get("name") != now["name"]:
        return [f"{what} ({then.get('name')} -> {now['name']})"]
    differing = [key for key in {**now, **then} if key != "host" and then.get(key) != now.get(key)]
    parts = [f"{key} {_difference(key, then.get(key), now.get(key))}" for key in differing]
    found = [f"{what} ({now['name']}: {', '.join(parts)})"] if parts else []
    return found + (device_differences(then.get("host") or {}, now["host"], "the machine") if "host" in now else [])


def _difference(key: str, then: Any, now: Any) -> str:
    """`1 -> 2`; of the vector instructions, which are many, those lost and those gained."""
    if key != "vector" or then is None:
        return f"{then} -> {now}"
    old, new = str(then).split(), str(now).split()
    lost, gained = [f"-{word}" for word in old if word not in new], [f"+{word}" for word in new if word not in old]
    return " ".join(lost + gained)
