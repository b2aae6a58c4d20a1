import functools
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from programs import QUICK

import wmjax
from benchmarks.control import suite, visit
from wmjax.core.errors import InputError
from wmjax.envs import TASKS
from wmjax.render import texture
from wmjax.render.frame import frame, quantise, render
from wmjax.render.gl import Renderer, candidates
from wmjax.render.scene import Poses, bake, poses, scene
from wmjax.render.tendon import String

DOMAINS = [
    "dmc_ball_in_cup_catch",
    "dmc_cartpole_swingup",
    "dmc_finger_turn_easy",
    "dmc_hopper_stand",
    "dmc_reacher_easy",
    "dmc_walker_walk",
]
STATES = 8
BAKED = ["dmc_reacher_easy"]
"""Where gradients go through the preparation of the backdrop, too."""


def model_of(task: str) -> mujoco.MjModel:
    return suite.load(TASKS[task].domain, TASKS[task].name).physics.model.ptr


@functools.cache
def drawn_of(task: str):
    return scene(model_of(task))


@functools.cache
def visits_of(task: str):
    return visit(TASKS[task], "random", STATES, seed=77)


@functools.cache
def program_of(task: str):
    """The compiled function from poses [STATES, ...] to frames."""
    drawn = drawn_of(task)
    draw = jax.jit(jax.vmap(lambda one: frame(drawn, one)), compiler_options=QUICK)
    return draw.lower(visits_of(task).poses).compile()


def state(task: str, index: int) -> Poses:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf[index]), visits_of(task).poses)


@functools.cache
def slopes_of(task: str):
    """The jitted mean of a frame times weights [64, 64, 3], with gradients by lamp, colours, texture and poses."""
    drawn, rest = drawn_of(task), state(task, 0)

    def loss(light, rgb, texels, seen, weights):
        changed = drawn.replace(
            rgb=rgb,
            lamp=drawn.lamp.replace(diffuse=light),
            texture=drawn.texture.replace(texels=texels),
        )
        if task in BAKED:
            changed = bake(changed, rest)
        return jnp.mean(render(changed, seen) * weights)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)), compiler_options=QUICK)


def leaves_of(task: str):
    drawn = drawn_of(task)
    return drawn.lamp.diffuse, drawn.rgb, drawn.texture.texels


@pytest.mark.parametrize("task", DOMAINS)
def test_frames_are_those_of_opengl(task, record_property):
    program, visits = program_of(task), visits_of(task)
    ours = np.asarray(program(visits.poses))
    with wmjax.envs.make(task, batch=STATES) as env:
        truth = env.image(env.state_at(**visits.state))
    assert ours.shape == truth.shape
    assert ours.dtype == np.uint8
    error = np.abs(ours.astype(int) - truth)
    record_property("mean absolute error", float(error.mean()))
    assert error.mean() <= 0.6
    assert np.percentile(error, 99) <= 12
    # As many pixels of clearly another colour as one expects of outlines, and no missing part.
    assert (error.max(axis=-1) > 30).mean() < 0.01
    flops = program.cost_analysis()["flops"] / STATES
    record_property("MFLOP a frame", flops / 1e6)
    assert flops <= 40e6


SOLIDS = """
<mujoco>
  <visual><quality shadowsize="2048" offsamples="4"/></visual>
  <statistic extent="2"/>
  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1=".4 .6 .8" rgb2="0 0 0" width="128" height="128"/>
    <texture name="grid" type="2d" builtin="checker" rgb1=".1 .2 .3" rgb2=".2 .3 .4" width="300" height="300"/>
    <material name="grid" texture="grid" texrepeat="1 1" texuniform="true" reflectance=".2"/>
  </asset>
  <worldbody>
    <light pos="0 -1 3" dir="0 .3 -1" diffuse=".7 .7 .7"/>
    <camera name="fixed" pos="0 -3 1.3" xyaxes="1 0 0 0 .4 1"/>
    <geom type="plane" size="4 4 .2" material="grid"/>
    {}
  </worldbody>
</mujoco>
"""
SHAPES = ("sphere", "capsule", "ellipsoid", "cylinder", "box")


def solids() -> str:
    size = ".2 .12 .15"
    bodies = (
        f'<body pos="{0.5 * i - 1} 0 .5"><freejoint/><geom type="{kind}" size="{size}" rgba=".8 .5 .2 1"/></body>'
        for i, kind in enumerate(SHAPES)
    )
    return SOLIDS.format("".join(bodies))


