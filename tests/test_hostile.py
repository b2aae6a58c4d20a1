"""A few dozen of the hostile studies and folders that `benchmarks/hostile.py` makes by the thousand."""

import json
import subprocess
import sys
from pathlib import Path


def test_hostile_input_is_refused_in_one_message_or_reported(tmp_path):
    script = Path(__file__).parents[1] / "benchmarks" / "hostile.py"
    command = [sys.executable, str(script), "--cases", "48", "--seed", "5000", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["misdeeds"] == 0
    assert sum(found.get(f"{kind}: {how}", 0) for kind in ("study", "rows") for how in ("done", "refused")) == 48
    assert found["rows: done"] > 2  # not all of it is so broken that nothing is reported
