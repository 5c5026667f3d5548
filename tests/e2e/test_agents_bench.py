# SPDX-License-Identifier: MIT
"""The trace of bench/agents, short, against our server alone: so that it goes on working, and so that
nothing in it is computed twice."""

import os
import subprocess
import sys

from conftest import BIN, MODEL, ROOT


def cells_of(text, first):
    line = next(x for x in text.splitlines() if x.startswith("| %s |" % first))
    return [c.strip() for c in line.strip("|").split("|")]


def test_quick_trace(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MTPLX_")}
    r = subprocess.run([sys.executable, str(ROOT / "bench/agents"), "--quick", "--bin", str(BIN),
                        "--out", str(tmp_path / "result.md"), str(MODEL)], env=environment, text=True,
                       capture_output=True, timeout=300)
    assert r.returncode == 0, r.stderr
    text = (tmp_path / "result.md").read_text()
    assert text in r.stdout
    assert cells_of(text, "tokens computed / never seen")[3] == "yes", text
    # After the restart the first request of each agent comes from disk, whole but for what is new.
    for label in ("A4 edit", "B2"):
        _, unseen, _, ssd, computed, _ = cells_of(text, label)
        assert int(ssd) > 0 and int(computed) <= int(unseen) + 2, text
    _, unseen, ram, _, computed, _ = cells_of(text, "A5")  # asked again after the hang-up
    assert (unseen, computed) == ("0", "0") and int(ram) > 300, text
