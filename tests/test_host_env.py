"""Host environments: dm_control's own pixels and rewards, whatever the batch; no process left behind."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from wmjax import envs
from wmjax.core.errors import InputError
from wmjax.envs.base import GEOMETRY
from wmjax.render import BACKENDS

ROOT = Path(__file__).parents[1]

# A plain dm_control loop, drawn by dm_control. Its own process, because one process can hold one GL context.
REFERENCE = """
import sys
import numpy as np
from dm_control import suite

domain, name, seed, draws, folder = sys.argv[1:]
env = suite.load(domain, name, task_kwargs={"random": int(seed)})
env.reset()
model, data = env.physics.model, env.physics.data
frames, rewards, states = [], [], []
def look():
    frames.append(env.physics.render(64, 64, camera_id=0))
    states.append([data.qpos.copy(), data.qvel.copy()])
look()
for t, action in enumerate(np.load(f"{folder}/actions.npy")):
    reward = 0.0
    for _ in range(2):
        time_step = env.step(action)
        reward += time_step.reward
        if time_step.last():
            break
    rewards.append(reward)
    if t < int(draws):
        look()
qpos, qvel = zip(*states)
geometry = {name: getattr(model, name) for name in ("geom_size", "geom_pos", "site_size", "site_pos")}
np.savez(f"{folder}/out.npz", frames=frames, rewards=rewards, last=time_step.last(), qpos=qpos, qvel=qvel, **geometry)
"""


def reference(spec, seed, actions, draws, folder, monkeypatch):
    """Return dm_control's arrays, and make host environments use the same GL back end from here on."""
    np.save(folder / "actions.npy", actions)
    command = [sys.executable, "-c", REFERENCE, spec.domain, spec.name, str(seed), str(draws), str(folder)]
    for backend in BACKENDS:
        run = subprocess.run(command, env=os.environ | {"MUJOCO_GL": backend}, capture_output=True, text=True)
        if run.returncode == 0:
            monkeypatch.setenv("MUJOCO_GL", backend)
            with np.load(folder / "out.npz") as arrays:
                return dict(arrays)
    pytest.fail(run.stderr)


def actions_for(spec, steps, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (steps, spec.action_size)).astype(np.float32)


def play(env, seeds, actions):
    """Return the frames [T + 1, B, ...] and rewards [T, B] of episodes that all take the same actions [T, A]."""
    state = env.reset(seeds)
    frames, rewards = [env.image(state)], []
    for action in actions:
        state = env.step(state, np.tile(action, (env.batch, 1)))
        frames.append(env.image(state))
        rewards.append(state.reward)
    return np.array(frames), np.array(rewards)


@pytest.mark.parametrize("task", envs.TASKS)
def test_pixels_and_rewards_are_those_of_dm_control(task, tmp_path, monkeypatch):
    spec = envs.spec(task)
    actions = actions_for(spec, 5)
    truth = reference(spec, 21, actions, 5, tmp_path, monkeypatch)
    with envs.make(task, batch=2) as env:
        frames, rewards = play(env, [20, 21], actions)
        np.testing.assert_array_equal(frames[:, 1], truth["frames"])
        np.testing.assert_array_equal(rewards[:, 1], truth["rewards"])
        assert not np.array_equal(frames[:, 0], frames[:, 1])

        geometry = {name: np.stack([truth[name]] * 2) for name in GEOMETRY}
        placed = env.state_at(truth["qpos"][[0, 5]], truth["qvel"][[0, 5]], **geometry)
        np.testing.assert_array_equal(env.image(placed), truth["frames"][[0, 5]])
        assert env.step(placed, np.zeros((2, spec.action_size))).steps == 1


def test_a_whole_episode_has_the_return_of_a_plain_loop(tmp_path, monkeypatch):
    spec = envs.spec("dmc_cartpole_balance")
    actions = actions_for(spec, spec.episode_steps) / 4
    truth = reference(spec, 3, actions, 1, tmp_path, monkeypatch)
    assert truth["last"]
    with envs.make(spec.task) as env:
        state, total = env.reset([3]), []
        for action in actions:
            assert not state.done
            state = env.step(state, action[None])
            total.append(state.reward[0])
        np.testing.assert_array_equal(total, truth["rewards"])
        assert sum(total) > 100
        assert state.done
        assert state.steps == 500
        with pytest.raises(RuntimeError, match="over after 500"):
            env.step(state, actions[:1])


def test_an_episode_depends_on_its_seed_alone():
    task = "dmc_reacher_hard"
    actions = actions_for(envs.spec(task), 3)
    with envs.make(task, batch=3, workers=2) as env:
        frames, rewards = play(env, [5, 6, 7], actions)
        sizes, positions = np.full((3, 10, 3), 0.1), np.zeros((3, 10, 3))
        env.state_at(np.ones((3, 2)), np.ones((3, 2)), geom_size=sizes, geom_pos=positions)
        again, rewards_again = play(env, [7, 5, 6], actions)
    np.testing.assert_array_equal(again, frames[:, [2, 0, 1]])
    np.testing.assert_array_equal(rewards_again, rewards[:, [2, 0, 1]])
    with envs.make(task) as env:
        alone, _ = play(env, [6], actions)
    np.testing.assert_array_equal(alone[:, 0], frames[:, 1])
    assert not np.array_equal(frames[:, 0], frames[:, 1])


def test_environments_in_several_threads_do_not_disturb_each_other():
    task = "dmc_reacher_easy"
    actions = actions_for(envs.spec(task), 4)

    def one(seed):
        with envs.make(task) as env:
            return play(env, [seed], actions)[0]

    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(one, [1, 2, 1]))
    np.testing.assert_array_equal(together[0], together[2])
    np.testing.assert_array_equal(together[1], one(2))


