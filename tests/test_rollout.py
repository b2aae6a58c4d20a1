"""The closed loop: what an attack may change, what it may not, and what is measured of it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from waves import BATCH, FULL, NAMES, PGD, SEEDS, VICTIM, T, Waves, arrays, keys, play, weights

import wmjax
from wmjax import rollout
from wmjax.attacks import NO_STEPS, Attack, draw, optimizer, threat
from wmjax.attacks.defenses import defense, defense_strength
from wmjax.core.errors import InputError


@pytest.fixture(scope="module")
def params():
    return weights()


@pytest.fixture(scope="module")
def clean(params):
    return play(params, Attack(), ["clean"] * BATCH, 0.0, ~FULL)


@pytest.fixture(scope="module")
def attacked(params):
    return play(params)


def assert_same_trajectories(one: rollout.Rollout, other: rollout.Rollout) -> None:
    np.testing.assert_array_equal(one.returns, other.returns)
    np.testing.assert_array_equal(one.nan, other.nan)
    assert one.traces.keys() == other.traces.keys() != set()
    for i, trace in one.traces.items():
        for name in ("frames", "seen", "reward", "action"):
            np.testing.assert_array_equal(getattr(trace, name), getattr(other.traces[i], name), err_msg=name)


def test_the_fake_environment_is_a_closed_loop(clean, attacked):
    np.testing.assert_array_equal(attacked.traces[3].frames[0], clean.traces[3].frames[0])
    assert (attacked.traces[3].action[0] != clean.traces[3].action[0]).any()
    assert (attacked.traces[3].frames[1] != clean.traces[3].frames[1]).any()
    assert attacked.returns[3] != clean.returns[3]
    assert len(set(clean.returns)) == BATCH


@pytest.mark.parametrize("noise", ["fresh", "shared", "mode"])
@pytest.mark.parametrize("name", ["fgsm", "pgd"])
def test_a_zero_budget_is_the_clean_trajectory(params, clean, name, noise):
    attack = Attack(optimizer(name, 3 if name == "pgd" else None), noise)
    result = play(params, attack, NAMES, 0.0)
    assert_same_trajectories(result, clean)
    for what in ("action_change", "policy_kl", "drift_z", "drift_h", "saturated", "max_delta"):
        assert not result.diagnostics[what].any(), what
    zero = dict(zip(NAMES, result.diagnostics["zero_grad"], strict=True))
    assert zero["random"] == 1
    for objective in ("pda", "lda"):  # both passes are the same: there is no way up
        assert (zero[objective] == 1) == (noise != "fresh")
    for objective in ("pea", "vsa", "dca"):
        assert zero[objective] < 1


def test_random_noise_needs_no_steps(params, clean):
    random = Attack(NO_STEPS)
    assert_same_trajectories(play(params, random, ["random"] * BATCH, 0.0), clean)
    loud = play(params, random, ["random"] * BATCH, 0.25)
    assert (loud.returns != clean.returns).any()
    assert (loud.diagnostics["max_delta"] > 0.2).all()


def test_a_zero_budget_in_a_real_environment():
    victim, params = wmjax.load("dmc_cartpole_balance_r2dreamer_1m")
    names, seeds = ["vsa", "random"], [20, 21]

    def real(attack, eps, mask):
        return rollout.host(
            victim, params, env, attack, threat(names, eps), np.array(mask), seeds=seeds, keys=keys(seeds, 0),
            attack_keys=keys(seeds, 1), record=[0, 1],
        )  # fmt: skip

    with wmjax.envs.make("dmc_cartpole_balance", batch=2, workers=2) as env:
        clean = real(Attack(), [0, 0], [False] * T)
        zero = real(Attack(optimizer("pgd", 2)), [0, 0], [True] * T)
        hurt = real(Attack(optimizer("pgd", 2)), [8 / 255, 8 / 255], [True] * T)
    assert_same_trajectories(zero, clean)
    assert (hurt.traces[0].action != clean.traces[0].action).any()
    np.testing.assert_array_equal(hurt.traces[0].frames[0], clean.traces[0].frames[0])


def test_frames_that_the_mask_spares(params, clean, attacked):
    assert_same_trajectories(play(params, mask=~FULL), clean)
    mask = np.array([False, False, True, False, True, False])
    result = play(params, mask=mask)
    for i, name in enumerate(NAMES):
        trace = result.traces[i]
        np.testing.assert_array_equal(trace.frames[:3], clean.traces[i].frames[:3])
        np.testing.assert_array_equal(trace.action[:2], clean.traces[i].action[:2])
        differs = (trace.seen != trace.frames).any(axis=(1, 2, 3))
        np.testing.assert_array_equal(differs, mask, err_msg=name)
    assert any((result.traces[i].frames[3] != clean.traces[i].frames[3]).any() for i in range(BATCH))
    assert (result.returns != attacked.returns).any()


def test_diagnostics_are_means_over_the_attacked_frames(params, clean):
    for values in clean.diagnostics.values():
        assert np.isnan(values).all()
    twice = play(params, mask=np.array([True, True, False, False, False, False]))
    env, state, measured = Waves(), rollout.initial_state(VICTIM, BATCH, T), []
    env_state = env.reset(SEEDS)
    for t in range(2):
        step = one_step(params, state, env.image(env_state), t)
        measured.append({name: np.float64(values) for name, values in step.diagnostics.items()})
        state, env_state = step.state, env.step(env_state, np.asarray(step.state.action))
    assert twice.attacked.tolist() == [2] * BATCH
    for name, values in twice.diagnostics.items():
        if name == "loss_error":
            continue
        first, second = (step[name] for step in measured)
        want = np.maximum(first, second) if name == "max_delta" else (first + second) / 2
        np.testing.assert_allclose(values, want, rtol=1e-6, err_msg=name)


def one_step(params, state, image, t, attack=PGD, names=NAMES, eps=0.25, seeds=SEEDS, attacked=True):
    aim = threat(names, np.broadcast_to(np.asarray(eps), len(names)), defense_strength(attack.defense))
    inputs = jax.device_put((state, image, keys(seeds, 0), keys(seeds, 1), aim), jax.devices()[0])
    return rollout.agent_step(VICTIM, attack, params, *inputs, np.int32(t), attacked=attacked)


@pytest.fixture(scope="module")
def midway(params):
    """An agent's state in mid-episode, and the frame that comes next."""
    env, state = Waves(), rollout.initial_state(VICTIM, BATCH, T)
    env_state = env.reset(SEEDS)
    for t in range(3):
        state = one_step(params, state, env.image(env_state), t, attacked=False).state
        env_state = env.step(env_state, np.asarray(state.action))
    return state, env.image(env_state)


