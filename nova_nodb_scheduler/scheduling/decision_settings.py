# SPDX-License-Identifier: Apache-2.0
"""The settings that filters, weighers and the choice of a host obey.

Names and meanings are those of Nova's options in ``[filter_scheduler]``,
``[metrics]`` and ``[DEFAULT]``; the adapter fills them in from the configuration.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class SchedulingOptions:
    """Nova's settings. Defaults are Nova 34's.

    :param host_objects: ``exact``: as Nova decides; ``lazy``: filters without
        columns are asked best first, until there are hosts enough
    :param choice: which of the hosts that pass is taken, where a flavor does not say;
        see :class:`.host_choosers.Chooser`
    :param service_down_time: seconds after which a silent service is down
    :param max_attempts: ``[scheduler] max_attempts``: a choice and its alternates
    """

    enabled_filters: tuple[str, ...] = (
        "ComputeFilter",
        "ComputeCapabilitiesFilter",
        "ImagePropertiesFilter",
        "ServerGroupAntiAffinityFilter",
        "ServerGroupAffinityFilter",
    )
    #: In the order in which Nova's weigh handler runs them.
    weighers: tuple[str, ...] = ()
    host_subset_size: int = 1
    shuffle_best_same_weighed_hosts: bool = False
    max_attempts: int = 3
    service_down_time: float = 60.0
    host_objects: str = "exact"
    choice: str = "best"

    max_io_ops_per_host: int = 8
    max_instances_per_host: int = 50
    isolated_images: tuple[str, ...] = ()
    isolated_hosts: tuple[str, ...] = ()
    restrict_isolated_hosts_to_isolated_images: bool = True
    aggregate_image_properties_isolation_namespace: str | None = None
    aggregate_image_properties_isolation_separator: str = "."
    image_properties_default_architecture: str | None = None

    ram_weight_multiplier: float = 1.0
    cpu_weight_multiplier: float = 1.0
    disk_weight_multiplier: float = 1.0
    hypervisor_version_weight_multiplier: float = 1.0
    num_instances_weight_multiplier: float = 0.0
    io_ops_weight_multiplier: float = -1.0
    image_props_weight_multiplier: float = 0.0
    #: (property, weight) pairs, parsed.
    image_props_weight_setting: tuple[tuple[str, float], ...] = ()
    pci_weight_multiplier: float = 1.0
    soft_affinity_weight_multiplier: float = 1.0
    soft_anti_affinity_weight_multiplier: float = 1.0
    build_failure_weight_multiplier: float = 1_000_000.0
    cross_cell_move_weight_multiplier: float = 1_000_000.0
    metrics_weight_multiplier: float = 1.0
    #: (metric, ratio) pairs, parsed.
    metrics_weight_setting: tuple[tuple[str, float], ...] = ()
    metrics_required: bool = True
    metrics_weight_of_unavailable: float = -10_000.0
