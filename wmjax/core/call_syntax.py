"""Names with numbers: `sparse(2,1)`, `apgd(20)`, `blur(1.5)`."""

import re

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,5})(\.[0-9]{1,6})?")


def parse_call(text: str) -> tuple[str, tuple[int | float, ...]]:
    """Return the name and the numbers of `name(number,...)`, whole ones as int; any other text as it is, without any.

    Numbers are below a million, with at most six decimals.
    """
    found = re.fullmatch(r"(\w+)\(([^()]{1,80})\)", text)
    parts = [_NUMBER.fullmatch(part) for part in found[2].split(",")] if found else []
    if found is None or None in parts:
        return text, ()
    return found[1], tuple(float(part[0]) if part[2] else int(part[0]) for part in parts if part)
