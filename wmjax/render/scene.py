"""What of a MuJoCo model can be seen, prepared once: solids, planes, materials, textures, lights, camera and sky."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from flax import struct

from wmjax.core.errors import InputError
from wmjax.envs.base import EnvSpec
from wmjax.render.light import Gloss, Light
from wmjax.render.planes import Backdrop, Plane, backdrop, grid
from wmjax.render.sky import sky
from wmjax.render.solids import KINDS, Kind, Solids
from wmjax.render.tendon import String
from wmjax.render.texture import Texture, texture

SAMPLES = np.array([[0.375, 0.875], [0.875, 0.625], [0.125, 0.375], [0.625, 0.125]])
"""Where Mesa's software driver takes a pixel's four samples, right and down from its upper left corner."""


@struct.dataclass
class Poses:
    """Where everything is, in the world's frame. Names and meanings are those of MuJoCo's mjData and mjModel."""

    geom_xpos: jax.Array
    """[ngeom, 3]."""
    geom_xmat: jax.Array
    """[ngeom, 3, 3]."""
    geom_size: jax.Array
    """[ngeom, 3]."""
    site_xpos: jax.Array
    """[nsite, 3]."""
    site_xmat: jax.Array
    """[nsite, 3, 3]."""
    site_size: jax.Array
    """[nsite, 3]."""
    cam_xpos: jax.Array
    """[ncam, 3]."""
    cam_xmat: jax.Array
    """[ncam, 3, 3]."""
    light_xpos: jax.Array
    """[nlight, 3]."""
    light_xdir: jax.Array
    """[nlight, 3]."""


def poses(data: Any, geometry: Any) -> Poses:
    """Return the poses in `data`, such as an mjData, with the sizes in `geometry`, such as an mjModel."""
    shapes = {"xpos": (-1, 3), "xmat": (-1, 3, 3), "size": (-1, 3), "xdir": (-1, 3)}
    values = {}
    for name in Poses.__dataclass_fields__:
        source = geometry if name.endswith("size") else data
        values[name] = jnp.asarray(getattr(source, name), jnp.float32).reshape(shapes[name.split("_")[1]])
    return Poses(**values)


@struct.dataclass
class Scene:
    """A model, ready to be drawn. Colours, lights and textures are leaves: replace them, or differentiate by them."""

    shape: tuple[int, int] = struct.field(pytree_node=False)
    """Height and width of the frame."""
    camera: int = struct.field(pytree_node=False)
    capacity: int = struct.field(pytree_node=False)
    """Pixels in which solids or their images can be drawn. In those beyond, they would be missing."""
    field_of_view: float = struct.field(pytree_node=False)
    """Vertical, in rad."""
    geoms: tuple[int, ...] = struct.field(pytree_node=False)
    """The geoms among the solids, by id; `sites` follow them, and then the string."""
    sites: tuple[int, ...] = struct.field(pytree_node=False)
    kinds: tuple[Kind, ...] = struct.field(pytree_node=False)
    floors: tuple[int, ...] = struct.field(pytree_node=False)
    """The planes, by geom id. The first one reflects."""
    reach: float = struct.field(pytree_node=False)
    """Half width of the lamp's shadow map: in m if it is directional, else per m of distance."""
    rgb: jax.Array
    """[geoms and sites, 3], in [0, 1]."""
    planes: tuple[Plane, ...]
    string: String | None
    head: Light
    """The headlight, in the camera's frame."""
    lamp: Light
    """The one light of the model, which casts shadows; its pose comes with the poses."""
    gloss: Gloss
    reflectance: jax.Array
    """Of the reflecting plane, in [0, 1]."""
    texture: Texture
    """Of the textured plane."""
    sky: jax.Array
    """[3, N], in [0, 1]: the sky behind the N pixels, for a camera that never turns."""
    backdrop: Backdrop | None
    """What is behind the solids if neither camera nor lamp nor planes move, prepared by `bake`."""

    @property
    def sample_angle(self) -> float:
        """More than the angle between a pixel's centre and its outermost samples, in rad."""
        return 0.56 * 2 * float(np.tan(self.field_of_view / 2)) / self.shape[0]

    def rays(self) -> tuple[jax.Array, jax.Array]:
        """Return rays of depth 1 in the camera's frame: through all samples [3, S, N] and pixel centres [3, N]."""
        height, width = self.shape
        rows, columns = np.mgrid[:height, :width].reshape(2, 1, -1)
        slope = np.tan(self.field_of_view / 2)
        places = np.concatenate([SAMPLES, [[0.5, 0.5]]])
        x = ((columns + places[:, :1]) / width * 2 - 1) * slope * width / height
        y = (1 - (rows + places[:, 1:]) / height * 2) * slope
        rays = jnp.asarray(np.stack([x, y, -np.ones_like(x)]), jnp.float32)
        return rays[:, :-1], rays[:, -1]


