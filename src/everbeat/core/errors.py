"""The tree of errors Everbeat raises on purpose; each one knows what a user should do about it."""

from __future__ import annotations

from typing import NamedTuple


class FieldError(NamedTuple):
    """One thing wrong with one field of an input."""

    field: str
    message: str


class EverbeatError(Exception):
    """The root: anything below it is expected and explained."""


class InvalidInput(EverbeatError):
    """Well-formed input with a wrong value; names every field at fault."""

    def __init__(self, *errors: FieldError) -> None:
        super().__init__("; ".join(f"{error.field}: {error.message}" for error in errors))
        self.errors = list(errors)

    @classmethod
    def of(cls, field: str, message: str) -> InvalidInput:
        return cls(FieldError(field, message))

    def under(self, prefix: str) -> InvalidInput:
        """The same errors, seen from the object that holds this one."""
        return type(self)(*(FieldError(f"{prefix}.{error.field}", error.message) for error in self.errors))


class TooLarge(InvalidInput):
    """Input that is right but bigger than allowed."""


class NotFound(EverbeatError):
    """Nothing of that name or id, or it belongs to somebody else."""


class Conflict(EverbeatError):
    """The request is right but the present state forbids it."""


class RevisionMismatch(Conflict):
    """The caller changed a revision that is no longer the current one."""


class Unauthenticated(EverbeatError):
    """Nobody knows who asks: no key, or one that is not valid, no longer or not at all."""


class Forbidden(EverbeatError):
    """It is known who asks, and they may not."""


class TooManyRequests(EverbeatError):
    """More requests than are allowed in a time; trying again after a while is right."""

    def __init__(self, message: str, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QuotaExceeded(EverbeatError):
    """More than the tenant may have. With a time, waiting that long may help; with None only a higher quota does."""

    def __init__(self, message: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class StoreError(EverbeatError):
    """The store did not do what was asked."""


class StoreUnavailable(StoreError):
    """The database is away or did not answer in time; whether a write took place is unknown."""


class StoreRefused(StoreError):
    """The database refused this very write; trying it again as it is will not help."""


class StoreUnusable(StoreError):
    """The database file or schema cannot be used as it is: corrupt, too old or too new."""


class BlobsUnavailable(EverbeatError):
    """The blob store is away, refuses us or did not answer in time."""


class BlobMissing(EverbeatError):
    """The blob store is there, and the payload is not in it."""


class SettingsError(EverbeatError):
    """A setting is missing, wrong or does not go with another."""
