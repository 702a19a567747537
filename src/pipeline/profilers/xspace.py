"""A Chrome trace of torch's profiler as an XSpace, the one format that TensorBoard's profile plugin (xprof) reads.

torch's own plugin for TensorBoard ended with torch 2.0. What is kept is the timeline: who did what, from when to when.
Source of the format: tsl/profiler/protobuf/xplane.proto, field by field; of its encoding: protobuf.dev, "Encoding".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

# Kineto's categories of what runs on a GPU, by stream, and of the ranges that it draws over it
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


def of_chrome_trace(trace: Mapping[str, Any]) -> bytes:
    """The complete events of a trace, on one plane for the host and one for each GPU."""
    planes: defaultdict[str, defaultdict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for event in trace["traceEvents"]:
        if event["ph"] != "X" or not isinstance(event["tid"], int):
            continue
        plane = f"/device:GPU:{event['pid']}" if event.get("cat") in ON_DEVICE else "/host:CPU"
        planes[plane][event["tid"]].append(event)
    base = int(trace.get("baseTimeNanoseconds", 0))
    names = sorted(planes)
    return b"".join(_field(1, _plane(number, name, planes[name], base)) for number, name in enumerate(names, 1))


def _plane(number: int, name: str, lines: Mapping[int, list[Mapping[str, Any]]], base: int) -> bytes:
    """XPlane: id, name, lines, event metadata by id."""
    ids: dict[str, int] = {}
    for events in lines.values():
        for event in events:
            ids.setdefault(event["name"], len(ids) + 1)
    kind = "thread" if name == "/host:CPU" else "Stream #"
    parts = [_field(1, number), _field(2, name)]
    parts += [_field(3, _line(tid, f"{kind} {tid}", events, ids, base)) for tid, events in sorted(lines.items())]
    parts += [_field(4, _field(1, key) + _field(2, _field(1, key) + _field(2, text))) for text, key in ids.items()]
    return b"".join(parts)


def _line(tid: int, name: str, events: list[Mapping[str, Any]], ids: Mapping[str, int], base: int) -> bytes:
    """XLine: id, name, time of its start (ns), events by metadata id, offset and duration (ps)."""
    start = min(event["ts"] for event in events)  # microseconds
    parts = [_field(1, tid), _field(2, name), _field(3, base + round(start * 1e3))]
    for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
        offset, duration = round((event["ts"] - start) * 1e6), round(event["dur"] * 1e6)
        parts.append(_field(4, _field(1, ids[event["name"]]) + _field(2, offset) + _field(3, duration)))
    return b"".join(parts)


def _field(number: int, value: int | str | bytes) -> bytes:
    """A protobuf field: an int as varint, text and messages with their length before them."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth says that more follow."""
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])
