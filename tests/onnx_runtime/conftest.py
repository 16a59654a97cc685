"""These tests run onnx and onnxruntime, in the Python that ONNX_PYTHON names: `make onnx`. Without one they are not collected."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("ONNX_PYTHON") else ["test_*.py"]
