"""The interactive view: a local page to look into a results folder, and to play single attacked episodes."""

from wmjax.view.server import serve

__all__ = ["serve"]