@pytest.mark.parametrize("frame", ["waves", "black", "white", "noise"])
@pytest.mark.parametrize("budgets", [[1, 1 / 255, 4 / 255, 8 / 255, 0.1, 0.04], [1e-3, 1e-8, 1e-30, 0.3, 0.5, 0.9]])
def test_what_the_agent_sees_is_in_the_ball_and_in_range(params, midway, frame, budgets):
    state, image = midway
    noise = np.random.default_rng(0).integers(0, 256, image.shape, np.uint8)
    image = {"waves": image, "black": 0 * image, "white": 0 * image + 255, "noise": noise}[frame]
    step = one_step(params, state, image, 3, eps=budgets)
    seen = np.asarray(step.seen, np.float64)  # from here on in exact arithmetic
    before = np.asarray(one_step(params, state, image, 3, attacked=False).seen)
    np.testing.assert_array_equal(before, image.astype(np.float32) / np.float32(255))
    distance = np.abs(seen - before).max(axis=(1, 2, 3))
    assert (distance <= np.asarray(budgets, np.float32).astype(np.float64)).all()
    assert seen.min() >= 0
    assert seen.max() <= 1
    np.testing.assert_array_equal(step.diagnostics["max_delta"], distance.astype(np.float32))
    assert distance[0] > 0.5 * budgets[0]


def test_episodes_do_not_notice_each_other(params, attacked):
    order = [3, 5, 0, 1, 4, 2]
    moved = play(params, names=[NAMES[i] for i in order], seeds=[SEEDS[i] for i in order])
    alone = play(params, names=["vsa"] * BATCH, seeds=[SEEDS[3]] * BATCH)
    mixed = play(params, names=["pda", *NAMES[1:]], eps=[0.1, *[0.25] * 5], seeds=[7, *SEEDS[1:]])
    assert mixed.returns[0] != attacked.returns[0]
    for other, were in [(moved, order), (alone, [3] * BATCH), (mixed, [None, 1, 2, 3, 4, 5])]:
        for j, i in enumerate(were):
            if i is None:
                continue
            assert other.returns[j] == attacked.returns[i]
            for name, values in arrays(other.traces[j]).items():
                np.testing.assert_array_equal(values, arrays(attacked.traces[i])[name])
            for name, values in other.diagnostics.items():
                assert values[j] == attacked.diagnostics[name][i], name