def solids_at(model: mujoco.MjModel, turn: int) -> mujoco.MjData:
    """The solids in a row, turned at random."""
    data, rng = mujoco.MjData(model), np.random.default_rng(turn)
    for i in range(len(SHAPES)):
        quaternion = rng.normal(size=4)
        data.qpos[7 * i + 3 : 7 * i + 7] = quaternion / np.linalg.norm(quaternion)
    mujoco.mj_forward(model, data)
    return data


def solids_by_opengl(count: int) -> np.ndarray:
    """To be called in a process without another OpenGL context."""
    model = mujoco.MjModel.from_xml_string(solids())
    for backend in candidates(""):
        try:
            renderer = Renderer(model, backend)
            break
        except InputError:
            continue
    return np.stack([renderer.render(model, solids_at(model, turn)) for turn in range(count)])


def test_every_shape_is_drawn_as_by_opengl(record_property):
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        truth = process.submit(solids_by_opengl, 4).result()
    model = mujoco.MjModel.from_xml_string(solids())
    drawn = scene(model)
    program = jax.jit(lambda one: frame(drawn, one), compiler_options=QUICK)
    ours = np.stack([program(poses(solids_at(model, turn), model)) for turn in range(4)])
    error = np.abs(ours.astype(int) - truth)
    for shape, part in zip(SHAPES, np.array_split(error[..., 7:57, :], len(SHAPES), axis=2), strict=True):
        record_property(f"mean absolute error of the {shape}", float(part.mean()))
        assert part.mean() <= 0.5
    assert error.mean() <= 0.3
    assert np.percentile(error, 99) <= 6
    assert (error.max(axis=-1) > 30).mean() < 0.005


def test_pixels_beyond_the_capacity_are_magenta():
    task = "dmc_cartpole_swingup"
    drawn, one = drawn_of(task), state(task, 0)
    whole = np.asarray(program_of(task)(visits_of(task).poses))[0]
    draw = jax.jit(lambda one: frame(drawn.replace(capacity=32), one), compiler_options=QUICK)
    short = np.asarray(draw(one))
    magenta = (short == (255, 0, 255)).all(axis=-1)
    assert not (whole == (255, 0, 255)).all(axis=-1).any()
    assert magenta.sum() > 32
    assert (short[~magenta] == whole[~magenta]).all()


@pytest.mark.parametrize("task", ["dmc_ball_in_cup_catch", "dmc_cartpole_swingup", "dmc_walker_walk"])
def test_gradients_are_finite(task):
    weights = jax.random.uniform(jax.random.key(0), (64, 64, 3))
    for index in range(STATES):
        _, gradients = slopes_of(task)(*leaves_of(task), state(task, index), weights)
        for leaf in jax.tree.leaves(gradients):
            assert np.isfinite(leaf).all()
        assert np.abs(gradients[1]).max() > 0
        assert np.abs(gradients[3].geom_xpos).max() > 0


@pytest.mark.parametrize("task", ["dmc_reacher_easy", "dmc_walker_walk"])
def test_gradients_by_colours_lights_and_texture_match_differences(task):
    at, weights = leaves_of(task), jax.random.uniform(jax.random.key(1), (64, 64, 3))

    def value_and_slopes(*changed):
        return slopes_of(task)(*changed, state(task, 0), weights)

    gradients = value_and_slopes(*at)[1]
    for i, gradient in enumerate(gradients[:3]):
        step = 0.01 * jax.random.normal(jax.random.key(i), at[i].shape)
        ahead, back = (
            value_and_slopes(*(x + sign * step if j == i else x for j, x in enumerate(at)))[0] for sign in (1, -1)
        )
        assert np.isclose((ahead - back) / 2, jnp.vdot(gradient, step), rtol=0.05, atol=1e-4)


