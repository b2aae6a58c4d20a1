"""Texts of strangers, in characters that are seen; and texts of the system, the same in every locale.

Python turns the bytes of a command line and of file names into text by the locale's encoding, what that cannot read
into surrogates. `as_text` and `as_path` go between that and the text of files, which is UTF-8 in every locale.
"""

import os
import re
from contextlib import suppress
from pathlib import Path


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
