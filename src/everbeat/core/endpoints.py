"""Named endpoints: destinations of webhooks with signing secrets. Random bytes and the time are arguments."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Annotated, Literal
from uuid import UUID

import msgspec

from everbeat.core.errors import FieldError, InvalidInput
from everbeat.core.names import NAME_MESSAGE, is_name
from everbeat.core.target_secrets import REDACTED, is_secret_header, origin_of
from everbeat.core.targets import header_errors
from everbeat.core.webhook_addresses import MAX_URL_CHARACTERS, WebhookRules, url_message
from everbeat.core.webhooks import EndpointRequest

OLD_SECRET_VALID = timedelta(hours=24)
Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
MaxConcurrent = Annotated[int, msgspec.Meta(ge=1, le=10_000)]
RatePerSecond = Annotated[float, msgspec.Meta(gt=0, le=100_000)]


class EndpointInput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An endpoint in requests. `***` as the value of a header keeps the stored secret, which is never returned."""

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_URL_CHARACTERS)]
    method: Method | None = None
    headers: dict[str, str] = {}
    max_concurrent: MaxConcurrent | None = None
    rate_per_second: RatePerSecond | None = None


class WebhookEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A named destination of a tenant. `old_secret` is the one before the last rotation, valid until `old_secret_until`."""

    tenant_id: UUID
    name: str
    url: str
    method: Method | None
    headers: Mapping[str, str]
    max_concurrent: int | None
    rate_per_second: float | None
    secret: str
    old_secret: str | None
    old_secret_until: datetime | None
    revision: int
    created_at: datetime
    updated_at: datetime

    def __repr__(self) -> str:
        return f"WebhookEndpoint(name={self.name!r})"  # headers and secrets are confidential

    def request(self, now: datetime) -> EndpointRequest:
        """Return how the endpoint is called now, with the secrets that are valid."""
        is_old_valid = self.old_secret is not None and self.old_secret_until is not None and now < self.old_secret_until
        secrets = (self.secret, self.old_secret) if is_old_valid and self.old_secret is not None else (self.secret,)
        return EndpointRequest(url=self.url, method=self.method, headers=self.headers, secrets=secrets)


def new_endpoint(
    tenant_id: UUID,
    name: str,
    given: EndpointInput,
    existing: WebhookEndpoint | None,
    rules: WebhookRules | None,
    now: datetime,
    secret: str,
) -> WebhookEndpoint:
    """Return the endpoint that a request describes: a new one with the secret, or the existing one changed."""
    errors = [] if is_name(name) else [FieldError("name", NAME_MESSAGE)]
    if message := url_message(given.url, rules):
        errors.append(FieldError("url", message))
    errors += header_errors("headers", given.headers)
    if errors:
        raise InvalidInput(*errors)
    headers = _with_stored_secrets(given, existing)
    return WebhookEndpoint(
        tenant_id=tenant_id,
        name=name,
        url=given.url,
        method=given.method,
        headers=headers,
        max_concurrent=given.max_concurrent,
        rate_per_second=given.rate_per_second,
        secret=secret if existing is None else existing.secret,
        old_secret=None if existing is None else existing.old_secret,
        old_secret_until=None if existing is None else existing.old_secret_until,
        revision=1 if existing is None else existing.revision + 1,
        created_at=now if existing is None else existing.created_at,
        updated_at=now,
    )


def rotated(endpoint: WebhookEndpoint, secret: str, now: datetime) -> WebhookEndpoint:
    """Return the endpoint with a new secret. The previous one stays valid for a day, and an older one no longer is."""
    return msgspec.structs.replace(
        endpoint,
        secret=secret,
        old_secret=endpoint.secret,
        old_secret_until=now + OLD_SECRET_VALID,
        revision=endpoint.revision + 1,
        updated_at=now,
    )


def is_same(one: WebhookEndpoint, other: WebhookEndpoint) -> bool:
    """Whether a request would change nothing but the revision."""
    return one == msgspec.structs.replace(other, revision=one.revision, updated_at=one.updated_at)


def _with_stored_secrets(given: EndpointInput, existing: WebhookEndpoint | None) -> dict[str, str]:
    """Return the headers with the stored values of those that are redacted: only for the same scheme, host and port."""
    stored: dict[str, str] = {}
    if existing is not None and origin_of(existing.url) == origin_of(given.url):
        stored = {name.lower(): value for name, value in existing.headers.items()}
    headers: dict[str, str] = {}
    for name, value in given.headers.items():
        if value == REDACTED and is_secret_header(name):
            if name.lower() not in stored:
                raise InvalidInput.of("headers", f"{name}: no value is stored for this header and this host; send the value")
            value = stored[name.lower()]
        headers[name] = value
    return headers
