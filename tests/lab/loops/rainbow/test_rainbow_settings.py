"""Settings and variants of Rainbow agents: what an experiment's config may import."""

from __future__ import annotations

import subprocess
import sys


def test_settings_and_variants_need_no_torch() -> None:
    """With torch blocked: an agent's settings are checked and named, games are listed by name."""
    code = (
        "import sys\n"
        "sys.modules['torch'] = None  # any import of it fails\n"
        "from nap.lab.loops.rainbow.atari import GAMES\n"
        "from nap.lab.loops.rainbow.games import BUILT_IN, MINATAR\n"
        "from nap.lab.loops.rainbow.settings import AgentConfig, AgentRun\n"
        "from nap.lab.loops.rainbow.settings import FOUR, NAP\n"
        "run = AgentRun(NAP, AgentConfig(), ('pong',), frames=16, intervals=1, seed=3)\n"
        "assert list(run.seeds) == [3] and len(FOUR) == 4 and len(GAMES) == 57\n"
        "try:\n"
        "    AgentConfig(batch_size=0)\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == "AgentConfig(batch_size=0): batch_size must be at least 1\n"
