"""Inline Markdown as HTML, as plain text, and as pieces that another format can write."""

from collections.abc import Iterator

from markdown_it import MarkdownIt
from markupsafe import Markup

# Foreign HTML stays text, links to javascript: and data: stay text, and nothing is loaded.
_READER = MarkdownIt("commonmark", {"html": False}).disable(["image", "autolink", "html_inline", "html_block"])


def inline_html(text: str) -> Markup:
    """Return one line of inline Markdown as HTML."""
    return Markup(_READER.renderInline(text))


def block_html(text: str) -> Markup:
    """Return paragraphs, lists and code as HTML."""
    return Markup(_READER.render(text))


def inline_text(text: str) -> str:
    """Return what a reader of the inline Markdown sees, without its marks."""
    return "".join(piece for _, piece in pieces(text))


def pieces(text: str) -> Iterator[tuple[frozenset[str], str]]:
    """Yield the runs of inline Markdown, each with what it is of: `code`, `strong`, `em`."""
    state: set[str] = set()
    for token in _READER.parseInline(text)[0].children or []:
        kind = token.type.removesuffix("_open").removesuffix("_close")
        if token.nesting == 1:
            state.add(kind)
        elif token.nesting == -1:
            state.discard(kind)
        elif token.type == "code_inline":
            yield frozenset({*state, "code"}), token.content
        elif token.type in ("softbreak", "hardbreak"):
            yield frozenset(state), " "
        else:
            yield frozenset(state), token.content