@pytest.mark.parametrize(("name", "axis"), [("geom_xpos", 0), ("geom_xpos", 1), ("geom_size", 0)])
def test_gradients_by_poses_match_differences_inside_of_outlines(name, axis):
    # The colour jumps a little where a facet's edge passes a sample: averages over some facets are compared.
    task = "dmc_reacher_easy"
    one, target = state(task, 0), model_of(task).geom("target").id
    one = one.replace(geom_xpos=one.geom_xpos.at[target].set(jnp.array([-0.12, 0.04, 0.01])))
    focus = 32 / np.tan(np.pi / 8)
    column, row = 32 - 0.12 / 0.7 * focus, 32 - 0.04 / 0.7 * focus
    y, x = np.mgrid[:64, :64] + 0.5
    distance = np.hypot(x - column, y - row)
    slope = {"geom_xpos": (x - column, row - y)[axis], "geom_size": distance}[name]
    weights = jnp.asarray(np.where(distance < 3.2, slope, 0), jnp.float32)[..., None].repeat(3, -1)

    def value_and_slope(change):
        moved = one.replace(**{name: getattr(one, name).at[target, axis].add(change)})
        value, gradients = slopes_of(task)(*leaves_of(task), moved, weights)
        return value, getattr(gradients[3], name)[target, axis]

    changes = np.linspace(-6e-3, 6e-3, 25, dtype=np.float32)
    values, slopes = zip(*map(value_and_slope, changes), strict=True)
    secant = (values[-1] - values[0]) / (changes[-1] - changes[0])
    assert abs(secant) > 1
    assert np.isclose(np.mean(slopes), secant, rtol=0.15)


def test_rounding_is_all_that_tells_frames_from_renderings():
    task = "dmc_cartpole_swingup"
    drawn = drawn_of(task)
    draw = jax.jit(lambda one: quantise(render(drawn, one)), compiler_options=QUICK)
    rounded = draw(state(task, 0)).astype(int)
    exact = program_of(task)(visits_of(task).poses)[0].astype(int)
    assert np.abs(rounded - exact).max() <= 2


def test_a_slack_string_has_its_length():
    model = model_of("dmc_ball_in_cup_catch")
    string = String.of(model)
    sites = jnp.zeros((model.nsite, 3)).at[string.sites[1]].set(jnp.array([0.1, 0.0, 0.07]))
    pieces = jax.jit(string.solids, compiler_options=QUICK)(sites)
    assert np.isclose(2 * pieces.size[:, 1].sum(), string.length, rtol=2e-3)
    assert (pieces.center[:, 2] < 0.07).all()
    assert np.allclose(pieces.rgb, string.slack[None])
    ends = pieces.center[-1] + pieces.size[-1, 1] * pieces.rotation[-1, :, 2] * np.sign(pieces.rotation[-1, 0, 2])
    assert np.allclose(ends, sites[string.sites[1]], atol=1e-4)


@pytest.mark.parametrize("end", [[0.0, 0.0, 0.0], [0.0, 0.0, 0.2], [0.0, 0.0, -0.2], [0.31, 0.0, 0.0]])
def test_strings_that_hang_down_or_are_taut_are_finite(end):
    model = model_of("dmc_ball_in_cup_catch")
    string = String.of(model)

    def total(end):
        pieces = string.solids(jnp.zeros((model.nsite, 3)).at[string.sites[1]].set(end))
        return pieces.center.sum() + pieces.rotation.sum() + pieces.size.sum()

    value, slope = jax.jit(jax.value_and_grad(total), compiler_options=QUICK)(jnp.array(end))
    assert np.isfinite(value)
    assert np.isfinite(slope).all()


def test_mip_levels_are_rounded_half_up():
    levels = texture.levels(jnp.asarray([[0.0, 1.0], [1.0, 0.0]])[..., None] * 3 / 255)
    assert [level.shape for level in levels] == [(2, 2, 1), (1, 1, 1)]
    assert np.isclose(levels[1][0, 0, 0], 2 / 255)


def test_levels_blend_over_half_of_the_range():
    level, weight = texture.blend(jnp.array([0.5, 1.0, 2**0.5, 1.99, 2.1, 1e9]), 4)
    assert level.tolist() == [0, 0, 0, 1, 1, 3]
    assert np.allclose(weight, [0, 0, 0.5, 0, 0, 0], atol=1e-3)


def test_textures_repeat():
    image = jax.random.uniform(jax.random.key(0), (8, 8, 3))
    s, t = jnp.array([0.1, 1.1, -0.9]), jnp.array([0.3, -0.7, 2.3])
    colours = jax.jit(lambda image: texture.sample(texture.texture(image), s, t, jnp.full(3, 0.1)))(image)
    assert np.allclose(colours[:, :1], colours, atol=1e-5)


