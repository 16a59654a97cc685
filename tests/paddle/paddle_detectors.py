"""How networks of PaddleDetection are built, by its own code, from descriptions like those that it publishes.

``NETWORKS[name]()`` gives a layer, its inputs (by name, as PaddleDetection exports them: an image, its size, and by how much it was scaled) and
arrays for each of two or three sizes. What follows the networks is in the programs too: boxes, their suppression, masks. The code is that of the
package paddledet, of which only the modules with networks are imported, with nothing in the place of what they would need for data.
"""

from __future__ import annotations

import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import numpy as np

NETWORKS: dict[str, Callable[[], Any]] = {}
CLASSES = 6
Dims = Sequence[int | None]
Modules = dict[str, Any]


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for the packages that paddledet imports for its data and measures."""

    names = frozenset({"pycocotools", "matplotlib", "mpl_toolkits", "sklearn", "lap", "numba", "typeguard", "motmetrics", "imgaug", "visualdl"})

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] in self.names else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        made = mock.MagicMock(name=spec.name)
        made.__path__, made.__spec__ = [], spec
        return made

    def exec_module(self, module: Any) -> None:
        pass


CLEAN: dict[str, Any] = {}


def workspace() -> Any:
    """PaddleDetection's table of modules, as it was before anything was described.

    Raises:
        ModuleNotFoundError: the package is not installed.
    """
    if "ppdet" not in sys.modules:
        found = importlib.util.find_spec("ppdet")
        if found is None or found.submodule_search_locations is None:
            raise ModuleNotFoundError("paddledet is not installed")
        sys.meta_path.append(Absent())
        package = types.ModuleType("ppdet")  # its own __init__ imports training and data
        package.__path__ = list(found.submodule_search_locations)
        sys.modules["ppdet"] = package
        importlib.import_module("ppdet.modeling")
    module = importlib.import_module("ppdet.core.workspace")
    if not CLEAN:
        CLEAN.update({name: (schema, dict(schema)) for name, schema in module.global_config.items()})
    module.global_config.clear()
    for name, (schema, given) in CLEAN.items():
        schema.clear()
        schema.update({k: copy.deepcopy(v) if isinstance(v, dict) else v for k, v in given.items()})
        module.global_config[name] = schema
    return module


def described(architecture: str, modules: Modules) -> Any:
    """A network from what a description says of its modules."""
    space = workspace()
    space.merge_config({"num_classes": CLASSES, "norm_type": "bn", **modules})
    made = space.create(architecture)
    if hasattr(made, "deploy"):
        made.deploy = True
    for layer in made.sublayers():
        if hasattr(layer, "convert_to_deploy"):
            layer.convert_to_deploy()
    return made


def images(dims: Sequence[int], seed: int) -> dict[str, np.ndarray]:
    """What a detector is fed: images, their sizes, and by how much they were scaled."""
    rng = np.random.RandomState(seed)
    batch, _, height, width = dims
    return {
        "image": rng.uniform(-1, 1, dims).astype("float32"),
        "im_shape": np.array([[height, width]] * batch, "float32"),
        "scale_factor": rng.uniform(0.5, 1.5, (batch, 2)).astype("float32"),
    }


SQUARES = ((2, 3, 128, 128), (1, 3, 128, 128))
ANY_SIZE = ((1, 3, 128, 160), (2, 3, 96, 128))
ONE = ((1, 3, 128, 128),)


def keep(
    name: str,
    architecture: str,
    modules: Modules,
    sizes: Sequence[Sequence[int]],
    opened: bool | None,
    more: Callable[..., dict[str, np.ndarray]] | None = None,
) -> None:
    """``opened``: height and width are left open too; None: nothing is."""

    def build() -> Any:
        import paddle

        fed = [images(dims, at) | (more(dims, at) if more else {}) for at, dims in enumerate(sizes)]
        first = sizes[0]
        dims: dict[str, Dims] = {n: [first[0] if opened is None else None, *v.shape[1:]] for n, v in fed[0].items()}
        if opened:
            dims["image"] = [None, 3, None, None]
        specs = {n: paddle.static.InputSpec(list(d), "float32", n) for n, d in dims.items()}
        return described(architecture, modules), specs, fed

    NETWORKS[name] = build


def nms(threshold: float = 0.05, **more: Any) -> Modules:
    return {"name": "MultiClassNMS", "nms_top_k": 200, "keep_top_k": 60, "score_threshold": threshold, "nms_threshold": 0.5, **more}


def resnet(at: list[int], **more: Any) -> Modules:
    return {"depth": 18, "freeze_at": -1, "freeze_norm": False, "return_idx": at, **more}
