"""Frames of a scene: MuJoCo's own OpenGL pixels (`wmjax.render.gl`)."""
