"""Database URLs: what is wrong with them, in one line that says what to do and contains no password."""

from __future__ import annotations

import pytest

from everbeat.core.database_urls import database_url_error


@pytest.mark.parametrize(
    "url",
    [
        *(
            "sqlite:///everbeat.db",
            "sqlite:////srv/my app.db",
            "sqlite:///a%zz.db",
            "postgres://h/db",
            "postgresql://h:5432/db",
        ),
        *("postgresql://u:p%40w@h/db", "postgresql://a:1,b:2,c/db", "postgresql://[::1]:5432/db", "postgresql://u@[::1]/db"),
        *("postgresql:///db?host=/run/postgresql", "postgresql://h/?dbname=db", "postgresql://h/db?sslmode=require"),
        *("postgresql://u:p@w@h/db", "postgresql://h_1.example/db", "postgresql:///db?host=a,b&port=1,2"),
    ],
)
def test_valid_urls(url: str) -> None:
    assert database_url_error(url) is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "must start with"),
        ("sqlite://x.db", "must start with"),
        ("mysql://h/db", "must start with"),
        ("sqlite:///", "names no file"),
        ("sqlite:////srv/", "names no file"),
        ("sqlite:///x.db?mode=ro", "without"),
        ("sqlite:///a\0b", "without"),
        ("postgresql://", "names no database"),
        ("postgresql://h", "names no database"),
        ("postgresql://h/", "names no database"),
        ("postgresql://u:hunter2@h:abc/db", "has a port"),
        ("postgresql://h:/db", "has a port"),
        ("postgresql://h:0/db", "has a port"),
        ("postgresql://h:99999/db", "has a port"),
        ("postgresql://h:-1/db", "has a port"),
        ("postgresql://h:\u0661/db", "has a port"),
        ("postgresql://a:1,b:x/db", "has a port"),
        ("postgresql://u:hunter2/w@h/db", "has a port"),
        ("postgresql://u:hunter2#w@h/db", "must not contain #"),
        ("postgresql://u:hunter2%zz@h/db", "has a %"),
        ("postgresql://u:hunter2%@h/db", "has a %"),
        ("postgresql://[::1/db", "has the host"),
        ("postgresql://[x]/db", "has the host"),
        ("postgresql://::1/db", "has a port"),
        ("postgresql://h ost/db", "must not contain spaces"),
        ("postgresql://h\n/db", "must not contain spaces"),
        ("postgresql://h/db?sslmode=foo", "has an unknown sslmode"),
        ("postgresql://h/db?target_session_attrs=x", "has an unknown target_session_attrs"),
        ("postgresql://h/db?port=abc", "has an option port"),
    ],
)
def test_invalid_urls(url: str, message: str) -> None:
    error = database_url_error(url)
    assert error is not None
    assert error.startswith(message) or message in error
    assert "hunter2" not in error
    assert "\n" not in error


def test_the_database_may_be_named_by_the_environment() -> None:
    assert database_url_error("postgresql://h", has_default_database=True) is None
