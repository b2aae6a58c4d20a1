"""How attacks and modes are named and ordered, in text and in figures. Unknown names stay as they are."""

import re

OBJECTIVES = {
    "random": ("random", "noise in the ball"),
    "pda": ("PDA", "policy divergence"),
    "pea": ("PEA", "policy entropy"),
    "dca": ("DCA", "dynamics consistency"),
    "vsa": ("VSA", "value suppression"),
    "lda": ("LDA", "latent drift"),
    "ce": ("CE", "likelihood of the clean action"),
    "dlr": ("DLR", "lead of the clean action"),
    "mad": ("MAD", "mean action"),
    "boundary": ("boundary", "largest change of the mean action"),
    "critic": ("critic", "imagined value of the action"),
}
"""Objective to (label, what it attacks), the benchmark's in its order (arXiv 2606.16605), then the others."""

_SHORT = ("apgd", "di_fgsm", "fgsm", "mi_fgsm", "ni_fgsm", "pgd", "ti_fgsm")
_MODES = ("full", "first_half", "second_half")


def objective_label(name: str) -> str:
    """Return `VSA` for `vsa`; an unknown name as it is."""
    return OBJECTIVES[name][0] if name in OBJECTIVES else name


def optimizer_label(name: str, steps: int) -> str:
    """Return `FGSM`, `PGD-10`: the optimizer with its gradient steps where they are several; `none` as it is."""
    if name == "none":
        return name
    label = name.upper().replace("_", "-") if name in _SHORT else name
    return f"{label}-{steps}" if steps > 1 else label


def budget_label(eps: float) -> str:
    """Return `0.04` as it is, 4/255 as `4/255`, anything else with four digits."""
    grey = round(255 * eps)
    short = f"{eps:.4g}"
    return f"{grey}/255" if float(short) != eps and abs(255 * eps - grey) < 1e-9 else short


def objective_order(name: str) -> tuple[int, str]:
    """Return the sorting key of an objective: the benchmark's order, then the others by name."""
    known = list(OBJECTIVES)
    return (known.index(name) if name in known else len(known), name)


def mode_order(name: str) -> tuple[int, int, str]:
    """Return the sorting key of a temporal mode: full, halves, sparse by its n, then the others by name."""
    sparse = re.fullmatch(r"sparse\((\d{1,9})(,\d{1,9})?\)", name)
    rank = _MODES.index(name) if name in _MODES else len(_MODES) + (sparse is None)
    return (rank, int(sparse[1]) if sparse else 0, name)
