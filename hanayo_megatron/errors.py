"""Errors that are the user's to solve; the entry scripts print them as one line a rank."""


class HanayoError(Exception):
    """Says what was given, what is allowed and what to do."""


class OneRankError(HanayoError):
    """One that the other ranks do not run into themselves: they must be told, or wait for ever."""
