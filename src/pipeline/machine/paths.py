"""How fast bytes go from place to place on the host: in memory, between processes, to a disk and back.

Each path takes a large block, for its bandwidth, and a small one, for its latency. What arrives is compared first.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import RunError
from pipeline.machine.ceilings import Ceiling
from pipeline.machine.free_memory import free_bytes
from pipeline.machine.resident import resident

LARGE, SMALL, PAGE = 2**28, 64, 4096  # bytes: of a block, of a message, of a piece of a file
ANSWER = b"."
CALLS = 200  # of a small block, in a sample
PIECES = 16  # of a file, in a sample: each waits for the disk
LEFT = 0.01  # of a file that has been dropped from the page cache: what is read ahead of the rest


def measured(place: str, rounds: int) -> Iterator[list[Ceiling]]:
    """The paths of the host, all so far after each; `place`: `cpu`. Files lie in the current folder."""
    size = min(LARGE, free_bytes() // 8)
    block = random_block(size)
    paths: dict[str, Callable[[bytearray, int], list[Ceiling]]] = {
        "memory": in_memory,
        "shared memory": by_shared_memory,
        "pipe": by_pipe,
        "file": by_file,
    }
    found: list[Ceiling] = []
    for name, measure in paths.items():
        try:
            found += measure(block, rounds)
        except (OSError, RunError) as error:  # no room on the disk, no process to be had
            found.append(Ceiling(name=f"cpu/paths/{name}", unit="bytes/s", fault=str(error)))
        yield found


def random_block(size: int) -> bytearray:
    """Of whole MiB, of which no two are alike: one in place of another is found out."""
    block = bytearray(size // 2**20 * 2**20)
    for start in range(0, len(block), 2**20):
        block[start : start + 2**20] = os.urandom(2**20)
    return block


class Transfer(NamedTuple):
    """What moves so many bytes, `pieces` of them in a call; a sample is so many calls."""

    run: Callable[[], object]
    bytes: int
    calls: int = 1
    pieces: int = 1

    def seconds(self) -> float:
        """Of one piece."""
        began = time.perf_counter()
        for _ in range(self.calls):
            self.run()
        return (time.perf_counter() - began) / (self.calls * self.pieces)


def timed(name: str, large: Transfer, small: Transfer, rounds: int) -> list[Ceiling]:
    """The bandwidth of one and the latency of the other, in turns. `name`: of the path."""
    bandwidth, latency = [], []
    for _ in range(rounds):
        bandwidth.append(large.bytes / large.seconds())
        latency.append(small.seconds())
    return both(f"cpu/paths/{name}", large.bytes, small.bytes, bandwidth, latency)


def both(name: str, large: int, small: int, bandwidth: Sequence[float], latency: Sequence[float]) -> list[Ceiling]:
    """The ceilings of the path `name` (`cpu/paths/pipe`), of blocks of so many bytes."""
    sizes = f"{large / 2**20:.0f} MiB", f"{small:,} bytes"
    return [
        Ceiling(name=f"{name}/bandwidth", unit="bytes/s", of=sizes[0], samples=tuple(bandwidth)),
        Ceiling(name=f"{name}/latency", unit="s", of=sizes[1], samples=tuple(latency)),
    ]


def in_memory(block: bytearray, rounds: int) -> list[Ceiling]:
    """A copy by one thread; of few bytes mostly the call itself."""
    large, small = Transfer(_copier(block), len(block)), Transfer(_copier(block[-SMALL:]), SMALL, CALLS)
    return timed("memory", large, small, rounds)


def _copier(source: bytearray) -> Callable[[], None]:
    target = bytearray(len(source))
    there, here = memoryview(source), memoryview(target)

    def copy() -> None:
        here[:] = there

    copy()
    if source != target:
        raise RunError("a copy in memory differs from what was copied")
    return copy


def by_pipe(block: bytearray, rounds: int) -> list[Ceiling]:
    """Messages to another process, which answers each with a byte."""
    with _other(_receive, len(block)) as pipe:

        def send(message: bytes | bytearray) -> None:
            pipe.send_bytes(message)
            pipe.recv_bytes()

        small = bytes(block[-SMALL:])  # not what the large message has left at the beginning
        for message in (block, small):
            send(message)
            _check(pipe, zlib.crc32(message), "a pipe")
        large = Transfer(lambda: send(block), len(block))
        return timed("pipe", large, Transfer(lambda: send(small), SMALL, CALLS), rounds)


def by_shared_memory(block: bytearray, rounds: int) -> list[Ceiling]:
    """Copied into memory that both processes have, and out of it by the other, which a message tells when."""
    with (
        mmap.mmap(-1, len(block)) as shared,
        _other(_copy_out, shared) as pipe,
        memoryview(shared) as there,
        memoryview(block) as here,
    ):

        def hand_over(size: int) -> None:
            there[:size] = here[-size:]  # of few bytes others than the large block has left there
            pipe.send_bytes(size.to_bytes(8, "little"))
            pipe.recv_bytes()

        for size in (len(block), SMALL):
            hand_over(size)
            _check(pipe, zlib.crc32(here[-size:]), "shared memory")
        large = Transfer(lambda: hand_over(len(block)), len(block))
        return timed("shared memory", large, Transfer(lambda: hand_over(SMALL), SMALL, CALLS), rounds)


def _receive(pipe: Connection, size: int) -> None:
    """The other end of a pipe. An empty message asks for the checksum of the last one."""
    room, got = bytearray(size), 0
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            new = pipe.recv_bytes_into(room)
            pipe.send_bytes(ANSWER if new else zlib.crc32(memoryview(room)[:got]).to_bytes(8, "little"))
            got = new or got


def _copy_out(pipe: Connection, shared: mmap.mmap) -> None:
    """The other end of shared memory, of as many bytes as each message says; an empty message as above."""
    there, mine, got = memoryview(shared), bytearray(len(shared)), 0
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            message = pipe.recv_bytes()
            if message:
                got = int.from_bytes(message, "little")
                memoryview(mine)[:got] = there[:got]
            pipe.send_bytes(ANSWER if message else zlib.crc32(memoryview(mine)[:got]).to_bytes(8, "little"))


@contextlib.contextmanager
def _other(run: Callable[[Connection, Any], None], argument: object) -> Iterator[Connection]:
    """A process that shares memory with this one, and the pipe to it. Forked: nothing here has threads."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(run, ours, theirs, argument), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    except (EOFError, ConnectionError) as error:
        raise RunError("the other process ended") from error
    finally:
        ours.close()
        process.join()


