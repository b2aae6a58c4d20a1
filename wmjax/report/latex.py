"""A table as LaTeX: a tabular of the booktabs package, in which every foreign text is only text."""

from wmjax.report.document import Table, Value
from wmjax.report.inline import pieces
from wmjax.report.markdown import value_texts

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "`": r"\textasciigrave{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    **{char: f"\\{char}" for char in "&%$#_{}"},
    # After the end of a row, a bracket or a star would belong to it.
    **{char: f"{{{char}}}" for char in "[]*"},
    "ε": r"$\varepsilon$",
    "∞": r"$\infty$",
    "−": "$-$",
    "×": r"$\times$",
    "–": "--",
    "…": r"\dots{}",
}


def render(table: Table) -> str:
    r"""Return the table, to be \input in a document with \usepackage{booktabs} and \usepackage[T1]{fontenc}."""
    columns = "l" * table.left + "r" * (len(table.header) - table.left)
    lines = [" & ".join(map(_text, table.header)), r"\midrule", *(" & ".join(map(_cell, row)) for row in table.rows)]
    body = "\n".join(line if line == r"\midrule" else f"{line} \\\\" for line in lines)
    return f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"


def _cell(cell: str | Value) -> str:
    if isinstance(cell, str):
        return _text(cell)
    shown, span = map(_escape, value_texts(cell))
    shown = rf"\textbf{{{shown}}}" if cell.strong else shown
    return rf"{shown} {{\scriptsize {span}}}" if span else shown


def _text(text: str) -> str:
    found = []
    for kinds, piece in pieces(text):
        part = _escape(piece)
        part = rf"\texttt{{{part}}}" if "code" in kinds else part
        found.append(rf"\textbf{{{part}}}" if "strong" in kinds else part)
    return "".join(found)


def _escape(text: str) -> str:
    """Return the text as it reads; letters that no Latin font has become `?`."""
    return "".join(_SPECIAL.get(char, char if char.isprintable() and ord(char) < 0x180 else "?") for char in text)
