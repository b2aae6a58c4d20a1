"""What the renderer takes from a MuJoCo model, read and checked: a part that it can not draw raises InputError."""

from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from flax import struct

from wmjax.core.errors import InputError
from wmjax.render.light import Light
from wmjax.render.planes import Plane, grid
from wmjax.render.solids import KINDS, MOST

_RGB = mujoco.mjtTextureRole.mjTEXROLE_RGB
_FIXED = (mujoco.mjtCamLight.mjCAMLIGHT_FIXED,)
_LEVEL = (mujoco.mjtCamLight.mjCAMLIGHT_TRACK, mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM)
"""Modes in which a camera moves with a body, but does not turn with it."""


@struct.dataclass
class Visible:
    """The parts of a model that are drawn, by their ids."""

    floors: tuple[int, ...]
    """Planes. The first one has the texture, and reflects."""
    solids: tuple[int, ...]
    """All other geoms."""
    sites: tuple[int, ...]


def visible(model: mujoco.MjModel) -> Visible:
    """Return the parts that are drawn. Raises InputError if the renderer would not draw them as OpenGL does."""
    groups = mujoco.MjvOption()
    geoms = [
        i for i in range(model.ngeom) if groups.geomgroup[group(model, "geom", i)] and colour(model, "geom", i)[3] > 0
    ]
    sites = [
        i for i in range(model.nsite) if groups.sitegroup[group(model, "site", i)] and colour(model, "site", i)[3] > 0
    ]
    floors = [i for i in geoms if model.geom_type[i] == mujoco.mjtGeom.mjGEOM_PLANE]
    solids = [i for i in geoms if i not in floors]
    types, colours = [*model.geom_type[solids], *model.site_type[sites]], [colour(model, "geom", i) for i in geoms]
    _require(all(kind in KINDS for kind in types), "its geoms must be planes or simple solids")
    _require(0 < len(types) <= MOST, f"it must have from 1 to {MOST} geoms and sites that are not planes")
    _require(model.nflex + model.nskin == 0, "it must have neither skins nor flexes")
    colours += [colour(model, "site", i) for i in sites]
    _require(all(rgba[3] == 1 for rgba in colours), "its colours must be opaque")
    _require(bool(np.all(model.geom_size[floors, :2] > 0)), "its planes must be finite")
    floor = model.geom_matid[floors[0]] if floors else -1
    _require(floor >= 0 and model.mat_texid[floor, _RGB] >= 0, "its first plane must have a texture")
    others = sorted({*model.geom_matid[[*floors[1:], *solids]], *model.site_matid[sites]} - {-1})
    plain = bool(np.all(model.mat_reflectance[others] == 0) and np.all(model.mat_texid[others] == -1))
    _require(plain, "none but its first plane may have a texture or reflect")
    used = [floor, *others]
    finish = {tuple(row) for row in np.stack([model.mat_specular, model.mat_shininess, model.mat_emission], 1)[used]}
    _require(finish == {(0.5, 0.5, 0)}, "its materials must have specular 0.5, shininess 0.5 and no emission")
    quality, depth = model.vis.quality, model.vis.map
    _require((quality.numslices, quality.numstacks) == (28, 16), "its quality must have 28 slices and 16 stacks")
    _require(np.allclose((depth.znear, depth.zfar), (0.01, 50)), "its znear must be 0.01 and its zfar 50")
    return Visible(tuple(floors), tuple(solids), tuple(sites))


def has_string(model: mujoco.MjModel) -> bool:
    """Return whether a tendon is drawn. Raises InputError for one that is transparent."""
    shown = [i for i in range(model.ntendon) if mujoco.MjvOption().tendongroup[group(model, "tendon", i)]]
    alpha = [float(model.tendon_rgba[i, 3]) for i in shown if model.tendon_rgba[i, 3] > 0]
    _require(all(value == 1 for value in alpha), "its tendon must be opaque")
    return bool(alpha)


def check_camera(model: mujoco.MjModel, camera: int) -> None:
    """Raise InputError for a camera that the model lacks, or that can turn: the sky is drawn once."""
    if type(camera) is not int or not 0 <= camera < model.ncam:
        raise InputError(f"camera must be the id of one of the model's {model.ncam} cameras, not {camera!r:.80}")
    mode, body = model.cam_mode[camera], model.cam_bodyid[camera]
    slides = _joints(model, body) <= {int(mujoco.mjtJoint.mjJNT_SLIDE)}
    _require(mode in _LEVEL or (mode in _FIXED and slides), "its camera must not turn")
    lens = not model.cam_projection[camera] and not model.cam_sensorsize[camera].any()
    _require(lens, "its camera must have a perspective that fovy gives")


def at_rest(model: mujoco.MjModel, camera: int, floors: tuple[int, ...]) -> bool:
    """Return whether neither the camera nor the light nor the planes can ever move."""
    bodies = {model.cam_bodyid[camera], model.light_bodyid[0], *model.geom_bodyid[list(floors)]}
    fixed = model.cam_mode[camera] in _FIXED and model.light_mode[0] in _FIXED
    return fixed and not any(_joints(model, body) for body in bodies)


