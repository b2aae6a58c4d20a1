"""Frames of a scene: MuJoCo's own OpenGL pixels are in `gl`."""

BACKENDS = ("egl", "osmesa")
"""MuJoCo's OpenGL back ends, in the order in which they are tried. Both need neither a display nor a GPU."""
