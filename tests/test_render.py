import os
from unittest import mock

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import wmjax
from wmjax.core.errors import InputError
from wmjax.envs import TASKS
from wmjax.render import texture
from wmjax.render.frame import frame, quantise, render
from wmjax.render.scene import Poses, bake, poses, scene
from wmjax.render.tendon import String

with mock.patch.dict(os.environ, MUJOCO_GL="disabled"):
    from dm_control import suite

GEOMETRY = ("geom_size", "geom_pos", "site_size", "site_pos")
DOMAINS = [
    "dmc_ball_in_cup_catch",
    "dmc_cartpole_swingup",
    "dmc_finger_turn_easy",
    "dmc_hopper_stand",
    "dmc_reacher_easy",
    "dmc_walker_walk",
]
STATES = 8


def visited(task: str) -> tuple[dict[str, np.ndarray], Poses, mujoco.MjModel]:
    """States reached by random actions, as arguments of `state_at`, the poses in them, and the model."""
    spec = TASKS[task]
    env = suite.load(spec.domain, spec.name, task_kwargs={"random": 77})
    random, records, seen = np.random.default_rng(77), [], []
    for _ in range(STATES):
        env.reset()
        for _ in range(random.integers(30)):
            env.step(random.uniform(-1, 1, spec.action_size))
        data, model = env.physics.data, env.physics.model
        state = {"qpos": data.qpos, "qvel": data.qvel} | {name: getattr(model, name) for name in GEOMETRY}
        records.append({name: np.array(value) for name, value in state.items()})
        seen.append(poses(data, model))
    at = {name: np.stack([record[name] for record in records]) for name in records[0]}
    return at, jax.tree.map(lambda *leaves: jnp.stack(leaves), *seen), env.physics.model.ptr


@pytest.fixture(scope="module", params=DOMAINS)
def case(request):
    at, seen, model = visited(request.param)
    return request.param, at, seen, scene(model, TASKS[request.param])


def first(seen: Poses) -> Poses:
    return jax.tree.map(lambda leaf: leaf[0], seen)


def test_frames_are_those_of_opengl(case, record_property):
    task, at, seen, drawn = case
    program = jax.jit(jax.vmap(lambda one: frame(drawn, one))).lower(seen).compile()
    ours = np.asarray(program(seen))
    with wmjax.envs.make(task, batch=STATES) as env:
        truth = env.image(env.state_at(**at))
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


@pytest.mark.parametrize("task", ["dmc_ball_in_cup_catch", "dmc_cartpole_swingup", "dmc_walker_walk"])
def test_gradients_are_finite(task):
    _, seen, model = visited(task)
    drawn = scene(model, TASKS[task])
    weights = jax.random.uniform(jax.random.key(0), (*drawn.shape, 3))

    def loss(light, rgb, one):
        lit = drawn.replace(rgb=rgb, lamp=drawn.lamp.replace(diffuse=light))
        return jnp.mean(render(lit, one) * weights)

    by_all = jax.jit(jax.vmap(jax.grad(loss, argnums=(0, 1, 2)), in_axes=(None, None, 0)))
    gradients = by_all(drawn.lamp.diffuse, drawn.rgb, seen)
    for leaf in jax.tree.leaves(gradients):
        assert np.isfinite(leaf).all()
    assert np.abs(gradients[1]).max() > 0
    assert np.abs(gradients[2].geom_xpos).max() > 0


@pytest.mark.parametrize("task", ["dmc_reacher_easy", "dmc_hopper_stand"])
def test_gradients_by_colours_lights_and_texture_match_differences(task):
    _, seen, model = visited(task)
    drawn, one = scene(model, TASKS[task]), first(seen)
    weights = jax.random.uniform(jax.random.key(1), (*drawn.shape, 3))

    def loss(rgb, light, texels):
        changed = drawn.replace(
            rgb=rgb,
            lamp=drawn.lamp.replace(diffuse=light),
            texture=drawn.texture.replace(texels=texels),
        )
        if drawn.backdrop is not None:
            changed = bake(changed, one)
        return jnp.mean(render(changed, one) * weights)

    at = drawn.rgb, drawn.lamp.diffuse, drawn.texture.texels
    value, gradients = jax.jit(loss), jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*at)
    for i, gradient in enumerate(gradients):
        step = 0.01 * jax.random.normal(jax.random.key(i), at[i].shape)
        ahead, back = (value(*(x + sign * step if j == i else x for j, x in enumerate(at))) for sign in (1, -1))
        assert np.isclose((ahead - back) / 2, jnp.vdot(gradient, step), rtol=0.05, atol=1e-4)


