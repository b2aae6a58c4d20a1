"""Device environments: dm_control's starts, trajectories, rewards and poses, as pure functions that compile once."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from dm_control.utils import rewards as reference
from mujoco import mjx

from benchmarks import parity
from benchmarks.parity import place, reset, step
from wmjax import envs
from wmjax.core.errors import InputError
from wmjax.envs import dmc
from wmjax.envs.dmc import mjx_patches
from wmjax.envs.dmc.rewards import inside, tolerance

DOMAINS = {
    "cartpole": "dmc_cartpole_swingup",
    "reacher": "dmc_reacher_easy",
    "walker": "dmc_walker_walk",
    "ball_in_cup": "dmc_ball_in_cup_catch",
    "finger": "dmc_finger_turn_easy",
    "hopper": "dmc_hopper_stand",
}
"""One task a domain: siblings share the programs."""

BATCH = parity.WORLDS


def start(task):
    env, params = dmc.load(task)
    states = reset(env, params, jax.random.split(jax.random.key(0), parity.RESETS))
    return env, jax.tree.map(lambda x: x[:BATCH], states)


def actions_for(task, seed=0):
    shape = BATCH, envs.spec(task).action_size
    return jnp.asarray(np.random.default_rng(seed).uniform(-1, 1, shape), jnp.float32)


@pytest.fixture
def compilations():
    """The list of compilations since the fixture was set up."""
    seen = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            seen.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize("margin", [0.5, 2.0])
@pytest.mark.parametrize(
    ("sigmoid", "value"), [("gaussian", 0.1), ("linear", 0.5), ("linear", 0.0), ("quadratic", 0.0)]
)
@pytest.mark.parametrize(("lower", "upper"), [(0.0, 0.0), (-0.3, 0.4), (1.2, np.inf)])
def test_tolerance_is_that_of_dm_control(lower, upper, sigmoid, value, margin):
    x = np.linspace(0, 4, 801).astype(np.float32)
    expected = reference.tolerance(x, (lower, upper), margin, sigmoid, value)
    got = jax.jit(lambda x, m: tolerance(x, lower, upper, margin=m, sigmoid=sigmoid, value_at_margin=value))(x, margin)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    np.testing.assert_array_equal(inside(jnp.asarray(x), lower, upper), reference.tolerance(x, (lower, upper)))


@pytest.mark.parametrize("plane", [True, False], ids=["in a plane", "in space"])
@pytest.mark.parametrize(("first", "second"), [("capsule", "capsule"), ("sphere", "capsule")])
def test_contacts_are_those_of_mujoco(first, second, plane):
    body = '<body><freejoint/><geom type="{}" size="{}"/></body>'
    xml = body.format(first, ".05 .2" if first == "capsule" else ".05") + body.format(second, ".04 .02")
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{xml}</worldbody></mujoco>")
    rng, count = np.random.default_rng(0), 200
    qpos = np.zeros((count, 2, 7))
    qpos[..., :3] = rng.uniform(-0.1, 0.1, (count, 2, 3)) * ([1, 0, 1] if plane else 1)
    qpos[..., 3:] = rng.standard_normal((count, 2, 4)) * ([1, 0, 1, 0] if plane else 1)
    qpos[..., 3:] /= np.linalg.norm(qpos[..., 3:], axis=-1, keepdims=True)
    qpos = qpos.reshape(count, 14)

    @jax.jit
    @jax.vmap
    def contact(qpos):
        data = mjx.collision(mjx_model, mjx.kinematics(mjx_model, mjx_data.replace(qpos=qpos)))
        return data._impl.contact

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), mjx_patches.applied():
        mjx_model, mjx_data = mjx.put_model(model), mjx.make_data(model)
        got = jax.tree.map(np.asarray, contact(jnp.asarray(qpos, float)))
    data, errors, crossed = mujoco.MjData(model), [], 0
    for world in range(count):
        data.qpos[:] = qpos[world]
        mujoco.mj_forward(model, data)
        assert data.ncon == (got.dist[world, 0] < 0)
        if data.ncon:
            c = data.contact[0]
            crossed += c.dist < -0.09 + 1e-9
            pairs = (c.dist, got.dist), (c.pos, got.pos), (c.frame.reshape(3, 3), got.frame)
            errors.append(max(np.abs(theirs - ours[world, 0]).max() for theirs, ours in pairs))
    assert len(errors) > 30
    assert (crossed > 10) == (plane and first == second)
    assert np.sort(errors)[-3] < 3e-5  # a crossing that C itself sees to rounding error may differ


@pytest.mark.parametrize("task", DOMAINS.values(), ids=DOMAINS)
def test_poses_are_those_of_mujoco(task):
    env, params = dmc.load(task)
    truth = parity.truth(task, steps=20)
    qpos, qvel = truth.qpos[-1], truth.qvel[-1]
    state = place(env, params, {"qpos": qpos, "qvel": qvel} | truth.geometry)
    c = parity.load(task).physics
    for world in range(BATCH):
        for name, values in truth.geometry.items():
            getattr(c.model, name)[:] = values[world]
        with c.reset_context():
            c.data.qpos[:], c.data.qvel[:] = qpos[world], qvel[world]
        for name in set(dmc.Data.__dataclass_fields__) - {"motion"}:
            got = np.asarray(getattr(state.data, name)[world])
            np.testing.assert_allclose(got, getattr(c.data, name).reshape(got.shape), atol=3e-6, err_msg=name)


@pytest.mark.parametrize("task", DOMAINS.values(), ids=DOMAINS)
def test_trajectories_are_those_of_mujoco(task):
    row = parity.physics_columns(task)
    assert row["nan"] == 0
    assert row["qpos_2_max"] < 1e-4
    if envs.spec(task).domain in ("walker", "hopper"):  # chaotic: as far apart as C from C after a nudge of 1e-6
        assert row["qpos_100"] < 2 * row["c_qpos_100"]
    else:
        assert row["qpos_100_max"] < 1e-4


@pytest.mark.parametrize("task", DOMAINS.values(), ids=DOMAINS)
def test_rewards_are_those_of_dm_control(task):
    siblings = [name for name in envs.TASKS if envs.spec(name).domain == envs.spec(task).domain]
    for name in siblings:
        assert parity.reward_columns(name)["reward_error"] < 1e-4, name


@pytest.mark.parametrize("task", envs.TASKS)
def test_starts_are_distributed_as_in_dm_control(task):
    row = parity.reset_columns(task)
    assert row["reset_p"] * row["reset_tests"] > 0.01
    assert row["reset_constants"] < 1e-6


@pytest.mark.parametrize("domain", ["cartpole", "reacher", "walker"])
def test_sibling_tasks_share_their_programs(domain, compilations):
    siblings = [name for name in envs.TASKS if envs.spec(name).domain == domain]
    assert len(siblings) > 1
    action = actions_for(siblings[0])
    env, state = start(siblings[0])
    step(env, step(env, state, action), action)
    compilations.clear()
    states = []
    for name in siblings[1:]:
        other, state = start(name)
        state = step(env, state, action)
        states.append(step(other, state, action))
    assert not compilations
    assert all(np.isfinite(state.reward).all() for state in states)


@pytest.mark.parametrize("task", DOMAINS.values(), ids=DOMAINS)
def test_a_world_does_not_depend_on_its_neighbours(task):
    env, state = start(task)
    action = actions_for(task)
    after = step(env, state, action)
    assert jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype, x.weak_type), state
    )
    assert after.t.tolist() == [1] * BATCH
    assert not after.nan.any()
    assert len(np.unique(np.asarray(after.data.qpos), axis=0)) == BATCH

    others = jax.tree.map(lambda x: jnp.roll(x, 1, axis=0).at[3].set(x[3]), state)
    alone = step(env, others, action)
    np.testing.assert_array_equal(alone.data.qpos[3], after.data.qpos[3])
    assert (alone.data.qpos[4:] != after.data.qpos[4:]).any(1).all()


def test_divergence_is_flagged_and_freezes_the_world():
    task = DOMAINS["cartpole"]
    env, state = start(task)
    action = actions_for(task).at[0].set(jnp.nan)
    motion = state.data.motion
    motion = motion.replace(qvel=motion.qvel.at[1].set(1e11))
    state = state.replace(data=state.data.replace(motion=motion))
    after = step(env, step(env, state, action), actions_for(task))
    assert after.nan.tolist() == [True, True] + [False] * (BATCH - 2)
    assert after.reward[:2].tolist() == [0, 0]
    assert after.t.tolist() == [2] * BATCH
    np.testing.assert_array_equal(after.data.geom_xpos[:2], state.data.geom_xpos[:2])
    assert (after.data.geom_xpos[2:] != state.data.geom_xpos[2:]).any((1, 2)).all()
    assert np.isfinite(after.data.qpos).all()


def test_physics_is_not_differentiated():
    task = DOMAINS["cartpole"]
    env, params = dmc.load(task)
    states = place(env, params, {"qpos": np.zeros((BATCH, 2)), "qvel": np.zeros((BATCH, 2))})

    def rewards(actions):
        return step(env, states, actions).reward.sum()

    actions = actions_for(task)
    with pytest.raises(NotImplementedError, match=r"physics of cartpole is not differentiated: .*stop_gradient"):
        jax.grad(rewards)(actions)
    with pytest.raises(NotImplementedError, match="ends at the observation"):
        jax.jvp(rewards, (actions,), (actions,))
    scale = jax.grad(lambda scale: scale * rewards(jax.lax.stop_gradient(actions * scale)))(1.0)
    np.testing.assert_allclose(scale, rewards(actions), rtol=1e-6)


@pytest.mark.parametrize("task", DOMAINS.values(), ids=DOMAINS)
def test_poses_are_differentiated(task):
    env, params = dmc.load(task)
    model = env.physics.model

    @jax.jit
    @jax.value_and_grad
    def total(qpos):
        data = env.state_at(params, qpos, jnp.zeros(model.nv)).data
        poses = [data.geom_xpos, data.geom_xmat, data.site_xpos, data.site_xmat, data.cam_xpos, data.cam_xmat]
        values = jnp.concatenate([x.ravel() for x in (*poses, data.light_xpos, data.light_xdir)])
        return jnp.vdot(values, jnp.sin(jnp.arange(values.size, dtype=values.dtype)))

    assert np.isfinite(total(jnp.asarray(model.qpos0, float))[1]).all()
    qpos = jnp.asarray(np.random.default_rng(0).uniform(-1, 1, model.nq), float)
    steps = 0.01 * jnp.eye(model.nq)
    expected = [(total(qpos + step)[0] - total(qpos - step)[0]) / 0.02 for step in steps]
    np.testing.assert_allclose(total(qpos)[1], expected, atol=0.01)


def test_wrong_input_is_named():
    with pytest.raises(InputError, match=r"unknown task 'dmc_walker_fly'; known: .*dmc_walker_walk"):
        dmc.load("dmc_walker_fly")
    env, state = start(DOMAINS["reacher"])
    params = state.params
    with pytest.raises(InputError, match=r"qpos of reacher must have shape \(2,\), not \(3,\)"):
        env.state_at(params, np.zeros(3), np.zeros(2))
    with pytest.raises(InputError, match=r"geom_pos of reacher must have shape \(10, 3\), not \(3,\)"):
        env.state_at(params, np.zeros(2), np.zeros(2), geom_pos=np.zeros(3))
    with pytest.raises(InputError, match=r"action of reacher must have shape \(2,\), not \(1,\)"):
        step(env, state, jnp.zeros((BATCH, 1)))
