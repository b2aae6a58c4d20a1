"""Attacks that spare frames, pixels or levels of grey, and perturbations that serve many frames at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from waves import BATCH, FULL, NAMES, PGD, SEEDS, VICTIM, T, Waves, keys, play, weights

from wmjax import attacks, rollout
from wmjax.attacks import Attack, optimizer, region, threat, timing
from wmjax.core.errors import InputError
from wmjax.core.image import LEVELS

VSA = ["vsa"] * BATCH


@pytest.fixture(scope="module")
def params():
    return weights()


def stage(params, attack, mode="full", names=NAMES, eps=0.25, steps=T, **more):
    """Play episodes of `steps` agent steps under a mode."""
    when = timing(mode, steps)
    attack = Attack(attack.optimizer, attack.noise, attack.defense, rounded=attack.rounded, gap=when.gap)
    aim = threat(names, [eps] * BATCH, threshold=when.threshold, most=when.most, **more)
    return rollout.host(
        VICTIM, params, Waves(), attack, aim, when.mask, seeds=SEEDS, keys=keys(SEEDS, 0), attack_keys=keys(SEEDS, 1),
        record=list(range(BATCH)),
    )  # fmt: skip


@pytest.fixture(scope="module")
def full(params):
    return stage(params, PGD)


def changed(trace):
    """Which frames [T] the agent saw otherwise than the camera."""
    return (trace.seen != trace.frames).any(axis=(1, 2, 3))


@pytest.mark.parametrize("gap", ["policy", "value"])
def test_a_rule_that_spares_nothing_is_no_rule(params, full, gap):
    result = stage(params, PGD, f"{gap}_gap(0)")
    np.testing.assert_array_equal(result.returns, full.returns)
    assert result.attacked.tolist() == [T] * BATCH
    for name, values in full.diagnostics.items():
        np.testing.assert_array_equal(result.diagnostics[name], values, err_msg=name)


@pytest.mark.parametrize("mode", ["policy_top(2)", "value_top(3)"])
def test_a_budget_of_frames(params, full, mode):
    result = stage(params, PGD, mode)
    most = int(mode[-2])
    assert result.attacked.tolist() == [most] * BATCH
    for trace in result.traces.values():
        assert trace.attacked.sum() == most
        np.testing.assert_array_equal(changed(trace), trace.attacked)
    assert (result.returns != full.returns).any()


def test_a_threshold_is_each_examples_own(params):
    none, some = stage(params, PGD, "policy_gap(1)"), stage(params, PGD, "policy_gap(0.2)")
    assert not none.attacked.any()
    assert all(np.isnan(values).all() for values in none.diagnostics.values())
    assert 0 < some.attacked.sum() < BATCH * T
    assert len(set(some.attacked)) > 1
    for i, trace in some.traces.items():
        np.testing.assert_array_equal(changed(trace), trace.attacked)
        if not some.attacked[i]:
            assert some.returns[i] == none.returns[i]


@pytest.mark.parametrize("name", ["patch(4)", "border(2)", "green"])
@pytest.mark.parametrize("optim", ["pgd", "ni_fgsm", "square"])
def test_an_attack_stays_in_its_region(params, name, optim):
    inside = region(name, VICTIM.image_size).astype(bool)
    result = stage(params, Attack(optimizer(optim, 2)), steps=2, region=region(name, VICTIM.image_size))
    for i, trace in result.traces.items():
        moved = (trace.seen != trace.frames).any(axis=0)
        assert not moved[~inside].any(), NAMES[i]
        assert moved[inside].any(), NAMES[i]


def test_a_region_holds_shares_of_the_budget(params):
    shares = np.full((VICTIM.image_size, VICTIM.image_size, 3), 0.5, np.float32)
    half, less = stage(params, PGD, region=shares), stage(params, PGD, eps=0.125)
    assert (half.diagnostics["max_delta"] <= 0.125).all()
    assert (half.diagnostics["max_delta"] > 0.12).all()
    np.testing.assert_allclose(half.diagnostics["loss_first"], less.diagnostics["loss_first"], rtol=0.5)


@pytest.mark.parametrize("levels", [0, 1, 4, 8, 64, 255])
def test_rounded_frames_are_grey_levels_within_the_budget(params, levels):
    attack = Attack(optimizer("pgd", 3), rounded=True)
    result = stage(params, attack, eps=levels / 255, steps=2)
    distances = []
    for trace in result.traces.values():
        distances.append(np.abs(trace.seen.astype(int) - trace.frames).max())
    assert max(distances) == min(levels, max(distances)) <= levels
    assert (max(distances) > levels / 2) or not levels
    # The very frame, not only what it rounds to:
    delta = result.diagnostics["max_delta"] * 255
    np.testing.assert_allclose(delta, np.round(delta), atol=1e-4)
    assert (np.float64(result.diagnostics["max_delta"]) <= levels / 255).all()
    assert not result.diagnostics["loss_error"].any()


def test_every_number_of_grey_levels_is_a_budget_of_its_own():
    levels = np.arange(256)
    hunt = threat(["vsa"] * 256, levels / 255)
    clean, image = np.zeros((256, 1, 1, 3), np.float32), np.ones((256, 1, 1, 3), np.float32)
    rounded = attacks.linf_ball.quantize(jnp.asarray(image), jnp.asarray(clean), hunt.eps)
    np.testing.assert_array_equal(np.round(rounded[:, 0, 0, 0] * 255), levels)
    less = attacks.linf_ball.quantize(jnp.asarray(image), jnp.asarray(clean), hunt.eps * np.float32(1 - 1e-6))
    np.testing.assert_array_equal(np.round(less[1:, 0, 0, 0] * 255), levels[:-1])


def test_a_budget_between_grey_levels_is_rounded_down(params):
    result = stage(params, Attack(optimizer("pgd", 3), rounded=True), eps=2.9 / 255, steps=2)
    assert (np.round(result.diagnostics["max_delta"] * 255) == 2).all()
    clean, image = LEVELS[np.zeros((1, 2, 2, 3), int) + 250], np.ones((1, 2, 2, 3), np.float32)
    top = attacks.linf_ball.quantize(jnp.asarray(image), jnp.asarray(clean), jnp.asarray([8 / 255], jnp.float32))
    np.testing.assert_array_equal(top, np.ones_like(image))


def test_a_witness_gives_its_loss_again_and_a_forged_one_does_not(params, full):
    assert (full.diagnostics["loss_error"] < 1e-4).all()
    state, aim = rollout.initial_state(VICTIM, BATCH, T), threat(NAMES, [0.25] * BATCH)
    image = Waves().image(Waves().reset(SEEDS))
    inputs = params, state, image, keys(SEEDS, 0), keys(SEEDS, 1), aim
    step = rollout.agent_step(VICTIM, PGD, *inputs, np.int32(0), attacked=True)
    witness = step.state.witness
    again = lambda witness: rollout.loss_again(VICTIM, PGD, params, witness, keys(SEEDS, 0), keys(SEEDS, 1), aim)  # noqa: E731
    np.testing.assert_allclose(again(witness), step.diagnostics["loss_last"], rtol=1e-4, atol=1e-5)
    forged = witness.replace(attacked=jnp.asarray(LEVELS)[image])
    wrong = np.abs(np.asarray(again(forged) - witness.loss))[1:]
    assert (wrong > 1e-3).any()


def test_restarts_tell_what_the_first_start_missed(params):
    one = stage(params, PGD, steps=2)
    five = stage(params, Attack(optimizer("pgd_restarts", 3)), steps=2)
    assert not one.diagnostics["restart_gap"].any()
    assert (five.diagnostics["restart_gap"] >= 0).all()
    assert (five.diagnostics["restart_gap"][1:] > 0).any()


def recorded_clean(params):
    """Return frames [T, B, H, W, C] and actions [T, B, A] of unattacked episodes."""
    traces = play(params, Attack(), ["clean"] * BATCH, 0.0, ~FULL).traces
    return (np.stack([getattr(traces[i], part) for i in range(BATCH)], axis=1) for part in ("frames", "action"))


def test_one_perturbation_for_many_frames(params):
    """It raises the mean loss of the frames that it was made for, and of others, within its budget."""
    mi = Attack(optimizer("mi_fgsm", 8))
    clean = play(params, Attack(), ["clean"] * BATCH, 0.0, ~FULL)
    frames, actions = (
        np.stack([getattr(clean.traces[i], part) for i in range(BATCH)], 1) for part in ("frames", "action")
    )
    aim = threat(VSA, [0.1] * BATCH)
    recorded, drawn = rollout.replay(VICTIM, mi, params, frames, actions, keys(SEEDS, 0), keys(SEEDS, 1), aim)
    np.testing.assert_array_equal(np.round(np.asarray(recorded.image) * 255), frames)
    made, held = (jax.tree.map(lambda leaf: leaf[part], (recorded, drawn)) for part in (slice(0, 4), slice(4, 6)))  # noqa: B023
    fit = jax.jit(attacks.universal, static_argnums=(0, 1))
    found = fit(mi, VICTIM, params, *made, aim)
    assert found.delta.shape == (VICTIM.image_size, VICTIM.image_size, 3)
    assert np.abs(found.delta).max() <= np.float32(0.1)
    assert found.loss_last > found.loss_first
    still = fit(Attack(), VICTIM, params, *held, threat(VSA, [0.1] * BATCH, delta=np.asarray(found.delta)))
    none = fit(Attack(), VICTIM, params, *held, threat(VSA, [0.1] * BATCH))
    assert still.loss_last > none.loss_last
    applied = stage(params, Attack(), names=VSA, eps=0.1, delta=np.asarray(found.delta))
    moved = applied.traces[0].seen.astype(int) - applied.traces[0].frames
    inside = (applied.traces[0].frames > 30) & (applied.traces[0].frames < 225)
    want = np.broadcast_to(np.asarray(found.delta) * 255, moved.shape)
    assert np.abs(moved - want)[inside].max() <= 0.51
    assert applied.diagnostics["value_adv"].mean() < applied.diagnostics["value_clean"].mean()


def test_a_replay_is_the_episode_that_was_played(params):
    clean = play(params, Attack(), ["clean"] * BATCH, 0.0, ~FULL)
    frames, actions = (
        np.stack([getattr(clean.traces[i], part) for i in range(BATCH)], 1) for part in ("frames", "action")
    )
    aim = threat(VSA, [0.1] * BATCH)
    recorded, _ = rollout.replay(VICTIM, PGD, params, frames, actions, keys(SEEDS, 0), keys(SEEDS, 1), aim)

    @jax.jit
    def act(frame):
        return VICTIM.update(params, frame.prediction, frame.embedding, frame.noise)[1].policy.mode()

    again = jax.lax.map(act, recorded)
    np.testing.assert_allclose(again, actions, atol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"region": np.full((4, 4, 3), 2.0)}, "region has shape"),
        ({"region": np.full((4, 4, 3), np.nan)}, "values from nan"),
        ({"region": np.ones((4, 4))}, r"region has shape \(4, 4\)"),
        ({"delta": np.full((4, 4, 3), -1.5)}, "delta has"),
    ],
    ids=str,
)
def test_wrong_pictures_are_refused(wrong, words):
    with pytest.raises(InputError, match=words):
        threat(["vsa"], [0.1], **wrong)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"most": -1}, "most is -1"),
        ({"most": 1.5}, "most is 1.5"),
        ({"threshold": np.nan}, "threshold nan"),
        ({"strength": np.nan}, "strength is nan"),
        ({"region": "red"}, "region is 'red'; expected numbers"),
    ],
    ids=str,
)
def test_wrong_numbers_are_refused(wrong, words):
    with pytest.raises(InputError, match=words):
        threat(["vsa"], [0.1], **wrong)
    with pytest.raises(InputError, match="expected numbers"):
        threat(["vsa"], ["8/255"])
    assert threat(["vsa"], [0.1], most=2**40).most[0] == np.iinfo(np.int32).max


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"most": 1}, "attack.gap is 'none'"),
        ({"threshold": 0.5}, "attack.gap is 'none'"),
        ({"region": np.ones((8, 8, 3))}, r"threat.region has shape \(6, 8, 8, 3\)"),
        ({"delta": np.zeros((16, 16, 1))}, None),
    ],
    ids=["most", "threshold", "region", "delta"],
)
def test_a_threat_must_fit_its_rollout(params, more, words):
    def run():
        return rollout.host(
            VICTIM, params, Waves(), Attack(), threat(VSA, [0.1] * BATCH, **more), FULL[:2], seeds=SEEDS,
            keys=keys(SEEDS, 0), attack_keys=keys(SEEDS, 1),
        )  # fmt: skip

    if words is None:
        assert run().attacked.all()
    else:
        with pytest.raises(InputError, match=words):
            run()


def test_a_universal_perturbation_is_not_rounded(params):
    with pytest.raises(InputError, match="not rounded"):
        attacks.universal(Attack(rounded=True), VICTIM, params, None, None, threat(VSA, [0.1] * BATCH))


def test_a_boundary_is_needed_by_the_optimizer_that_looks_for_one(params):
    with pytest.raises(InputError, match="fab needs an objective with a boundary"):
        stage(params, Attack(optimizer("fab", 2)))
    with pytest.raises(InputError, match="gap 'both'"):
        Attack(gap="both")
