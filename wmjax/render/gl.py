"""MuJoCo's own pixels, bit for bit those of dm_control's `physics.render`, from one OpenGL context for all episodes."""

import importlib
import os

import mujoco
import numpy as np

from wmjax.core.errors import InputError
from wmjax.render import BACKENDS


def candidates(wanted: str) -> tuple[str, ...]:
    """Return the back ends to try, given the value of MUJOCO_GL: that one, or all if it is empty.

    Raises InputError for a value that is not a back end.
    """
    if not wanted:
        return BACKENDS
    if wanted.lower() not in BACKENDS:
        raise InputError(f"MUJOCO_GL is {wanted!r}; frames need one of {', '.join(BACKENDS)}, or MUJOCO_GL unset")
    return (wanted.lower(),)


class Renderer:
    """The one GL context of this process, made for one model topology.

    Two contexts in a process disturb each other (frames go wrong or blank without an error), so make one only. It
    draws every physics of the same topology: sizes and positions are read from the model given to `render`.
    """

    def __init__(self, model: mujoco.MjModel, backend: str, *, size: int = 64, camera: int = 0) -> None:
        """Open the context. `size` is the frame's height and width in pixels, `camera` a camera id of `model`.

        Raises InputError, naming the packages to install, if the back end does not work. What it has loaded by then
        misleads another one: try that in a fresh process.
        """
        os.environ["PYOPENGL_PLATFORM"] = backend
        # A buffer of the frame's own size: the model's 640x480 costs time in every clear, and changes no pixel.
        buffer = model.vis.global_
        full = buffer.offwidth, buffer.offheight
        buffer.offwidth = buffer.offheight = size
        try:
            self._gl = importlib.import_module(f"mujoco.{backend}").GLContext(size, size)
            self._gl.make_current()
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_50)
        except Exception as error:  # a missing library surfaces as one of many types, AttributeError among them
            raise InputError(
                f"the OpenGL back end {backend} does not work ({type(error).__name__}: {error}). On Debian or Ubuntu:"
                " apt-get install libosmesa6 libegl1 libgl1; then `wmjax doctor` shows what works"
            ) from error
        finally:
            buffer.offwidth, buffer.offheight = full
        _lighten_shadow_map(self._context)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, maxgeom=1000)
        self._option = mujoco.MjvOption()
        self._option.flags[mujoco.mjtVisFlag.mjVIS_RANGEFINDER] = False
        self._perturbation = mujoco.MjvPerturb()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._camera.fixedcamid = camera
        self._view = mujoco.MjrRect(0, 0, size, size)
        self._pixels = np.empty((size, size, 3), np.uint8)

    def render(self, model: mujoco.MjModel, data: mujoco.MjData) -> np.ndarray:
        """Return the frame [H, W, 3], uint8, of the state in `data`, whose derived positions must be up to date.

        Raises RuntimeError for a blank frame, the sign of a lost GL context.
        """
        mujoco.mjv_updateScene(
            model, data, self._option, self._perturbation, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        mujoco.mjr_render(self._view, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._view, self._context)
        check_frame(self._pixels)
        return self._pixels[::-1].copy()


def _lighten_shadow_map(context: mujoco.MjrContext) -> None:
    # MuJoCo gives its shadow map a stencil that it never uses; Mesa's software driver then clears the 2048 x 2048
    # depths by read-modify-write. The same 24 bits without the stencil are cleared faster, and compare the same.
    from OpenGL import GL  # type: ignore[import-untyped]

    size, texture = context.shadowSize, context.shadowTex
    if not texture or b"llvmpipe" not in GL.glGetString(GL.GL_RENDERER):
        return
    GL.glBindTexture(GL.GL_TEXTURE_2D, texture)
    GL.glTexImage2D(
        GL.GL_TEXTURE_2D, 0, GL.GL_DEPTH_COMPONENT24, size, size, 0, GL.GL_DEPTH_COMPONENT, GL.GL_UNSIGNED_INT, None
    )
    GL.glBindTexture(GL.GL_TEXTURE_2D, 0)
    GL.glBindFramebuffer(GL.GL_FRAMEBUFFER, context.shadowFBO)
    GL.glFramebufferTexture2D(GL.GL_FRAMEBUFFER, GL.GL_DEPTH_STENCIL_ATTACHMENT, GL.GL_TEXTURE_2D, 0, 0)
    GL.glFramebufferTexture2D(GL.GL_FRAMEBUFFER, GL.GL_DEPTH_ATTACHMENT, GL.GL_TEXTURE_2D, texture, 0)


def check_frame(frame: np.ndarray) -> None:
    """Raise RuntimeError if every pixel of `frame` [H, W, 3] has the same value."""
    if frame.min() == frame.max():
        raise RuntimeError(
            f"MuJoCo rendered a blank frame (all values are {frame.flat[0]}): its OpenGL context was lost. Another"
            " context in the same process does that; render in a process of its own, as wmjax.envs does, and run"
            " `wmjax doctor` to check the back ends"
        )
