"""without_password: no password of an address comes through, and what has none stays as it is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pipeline.datasets.sources import Mirror, say
from pipeline.errors import Impossible, RunError, UserError
from pipeline.passwords import without_password, without_passwords
from pipeline.runs.journal import Journal
from pipeline.runs.json_files import read_json
from pipeline.runs.records import read_config, read_status
from pipeline.runs.result import Result
from pipeline.spec import build
from pipeline.tracking.store import flatten

SECRET = "S3cr/et"

HIDDEN = {
    f"http://me:{SECRET}@host:5000": "http://***@host:5000",
    "http://me:sec@ret@127.0.0.1:1/x": "http://***@127.0.0.1:1/x",
    "https://dapi123@host/api": "https://***@host/api",
    "http://me:secret@[::1]:5000": "http://***@[::1]:5000",
    f"postgresql+psycopg2://me:{SECRET}@host:5432/db": "postgresql+psycopg2://***@host:5432/db",
    "postgresql://me:5432/x@host/db": "postgresql://***@host/db",
    "mysql://me@corp:pass/word@host/db": "mysql://***@host/db",
    "postgresql://host/db?user=me&password=a;b@c/d&sslmode=require": (
        "postgresql://host/db?user=me&password=***&sslmode=require"
    ),
    "https://host/x?sig=abc%2F&X-Amz-Signature=def&n=1": "https://host/x?sig=***&X-Amz-Signature=***&n=1",
    "mssql+pyodbc:///?odbc_connect=DRIVER%3D%7BODBC+17%7D%3BPWD%3D%7Ba%3Bb%7D&x=1": (
        "mssql+pyodbc:///?odbc_connect=***&x=1"
    ),
    "mssql+pyodbc:///?odbc_connect=DRIVER={ODBC Driver 17};UID=me;PWD={a;b }}c};Encrypt=yes": (
        "mssql+pyodbc:///?odbc_connect=DRIVER={ODBC Driver 17};UID=me;PWD=***;Encrypt=yes"
    ),
    "jdbc:sqlserver://host;user=me;password=my pass;encrypt=true": "jdbc:sqlserver://host;user=me;password=***;encrypt=true",
    "host=x user=me password='a b\\'c' dbname=y": "host=x user=me password=*** dbname=y",
    f"--uri=http://me:{SECRET}@host 1.http://token@host -postgresql://me:1/2@h": (
        "--uri=http://***@host 1.http://***@host -postgresql://***@h"
    ),
    "refused: tracking.uri='ftp://me:secret@host': no": "refused: tracking.uri='ftp://***@host': no",
}

KEPT = [
    "s3://bucket@x/artifacts",
    "s3://bucket/a:b@c",
    "abfss://container@account.dfs.core.windows.net/x",
    "http://host:8080/@scope/name@1.2",
    "http://[::1]:5000/a@b",
    "http://me%40corp/x",
    "sqlite:////home/me@corp/mlflow.db",
    "http://127.0.0.1:5000: Connection refused for me@corp",
    "postgresql://me@host:5432/db",
    "git@github.com:someone/something.git",
    "training.epochs=3 tokenizer=words max_tokens=5 design=flat",
    "Digits: 1,797 images; see https://archive.ics.uci.edu/dataset/80",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_hidden(text: str) -> None:
    assert without_password(text) == HIDDEN[text]
    assert without_password(f"not sent: {text}") == f"not sent: {HIDDEN[text]}"


@pytest.mark.parametrize("text", KEPT)
def test_kept(text: str) -> None:
    assert without_password(text) == text


# What a password may be: anything but white space, which ends an address. `%` is what the address is encoded with.
PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF, exclude_characters="\x7f\x85\xa0"), min_size=5)
SCHEMES = ("http", "https", "ftp", "postgresql", "postgresql+psycopg2", "mysql+pymysql", "mssql+pyodbc")


@settings(max_examples=300)
@given(st.sampled_from(SCHEMES), st.sampled_from(["me", "me@corp", "me.2", ""]), PASSWORDS, st.booleans())
@example("mysql+pymysql", "me", "12345/@:?#&=;'", False)
def test_no_password_comes_through(scheme: str, name: str, password: str, encoded: bool) -> None:
    if not encoded and scheme in ("http", "https", "ftp") and re.match(r"\d{1,5}[/?#]", password):
        return  # such an address has a port and a path with an @ in it
    if not encoded and name == "me@corp" and re.match(r"\d{1,5}[/?#]", password):
        return
    around = f"{scheme}://***@host:5000/db ?user=me&password=***&x=1 odbc_connect=*** DRIVER={{x}};PWD=***;A=b"
    assume(password not in around)
    written = quote(password, safe="") if encoded else password
    for text in (
        f"{scheme}://{name}:{written}@host:5000/db",
        f"x '{scheme}://{name}:{written}@host:5000/db' y",
        f"{scheme}://host/db?user=me&password={quote_plus(password)}&x=1",
        f"{scheme}:///?odbc_connect={quote_plus('DRIVER={x};PWD={' + password.replace('}', '}}') + '};A=b')}",
        "DRIVER={x};PWD={" + password.replace("}", "}}") + "};A=b",
    ):
        shown = without_password(text)
        assert password not in shown, (text, shown)
        assert quote_plus(password) not in shown
        assert written not in shown
        assert without_password(shown) == shown
        assert "host" in shown or "odbc_connect" in shown or shown.endswith(";A=b")


def test_every_error_that_people_read_hides_them() -> None:
    uri = f"http://me:{SECRET}@host"
    for kind in (UserError, Impossible, RunError):
        assert str(kind(f"--uri {uri}: no")) == "--uri http://***@host: no"
    with pytest.raises(UserError, match=r"^tracking\.uri='htp://\*\*\*@host': not a tracking server"):
        build({"_target_": "pipeline.tracking.tracker.Mlflow", "uri": f"htp://me:{SECRET}@host"}, "tracking")


def test_nothing_that_a_run_writes_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"postgresql://me:{SECRET}@host/db?sslpassword={SECRET}"
    config: dict[str, Any] = {"tracking": {"uri": uri}, "sources": [uri, {"more": f"PWD: {uri}"}], "bucket": KEPT[0]}
    journal = Journal.begin(tmp_path, "secret", config)
    journal.write_receipt({"environment": {"URI": uri}, "n": 1})
    journal.write_result(Result((), table=(("bucket", uri),), notes=(uri,)))
    journal.finish("FAILED", ValueError(f"{'x' * 1970} {uri}"))  # cut at 2,000 characters, in the password's middle
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or SECRET[:4] not in path.read_text(), path
    hidden = "postgresql://***@host/db?sslpassword=***"
    wanted = {"tracking": {"uri": hidden}, "sources": [hidden, {"more": f"PWD: {hidden}"}], "bucket": KEPT[0]}
    assert read_config(journal.folder) == wanted == without_passwords(config)
    assert read_json(journal.folder / "receipt.json") == {"environment": {"URI": hidden}, "n": 1}
    assert read_status(journal.folder) is not None
    assert flatten(config)["tracking.uri"] == hidden
    say(f"fetching from {Mirror(uri)}")
    assert capsys.readouterr().err == f"fetching from {hidden}\n"


def test_a_refused_address_is_not_echoed(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pipeline.tracking",
        "sync",
        str(tmp_path),
        "--uri",
        f"htp://me:{SECRET}@host",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    assert "error: --uri htp://***@host: not a tracking server" in done.stderr
    assert SECRET not in done.stderr
