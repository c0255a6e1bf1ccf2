# SPDX-License-Identifier: Apache-2.0
"""What a scheduler knows of a cloud and how it decides, with no Nova installed and no I/O.
Layers: filters | weighers > facts | pipeline > reservations > namespaces > frame.
Called by the adapter, the simulator and the synchronizer; imports the store and the model.
"""

import importlib
import warnings
from types import ModuleType

#: Modules that authors of vectorised plugins import, by their former names.
_MOVED = {"contract": "pipeline.plugin_contract", "aggregate_values": "weighers.option_weigher"}


def __getattr__(name: str) -> ModuleType:
    if name not in _MOVED:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    target = f"{__name__}.{_MOVED[name]}"
    warnings.warn(
        f"{__name__}.{name} is {target} now: import that.", DeprecationWarning, stacklevel=2
    )
    return importlib.import_module(target)
