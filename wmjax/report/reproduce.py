"""The section that says how to get the same rows again: command, study, versions, hashes."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from wmjax.report.document import Section, Table
from wmjax.report.load_results import Manifest, Rows
from wmjax.report.markdown import block, code, prose


def reproduce_section(rows: Rows, manifest: Manifest) -> Section:
    """Return the section."""
    text = "The rows of a study are a function of its file, the agents' files, the batch and the versions below."
    if manifest.study:
        text += f" Save this as `study.toml`:\n\n{block(toml(manifest.study))}\n\nand run\n\n"
        batch = "" if manifest.batch is None else f" --batch {manifest.batch}"
        text += block(f"wmjax run study.toml --out runs/again{batch}")
    if manifest.command:
        text += f"\n\nThe rows came from\n\n{block(shlex.join(manifest.command))}"
    if manifest.earlier:
        text += f"\n\nwith {len(manifest.earlier)} earlier or merged runs, which `manifest.json` lists."
    git = manifest.git or {}
    facts = {
        "started": prose(manifest.started),
        "batch": "" if manifest.batch is None else str(manifest.batch),
        "part of the study": code(manifest.shard) if manifest.shard else "",
        "git commit": code(git["commit"]) + (", with changes that it does not hold" if git["dirty"] else "")
        if git
        else "",
        **{
            f"agent {code(name)}": f"sha256 {code(digest)}"
            for name, digest in sorted(set(zip(rows["victim"], rows["victim_sha256"], strict=True)))
        },
        "device": prose(manifest.device),
        "platform": prose(manifest.platform),
        "python": prose(manifest.python),
        **{prose(name): prose(version) for name, version in sorted(manifest.versions.items())},
    }
    lines = tuple((name, value) for name, value in facts.items() if value)
    return Section("Reproduce", (text, Table("provenance", ("what", "exactly"), lines, 2)))


def toml(study: Mapping[str, Any]) -> str:
    """Return the fields of a study as TOML, in visible characters only."""
    return "\n".join(f"{_key(name)} = {_toml(value)}" for name, value in study.items() if value is not None)


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "").replace("-", "").isalnum() else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return "".join(char if char.isprintable() else f"\\U{ord(char):08X}" for char in _quoted(value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, int | float) else _toml(json.dumps(value))


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
