"""Errors that a user caused and can mend; the command line prints them as one line and exits with code 2."""

from collections.abc import Iterable


class UserError(Exception):
    """One line that names the option and what would be legal."""


def illegal(option: str, value: object, legal: Iterable[object]) -> UserError:
    """The error for ``option=value`` where only ``legal`` values are."""
    return UserError(f"{option}={value} is not one of: {', '.join(str(v) for v in legal)}")
