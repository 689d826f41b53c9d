"""Settings come from flags, variables, the file and the defaults, in this order; an error names the wrong setting."""

from __future__ import annotations

from pathlib import Path

import pytest

from everbeat.config import Settings, load_settings
from everbeat.core.errors import SettingsError


def test_flags_override_variables_which_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "everbeat.toml"
    file.write_text('port = 1\nlease_seconds = 20\nnode_name = "from-file"\n')
    environment = {"EVERBEAT_PORT": "2", "EVERBEAT_LEASE_SECONDS": "30"}
    settings = load_settings({"port": 3, "host": None}, environment=environment, file=file)
    assert (settings.port, settings.lease_seconds, settings.node_name) == (3, 30.0, "from-file")
    assert settings.host == "127.0.0.1"


def test_the_defaults_of_a_command_have_the_lowest_precedence() -> None:
    defaults = {"log_format": "console", "log_level": "warning"}
    settings = load_settings({}, environment={"EVERBEAT_LOG_LEVEL": "debug"}, defaults=defaults)
    assert (settings.log_format, settings.log_level) == ("console", "debug")


def test_roles_are_separated_by_commas() -> None:
    assert load_settings({"roles": "scheduler, api"}, environment={}).roles == ("scheduler", "api")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"port": 99_999}, "port"),
        ({"port": "eighty"}, "port"),
        ({"roles": "api,unknown"}, "roles"),
        ({"roles": ""}, "roles is empty"),
        ({"lease_seconds": 0.1}, "lease_seconds"),
        ({"scan_seconds": 9, "horizon_seconds": 3}, "scan_seconds"),
        ({"database_url": "mysql://host/db"}, "sqlite:/// or postgresql://"),
        ({"log_level": "unknown"}, "log_level"),
        ({"host": "0.0.0.0", "auth": "off"}, r"loopback only.*--auth keys"),
        ({"host": "example.org", "auth": "off"}, "loopback only"),
        ({"auth": "perhaps"}, "auto, keys or off"),
        ({"tls_key": "k.pem"}, "require each other"),
        ({"tls_client_ca": "ca.pem"}, "requires tls_certificate"),
        ({"tls_key": "no.pem", "tls_certificate": "no.pem"}, "there is no file no.pem"),
        ({"trusted_proxies": "10.0.0.0/8, proxy"}, "proxy"),
        ({"max_connections": 1}, "max_connections"),
        ({"blob_url": "/srv/blobs"}, "file:///folder or s3://bucket/prefix"),
        ({"blob_url": "file://host/blobs"}, "file:///folder or s3://bucket/prefix"),
        ({"blob_url": "s3://key:secret@bucket"}, "file:///folder or s3://bucket/prefix"),
        ({"blob_endpoint": "http://minio:9000"}, "requires a blob_url"),
        ({"blob_url": "s3://bucket", "blob_endpoint": "minio:9000"}, "blob_endpoint must be"),
    ],
)
def test_the_error_names_the_wrong_setting(flags: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        load_settings(flags, environment={})


@pytest.mark.parametrize(
    ("flags", "location"),
    [
        ({"database_url": "sqlite:////srv/my app.db"}, "file:///srv/my%20app-blobs"),
        ({"database_url": "sqlite:////srv/app.db", "blob_url": "s3://bucket/everbeat"}, "s3://bucket/everbeat"),
        ({"database_url": "postgresql://host/app"}, None),
        ({"database_url": "postgresql://host/app", "blob_url": "file:///srv/blobs"}, "file:///srv/blobs"),
    ],
)
def test_large_payloads_are_stored_beside_an_sqlite_file_or_at_blob_url(flags: dict[str, str], location: str | None) -> None:
    assert load_settings(flags, environment={}).blob_location == location


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "everbeat.toml"
    file.write_text("prot = 8080\n")
    with pytest.raises(SettingsError, match="prot"):
        load_settings({}, environment={}, file=file)


def test_a_missing_file_or_one_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no file"):
        load_settings({}, environment={}, file=tmp_path / "missing.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("port = = 1")
    with pytest.raises(SettingsError, match="not valid TOML"):
        load_settings({}, environment={}, file=broken)


@pytest.mark.parametrize("lease_seconds", [1.0, 2.0, 3.0, 10.0, 60.0, 300.0])
def test_a_lease_leaves_time_for_two_renewal_attempts(lease_seconds: float) -> None:
    settings = Settings(lease_seconds=lease_seconds)
    needed = lease_seconds / 3 + 2 * settings.lease_timeout_seconds + settings.lease_margin_seconds
    assert needed <= lease_seconds + 1e-9
    assert settings.lease_timeout_seconds > 0.1


def test_loopback_addresses_are_recognized() -> None:
    assert all(Settings(host=host).is_loopback for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    assert not any(Settings(host=host).is_loopback for host in ("0.0.0.0", "10.0.0.1", "::", "example.org"))


def test_broker_connections_are_tables_of_the_file_with_secrets_from_elsewhere(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from-file\n")
    file = tmp_path / "everbeat.toml"
    file.write_text(
        '[brokers.orders]\nkind = "kafka"\nservers = "k:9092"\npassword_env = "KAFKA_PASSWORD"\n'
        f'token_file = "{secret}"\ntenants = ["shop"]\n[brokers.plain]\nkind = "redis"\nurl = "redis://r"\n'
    )
    brokers = load_settings({}, environment={"KAFKA_PASSWORD": "hunter2", "EVERBEAT_BROKERS": "no"}, file=file).brokers
    assert dict(brokers["orders"].options) == {"servers": "k:9092", "password": "hunter2", "token": "from-file"}
    assert "hunter2" not in repr(brokers)
    assert brokers["orders"].serves("shop")
    assert not brokers["orders"].serves("default")
    assert brokers["plain"].serves("anybody")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("brokers = 3", "must be tables"),
        ("[brokers.x]\nurl = 'r'", "kind is required"),
        ("[brokers.'a b']\nkind = 'redis'", "the name must be"),
        ("[brokers.x]\nkind = 'redis'\ntenants = 'shop'", "tenants must be a list"),
        ("[brokers.x]\nkind = 'redis'\npassword_env = 'NOT_SET'", "NOT_SET is not set"),
        ("[brokers.x]\nkind = 'redis'\npassword_file = '/does/not/exist'", "cannot read /does/not/exist"),
        ("[brokers.x]\nkind = 'redis'\nurl = 'a'\nurl_env = 'HOME'", "url is given twice"),
    ],
)
def test_invalid_broker_connections_are_refused(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "everbeat.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=words):
        load_settings({}, environment={"HOME": "b"}, file=file)
