# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage explain over Nova's own API database, bus and a real Placement."""

from __future__ import annotations

import contextlib
import io
import json
import time
import uuid
from typing import Any

import fixtures
from nova import exception, objects

from nova_nodb_scheduler.cmd.commands import explain_command
from tests.functional.nova_adapter import asking_case, cloud, glance
from tests.functional.nova_adapter.decisions import test_memory_decisions

OWNER = str(uuid.uuid4())


class ExplainCommandTest(asking_case.AskingCase):
    HOSTS = (
        (cloud.CELL1, "h1", 4, {"free_ram_mb": 4000}),
        (cloud.CELL2, "h2", 2, {"free_ram_mb": 9000}),
        (cloud.CELL1, "h3", 8, {"free_ram_mb": 1000}),
    )

    def setUp(self) -> None:
        super().setUp()
        self.flavor = self.make_flavor("small", 1)

    def make_flavor(self, name: str, vcpus: int, **extra_specs: str) -> Any:
        flavor = objects.Flavor(
            self.admin,
            flavorid=f"{name}-id",
            name=name,
            vcpus=vcpus,
            memory_mb=512,
            root_gb=1,
            ephemeral_gb=0,
            swap=0,
            rxtx_factor=1.0,
            is_public=True,
            extra_specs=extra_specs,
        )
        flavor.create()
        return flavor

    def run_command(self, *arguments: str) -> tuple[int, str, str]:
        """Return the exit status and what was printed, on both streams."""
        command, parsed = self.command("explain", explain_command.Explain, arguments)
        self.beat()
        self.calls.clear()
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = command.take_action(parsed)
        # Libraries warn of what is old in them on the same stream.
        told = [line for line in err.getvalue().splitlines() if line.startswith("explain:")]
        return status, out.getvalue(), "\n".join(told)

    def as_json(self, *arguments: str) -> dict[str, Any]:
        _status, out, err = self.run_command(*arguments, "--json")
        self.assertEqual("", err)
        found: dict[str, Any] = json.loads(out)
        return found

    def boot(self, vcpus: int = 1) -> tuple[str, Any]:
        """Have a server's request kept as Nova's API keeps it, and scheduled."""
        server = str(uuid.uuid4())
        spec = self.spec([server], vcpus)
        spec._context = self.admin
        spec.create()
        self.beat()
        try:
            chosen = self.manager.select_destinations(
                self.admin,
                spec_obj=spec.obj_clone(),
                instance_uuids=[server],
                return_objects=True,
                return_alternates=True,
            )
        except test_memory_decisions.manager.messaging.ExpectedException as wrapped:
            self.assertIsInstance(wrapped.exc_info[1], exception.NoValidHost)
            return server, None
        return server, chosen[0][0]

    def test_a_server_is_explained_with_its_past_and_the_present(self):
        server, chosen = self.boot()

        found = self.as_json("--server", server)

        [decision] = found["past"]["decisions"]
        self.assertEqual(
            ("selected", chosen.service_host),
            (decision["outcome"], decision["placed"][0]["host"]),
        )
        self.assertEqual({}, found["past"]["silent"])
        self.assertEqual(3, found["now"]["counts"][0]["before"])
        self.assertEqual(1, len(found["now"]["placed"]))
        self.assertEqual({}, dict(self.calls))

    def test_a_server_without_a_host_is_explained_with_the_step_that_left_nobody(self):
        server, chosen = self.boot(vcpus=16)
        self.assertIsNone(chosen)

        status, out, _err = self.run_command("--server", server)

        self.assertEqual(1, status)
        for text in ("no valid host", "placement", "No valid host: 0 of 1 servers find one."):
            self.assertIn(text, out)

    def test_a_server_that_is_gone_keeps_its_past(self):
        server, _chosen = self.boot()
        objects.RequestSpec.get_by_instance_uuid(self.admin, server).destroy()

        status, out, _err = self.run_command("--server", server)

        self.assertEqual(1, status)
        self.assertIn(f"Decisions about server {server}", out)
        self.assertIn("has no request of server", out)

    def test_a_flavor_is_found_by_name_and_by_id(self):
        for name in ("small", "small-id"):
            with self.subTest(name):
                found = self.as_json("--flavor", name)
                self.assertEqual(3, found["now"]["passed"])
                self.assertIsNone(found["past"])
        status, _out, err = self.run_command("--flavor", "none")
        self.assertEqual(3, status)
        self.assertIn("--flavor = 'none' cannot be used: there is no flavor", err)

    def test_the_tables_name_steps_hosts_and_weighers(self):
        status, out, err = self.run_command("--flavor", "small", "--count", "2", "--limit", "2")

        self.assertEqual((0, ""), (status, err))
        for text in (
            "Steps",
            "placement",
            "Best 2 of 3 hosts",
            "RAMWeigher",
            "multiplier",
            "nothing was allocated",
            "2 servers, one after the other",
        ):
            self.assertIn(text, " ".join(out.split()))

    def test_one_host_shows_which_step_refuses_it(self):
        self.make_flavor("large", 4)

        found = self.as_json("--flavor", "large", "--host", "h2")["now"]

        self.assertEqual(
            [("requested hosts", 3, 1), ("placement", 1, 0), ("placement: VCPU", 1, 0)],
            [(e["name"], e["before"], e["after"]) for e in found["counts"]],
        )
        self.assertEqual(
            ["h1"],
            [e["host"] for e in self.as_json("--flavor", "large", "--host", "h1")["now"]["hosts"]],
        )

    def test_an_unknown_host_and_an_unknown_zone_are_told(self):
        status, out, _err = self.run_command("--flavor", "small", "--host", "nobody")
        self.assertEqual(1, status)
        self.assertIn("No valid host", out)
        status, _out, err = self.run_command("--flavor", "small", "--availability-zone", "none")
        self.assertEqual(3, status)
        self.assertIn("--availability-zone = 'none' cannot be used", err)

    def test_a_zone_leaves_its_hosts(self):
        aggregate = objects.Aggregate(self.admin, name="z", metadata={"availability_zone": "z"})
        aggregate.create()
        aggregate.add_host("h1")
        self.reporter.flush()
        provider = f"/resource_providers/{self.nodes['h1'].uuid}"
        self.ask(
            "put",
            f"{provider}/aggregates",
            {
                "aggregates": [aggregate.uuid],
                "resource_provider_generation": self.ask("get", provider)["generation"],
            },
        )
        deadline = time.monotonic() + test_memory_decisions.WAIT_SECONDS
        hosts: list[str] = []
        while hosts != ["h1"] and time.monotonic() < deadline:
            found = self.as_json("--flavor", "small", "--availability-zone", "z")["now"]
            hosts = [each["host"] for each in found["hosts"]]
        self.assertEqual(["h1"], hosts)

    def test_a_property_of_the_image_reaches_the_filters(self):
        self.override("image_properties_default_architecture", "x86_64", "filter_scheduler")
        found = self.as_json("--flavor", "small", "--image-property", "hw_architecture=aarch64")

        counts = {each["name"]: each for each in found["now"]["counts"]}
        self.assertEqual(0, counts["ImagePropertiesFilter"]["after"])
        status, _out, err = self.run_command("--flavor", "small", "--image-property", "colour=red")
        self.assertEqual(3, status)
        self.assertIn("Nova knows no image property", err)

    def test_an_image_without_credentials_names_the_other_way(self):
        status, _out, err = self.run_command("--flavor", "small", "--image", str(uuid.uuid4()))

        self.assertEqual(3, status)
        self.assertIn("--image-property", err)

    def test_a_group_of_servers_keeps_its_policy(self):
        objects.InstanceGroup(
            self.admin, uuid=OWNER, name="g", project_id="p", user_id="u", policy="anti-affinity"
        ).create()

        found = self.as_json("--flavor", "small", "--hint", f"group={OWNER}", "--count", "4")["now"]

        self.assertEqual(3, len({each["host"] for each in found["placed"]}))
        self.assertEqual(3, len(found["placed"]))
        status, _out, err = self.run_command("--flavor", "small", "--hint", f"group={uuid.uuid4()}")
        self.assertEqual(3, status)
        self.assertIn("no server group", err)

    def test_what_belongs_to_new_servers_is_refused_with_a_server(self):
        status, _out, err = self.run_command("--server", OWNER, "--image-property", "a=b")

        self.assertEqual(3, status)
        self.assertIn("--image-property", err)

    def test_a_server_nobody_knows_is_told_so(self):
        status, out, _err = self.run_command("--server", OWNER)

        self.assertEqual(1, status)
        self.assertIn("No scheduler remembers a decision", out)

    def test_where_placement_decides_the_reason_is_shown(self):
        self.make_flavor("fpga", 1, **{"resources1:CUSTOM_FPGA": "1"})

        status, out, _err = self.run_command("--flavor", "fpga")

        self.assertEqual(1, status)
        out = " ".join(out.split())
        self.assertIn("Placement would be asked, as in stock Nova: more than one group.", out)
        for text in ("Steps without Placement", "service", "Best 3 of 3 hosts", "RAMWeigher"):
            self.assertIn(text, out)
        self.assertNotIn("No valid host", out)

    def test_an_image_of_glance_brings_its_properties(self):
        image = str(uuid.uuid4())
        served = glance.Glance({image: {"hw_architecture": "aarch64"}})
        self.addCleanup(served.close)
        self.override("api_servers", [served.url], "glance")
        for name, value in (("OS_AUTH_TYPE", "none"), ("OS_ENDPOINT", served.url)):
            self.use(fixtures.EnvironmentVariable(name, value))
        self.override("image_properties_default_architecture", "x86_64", "filter_scheduler")

        found = self.as_json("--flavor", "small", "--image", image)["now"]

        self.assertIn(f"/v2/images/{image}", served.asked)
        counts = {each["name"]: each["after"] for each in found["counts"]}
        self.assertEqual(0, counts["ImagePropertiesFilter"])
