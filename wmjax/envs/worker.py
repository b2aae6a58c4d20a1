"""The worker process, `python -m wmjax.envs.worker TASK`: episodes of one task on C MuJoCo, drawn in one GL context.

It answers the calls of `wmjax.envs.host` over its standard input and output, and ends when its input does, so that it
outlives its parent under no circumstances. It never imports JAX.
"""

import os
import signal
import sys
import traceback

import numpy as np

from wmjax.core.errors import InputError
from wmjax.envs import base, pipe


class Episode:
    """One episode of a dm_control task, and whether its physics has diverged (`nan`)."""

    def __init__(self, spec: base.EnvSpec) -> None:
        """Compile the task's model; `reset` or `place` then starts an episode."""
        from dm_control import suite

        self.env = suite.load(spec.domain, spec.name, task_kwargs={"random": 0})
        self.repeat = spec.action_repeat
        self.model = self.env.physics.model.ptr
        self.data = self.env.physics.data.ptr
        self.nan = False
        self._geometry = {name: getattr(self.model, name).copy() for name in base.GEOMETRY}

    def reset(self, seed: int) -> None:
        """Start the episode that a fresh `suite.load` with this seed starts, bit for bit, without compiling again."""
        for name, values in self._geometry.items():
            getattr(self.model, name)[:] = values
        self.env.task.random.seed(seed)
        self.env.reset()
        self.nan = False

    def place(self, qpos: np.ndarray, qvel: np.ndarray, geometry: dict[str, np.ndarray]) -> None:
        """Start an episode in the state qpos [nq], qvel [nv]; geometry that is not given is as in the model's file."""
        self.reset(0)
        for name, values in (self._geometry | geometry).items():
            getattr(self.model, name)[:] = values
        with self.env.physics.reset_context():
            self.data.qpos[:] = qpos
            self.data.qvel[:] = qvel

    def step(self, action: np.ndarray) -> float:
        """Apply `action` [A] for the task's action repeat and return the summed reward.

        A non-finite action or state, or a physics warning such as a huge acceleration, sets `nan` and freezes the
        episode; a frozen one gives reward 0.
        """
        from dm_control.rl.control import PhysicsError

        self.nan = self.nan or not np.isfinite(action).all()
        if self.nan:
            return 0.0
        reward = 0.0
        try:
            for _ in range(self.repeat):
                time_step = self.env.step(action)
                reward += time_step.reward
                if time_step.last():
                    break
        except PhysicsError:
            self.nan = True
        self.nan = self.nan or not np.isfinite([reward, *self.data.qpos, *self.data.qvel]).all()
        return 0.0 if self.nan else reward


class Worker:
    """The episodes of this process (n of them) and their last good frames; one method a call of the protocol."""

    def __init__(self, task: str, backend: str) -> None:
        """Compile one episode of `task` and open the GL context with `backend`."""
        from wmjax.render.gl import Renderer

        self.spec = base.spec(task)
        self.episodes = [Episode(self.spec)]
        model = self.episodes[0].model
        self.renderer = Renderer(model, backend, size=self.spec.image_size, camera=self.spec.camera)
        self.frames = np.zeros((0, 0, 0, 3), np.uint8)

    def reset(self, seed: np.ndarray) -> dict[str, np.ndarray]:
        """Start n episodes with the seeds [n]."""
        self._resize(len(seed))
        for episode, value in zip(self.episodes, seed, strict=True):
            episode.reset(int(value))
        return self._answer(np.zeros(len(seed)))

    def place(self, qpos: np.ndarray, qvel: np.ndarray, **geometry: np.ndarray) -> dict[str, np.ndarray]:
        """Start n episodes in given states, qpos [n, nq] and qvel [n, nv], with geometry [n, ngeom or nsite, 3]."""
        self._resize(len(qpos))
        model = self.episodes[0].model
        known = {"qpos": (model.nq,), "qvel": (model.nv,)} | {name: getattr(model, name).shape for name in geometry}
        for name, values in {"qpos": qpos, "qvel": qvel, **geometry}.items():
            if values.shape[1:] != known[name]:
                wanted = (len(qpos), *known[name])
                raise InputError(f"{name} of {self.spec.task} must have shape {wanted}, not {values.shape}")
        for i, episode in enumerate(self.episodes):
            episode.place(qpos[i], qvel[i], {name: values[i] for name, values in geometry.items()})
        return self._answer(np.zeros(len(qpos)))

    def step(self, action: np.ndarray) -> dict[str, np.ndarray]:
        """Apply the actions [n, A]."""
        rewards = [episode.step(row) for episode, row in zip(self.episodes, action, strict=True)]
        return self._answer(np.array(rewards))

    def _resize(self, n: int) -> None:
        self.episodes += [Episode(self.spec) for _ in range(n - len(self.episodes))]
        del self.episodes[n:]
        self.frames = np.zeros((n, self.spec.image_size, self.spec.image_size, 3), np.uint8)

    def _answer(self, reward: np.ndarray) -> dict[str, np.ndarray]:
        for frame, episode in zip(self.frames, self.episodes, strict=True):
            if not episode.nan:
                frame[:] = self.renderer.render(episode.model, episode.data)
        return {"image": self.frames, "reward": reward, "nan": np.array([episode.nan for episode in self.episodes])}


def main() -> None:
    """Serve calls until the input ends. An error is an answer; the process lives on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    calls = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what C libraries print must not end up among the messages
    failure: Exception | None = None
    try:
        worker = _start(sys.argv[1], answers.fileno())
    except Exception as error:
        failure = error
    try:
        while True:
            call, arrays = pipe.receive(calls)
            try:
                if failure is not None:
                    raise failure
                result = getattr(worker, call["method"])(**arrays)
            except InputError as error:
                pipe.send(answers, {"input": str(error)}, {})
            except Exception:
                pipe.send(answers, {"traceback": traceback.format_exc()}, {})
            else:
                pipe.send(answers, {}, result)
    except (EOFError, BrokenPipeError):
        os._exit(0)  # the parent is gone; without teardown, in which OSMesa would complain


def _start(task: str, output: int) -> Worker:
    """Return the worker, with MUJOCO_GL's back end or else the first that works; `output` takes the answers."""
    wanted = os.environ.get("MUJOCO_GL", "")
    os.environ["MUJOCO_GL"] = "disabled"  # dm_control and mujoco read it when imported: neither is to open a context
    from wmjax.render.gl import candidates

    first, *others = candidates(wanted)
    try:
        return Worker(task, first)
    except InputError:
        if not others:
            raise
        os.dup2(output, 1)
        os.execve(sys.executable, sys.orig_argv, os.environ | {"MUJOCO_GL": others[0]})


if __name__ == "__main__":
    main()