@pytest.fixture(scope="module")
def defended(params):
    """The clean episodes of an agent with a defense, by the defense's name."""
    names = "jpeg", "median", "bits", "noise"
    return {name: play(params, Attack(defense=defense(name)), ["clean"] * BATCH, 0.0, ~FULL) for name in names}


@pytest.mark.parametrize("name", ["jpeg", "median", "bits", "noise"])
def test_the_agent_sees_every_frame_through_its_defense(params, clean, defended, name):
    guard, ours = defense(name), defended[name]
    for i, trace in ours.traces.items():
        np.testing.assert_array_equal(trace.frames[0], clean.traces[i].frames[0])
        assert (trace.seen != trace.frames).any()
        if not guard.random:
            image, strength = jnp.asarray(trace.frames.astype(np.float32) / np.float32(255)), defense_strength(guard)
            shown = guard.apply(image, jnp.full(T, strength, jnp.float32), jax.random.split(jax.random.key(0), T))
            np.testing.assert_array_equal(trace.seen, np.round(np.asarray(shown) * 255))
    assert (ours.returns != clean.returns).any()
    for adaptive in (False, True):
        result = play(params, Attack(optimizer("pgd", 2), defense=guard, adaptive=adaptive), eps=0.0)
        assert_same_trajectories(result, ours)
        assert not result.diagnostics["policy_kl"].any()


@pytest.mark.parametrize("name", ["jpeg", "median", "bits", "noise"])
def test_an_adaptive_attack_looks_through_the_defense(params, midway, name):
    state, image = midway
    losses = {}
    for adaptive in (False, True):
        attack = Attack(optimizer("pgd", 5), "shared", defense(name), adaptive)
        step = one_step(params, state, image, 3, attack, ["vsa"] * BATCH, 0.1)
        assert (step.diagnostics["max_delta"] <= np.float32(0.1)).all()  # of the camera's frame, not of what comes out
        assert (step.diagnostics["zero_grad"] < 1).all()
        losses[adaptive] = step.diagnostics["loss_last"], -step.diagnostics["value_adv"]
    assert (losses[False][0] != losses[False][1]).any()  # it aims at an agent without a defense
    assert np.isclose(*losses[True], rtol=1e-4).all() == (
        name != "noise"
    )  # it knows the noise of latents, not of frames


def test_an_attack_on_the_mean_over_draws(params):
    by_draws = {n: play(params, Attack(optimizer("pgd", 3), draws=n), ["vsa"] * BATCH) for n in (1, 4)}
    one, four = (result.traces[0].seen for result in by_draws.values())
    assert (one != four).any()
    shared = [play(params, Attack(optimizer("pgd", 3), "shared", draws=n), ["vsa"] * BATCH) for n in (1, 4)]
    for name in ("loss_first", "loss_last", "value_adv"):  # all draws are the agent's own
        np.testing.assert_allclose(shared[0].diagnostics[name], shared[1].diagnostics[name], rtol=1e-3, err_msg=name)


def test_traces_are_those_asked_for(params, attacked):
    result = play(params, record=[4, 1])
    assert list(result.traces) == [4, 1]
    for i, trace in result.traces.items():
        for name, values in arrays(trace).items():
            np.testing.assert_array_equal(values, arrays(attacked.traces[i])[name])
            if name in rollout.MEANS:
                assert np.mean(values) == pytest.approx(result.diagnostics[name][i], rel=1e-5)
        assert np.sum(trace.reward) == pytest.approx(result.returns[i], rel=1e-12)
        assert np.abs(trace.seen.astype(int) - trace.frames).max() <= 64
        assert {name: (v.shape, v.dtype.name) for name, v in arrays(trace).items()} == {
            **dict.fromkeys((*rollout.MEANS, "max_delta"), ((T,), "float32")),
            "frames": ((T, 16, 16, 3), "uint8"),
            "seen": ((T, 16, 16, 3), "uint8"),
            "reward": ((T,), "float64"),
            "action": ((T, 2), "float32"),
            "attacked": ((T,), "bool"),
        }
    assert play(params, record=[]).traces == {}


