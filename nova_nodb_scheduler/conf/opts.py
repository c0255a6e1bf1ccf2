# SPDX-License-Identifier: Apache-2.0
"""All options of the project, for the sample file and the documentation."""

from __future__ import annotations

import itertools

import stevedore
from oslo_config import cfg

from nova_nodb_scheduler.conf import activation_options, nodb, queue_options, zaqar_options
from nova_nodb_scheduler.synchronizer import loader


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """Return (group, options), the drivers' own groups included."""
    drivers = stevedore.ExtensionManager(loader.NAMESPACE)
    own = (extension.plugin.list_opts() for extension in drivers)
    return [
        ("DEFAULT", activation_options.ACTIVATION_OPTS),
        (nodb.GROUP, nodb.NODB_OPTS),
        (queue_options.GROUP, queue_options.QUEUE_OPTS),
        (zaqar_options.GROUP, zaqar_options.SAMPLE_OPTS),
        *itertools.chain.from_iterable(own),
    ]
