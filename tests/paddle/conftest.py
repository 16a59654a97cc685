"""These tests run PaddlePaddle, in the Python that PADDLE_PYTHON names: `make paddle`. Without one they are not collected."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore_glob = [] if os.environ.get("PADDLE_PYTHON") else ["test_*.py"]