def posed(scene: Scene, poses: Poses) -> tuple[Solids, Solids | None, tuple[Plane, ...], Light]:
    """Return solids, the string's pieces, planes and lamp in the camera's frame: it looks along -z, y is upwards."""
    view = poses.cam_xmat[scene.camera], poses.cam_xpos[scene.camera]
    geoms, sites = np.array(scene.geoms, int), np.array(scene.sites, int)
    center = jnp.concatenate([poses.geom_xpos[geoms], poses.site_xpos[sites]])
    rotation = jnp.concatenate([poses.geom_xmat[geoms], poses.site_xmat[sites]])
    size = jnp.concatenate([poses.geom_size[geoms], poses.site_size[sites]])
    solids = Solids(scene.kinds, center, rotation, size, scene.rgb)
    planes = tuple(
        plane.replace(center=poses.geom_xpos[i], rotation=poses.geom_xmat[i])  # type: ignore[attr-defined]
        for i, plane in zip(scene.floors, scene.planes, strict=True)
    )
    string = None if scene.string is None else scene.string.solids(poses.site_xpos).moved(*view)
    position, direction = poses.light_xpos[0], poses.light_xdir[0]
    lamp = scene.lamp.replace(position=position, direction=direction, up=_across(direction))  # type: ignore[attr-defined]
    return solids.moved(*view), string, tuple(plane.moved(*view) for plane in planes), lamp.moved(*view)


def _across(direction: jax.Array) -> jax.Array:
    """Return the upward axis of MuJoCo's shadow map for a lamp that shines along `direction` [3]."""
    first = jnp.cross(direction, jnp.array([-1.0, 0.0, 0.0]))
    second = jnp.cross(direction, jnp.array([0.0, 1.0, 0.0]))
    up = jnp.where(jnp.sum(first**2) > 0.01, first, second)
    return up / jnp.sqrt(jnp.maximum(jnp.sum(up**2), 1e-12))


def behind(scene: Scene, planes: tuple[Plane, ...], lamp: Light) -> Backdrop:
    """Return what is behind the solids, given planes and lamp in the camera's frame."""
    rays, centers = scene.rays()
    lights = scene.head, lamp
    return backdrop(
        planes, scene.texture, scene.sky, lights, scene.gloss, scene.reflectance, rays, centers, scene.shape
    )


def bake(scene: Scene, poses: Poses) -> Scene:
    """Return the scene with its backdrop drawn once for all frames, as seen in `poses`. Differentiable."""
    _, _, planes, lamp = posed(scene, poses)
    return scene.replace(backdrop=behind(scene, planes, lamp))  # type: ignore[attr-defined]


def scene(model: mujoco.MjModel, task: EnvSpec) -> Scene:
    """Return the scene of dm_control's `model`, seen by the camera of `task`.

    Raises InputError for a model with parts that can not be drawn, such as meshes or transparent geoms.
    """
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    shown = mujoco.MjvOption()
    geoms = [i for i in range(model.ngeom) if shown.geomgroup[model.geom_group[i]] and _colour(model, "geom", i)[3] > 0]
    sites = [i for i in range(model.nsite) if shown.sitegroup[model.site_group[i]] and _colour(model, "site", i)[3] > 0]
    floors = tuple(i for i in geoms if model.geom_type[i] == mujoco.mjtGeom.mjGEOM_PLANE)
    solids = tuple(i for i in geoms if i not in floors)
    colours = [_colour(model, "geom", i) for i in geoms] + [_colour(model, "site", i) for i in sites]
    types = [int(model.geom_type[i]) for i in solids] + [int(model.site_type[i]) for i in sites]
    _require(model.nlight == 1, "it must have one light")
    _require(all(kind in KINDS for kind in types), "its geoms must be planes or simple solids")
    _require(all(colour[3] == 1 for colour in colours), "its colours must be opaque")
    _require(bool(np.all(model.geom_size[list(floors), :2] > 0)), "its planes must be finite")
    used = list({*model.geom_matid[geoms], *model.site_matid[sites]} - {-1})
    finish = {tuple(row) for row in np.stack([model.mat_specular, model.mat_shininess, model.mat_emission], 1)[used]}
    _require(finish <= {(0.5, 0.5, 0)}, "its materials must have specular 0.5, shininess 0.5 and no emission")
    textured = floors and model.geom_matid[floors[0]] >= 0 and _plane(model, floors[0]).mapping is not None
    _require(bool(textured), "its first plane must have a texture")
    fixed = mujoco.mjtCamLight.mjCAMLIGHT_FIXED
    still = model.cam_mode[task.camera] == fixed == model.light_mode[0]
    still &= not (model.cam_bodyid[task.camera] or model.light_bodyid[0] or model.geom_bodyid[list(floors)].any())
    size, fovy = (task.image_size,) * 2, float(np.deg2rad(model.cam_fovy[task.camera]))
    lamp, reach = _lamp(model)
    drawn = Scene(
        shape=size,
        camera=task.camera,
        capacity=task.image_size**2 // (8 if model.ntendon else 4),
        field_of_view=fovy,
        geoms=solids,
        sites=tuple(sites),
        kinds=tuple(KINDS[kind] for kind in types),
        floors=floors,
        reach=reach,
        rgb=_array([_colour(model, "geom", i)[:3] for i in solids] + [_colour(model, "site", i)[:3] for i in sites]),
        planes=tuple(_plane(model, i) for i in floors),
        string=String.of(model) if model.ntendon else None,
        head=_headlight(model),
        lamp=lamp,
        gloss=Gloss(64, jnp.float32(0.5)),
        reflectance=_array(model.mat_reflectance[model.geom_matid[floors[0]]]),
        texture=jax.jit(texture)(_image(model, model.geom_matid[floors[0]])),
        sky=jnp.zeros((3, task.image_size**2), jnp.float32),
        backdrop=None,
    )
    directions = data.cam_xmat[task.camera].reshape(3, 3) @ np.asarray(drawn.rays()[1])
    drawn = cast(Scene, drawn.replace(sky=sky(_cube(model), directions, size)))  # type: ignore[attr-defined]
    return jax.jit(bake)(drawn, poses(data, model)) if still else drawn


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise InputError(f"this model can not be drawn: {what}")