def _serve(run: Callable[[Connection, Any], None], ours: Connection, theirs: Connection, argument: object) -> None:
    ours.close()  # so that the end of the pipe is seen
    run(theirs, argument)


def _check(pipe: Connection, expected: int, what: str) -> None:
    pipe.send_bytes(b"")
    if int.from_bytes(pipe.recv_bytes(), "little") != expected:
        raise RunError(f"what came through {what} differs from what was sent")


def by_file(block: bytearray, rounds: int) -> list[Ceiling]:
    """Written and waited for (fsync); read from the page cache; and from the disk, where Linux forgets the file."""
    size = min(len(block), shutil.disk_usage(Path.cwd()).free // 4) // PAGE * PAGE
    with tempfile.NamedTemporaryFile(dir=Path.cwd()) as file, memoryview(block)[:size] as data:
        handle = file.fileno()
        whole, pieces = Transfer(_reader(handle, size), size), Transfer(_pieces(handle, size), PAGE, pieces=PIECES)
        write = Transfer(lambda: _write(handle, data), size), Transfer(lambda: _write(handle, data[:PAGE]), PAGE)
        write[0].run()
        if whole.run() != data:
            raise RunError("a file differs from what was written")
        written, cached = timed("disk write", *write, rounds), timed("page cache", whole, pieces, rounds)
        read = _from_disk(handle, whole, pieces, rounds)
        if read[0].missing:  # fsync does not wait for a disk either: on tmpfs there is none
            written = _not_the_disk("disk write", size)
        return [*written, *read, *cached]


def _from_disk(handle: int, whole: Transfer, pieces: Transfer, rounds: int) -> list[Ceiling]:
    bandwidth, latency = [], []
    for _ in range(rounds):
        if not forgotten(handle):
            return _not_the_disk("disk read", whole.bytes)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_NORMAL)
        bandwidth.append(whole.bytes / whole.seconds())
        if not forgotten(handle):  # what was just read
            return _not_the_disk("disk read", whole.bytes)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        latency.append(pieces.seconds())
    return both("cpu/paths/disk read", whole.bytes, PAGE, bandwidth, latency)


def _not_the_disk(name: str, size: int) -> list[Ceiling]:
    why = "Linux keeps the file in the page cache"
    return [replace(one, missing=why) for one in both(f"cpu/paths/{name}", size, PAGE, (), ())]


def forgotten(handle: int) -> bool:
    """Ask Linux to drop a file, all of which is on the disk, from the page cache; whether it has."""
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    return resident(handle) < LEFT


def _write(handle: int, data: memoryview) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(handle, data[done:], done)
    os.fsync(handle)


def _reader(handle: int, size: int) -> Callable[[], bytearray]:
    """Reads the beginning of a file; always into the same memory."""
    room = bytearray(size)

    def read() -> bytearray:
        _read(handle, room, 0)
        return room

    return read


def _pieces(handle: int, size: int) -> Callable[[], None]:
    """Reads pages of a file that lie far apart."""
    room, places = bytearray(PAGE), [size // PIECES * number // PAGE * PAGE for number in range(PIECES)]

    def read() -> None:
        for place in places:
            _read(handle, room, place)

    return read


def _read(handle: int, room: bytearray, start: int) -> None:
    view, done = memoryview(room), 0
    while done < len(room):
        got = os.preadv(handle, [view[done:]], start + done)
        if not got:
            raise RunError("a file ends before what was written")
        done += got