def kl(p, q):
    m, s = np.float64(p.mean), np.float64(p.std)
    n, r = np.float64(q.mean), np.float64(q.std)
    return np.sum(np.log(r / s) + (s**2 + (m - n) ** 2) / (2 * r**2) - 0.5, axis=-1)


def entropy(p):
    return np.sum(0.5 * np.log(2 * np.pi * np.e * np.float64(p.std) ** 2), axis=-1)


def unimix(logits):
    weights = np.exp(np.float64(logits))
    return 0.99 * weights / weights.sum(axis=-1, keepdims=True) + 0.01 / logits.shape[-1]


def divergence(internals):
    q, p = unimix(internals.post_logits), unimix(internals.prior_logits)
    return np.sum(q * np.log(q / p), axis=(1, 2))


def test_diagnostics_are_what_they_say(params, midway):
    state, image = midway
    step = one_step(params, state, image, 3)

    agent_keys, attack_keys = (jax.vmap(jax.random.fold_in, (0, None))(keys(SEEDS, stream), 3) for stream in (0, 1))
    noise = jax.vmap(lambda key: jax.random.gumbel(key, VICTIM.latent_shape))(agent_keys)
    drawn = jax.jit(draw, static_argnums=0)(VICTIM, attack_keys)
    prediction = jax.jit(VICTIM.predict)(params, state.belief, state.action)
    frame = image.astype(np.float32) / np.float32(255)

    @jax.jit
    def respond(x, gumbel):
        return VICTIM.update(params, prediction, VICTIM.embed(params, x), gumbel)

    (_, clean), (belief, adv) = respond(frame, noise), respond(step.seen, noise)
    np.testing.assert_array_equal(step.state.belief.stoch, belief.stoch)
    np.testing.assert_allclose(step.state.action, adv.policy.mean, rtol=1e-5, atol=1e-6)

    def loss(x):
        _, aimed = respond(x, drawn.gumbel)
        rows = {
            "random": np.zeros(BATCH),
            "pda": kl(clean.policy, aimed.policy),
            "pea": entropy(aimed.policy),
            "vsa": -np.float64(aimed.value),
            "lda": np.sum((np.asarray(aimed.stoch) - clean.stoch) ** 2, axis=(1, 2)),
            "dca": divergence(aimed),
        }
        return np.array([rows[name][i] for i, name in enumerate(NAMES)])

    inside, edge = (frame > 0) & (frame < 1), (np.asarray(step.seen) <= 0) | (np.asarray(step.seen) >= 1)
    want = {
        "action_change": np.abs(np.asarray(adv.policy.mean) - clean.policy.mean).sum(axis=-1),
        "flip": np.abs(np.asarray(adv.policy.mean) - clean.policy.mean).sum(axis=-1) > 0.1,
        "policy_kl": kl(clean.policy, adv.policy),
        "entropy_clean": entropy(clean.policy),
        "entropy_adv": entropy(adv.policy),
        "value_clean": clean.value,
        "value_adv": adv.value,
        "drift_z": np.sum((np.asarray(adv.stoch) - clean.stoch) ** 2, axis=(1, 2)),
        "drift_h": np.zeros(BATCH),
        "post_prior_kl": divergence(adv),
        "loss_first": loss(frame),
        "loss_last": loss(step.seen),
        "saturated": np.mean(inside & edge, axis=(1, 2, 3)),
        "max_delta": np.abs(np.asarray(step.seen) - frame).max(axis=(1, 2, 3)),
    }
    assert set(step.diagnostics) == {*rollout.MEANS, "max_delta"} == {*want, "zero_grad", "restart_gap"}
    for name, values in want.items():
        np.testing.assert_allclose(step.diagnostics[name], values, rtol=2e-4, atol=2e-5, err_msg=name)
    assert not step.diagnostics["drift_h"].any()  # nothing was attacked before
    assert step.diagnostics["saturated"].any()
    assert step.diagnostics["drift_z"].any()
    climbed = np.asarray(step.diagnostics["loss_last"] - step.diagnostics["loss_first"])
    assert (climbed[1:] > 0).any()


