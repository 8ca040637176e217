"""The one exception for a user's mistake."""


class UserError(ValueError):
    """A mistake that the user can mend: one sentence that names the thing, its value and the fix.

    The command line prints the sentence and exits with code 2; in Python it is an ordinary ``ValueError``.
    """


def shorten(value: object, limit: int = 60) -> str:
    """``repr(value)``, cut in the middle when it is longer than ``limit``, for use inside an error sentence."""
    text = repr(value)
    half = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[:half]}…{text[-half:]}"
