"""What a user's data may be refused with."""

from __future__ import annotations


class DataError(ValueError):
    """Data that cannot be used; the message says in one line what was expected, what came and what to do."""