def test_the_memory_of_earlier_attacks_is_measured_against_a_twin(params, midway):
    state, image = midway
    first = one_step(params, state, image, 3)
    clean = one_step(params, state, image, 3, attacked=False)
    for name in ("stoch", "deter"):
        np.testing.assert_array_equal(getattr(first.state.twin, name), getattr(clean.state.belief, name))
    second = one_step(params, first.state, image, 4)
    h, h_twin = (
        np.asarray(jax.jit(VICTIM.predict)(params, belief, first.state.action).deter)
        for belief in (first.state.belief, first.state.twin)
    )
    np.testing.assert_allclose(second.diagnostics["drift_h"], np.sum((h - h_twin) ** 2, axis=1), rtol=1e-4, atol=1e-7)
    assert second.diagnostics["drift_h"].any()


def test_the_start_of_an_attack_that_knows_the_noise_is_away_from_the_clean_frame(params, midway):
    state, image = midway
    step = one_step(params, state, image, 3, Attack(optimizer("pgd", 3), "shared"))
    moved = (np.asarray(step.seen) != image.astype(np.float32) / np.float32(255)).any(axis=(1, 2, 3))
    assert moved.all()
    loud = np.asarray(step.diagnostics["max_delta"])
    assert (loud > 0.2).all()


@pytest.mark.parametrize("part", ["actor", "encoder"])
def test_a_policy_that_is_not_finite(params, part):
    broken = params | {part: jax.tree.map(lambda x: x * jnp.nan, params[part])}
    env = Waves()
    for mask in (FULL, ~FULL):
        result = play(broken, mask=mask, env=env)
        assert result.nan.all()
        assert np.isnan(result.returns).all()
    assert len(env.actions) == 2 * T
    assert not np.any(env.actions)


def test_one_diverged_episode_leaves_the_others_alone(params, attacked):
    result = play(params, env=Waves(diverging=(2, 5)))
    np.testing.assert_array_equal(result.nan, [False, False, True, False, False, True])
    np.testing.assert_array_equal(np.where(result.nan, np.nan, attacked.returns), result.returns)
    assert not attacked.nan.any()


def test_the_caller_is_told_of_every_step_and_may_stop(params):
    class Stop(Exception):
        pass

    def stop(t):
        seen.append(t)
        if t == 3:
            raise Stop

    seen: list[int] = []
    play(params, on_step=seen.append)
    assert seen == list(range(T))
    env, seen = Waves(), []
    with pytest.raises(Stop):
        play(params, env=env, on_step=stop)
    assert seen == [0, 1, 2, 3]
    assert len(env.actions) == 3


def test_nothing_is_compiled_twice(params, attacked, clean, caplog):
    other = jax.tree.map(lambda x: x * 1.5, params)
    play(params, mask=np.arange(T) % 2 == 0)
    arguments = dict(names=NAMES[::-1], eps=[0.0, 0.1, 0.2, 0.3, 1.0, 1 / 255], seeds=[1, 2, 3, 4, 5, 2**31])
    with jax.log_compiles(), caplog.at_level("WARNING", logger="jax"):
        result = play(other, mask=np.arange(T) % 3 == 1, **arguments)
        play(other, Attack(), ["clean"] * BATCH, 0.0, ~FULL, seeds=arguments["seeds"])
        counted = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Compiling")]
        assert counted == []
        jax.jit(lambda x: x + 1)(result.returns)  # that compilations are counted at all
    assert any(record.getMessage().startswith("Compiling") for record in caplog.records)
    assert (result.returns != attacked.returns).all()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"keys": keys(SEEDS[:1], 0)}, "keys has shape"),
        ({"names": ["vsa"]}, "threat.eps has shape"),
        ({"mask": "full"}, "mask is"),
        ({"mask": np.ones(3)}, "mask is"),
        ({"mask": np.ones(501, bool)}, "mask has 501 entries; an episode has 500"),
        ({"record": [True]}, "record is"),
        ({"record": [BATCH]}, "record is"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(params, wrong, words):
    names = wrong.pop("names", NAMES)
    given = {"mask": FULL, "keys": keys(SEEDS, 0), "record": []} | wrong
    aim = threat(names, [0.1] * len(names))
    with pytest.raises(InputError, match=words):
        rollout.host(
            VICTIM, params, Waves(), PGD, aim, given.pop("mask"), seeds=SEEDS, attack_keys=keys(SEEDS, 1), **given
        )
