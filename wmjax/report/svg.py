"""A drawing as SVG inside an HTML page: no style of its own, no foreign parts, ink that follows the page's colours."""

import io
import re
from xml.etree import ElementTree

import matplotlib
from markupsafe import Markup

from wmjax.report.document import Figure

_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
_DRAWN = {"svg", "g", "defs", "path", "use", "text", "tspan", "clipPath", "pattern", "rect"}
_DROPPED = {"metadata", "style"}
_ADAPTED = {
    "#000000": "currentColor",
    "#222222": "currentColor",
    "#6b6b6b": "var(--faint)",
    "#dddddd": "var(--rule)",
    "#ffffff": "var(--paper)",
}
"""Ink of the drawings to that of the page, light or dark; other colours stay."""

_INHERITED = {"fill": "currentColor", "stroke-linejoin": "round", "stroke-linecap": "butt"}
"""What matplotlib says in a style element, and black, which it leaves out."""


def inline_svg(figure: Figure) -> Markup:
    """Return the figure as an svg element with its text as text; its ids begin with the figure's name."""
    file = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": figure.name}):
        figure.drawing.savefig(file, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(file.getvalue())
    used = set(re.findall(r"(?:href=\"|url\()#([\w-]+)", file.getvalue()))
    _clean(root, figure.name, used)
    width, height = (float(size) for size in root.attrib["viewBox"].split()[2:])
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": figure.alt, **_INHERITED}
    root.attrib |= {"width": f"{width * 4 / 3:.0f}", "height": f"{height * 4 / 3:.0f}"}  # points to CSS pixels
    text = ElementTree.tostring(root, encoding="unicode")
    return Markup(re.sub(r">\s+<", "><", text))


def _clean(element: ElementTree.Element, name: str, used: set[str]) -> None:
    """Make an element of SVG one of HTML, and all in it: attributes for styles, own ids, nothing that is not drawn."""
    element.tag = element.tag.removeprefix(_SVG)
    attributes: dict[str, str] = {}
    for key, value in element.attrib.items():
        if key == "style":
            attributes |= _presentation(value)
        elif key == "id":
            attributes |= {"id": f"{name}-{value}"} if value in used else {}
        elif key == _LINK:
            attributes["href"] = value
        elif not key.startswith("{"):
            attributes[key] = value
    for key, value in attributes.items():
        if key == "href" or value.startswith("url(#"):
            attributes[key] = value.replace("#", f"#{name}-")
        elif key in ("fill", "stroke"):
            attributes[key] = _ADAPTED.get(value.lower(), value)
    if element.tag in ("text", "tspan") and attributes.get("fill", "").startswith("#"):
        attributes["fill"] = "currentColor"  # a colour that is readable as a line is not so as a letter
    element.attrib.clear()
    element.attrib.update(attributes)
    for child in list(element):
        tag = child.tag.removeprefix(_SVG)
        if tag == "path" and not child.get("d"):
            element.remove(child)  # the band of an interval that is nowhere defined
        elif tag in _DRAWN:
            _clean(child, name, used)
        else:
            assert tag in _DROPPED, f"matplotlib has drawn an element that no report expects: {tag}"
            element.remove(child)


def _presentation(style: str) -> dict[str, str]:
    """Return the declarations of a style as attributes, which a page that forbids styles shows too."""
    pairs = (declaration.split(":", 1) for declaration in style.split(";") if ":" in declaration)
    found = {key.strip(): value.strip() for key, value in pairs}
    # The family is the page's.
    found.pop("font-family", None)
    return found