def _joints(model: mujoco.MjModel, body: int) -> set[int]:
    """Return the types of the joints between a body and the world; one that is moved by hand counts as free."""
    types: set[int] = set()
    while body:
        types |= {int(kind) for kind in model.jnt_type[model.jnt_bodyid == body]}
        types |= {int(mujoco.mjtJoint.mjJNT_FREE)} if model.body_mocapid[body] >= 0 else set()
        body = model.body_parentid[body]
    return types


def colour(model: mujoco.MjModel, what: str, i: int) -> np.ndarray:
    """Return the colour [4] of a geom or site, in [0, 1]."""
    material, own = getattr(model, f"{what}_matid")[i], getattr(model, f"{what}_rgba")[i]
    # MuJoCo prefers a part's own colour to that of its material, unless it is the default one.
    return model.mat_rgba[material] if material >= 0 and tuple(own) == (0.5, 0.5, 0.5, 1) else own


def group(model: mujoco.MjModel, what: str, i: int) -> int:
    """Return the group of a geom, site or tendon, which decides whether it is drawn."""
    return int(np.clip(getattr(model, f"{what}_group")[i], 0, mujoco.mjNGROUP - 1))


def plane(model: mujoco.MjModel, i: int) -> Plane:
    """Return a plane, without its pose."""
    half, material, mapping = model.geom_size[i], model.geom_matid[i], None
    if material >= 0 and model.mat_texid[material, _RGB] >= 0:
        scale = model.mat_texrepeat[material] / (1 if model.mat_texuniform[material] else half[:2])
        mapping = float(scale[0]) / 2, float(scale[1]) / 2
    cells = grid(float(half[0]), float(half[2])), grid(float(half[1]), float(half[2]))
    extent = float(half[0]), float(half[1])
    return Plane(extent, cells, mapping, jnp.zeros(3), jnp.eye(3), array(colour(model, "geom", i)[:3]))


def headlight(model: mujoco.MjModel) -> Light:
    """Return the light at the camera, in its frame."""
    light = model.vis.headlight
    _require(bool(light.active), "it must have a headlight")
    ambient, diffuse, specular = (array(values) for values in (light.ambient, light.diffuse, light.specular))
    pose = jnp.zeros(3), array([0, 0, -1]), array([0, 1, 0])
    return Light(True, 0, 0.0, ambient, diffuse, specular, *pose)


def lamp(model: mujoco.MjModel) -> tuple[Light, float]:
    """Return the model's light, without its pose, and the reach of its shadow map."""
    _require(model.nlight == 1, "it must have one light")
    kind, kinds = model.light_type[0], mujoco.mjtLightType
    _require(kind in (kinds.mjLIGHT_SPOT, kinds.mjLIGHT_DIRECTIONAL), "its light must be a spot or directional")
    shining = model.light_active[0] and model.light_castshadow[0]
    _require(bool(shining), "its light must shine and cast shadows")
    _require(tuple(model.light_attenuation[0]) == (1, 0, 0), "its light must not decrease with distance")
    _require(model.light_exponent[0] == int(model.light_exponent[0]), "its light must have a whole exponent")
    directional = kind == kinds.mjLIGHT_DIRECTIONAL
    cutoff, visual = float(model.light_cutoff[0]), model.vis.map
    colours = model.light_ambient[0], model.light_diffuse[0], model.light_specular[0]
    ambient, diffuse, specular = (array(values) for values in colours)
    angle = float(np.deg2rad(min(2 * cutoff * visual.shadowscale, 160) / 2))
    reach = float(visual.shadowclip * model.stat.extent) if directional else float(np.tan(angle))
    pose = jnp.zeros(3), array([0, 0, -1]), array([0, 1, 0])
    exponent, cosine = int(model.light_exponent[0]), float(np.cos(np.deg2rad(cutoff)))
    return Light(bool(directional), exponent, cosine, ambient, diffuse, specular, *pose), reach


def image(model: mujoco.MjModel, material: int) -> jax.Array:
    """Return the texture [H, W, 3] of a material, in [0, 1]."""
    i = model.mat_texid[material, _RGB]
    flat = model.tex_type[i] == mujoco.mjtTexture.mjTEXTURE_2D and model.tex_nchannel[i] == 3
    _require(bool(flat), "its floor's texture must be flat and of three channels")
    height, width, start = model.tex_height[i], model.tex_width[i], model.tex_adr[i]
    return array(model.tex_data[start : start + height * width * 3].reshape(height, width, 3)) / 255


def cube(model: mujoco.MjModel) -> np.ndarray:
    """Return the faces [6, H, H, 3] of the sky, uint8."""
    _require(mujoco.mjtTexture.mjTEXTURE_SKYBOX in model.tex_type, "it must have a skybox")
    i = list(model.tex_type).index(mujoco.mjtTexture.mjTEXTURE_SKYBOX)
    _require(model.tex_nchannel[i] == 3, "its skybox must be of three channels")
    width, start = model.tex_width[i], model.tex_adr[i]
    return model.tex_data[start : start + 6 * width * width * 3].reshape(6, width, width, 3)


def array(values: Any) -> jax.Array:
    """Return `values` as float32."""
    return jnp.asarray(values, jnp.float32)


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise InputError(f"this model can not be drawn: {what}")
