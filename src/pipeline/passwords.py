"""Passwords in addresses. Whatever is printed, journalled, logged or sent to MLflow goes through `without_password`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "***"

# Databases' addresses are read as SQLAlchemy does: all between the first colon and an @ is the password.
DATABASES = ("postgres", "mysql", "mariadb", "mssql", "oracle", "sqlite", "databricks", "snowflake", "redshift")
WEB = ("http", "https")  # here a name alone may be a token: https://<token>@host

# Tried where a word begins, and whole words only (++): a long text without an address takes a time in its length.
_ADDRESS = re.compile(r"(?<![A-Za-z0-9+.-])(?P<scheme>[A-Za-z0-9+.-]++)://(?P<rest>\S*)")
_NAME_AND_PASSWORD = re.compile(r"(?P<name>(?:\[[^\]]*\])?[^/?#:]*):(?P<password>.*)", re.DOTALL)
_PORT = re.compile(r"\d{1,5}(?=[/?#])")

_SECRET = (
    r"(?:[\w.-]*(?:password|passwd|passphrase|pwd|secret|token|api[_-]?key|access[_-]?key|credential|signature)"
    r"|pass|sig)"
)
_IN_QUERY = re.compile(rf"(?i)([?&]{_SECRET}=)[^&\s]*")  # ?user=me&password=...
_IN_ODBC = re.compile(rf"(?i)([;={{]\s*{_SECRET}\s*=\s*)(?:\{{(?:[^}}]|\}}\}})*\}}|[^;\n]*)")  # UID=me;PWD=...;
_IN_WORDS = re.compile(rf"(?i)((?:^|[\s\"'(]){_SECRET}\s*=\s*)(?:'(?:[^'\\]|\\.)*'|\"[^\"]*\"|\S+)")  # DSN
_ENCODED_ODBC = re.compile(r"(?i)([?&]odbc_connect=)[^&\s]*%3d[^&\s]*")


def without_password(text: str) -> str:
    """`text` with *** for the passwords of the addresses in it: what a run writes down is read by others.

    Known are `scheme://name:password@host`, a token before a web server's name, settings such as `?password=` or
    `;PWD=`, and ODBC's connection string in an address. Where a password is not percent-encoded as RFC 3986 asks, all
    up to the last @ goes. White space ends an address. `s3://bucket@x/` and `http://host:80/a@b` have no password.
    """
    text = _ENCODED_ODBC.sub(rf"\1{HIDDEN}", text)
    text = _ADDRESS.sub(_hidden, text)
    text = _IN_QUERY.sub(rf"\1{HIDDEN}", text)
    text = _IN_ODBC.sub(rf"\1{HIDDEN}", text)
    return _IN_WORDS.sub(rf"\1{HIDDEN}", text)


def without_passwords(value: Any) -> Any:
    """The same for every text in nested mappings and lists."""
    if isinstance(value, str):
        return without_password(value)
    if isinstance(value, Mapping):
        return {key: without_passwords(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_passwords(item) for item in value]
    return value


def _hidden(address: re.Match[str]) -> str:
    scheme, rest = address["scheme"], address["rest"]
    end = _end_of_secret(scheme.lower().lstrip("0123456789+.-"), rest)
    return address[0] if end is None else f"{scheme}://{HIDDEN}{rest[end:]}"


def _end_of_secret(scheme: str, rest: str) -> int | None:
    """Where the @ stands behind a name with a password, or behind a token; None where there is neither."""
    last = rest.rfind("@")
    found = _NAME_AND_PASSWORD.match(rest[:last]) if last >= 0 else None
    if found is not None:
        database = scheme.startswith(DATABASES) and "@" not in found["name"]
        if database or not _PORT.match(found["password"]):  # host:5000/a@b has a port and a path
            return last
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return authority.rfind("@") if scheme in WEB and "@" in authority else None