@pytest.mark.parametrize(("name", "axis"), [("geom_xpos", 0), ("geom_xpos", 1), ("geom_size", 0)])
def test_gradients_by_poses_match_differences_inside_of_outlines(name, axis):
    # The colour jumps a little where a facet's edge passes a sample: averages over some facets are compared.
    _, seen, model = visited("dmc_reacher_easy")
    drawn, target = scene(model, TASKS["dmc_reacher_easy"]), model.geom("target").id
    one = first(seen)
    one = one.replace(geom_xpos=one.geom_xpos.at[target].set(jnp.array([-0.12, 0.04, 0.01])))
    focus = 32 / np.tan(np.pi / 8)
    column, row = 32 - 0.12 / 0.7 * focus, 32 - 0.04 / 0.7 * focus
    y, x = np.mgrid[:64, :64] + 0.5
    distance = np.hypot(x - column, y - row)
    slope = {"geom_xpos": (x - column, row - y)[axis], "geom_size": distance}[name]
    weights = jnp.asarray(np.where(distance < 3.2, slope, 0), jnp.float32)[..., None]

    def loss(change):
        moved = one.replace(**{name: getattr(one, name).at[target, axis].add(change)})
        return jnp.mean(render(drawn, moved) * weights)

    changes = jnp.linspace(-6e-3, 6e-3, 25)
    values, slopes = jax.jit(lambda at: jax.lax.map(jax.value_and_grad(loss), at))(changes)
    secant = (values[-1] - values[0]) / (changes[-1] - changes[0])
    assert abs(secant) > 1
    assert np.isclose(jnp.mean(slopes), secant, rtol=0.15)


def test_rounding_is_all_that_tells_frames_from_renderings():
    _, seen, model = visited("dmc_cartpole_swingup")
    drawn, one = scene(model, TASKS["dmc_cartpole_swingup"]), first(seen)
    rounded = jax.jit(lambda one: quantise(render(drawn, one)))(one).astype(int)
    exact = jax.jit(lambda one: frame(drawn, one))(one).astype(int)
    assert np.abs(rounded - exact).max() <= 2


def test_a_slack_string_has_its_length():
    _, _, model = visited("dmc_ball_in_cup_catch")
    string = String.of(model)
    sites = jnp.zeros((model.nsite, 3)).at[string.sites[1]].set(jnp.array([0.1, 0.0, 0.07]))
    pieces = jax.jit(string.solids)(sites)
    assert np.isclose(2 * pieces.size[:, 1].sum(), string.length, rtol=2e-3)
    assert (pieces.center[:, 2] < 0.07).all()
    assert np.allclose(pieces.rgb, string.slack[None])
    ends = pieces.center[-1] + pieces.size[-1, 1] * pieces.rotation[-1, :, 2] * np.sign(pieces.rotation[-1, 0, 2])
    assert np.allclose(ends, sites[string.sites[1]], atol=1e-4)


@pytest.mark.parametrize("end", [[0.0, 0.0, 0.0], [0.0, 0.0, 0.2], [0.0, 0.0, -0.2], [0.31, 0.0, 0.0]])
def test_strings_that_hang_down_or_are_taut_are_finite(end):
    _, _, model = visited("dmc_ball_in_cup_catch")
    string = String.of(model)

    def total(end):
        pieces = string.solids(jnp.zeros((model.nsite, 3)).at[string.sites[1]].set(end))
        return pieces.center.sum() + pieces.rotation.sum() + pieces.size.sum()

    value, slope = jax.jit(jax.value_and_grad(total))(jnp.array(end))
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
    colours = texture.sample(texture.texture(image), s, t, jnp.full(3, 0.1))
    assert np.allclose(colours[:, :1], colours, atol=1e-5)


def test_models_that_can_not_be_drawn_are_refused():
    light, plane = '<light pos="0 0 2"/>', '<geom type="plane" size="{} 1 .1"/>'
    bodies = {"one light": plane.format(1), "finite": light + plane.format(0), "texture": light + plane.format(1)}
    for what, body in bodies.items():
        model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>")
        with pytest.raises(InputError, match=what):
            scene(model, TASKS["dmc_walker_walk"])