def test_divergence_is_flagged_and_freezes_the_episode():
    with envs.make("dmc_cartpole_swingup", batch=3) as env:
        velocity = np.zeros((3, 2))
        velocity[1] = 1e11
        start = env.state_at(np.zeros((3, 2)), velocity)
        state = env.step(start, [[np.nan], [0], [1]])
        assert state.nan.tolist() == [True, True, False]
        assert state.reward[:2].tolist() == [0, 0]
        np.testing.assert_array_equal(state.image[:2], start.image[:2])
        assert not np.array_equal(state.image[2], start.image[2])
        assert env.step(state, np.zeros((3, 1))).nan.tolist() == [True, True, False]
        assert not env.reset([0, 1, 2]).nan.any()


def test_wrong_input_is_named():
    with pytest.raises(InputError, match=r"unknown task 'dmc_walker_fly'; known: .*dmc_walker_walk"):
        envs.make("dmc_walker_fly")
    with pytest.raises(InputError, match="unknown backend 'cloud'; known: device, host"):
        envs.make("dmc_walker_walk", backend="cloud")
    for name in ("batch", "workers"):
        for wrong in (0, 2.5, "2", True):
            with pytest.raises(InputError, match=f"{name} is {wrong!r}; allowed: a whole number from 1"):
                envs.make("dmc_walker_walk", **{name: wrong})
    with envs.make("dmc_reacher_easy", batch=2) as env:
        for seeds in ([1], [1, -1], [1, 2**32], [0.5, 1]):
            with pytest.raises(InputError, match="seeds must be 2 integers"):
                env.reset(seeds)
        with pytest.raises(InputError, match=r"qpos of dmc_reacher_easy must have shape \(2, 2\), not \(2, 3\)"):
            env.state_at(np.zeros((2, 3)), np.zeros((2, 2)))
        with pytest.raises(InputError, match="qvel has values that are not finite"):
            env.state_at(np.zeros((2, 2)), np.full((2, 2), np.inf))
        with pytest.raises(InputError, match="geom_pos must have a first axis of 2"):
            env.state_at(np.zeros((2, 2)), np.zeros((2, 2)), geom_pos=np.zeros((10, 3)))
        state = env.reset([1, 2])
        with pytest.raises(InputError, match=r"action must have shape \(2, 2\)"):
            env.step(state, np.zeros((2, 1)))
        env.step(state, np.zeros((2, 2)))
        with pytest.raises(RuntimeError, match="stale"):
            env.step(state, np.zeros((2, 2)))
    with pytest.raises(RuntimeError, match="closed"):
        env.reset([1, 2])


def test_the_back_end_is_chosen_and_its_absence_explained(monkeypatch):
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "99")  # breaks EGL, also where it is installed
    with envs.make("dmc_reacher_easy") as env:
        assert env.reset([0]).image.std() > 10
    for name, message in (("egl", "apt-get install libosmesa6 libegl1 libgl1"), ("glx", "need one of egl, osmesa")):
        monkeypatch.setenv("MUJOCO_GL", name)
        with envs.make("dmc_reacher_easy") as env, pytest.raises(InputError, match=message):
            env.reset([0])


def test_blank_frames_are_errors():
    from wmjax.render.gl import check_frame

    frame = np.zeros((64, 64, 3), np.uint8)
    with pytest.raises(RuntimeError, match="wmjax doctor"):
        check_frame(frame)
    frame[3, 4] = 1
    check_frame(frame)


def test_a_dead_worker_is_reported_at_once():
    with envs.make("dmc_reacher_easy", batch=2, workers=2) as env:
        state = env.reset([0, 1])
        os.kill(env._workers[1].process.pid, signal.SIGINT)  # ignored
        state = env.step(state, np.zeros((2, 2)))
        os.kill(env._workers[1].process.pid, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(envs.WorkerError, match="dmc_reacher_easy was killed by SIGKILL"):
            env.step(state, np.zeros((2, 2)))
        assert time.monotonic() - start < 5
        assert all(worker.process.returncode is not None for worker in env._workers)


def test_a_failing_worker_sends_its_traceback(monkeypatch):
    with envs.make("dmc_reacher_easy") as env:
        env.reset([0])
        with pytest.raises(envs.WorkerError, match=r"(?s)Traceback.*AttributeError.*fly"):
            env._call("fly", 0)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with (
        envs.make("dmc_reacher_easy") as env,
        pytest.raises(envs.WorkerError, match="ended with exit code 1"),
    ):
        env.reset([0])


# No main guard, and read from standard input as in a notebook: workers must not import the main module.
PARENT = """
import numpy as np
from wmjax import envs
env = envs.make("dmc_reacher_easy", batch=2, workers=2)
state = env.reset([0, 1])
print(*[worker.process.pid for worker in env._workers], flush=True)
while True:
    state = env.step(state, np.zeros((2, 2)))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_no_worker_outlives_its_parent(number):
    parent = subprocess.Popen(
        [sys.executable, "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        start_new_session=True,
    )
    with parent:
        parent.stdin.write(PARENT.encode())
        parent.stdin.close()
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        assert all(map(alive, workers))
        os.killpg(parent.pid, number)
        assert parent.wait(20) != 0
    deadline = time.monotonic() + 10
    while any(map(alive, workers)):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.05)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_forgotten_environment_leaves_no_worker():
    env = envs.make("dmc_reacher_easy")
    pid = env._workers[0].process.pid
    del env
    assert not alive(pid)


def test_a_worker_never_imports_jax():
    code = "import sys, wmjax.envs.worker, wmjax.render.gl, dm_control.suite; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
