"""Attacks computed on one agent while another plays: the source is attacked, and the victim suffers what it may."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from waves import BATCH, FULL, NAMES, PGD, SEEDS, VICTIM, T, Waves, keys, play, weights

import wmjax
from wmjax import rollout
from wmjax.attacks import Attack, Frame, draw, optimizer, perturb, threat
from wmjax.core.errors import InputError

OTHER = replace(VICTIM, stoch=3, discrete=5, deter=8, units=6, depths=(6, 4))
THROUGH = replace(PGD, source=OTHER)


@pytest.fixture(scope="module")
def params():
    return weights()


@pytest.fixture(scope="module")
def other():
    return weights(OTHER, seed=1)


@pytest.fixture(scope="module")
def transferred(params, other):
    return play(params, THROUGH, source=other)


def test_a_source_that_is_the_victim_gives_the_white_box_attack(params):
    """The same agent with the same weights, believed in twice."""
    white, twice = play(params), play(params, replace(PGD, source=VICTIM), source=params)
    np.testing.assert_array_equal(twice.returns, white.returns)
    for i, trace in white.traces.items():
        np.testing.assert_array_equal(twice.traces[i].seen, trace.seen)
    for name, values in white.diagnostics.items():
        np.testing.assert_allclose(twice.diagnostics[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def test_the_victim_decides_and_the_source_is_attacked(params, other, transferred):
    """Replayed step by step with two separate agents: their beliefs, the attack on one, the response of the other."""
    env, aim = Waves(), threat(NAMES, [0.25] * BATCH)
    env_state, zeros = env.reset(SEEDS), jnp.zeros((BATCH, VICTIM.action_size))
    belief, spied, action = VICTIM.initial(BATCH), OTHER.initial(BATCH), zeros
    predict, embed, update = (
        {agent: jax.jit(getattr(agent, name)) for agent in (VICTIM, OTHER)} for name in ("predict", "embed", "update")
    )
    attack = jax.jit(lambda *inputs: perturb(PGD, OTHER, other, *inputs).image)
    for t in range(3):
        image = jnp.asarray(env.image(env_state) / np.float32(255))
        at = jax.vmap(lambda key, t=t: jax.random.fold_in(key, t))
        noise = {
            agent: jax.vmap(lambda key, agent=agent: jax.random.gumbel(key, agent.latent_shape))(at(keys(SEEDS, 0)))
            for agent in (VICTIM, OTHER)
        }
        ahead = predict[OTHER](other, spied, action)
        frame = Frame(image, embed[OTHER](other, image), ahead, noise[OTHER])
        seen = attack(frame, draw(OTHER, at(keys(SEEDS, 1))), aim)
        spied, _ = update[OTHER](other, ahead, embed[OTHER](other, seen), noise[OTHER])
        own = predict[VICTIM](params, belief, action)
        belief, internals = update[VICTIM](params, own, embed[VICTIM](params, seen), noise[VICTIM])
        action = internals.policy.mode()
        for i, trace in transferred.traces.items():
            np.testing.assert_allclose(trace.seen[t], np.round(seen[i] * 255), atol=1, err_msg=f"{NAMES[i]} at {t}")
            np.testing.assert_allclose(trace.action[t], action[i], atol=2e-3, err_msg=f"{NAMES[i]} at {t}")
        env_state = env.step(env_state, np.asarray(action))


def test_losses_are_the_sources_and_responses_the_victims(params, other):
    """With the agents' own latent noise, VSA's loss is minus the value that the attacked agent feels."""
    knowing = replace(PGD, noise="shared")
    white = play(params, knowing).diagnostics
    through = play(params, replace(knowing, source=OTHER), source=other).diagnostics
    vsa = NAMES.index("vsa")
    assert white["loss_last"][vsa] == pytest.approx(-white["value_adv"][vsa], rel=1e-4)
    assert through["loss_last"][vsa] != pytest.approx(-through["value_adv"][vsa], rel=0.1)
    assert through["loss_last"][vsa] > through["loss_first"][vsa]  # the source's value falls
    assert (through["loss_error"] < 1e-4).all()
    assert (through["max_delta"] <= np.float32(0.25)).all()


def test_no_budget_or_no_mask_is_the_clean_episode(params, other):
    clean = play(params, Attack(), ["clean"] * BATCH, 0.0, ~FULL)
    for result in (play(params, THROUGH, eps=0.0, source=other), play(params, THROUGH, mask=~FULL, source=other)):
        np.testing.assert_array_equal(result.returns, clean.returns)
        for i, trace in clean.traces.items():
            np.testing.assert_array_equal(result.traces[i].action, trace.action)


def test_an_online_rule_asks_the_source(params, other):
    """The attacker decides by what it knows: the policy of its own agent."""
    rule = dict(most=2, threshold=-np.inf)
    results = []
    for attack, source in ((replace(PGD, gap="policy"), None), (replace(THROUGH, gap="policy"), other)):
        aim = threat(NAMES, [0.25] * BATCH, **rule)
        results.append(
            rollout.host(
                VICTIM, params, Waves(), attack, aim, FULL, seeds=SEEDS, keys=keys(SEEDS, 0),
                attack_keys=keys(SEEDS, 1), source=source, record=range(BATCH),
            )
        )  # fmt: skip
        assert (results[-1].attacked <= 2).all()
    white, through = ([trace.attacked.tolist() for trace in result.traces.values()] for result in results)
    assert white != through


def test_what_does_not_fit_is_refused(params, other):
    with pytest.raises(InputError, match=r"^source is None; give both"):
        play(params, THROUGH)
    with pytest.raises(InputError, match=r"attack.source is None; give both"):
        play(params, PGD, source=other)
    with pytest.raises(InputError, match=r"attack.source has action_size 3, the agent it is to attack 2"):
        play(params, replace(PGD, source=replace(OTHER, action_size=3)), source=other)


def test_on_the_device_too():
    """The shipped agent through another of its kind, physics and pixels in JAX: the attack acts, and not as its own."""
    victim, params = wmjax.load("dmc_cartpole_balance_r2dreamer_1m")
    other = jax.tree.map(lambda leaf: leaf * 1.05, params)
    attack, mask = Attack(optimizer("fgsm"), source=victim), np.ones(T, bool)
    aim = threat(["vsa", "vsa"], [0.0, 16 / 255])
    with wmjax.envs.make("dmc_cartpole_balance", backend="device", batch=2) as env:
        result = rollout.device(
            victim, params, env, attack, aim, mask, seeds=[20, 20], keys=keys([20, 20], 0),
            attack_keys=keys([20, 20], 1), source=other, record=[0, 1],
        )  # fmt: skip
    assert (result.traces[0].seen == result.traces[0].frames).all()
    assert (result.traces[1].seen != result.traces[1].frames).any()
    assert result.traces[0].diagnostics["value_adv"].shape == (T,)
    assert result.diagnostics["value_adv"][0] == result.diagnostics["value_clean"][0]
    assert result.diagnostics["loss_last"][0] != pytest.approx(-result.diagnostics["value_adv"][0], abs=1e-3)
    assert (result.diagnostics["loss_error"] < 1e-3).all()