def _array(values: Any) -> jax.Array:
    return jnp.asarray(values, jnp.float32)


def _colour(model: mujoco.MjModel, what: str, i: int) -> np.ndarray:
    material = getattr(model, f"{what}_matid")[i]
    return model.mat_rgba[material] if material >= 0 else getattr(model, f"{what}_rgba")[i]


def _plane(model: mujoco.MjModel, i: int) -> Plane:
    half = model.geom_size[i]
    material = model.geom_matid[i]
    mapping = None
    if material >= 0 and model.mat_texid[material, mujoco.mjtTextureRole.mjTEXROLE_RGB] >= 0:
        scale = model.mat_texrepeat[material] / (1 if model.mat_texuniform[material] else half[:2])
        mapping = float(scale[0]) / 2, float(scale[1]) / 2
    cells = grid(float(half[0]), float(half[2])), grid(float(half[1]), float(half[2]))
    extent = float(half[0]), float(half[1])
    return Plane(extent, cells, mapping, jnp.zeros(3), jnp.eye(3), _array(_colour(model, "geom", i)[:3]))


def _headlight(model: mujoco.MjModel) -> Light:
    light = model.vis.headlight
    ambient, diffuse, specular = (_array(values) for values in (light.ambient, light.diffuse, light.specular))
    pose = jnp.zeros(3), _array([0, 0, -1]), _array([0, 1, 0])
    return Light(True, 0, 0.0, ambient, diffuse, specular, *pose)


def _lamp(model: mujoco.MjModel) -> tuple[Light, float]:
    """Return the model's light, without its pose, and the reach of its shadow map."""
    _require(bool(model.light_castshadow[0]), "its light must cast shadows")
    directional = model.light_type[0] == mujoco.mjtLightType.mjLIGHT_DIRECTIONAL
    cutoff, visual = float(model.light_cutoff[0]), model.vis.map
    colours = model.light_ambient[0], model.light_diffuse[0], model.light_specular[0]
    ambient, diffuse, specular = (_array(values) for values in colours)
    angle = float(np.deg2rad(min(2 * cutoff * visual.shadowscale, 160) / 2))
    reach = float(visual.shadowclip * model.stat.extent) if directional else float(np.tan(angle))
    pose = jnp.zeros(3), _array([0, 0, -1]), _array([0, 1, 0])
    exponent, cosine = int(model.light_exponent[0]), float(np.cos(np.deg2rad(cutoff)))
    return Light(bool(directional), exponent, cosine, ambient, diffuse, specular, *pose), reach


def _image(model: mujoco.MjModel, material: int) -> jax.Array:
    i = model.mat_texid[material, mujoco.mjtTextureRole.mjTEXROLE_RGB]
    height, width, start = model.tex_height[i], model.tex_width[i], model.tex_adr[i]
    return _array(model.tex_data[start : start + height * width * 3].reshape(height, width, 3)) / 255


def _cube(model: mujoco.MjModel) -> np.ndarray:
    i = list(model.tex_type).index(mujoco.mjtTexture.mjTEXTURE_SKYBOX)
    width, start = model.tex_width[i], model.tex_adr[i]
    return model.tex_data[start : start + 6 * width * width * 3].reshape(6, width, width, 3)
