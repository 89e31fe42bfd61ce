"""Errors that are the user's to solve; the entry scripts print them as one line a rank."""


class HanayoError(Exception):
    """Says what was given, what is allowed and what to do."""
