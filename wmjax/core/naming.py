"""Names with numbers: `sparse(2,1)`, `apgd(20)`, `blur(1.5)`; and texts of strangers, in characters that are seen.

Python turns the bytes of a command line and of file names into text by the locale's encoding, what that cannot read
into surrogates. `as_text` and `as_path` go between that and the text of files, which is UTF-8 in every locale.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,5})(\.[0-9]{1,6})?")


def split(text: str) -> tuple[str, tuple[int | float, ...]]:
    """Return the name and the numbers of `name(number,...)`, whole ones as int; any other text as it is, without any.

    Numbers are below a million, with at most six decimals.
    """
    found = re.fullmatch(r"(\w+)\(([^()]{1,80})\)", text)
    parts = [_NUMBER.fullmatch(part) for part in found[2].split(",")] if found else []
    if found is None or None in parts:
        return text, ()
    return found[1], tuple(float(part[0]) if part[2] else int(part[0]) for part in parts if part)


def printable(text: str, instead: str = "?") -> str:
    """Return `text` with `instead` for every character that is not seen, but steers a terminal or a page."""
    return "".join(char if char.isprintable() else instead for char in as_text(text))


def as_text(text: str) -> str:
    """Return an argument or a file's name as the same text in every locale: UTF-8 where its bytes are.

    Bytes that are neither the locale's nor UTF-8 stay surrogates, which JSON can write and nothing else.
    """
    try:
        return text.encode(errors="surrogateescape").decode(errors="surrogateescape")
    except UnicodeEncodeError:  # surrogates of a stranger's JSON, which are no bytes
        return text


def as_path(text: str | os.PathLike[str]) -> Path:
    """Return the path that a text names: in UTF-8 where the locale's encoding lacks one of its letters.

    `~`, `~user`, `$HOME` and `${HOME}` at its start are the user's home; no other variable is looked up, for messages
    and manifests would show what is in it.
    """
    name = os.path.expanduser(re.sub(r"^(\$HOME|\$\{HOME\})(?=/|$)", "~", os.fspath(text)))
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        with suppress(UnicodeEncodeError):  # as above
            name = os.fsdecode(name.encode(errors="surrogateescape"))
    return Path(name)
