# SPDX-License-Identifier: Apache-2.0
"""The OpenStack APIs as a client sees them, and the first contents of the cloud."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keystoneauth1 import adapter, exceptions
from keystoneauth1 import session as keystone_session
from keystoneauth1.identity import v3

from tools.stack import settings as stack_settings

Json = dict[str, Any]

# name, id, VCPU, memory in MiB, disk in GiB
FLAVORS = (
    ("m1.nano", "42", 1, 64, 1),
    ("m1.micro", "84", 1, 128, 1),
    ("m1.small", "2", 1, 2048, 20),
    ("m1.big", "99", 4, 2048, 10),
)
NETWORK = "shared"
IMAGES = ("cirros", "cirros-alt")
_SETTLED = ("ACTIVE", "ERROR")


class Cloud:
    """An administrator's client. Thread-safe, as keystoneauth's session is."""

    def __init__(self, settings: stack_settings.Settings) -> None:
        self._settings = settings
        password = v3.Password(
            auth_url=settings.url("keystone") + "/v3",
            username="admin",
            password=stack_settings.PASSWORD,
            project_name="admin",
            user_domain_name="Default",
            project_domain_name="Default",
        )
        self._session = keystone_session.Session(auth=password)
        self.identity = self._adapter(settings.url("keystone") + "/v3")
        self.compute = self._adapter(settings.url("nova-api") + "/v2.1", "compute", "2.96")
        self.placement = self._adapter(settings.url("placement"), "placement", "1.39")
        self.image = self._adapter(settings.url("glance") + "/v2")
        self.network = self._adapter(settings.url("neutron") + "/v2.0")

    def _adapter(
        self, url: str, service: str | None = None, microversion: str | None = None
    ) -> adapter.Adapter:
        return adapter.Adapter(
            self._session,
            endpoint_override=url,
            service_type=service,
            default_microversion=microversion,
        )

    def image_id(self, name: str = IMAGES[0]) -> str:
        found = self.image.get("/images", params={"name": name}).json()["images"]
        return str(found[0]["id"])

    def create_group(self, name: str, policy: str) -> str:
        body = {"server_group": {"name": name, "policy": policy}}
        return str(self.compute.post("/os-server-groups", json=body).json()["server_group"]["id"])

    def boot(self, name: str, image: str, flavor: str = "42", **more: Any) -> str:
        """Ask for a server and return its id. ``group``: a server group; the rest as in the API."""
        group = more.pop("group", None)
        server = {"name": name, "flavorRef": flavor, "imageRef": image, "networks": "none", **more}
        body: Json = {"server": server}
        if group is not None:
            body["os:scheduler_hints"] = {"group": group}
        return str(self.compute.post("/servers", json=body).json()["server"]["id"])

    def servers(self, name: str = "") -> list[Json]:
        """All projects' servers whose name contains ``name``."""
        parameters = {"all_tenants": "1", "limit": "1000"} | ({"name": name} if name else {})
        return list(self.compute.get("/servers/detail", params=parameters).json()["servers"])

    def wait_settled(self, ids: Sequence[str], timeout_seconds: float = 180.0) -> list[Json]:
        """Wait until each server is ACTIVE or ERROR; what is not by then is returned as it is."""
        wanted = set(ids)

        def settled() -> list[Json] | None:
            mine = [s for s in self.servers() if s["id"] in wanted]
            done = [s for s in mine if s["status"] in _SETTLED]
            return mine if len(done) == len(wanted) else None

        return _poll(settled, timeout_seconds) or [s for s in self.servers() if s["id"] in wanted]

    def delete_servers(self, ids: Sequence[str], timeout_seconds: float = 120.0) -> None:
        """Delete and wait until they are gone."""
        for server in ids:
            try:
                self.compute.delete(f"/servers/{server}")
            except exceptions.NotFound:
                continue
        wanted = set(ids)
        _poll(lambda: not [s for s in self.servers() if s["id"] in wanted], timeout_seconds)

    def action(self, server: str, body: Mapping[str, Any]) -> None:
        """POST a server action such as {"migrate": None}."""
        self.compute.post(f"/servers/{server}/action", json=dict(body))

    def services(self, binary: str = "") -> list[Json]:
        parameters = {"binary": binary} if binary else {}
        return list(self.compute.get("/os-services", params=parameters).json()["services"])

    def vcpu_capacity(self) -> dict[str, int]:
        """VCPU that Placement lets out, by name of the provider."""
        capacity = {}
        for provider in self.placement.get("/resource_providers").json()["resource_providers"]:
            url = f"/resource_providers/{provider['uuid']}/inventories"
            vcpu = self.placement.get(url).json()["inventories"].get("VCPU")
            if vcpu:
                free = vcpu["total"] - vcpu["reserved"]
                capacity[provider["name"]] = int(free * vcpu["allocation_ratio"])
        return capacity

    def seed_identity(self) -> None:
        """Service catalog, the services' user and a plain user ``demo``. Once per stack."""
        if self.identity.get("/projects", params={"name": "service"}).json()["projects"]:
            return
        settings = self._settings
        for kind, name, url in (
            ("placement", "placement", settings.url("placement")),
            ("image", "glance", settings.url("glance")),
            ("network", "neutron", settings.url("neutron")),
            ("compute", "nova", settings.url("nova-api") + "/v2.1"),
        ):
            service = self._create("services", "service", type=kind, name=name)
            for interface in ("public", "internal", "admin"):
                self._create(
                    "endpoints",
                    "endpoint",
                    service_id=service,
                    interface=interface,
                    url=url,
                    region_id=stack_settings.REGION,
                )
        roles = {r["name"]: r["id"] for r in self.identity.get("/roles").json()["roles"]}
        for name, granted in (("service", ("admin", "service")), ("demo", ("member", "reader"))):
            project = self._create("projects", "project", name=name, domain_id="default")
            user = self._create(
                "users",
                "user",
                name=name,
                password=stack_settings.PASSWORD,
                domain_id="default",
                default_project_id=project,
            )
            for role in granted:
                self.identity.put(f"/projects/{project}/users/{user}/roles/{roles[role]}")

    def _create(self, collection: str, kind: str, **values: Any) -> str:
        answer = self.identity.post(f"/{collection}", json={kind: values}).json()
        return str(answer[kind]["id"])

    def seed_contents(self) -> None:
        """Flavors, two images, a shared network. Once per stack."""
        if self.network.get("/networks", params={"name": NETWORK}).json()["networks"]:
            return
        for name, identity, vcpus, memory_mb, disk_gb in FLAVORS:
            flavor = {"name": name, "id": identity, "vcpus": vcpus, "ram": memory_mb}
            self.compute.post("/flavors", json={"flavor": {**flavor, "disk": disk_gb}})
        for name in IMAGES:
            values = {"name": name, "disk_format": "raw", "container_format": "bare"}
            image = self.image.post("/images", json={**values, "visibility": "public"}).json()
            self.image.put(
                f"/images/{image['id']}/file",
                data=os.urandom(65536),
                headers={"Content-Type": "application/octet-stream"},
            )
        network = {"network": {"name": NETWORK, "shared": True}}
        identity = self.network.post("/networks", json=network).json()["network"]["id"]
        subnet = {
            "network_id": identity,
            "name": NETWORK + "4",
            "ip_version": 4,
            "cidr": "10.0.0.0/16",
            "enable_dhcp": False,
        }
        self.network.post("/subnets", json={"subnet": subnet})


def _poll(done: Callable[[], Any], timeout_seconds: float, every_seconds: float = 0.5) -> Any:
    deadline = time.monotonic() + timeout_seconds
    while True:
        result = done()
        if result:
            return result
        if time.monotonic() > deadline:
            return None
        time.sleep(every_seconds)
