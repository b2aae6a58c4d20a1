"""Names with a number: `sparse(2)`, `apgd(20)`."""

import re


def split_number(text: str) -> tuple[str, int | None]:
    """Return the name and the number, from 1 to 999999, of `name(number)`; any other text as it is, without one."""
    found = re.fullmatch(r"(\w+)\(([1-9][0-9]{0,5})\)", text)
    return (found[1], int(found[2])) if found else (text, None)
