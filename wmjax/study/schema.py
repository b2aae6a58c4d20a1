"""The row: one episode of one cell. Every column is documented here, and only here."""

import pyarrow as pa

SCHEMA_VERSION = 4

_COLUMNS: list[tuple[str, pa.DataType, str]] = [
    # the cell
    ("victim", pa.string(), "name of the agent: zoo name or the file's stem"),
    ("agent", pa.string(), "family member: dreamer, r2dreamer, infonce or dreamerpro"),
    ("task", pa.string(), "task, named as in the reference configs"),
    ("objective", pa.string(), "what the attack maximises; 'clean' for no attack, 'random' for noise in the ball"),
    ("optimizer", pa.string(), "how it maximises; 'none' where objective is clean or random"),
    ("steps", pa.int32(), "steps of the optimizer an attacked frame"),
    ("noise", pa.string(), "latent noise of the attacker's passes: shared, fresh or mode; 'none' without optimizer"),
    (
        "draws",
        pa.int32(),
        "draws of latent noise, and of a random defense it knows, that the attacker averages over; 0 without optimizer",
    ),
    (
        "source",
        pa.string(),
        "agent that the attack is computed on: 'self' is the victim, a name another agent (transfer); 'none' without "
        "optimizer",
    ),
    ("frames", pa.string(), "attacked frames are 'float', or 'uint8': rounded to grey levels; 'none' for clean"),
    ("region", pa.string(), "where in the image the attack may act: all, patch(n) and others; 'none' for clean"),
    ("mode", pa.string(), "which frames are attacked: full, sparse(n), policy_top(k) and others; 'none' for clean"),
    (
        "defense",
        pa.string(),
        "what the agent sees every frame through, with its strength: jpeg(75); 'none' for nothing",
    ),
    ("adaptive", pa.bool_(), "the attacker knows the defense, and looks through it"),
    (
        "eps",
        pa.float64(),
        "L-inf budget in image units (the image is in [0, 1]); an attack of budget 0 is a probe, to be equal to clean",
    ),
    ("seed", pa.int64(), "episode seed: the environment's reset and the agent's sampling"),
    # the outcome
    ("return", pa.float64(), "sum of rewards over the episode; NaN where `nan` is set"),
    ("max_return", pa.float64(), "largest return the episode could have"),
    ("length", pa.int32(), "agent steps"),
    ("attacked", pa.int32(), "frames attacked"),
    ("nan", pa.bool_(), "a non-finite action or state appeared: the outcome is not a return"),
    ("error", pa.string(), "why the episode could not be played, in a line: `return` is NaN; '' for one that was"),
    # diagnostics: means over the attacked frames, NaN where there are none
    ("action_change", pa.float32(), "L1 distance of the taken action to the one the clean frame would have caused"),
    ("flip", pa.float32(), "share of frames on which that distance exceeds 0.1 (arXiv 2605.23220, equation 24)"),
    ("policy_kl", pa.float32(), "KL(policy on the clean frame || policy on the attacked frame)"),
    ("entropy_clean", pa.float32(), "policy entropy on the clean frame, nats"),
    ("entropy_adv", pa.float32(), "policy entropy on the attacked frame, nats"),
    ("value_clean", pa.float32(), "critic's value on the clean frame"),
    ("value_adv", pa.float32(), "critic's value on the attacked frame"),
    ("drift_z", pa.float32(), "squared distance of the latent sample to the clean frame's"),
    ("drift_h", pa.float32(), "squared distance of h to a twin's that acted alike but saw every frame unattacked"),
    ("post_prior_kl", pa.float32(), "KL(posterior || prior) on the attacked frame, with unimix, nats"),
    ("loss_first", pa.float32(), "attack objective at the start of the iterations"),
    ("loss_last", pa.float32(), "attack objective at their end"),
    ("restart_gap", pa.float32(), "best objective of all starts minus that of the first; NaN with a single start"),
    ("loss_error", pa.float32(), "relative error of the noted objective of the last attacked frame, computed afresh"),
    ("zero_grad", pa.float32(), "fraction of the attack's gradients that were exactly zero over the whole frame"),
    ("saturated", pa.float32(), "fraction of the attacked frame's values at 0 or 1 that the clean frame had inside"),
    ("max_delta", pa.float32(), "largest |attacked - clean| over the episode, in image units"),
    # provenance
    ("schema", pa.int32(), "version of this table"),
    ("wmjax", pa.string(), "version of wmjax"),
    ("device", pa.string(), "device kind the episode ran on"),
    ("backend", pa.string(), "physics and pixels: host (MuJoCo in C and OpenGL) or device (MJX and a renderer in JAX)"),
    ("victim_sha256", pa.string(), "hash of the agent's file"),
    (
        "wall_s",
        pa.float32(),
        "wall time of the episode's chunk divided by its episodes; the one column that two runs differ in",
    ),
]

SCHEMA = pa.schema(
    [pa.field(name, kind, nullable=False, metadata={"doc": doc}) for name, kind, doc in _COLUMNS],
    metadata={"wmjax_schema": str(SCHEMA_VERSION)},
)

CELL = (
    "victim",
    "task",
    "objective",
    "optimizer",
    "steps",
    "noise",
    "draws",
    "source",
    "frames",
    "region",
    "mode",
    "defense",
    "adaptive",
    "eps",
    "seed",
)
"""The columns that together name one row."""

TIMING = ("wall_s",)
"""The columns that differ between two runs of the same study."""
