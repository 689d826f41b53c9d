"""The exceptions that Everbeat raises deliberately."""

from __future__ import annotations

from typing import NamedTuple


class FieldError(NamedTuple):
    """One error in one field of an input."""

    field: str
    message: str


class EverbeatError(Exception):
    """Base class of all errors that Everbeat raises deliberately."""


class InvalidInput(EverbeatError):
    """Well-formed input with invalid values. `errors` lists every invalid field."""

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in errors))
        self.errors = list(errors)

    @classmethod
    def of(cls, field: str, message: str) -> InvalidInput:
        return cls(FieldError(field, message))

    def under(self, prefix: str) -> InvalidInput:
        """Return the same errors, with field names prefixed by the name of the containing object."""
        return type(self)(*(FieldError(f"{prefix}.{error.field}", error.message) for error in self.errors))


class TooLarge(InvalidInput):
    """Input that is valid but larger than allowed."""


class NotFound(EverbeatError):
    """There is no object with that name or id, or it belongs to another tenant."""


class Conflict(EverbeatError):
    """The request is valid, but the current state does not allow it."""


class RevisionMismatch(Conflict):
    """The request was made for a revision that is no longer current."""


class Unauthenticated(EverbeatError):
    """The request has no key, or a key that is invalid, expired or revoked."""


class Forbidden(EverbeatError):
    """The caller is authenticated but not permitted to do this."""


class TooManyRequests(EverbeatError):
    """The rate limit is exceeded. The caller should retry after `retry_after_seconds`."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QuotaExceeded(EverbeatError):
    """A quota of the tenant is exceeded. If `retry_after_seconds` is None, a retry without a higher quota does not help."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class StoreError(EverbeatError):
    """The store could not perform an operation."""


class StoreUnavailable(StoreError):
    """The database is unreachable or timed out. It is unknown whether a write was committed."""


class StoreLocked(StoreError):
    """Another transaction holds a lock that the operation needs. Nothing was changed; the operation can be repeated."""


class StoreRefused(StoreError):
    """The database rejected this write. Repeating it unchanged will fail again."""


class KeyTaken(StoreRefused):
    """An idempotency key is in use. Nothing was written."""


class HandoffPaused(StoreRefused):
    """A task was to be handed over to a waiting worker, but its queue is paused. Nothing was written."""


class StoreUnusable(StoreError):
    """The database file or schema cannot be used as it is: corrupt, too old or too new."""


class SchemaTooOld(StoreUnusable):
    """The database has to be migrated before this version of Everbeat can use it."""


class SchemaTooNew(StoreUnusable):
    """The database was migrated by a newer version of Everbeat. This version does not change it."""


class BlobsUnavailable(EverbeatError):
    """The blob store is unreachable, denied access or timed out."""


class BlobMissing(EverbeatError):
    """The blob store is reachable but does not contain the payload."""


class ArchiveUnavailable(EverbeatError):
    """The archive is unreachable, denied access or timed out, or a file in it is not what was written."""


class SettingsError(EverbeatError):
    """A setting is missing, invalid or conflicts with another setting."""
