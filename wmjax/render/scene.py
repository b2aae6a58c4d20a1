"""What of a MuJoCo model can be seen, prepared once: solids, planes, materials, textures, lights, camera and sky."""

from typing import Any, cast

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from flax import struct

from wmjax.core.errors import InputError
from wmjax.render.culling import Parts, mirrored, near
from wmjax.render.light import Gloss, Light
from wmjax.render.model import (
    array,
    at_rest,
    check_camera,
    colour,
    cube,
    has_string,
    headlight,
    image,
    lamp,
    plane,
    visible,
)
from wmjax.render.planes import Backdrop, Plane, backdrop
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
    return Poses(**{name: array(values) for name, values in _read(data, geometry).items()})


def _read(data: Any, geometry: Any) -> dict[str, Any]:
    shapes = {"xpos": (-1, 3), "xmat": (-1, 3, 3), "size": (-1, 3), "xdir": (-1, 3)}
    fields = {name: geometry if name.endswith("size") else data for name in Poses.__dataclass_fields__}
    return {name: getattr(source, name).reshape(shapes[name.split("_")[1]]) for name, source in fields.items()}


@struct.dataclass
class Scene:
    """A model, ready to be drawn. Colours, lights and textures are leaves: replace them, or differentiate by them."""

    shape: tuple[int, int] = struct.field(pytree_node=False)
    """Height and width of the frame."""
    camera: int = struct.field(pytree_node=False)
    capacity: int = struct.field(pytree_node=False)
    """Pixels in which solids or their images can be drawn. Those beyond would be magenta, which nothing else is."""
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

    def near(self, parts: Parts, images: Parts) -> jax.Array:
        """Return which pixels, as bool [N], solids or their images may touch, both in the camera's frame."""
        centers = self.rays()[1]
        return near(parts, self.sample_angle, centers) | near(images, self.sample_angle, centers)


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


def scene(model: mujoco.MjModel, *, size: int = 64, camera: int = 0) -> Scene:
    """Return the scene of dm_control's `model`: `size` is the frame's height and width in pixels, even.

    Raises InputError for a model with parts that can not be drawn as OpenGL does, such as meshes or transparent geoms,
    and for a `camera` that can turn.
    """
    if type(size) is not int or size < 2 or size % 2:
        raise InputError(f"size must be an even number of pixels from 2, not {size!r}")
    parts = visible(model)
    check_camera(model, camera)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    types = [*model.geom_type[list(parts.solids)], *model.site_type[list(parts.sites)]]
    colours = [colour(model, "geom", i) for i in parts.solids] + [colour(model, "site", i) for i in parts.sites]
    light, reach = lamp(model)
    floor = model.geom_matid[parts.floors[0]]
    drawn = Scene(
        shape=(size, size),
        camera=camera,
        capacity=size * size,
        field_of_view=float(np.deg2rad(model.cam_fovy[camera])),
        geoms=parts.solids,
        sites=parts.sites,
        kinds=tuple(KINDS[int(kind)] for kind in types),
        floors=parts.floors,
        reach=reach,
        rgb=array([rgba[:3] for rgba in colours]),
        planes=tuple(plane(model, i) for i in parts.floors),
        string=String.of(model) if has_string(model) else None,
        head=headlight(model),
        lamp=light,
        gloss=Gloss(64, jnp.float32(0.5)),
        reflectance=array(model.mat_reflectance[floor]),
        texture=jax.jit(texture)(image(model, floor)),
        sky=jnp.zeros((3, size * size), jnp.float32),
        backdrop=None,
    )
    directions = data.cam_xmat[camera].reshape(3, 3) @ np.asarray(drawn.rays()[1])
    ready = {"sky": sky(cube(model), directions, drawn.shape), "capacity": _capacity(drawn, model)}
    drawn = cast(Scene, drawn.replace(**ready))  # type: ignore[attr-defined]
    return jax.jit(bake)(drawn, poses(data, model)) if at_rest(model, camera, parts.floors) else drawn


def _capacity(scene: Scene, model: mujoco.MjModel) -> int:
    """Return a quarter more pixels than solids and images come near to in the fullest of 512 random poses.

    Poses that are bred for many pixels have at most 17 % more.
    """

    def count(poses: Poses) -> jax.Array:
        solids, threads, planes, _ = posed(scene, poses)
        found = scene.near((solids, threads), mirrored((solids, threads), planes[0]))
        above = (solids.center - planes[0].center[None]) @ planes[0].rotation[:, 2] > 0
        return jnp.where(jnp.all(above), jnp.sum(found), 0)  # no solid can be in the floor

    counts = jax.jit(lambda seen: jax.lax.map(count, seen, batch_size=16))(_anyhow(model, 512))
    rows = -(-1.25 * float(np.max(counts)) // scene.shape[1])
    # Where nothing was seen in any pose, nothing is known.
    return (min(int(rows), scene.shape[0]) or scene.shape[0]) * scene.shape[1]


def _anyhow(model: mujoco.MjModel, count: int) -> Poses:
    """Return poses [count, ...] with joints anywhere in their ranges; those without one, up to the extent away."""
    random, data, seen = np.random.default_rng(0), mujoco.MjData(model), []
    slide = mujoco.mjtJoint.mjJNT_SLIDE
    for _ in range(count):
        away = model.stat.extent * random.uniform()
        # Angles need no more than a turn, and quaternions are normalised by mj_kinematics.
        data.qpos[:] = random.uniform(-np.pi, np.pi, model.nq)
        for joint in range(model.njnt):
            at, kind = model.jnt_qposadr[joint], model.jnt_type[joint]
            if model.jnt_limited[joint]:
                data.qpos[at] = random.uniform(*model.jnt_range[joint])
            elif kind in (slide, mujoco.mjtJoint.mjJNT_FREE):
                axes = 1 if kind == slide else 3
                data.qpos[at : at + axes] = model.qpos0[at : at + axes] + random.uniform(-away, away, axes)
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        seen.append([np.array(value) for value in _read(data, model).values()])
    stacked = (np.stack(values).astype(np.float32) for values in zip(*seen, strict=True))
    return Poses(*(jnp.asarray(values) for values in stacked))
