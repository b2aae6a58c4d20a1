"""The one error type for wrong user input: the command line prints its message alone and exits with code 2."""

import difflib
import re
from collections.abc import Iterable


class InputError(ValueError):
    """Something the user gave is wrong. The message names the field, the value and what is allowed."""


class Damaged(InputError):
    """A file was opened and read, but does not hold what its writer left: to make it again mends it."""


def unknown_name(kind: str, name: object, known: Iterable[object], *, also: str = "") -> InputError:
    """Return the error for an unknown name of a registry; it lists the known names, and suggests one that is near.

    `also` says what is allowed besides.
    """
    names = sorted(map(str, known))
    plain = {re.sub(r"[\W_]+", "", text.lower()): text for text in names}
    near = difflib.get_close_matches(re.sub(r"[\W_]+", "", str(name)[:80].lower()), plain, n=1, cutoff=0.75)
    allowed = f"known: {', '.join(names)}" + (f"; or {also}" if also else "")
    return InputError(
        f"unknown {kind} {name!r:.80}; {allowed}" + (f"; did you mean {plain[near[0]]!r}?" if near else "")
    )