REFUSED = {
    "one light": ('<light pos="0 -1 3" dir="0 .3 -1" diffuse=".7 .7 .7"/>', ""),
    "its light must shine and cast shadows": ('dir="0 .3 -1"', 'dir="0 .3 -1" castshadow="false"'),
    "its light must be a spot": ('dir="0 .3 -1"', 'dir="0 .3 -1" type="point"'),
    "its planes must be finite": ('size="4 4 .2"', 'size="0 4 .2"'),
    "its first plane must have a texture": ('size="4 4 .2" material="grid"', 'size="4 4 .2"'),
    "none but its first plane may have a texture": ('rgba=".8 .5 .2 1"', 'material="grid"'),
    "its colours must be opaque": ('rgba=".8 .5 .2 1"', 'rgba=".8 .5 .2 .5"'),
    "from 1 to 64 geoms": ('<geom type="sphere"', '<geom group="4" type="sphere"'),
    "it must have a skybox": ('type="skybox"', 'type="cube"'),
    "its camera must not turn": ('name="fixed"', 'name="fixed" mode="targetbody" target="ball"'),
    "its floor's texture must be flat and of three channels": ('type="2d"', 'type="2d" nchannel="4"'),
    "its light must have a whole exponent": ('dir="0 .3 -1"', 'dir="0 .3 -1" exponent="0.5"'),
    "28 slices and 16 stacks": ('offsamples="4"', 'offsamples="4" numslices="6"'),
    "its znear must be": ("<visual>", '<visual><map zfar="1.2"/>'),
    "perspective": ('name="fixed"', 'name="fixed" projection="orthographic"'),
}
BALL = '<body name="ball"><freejoint/><geom type="sphere" size=".2" rgba=".8 .5 .2 1"/></body>'


@pytest.mark.parametrize("message", REFUSED)
def test_models_that_can_not_be_drawn_are_refused(message):
    text, other = REFUSED[message]
    xml = SOLIDS.format(BALL)
    assert text in xml
    with pytest.raises(InputError, match=message):
        scene(mujoco.MjModel.from_xml_string(xml.replace(text, other)))


def test_a_solid_s_own_colour_comes_before_that_of_its_material():
    red = '<material name="red" rgba=".8 .1 .1 1"/></asset>'
    plain = SOLIDS.format(BALL.replace('rgba=".8 .5 .2 1"', 'material="red"')).replace("</asset>", red)
    for xml, rgb in (
        (plain, [0.8, 0.1, 0.1]),
        (plain.replace('"red"/></body>', '"red" rgba=".1 .9 .1 1"/></body>'), [0.1, 0.9, 0.1]),
    ):
        assert np.allclose(scene(mujoco.MjModel.from_xml_string(xml), size=16).rgb, [rgb])


@pytest.mark.parametrize("attributes", ['group="7"', 'group="4"', 'rgba="1 1 0 0"'])
def test_strings_that_are_hidden_are_not_drawn(attributes):
    string = f'<spatial limited="true" range="0 .8" {attributes}><site site="a"/><site site="b"/></spatial>'
    sites = '<site name="a"/><body pos="0 0 .5"><joint/><geom type="sphere" size=".1"/><site name="b"/></body>'
    xml = SOLIDS.format(sites).replace("</worldbody>", f"</worldbody><tendon>{string}</tendon>")
    assert scene(mujoco.MjModel.from_xml_string(xml), size=16).string is None


def test_a_solid_that_no_random_pose_shows_may_still_come_into_view():
    model = mujoco.MjModel.from_xml_string(SOLIDS.format('<geom type="sphere" pos="0 -9 .5" size=".3"/>'))
    assert scene(model, size=16).capacity == 16 * 16


@pytest.mark.parametrize(
    ("joint", "mode", "baked"),
    [
        ("", "fixed", True),
        ('<joint type="slide"/>', "fixed", False),
        ('<joint type="hinge"/>', "fixed", None),
        ('<joint type="hinge"/>', "track", False),
    ],
)
def test_a_backdrop_is_prepared_only_for_a_camera_at_rest(joint, mode, baked):
    camera = f'<body>{joint}<geom type="sphere" size=".1"/><body><camera mode="{mode}" pos="0 -2 1"/></body></body>'
    model = mujoco.MjModel.from_xml_string(SOLIDS.format(camera))
    if baked is None:
        with pytest.raises(InputError, match="its camera must not turn"):
            scene(model, size=16, camera=1)
    else:
        assert (scene(model, size=16, camera=1).backdrop is not None) == baked


@pytest.mark.parametrize(
    ("size", "camera", "message"), [(63, 0, "even"), (64, 1, "camera"), (64, -1, "camera"), (64, 0.5, "camera")]
)
def test_sizes_and_cameras_are_checked(size, camera, message):
    with pytest.raises(InputError, match=message):
        scene(mujoco.MjModel.from_xml_string(SOLIDS.format(BALL)), size=size, camera=camera)
