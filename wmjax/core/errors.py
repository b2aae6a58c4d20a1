"""The one error type for wrong user input: the command line prints its message alone and exits with code 2."""


class InputError(ValueError):
    """Something the user gave is wrong. The message names the field, the value and what is allowed."""


class Damaged(InputError):
    """A file was opened and read, but does not hold what its writer left: to make it again mends it."""


def unknown_name(kind: str, name: object, known: object) -> InputError:
    """Return the error for an unknown name of a registry; it lists the names that are known."""
    return InputError(f"unknown {kind} {name!r:.80}; known: {', '.join(sorted(map(str, known)))}")  # type: ignore[call-overload]
