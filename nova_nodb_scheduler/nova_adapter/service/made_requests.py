# SPDX-License-Identifier: Apache-2.0
"""Makes the request that Nova would send its scheduler, to have it explained.

For the command that runs beside nova-api: it reads Nova's API database and,
where it is told to, asks glance.
"""

from __future__ import annotations

import contextlib
import uuid as uuid_module
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import nova.conf
from nova import exception, objects
from nova.pci import request as pci_request
from nova.scheduler import utils as scheduler_utils
from nova.virt import hardware

from nova_nodb_scheduler import errors


@attrs.frozen
class WantedServer:
    """A new server.

    :param flavor: name or id
    :param image: uuid, to be read from glance
    :param properties: of the image, instead of or over those that glance has
    """

    flavor: str
    image: str | None = None
    properties: Mapping[str, str] = attrs.field(factory=dict)
    hints: Mapping[str, Sequence[str]] = attrs.field(factory=dict)
    availability_zone: str | None = None
    project: str | None = None


def of_server(context: Any, server: str, host: str | None = None) -> Any | None:
    """Return the request that a server was made with; None if there is no such server.

    :param host: the only host to look at
    """
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(context, server)
    except exception.RequestSpecNotFound:
        return None
    return _finished(context, spec, host)


def of_new_server(context: Any, wanted: WantedServer, host: str | None = None) -> Any:
    """Return the request for a new server.

    :raises ConfigurationError: naming the argument that cannot be used
    """
    flavor = _flavor(context, wanted.flavor)
    image = _image(wanted)
    try:
        spec = objects.RequestSpec.from_components(
            context,
            str(uuid_module.uuid4()),
            image,
            flavor,
            hardware.numa_get_constraints(flavor, image),
            pci_request.get_pci_requests_from_flavor(flavor),
            {"scheduler_hints": {name: list(values) for name, values in wanted.hints.items()}},
            _group(context, wanted.hints),
            _zone(context, wanted.availability_zone),
            project_id=wanted.project,
        )
    except (exception.NovaException, ValueError) as error:
        raise errors.ConfigurationError(
            "--flavor with --image or --image-property",
            wanted.flavor,
            f"Nova's API would refuse it: {error}",
        ) from error
    spec.is_bfv = False
    return _finished(context, spec, host)


def _finished(context: Any, spec: Any, host: str | None) -> Any:
    """Add what Nova's API and conductor add before they ask the scheduler."""
    try:
        scheduler_utils.setup_instance_group(context, spec)
    except exception.NovaException as error:
        raise errors.ConfigurationError("--hint group", "", str(error)) from error
    if host is not None:
        spec.requested_destination = objects.Destination(host=host)
    return spec


def _flavor(context: Any, name: str) -> Any:
    # What is nobody's id may be a name, which is looked for next.
    with contextlib.suppress(exception.FlavorNotFound):
        return objects.Flavor.get_by_flavor_id(context, name)
    try:
        return objects.Flavor.get_by_name(context, name)
    except exception.FlavorNotFoundByName:
        raise errors.ConfigurationError(
            "--flavor", name, "there is no flavor of that id or name"
        ) from None


def _zone(context: Any, zone: str | None) -> str | None:
    """Return the zone to ask for. Nova's API refuses what is none, its scheduler does not."""
    conf = nova.conf.CONF
    if zone is None:
        default: str | None = conf.default_schedule_zone
        return default
    if zone != conf.default_availability_zone and not objects.AggregateList.get_by_metadata(
        context, key="availability_zone", value=zone
    ):
        raise errors.ConfigurationError(
            "--availability-zone", zone, "no host aggregate makes a zone of that name"
        )
    return zone


def _group(context: Any, hints: Mapping[str, Sequence[str]]) -> Any:
    for group in hints.get("group", ()):
        try:
            return objects.InstanceGroup.get_by_uuid(context, group)
        except exception.InstanceGroupNotFound:
            raise errors.ConfigurationError(
                "--hint group", group, "there is no server group of that uuid"
            ) from None
    return None


def _image(wanted: WantedServer) -> Any:
    read: dict[str, Any] = _from_glance(wanted.image) if wanted.image is not None else {}
    properties = {**(read.get("properties") or {}), **wanted.properties}
    unknown = sorted(wanted.properties.keys() - objects.ImageMetaProps.fields.keys())
    if unknown:
        raise errors.ConfigurationError(
            "--image-property", ", ".join(unknown), "Nova knows no image property of that name"
        )
    try:
        return objects.ImageMeta.from_dict({**read, "properties": properties})
    except (exception.NovaException, ValueError) as error:
        raise errors.ConfigurationError("--image-property", properties, str(error)) from error


def _from_glance(image: str) -> dict[str, Any]:
    """Read an image, as the user that the environment names."""
    try:
        import openstack.config
        from nova import context as nova_context
        from nova.image import glance

        session = openstack.config.OpenStackConfig().get_one().get_session()
        context = nova_context.RequestContext(is_admin=True, user_auth_plugin=session.auth)
        found: dict[str, Any] = glance.API().get(context, image)
        return found
    except Exception as error:
        # Whatever is missing, from OS_AUTH_URL to glance itself, the way out is one.
        raise errors.ConfigurationError(
            "--image",
            image,
            f"glance did not tell of it ({type(error).__name__}: {error}). Set OS_CLOUD, or "
            "OS_AUTH_URL and what belongs to it, as for the openstack command; or name what "
            "matters of the image with --image-property, which needs no glance",
        ) from error
