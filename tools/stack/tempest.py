# SPDX-License-Identifier: Apache-2.0
"""Tempest's compute API tests and our scenarios: configure, run, file and compare results.

Run by tools/tempest.sh.
"""

import argparse
import collections
import configparser
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import IO

import subunit
import testtools

from tools.stack import cloud as stack_cloud
from tools.stack import configuration
from tools.stack import settings as stack_settings
from tools.stack import stack as stack_module

SELECTION = r"^tempest\.api\.compute\."
_PACKAGES = ("tempest.", "nova_nodb_scheduler.")
_STATUS_NAMES = {"success": "pass", "xfail": "pass", "fail": "fail", "skip": "skip"}
# What the fake driver can do; the rest of Tempest's defaults are off or not about it.
_ON = (
    "block_migration_for_live_migration",
    "change_password",
    "cold_migration",
    "console_output",
    "enable_instance_password",
    "interface_attach",
    "live_migrate_back_and_forth",
    "live_migration",
    "pause",
    "rescue",
    "resize",
    "shelve",
    "suspend",
)
_OFF = (
    "attach_encrypted_volume",
    "config_drive",
    "metadata_service",
    "personality",
    "serial_console",
    "shelve_migrate",
    "snapshot",
    "spice_console",
    "stable_rescue",
    "swap_volume",
    "vnc_console",
)


class Tempest:
    """One stack's Tempest workspace below STATE/tempest; results outlive ``down --wipe``."""

    def __init__(self, stack: stack_module.Stack) -> None:
        self._stack = stack
        self._settings = stack.settings
        self._workspace = self._settings.state / "tempest"
        self._results = self._workspace / "results"

    def configure(self) -> None:
        """Write tempest.conf and .stestr.conf for the running stack."""
        for name in ("etc", "lock"):
            (self._workspace / name).mkdir(parents=True, exist_ok=True)
        parser = configparser.RawConfigParser()
        parser.read_dict(self._sections())
        with (self._workspace / "etc" / "tempest.conf").open("w") as file:
            parser.write(file)
        (package,) = (self._settings.venv / "lib").glob("python3*/site-packages/tempest")
        (self._workspace / ".stestr.conf").write_text(
            f"[DEFAULT]\ntest_path={package / 'test_discover'}\ntop_dir={package.parent}\n"
        )
        if not (self._workspace / ".stestr").exists():
            self._stestr("init", stdout=None)

    def tests(self, pattern: str) -> list[str]:
        """Names of the tests that match a regular expression."""
        answer = self._stestr("list", pattern, stdout=subprocess.PIPE)
        return [line for line in answer.stdout.splitlines() if line.startswith(_PACKAGES)]

    def run(
        self, tag: str, pattern: str, load_list: pathlib.Path | None, concurrency: int
    ) -> dict[str, list[str]]:
        """Run tests and file pass.txt, fail.txt, skip.txt, run.subunit and run.log under a tag."""
        directory = self._results / tag
        directory.mkdir(parents=True, exist_ok=True)
        selection = ["--load-list", str(load_list.absolute())] if load_list else [pattern]
        with (directory / "run.log").open("w") as log:
            self._stestr("run", "--concurrency", str(concurrency), *selection, stdout=log)
        self._take_hosts_back()
        stream = directory / "run.subunit"
        with stream.open("w") as file:
            self._stestr("last", "--subunit", stdout=file)
        results = _lists(stream)
        for name, tests in results.items():
            (directory / f"{name}.txt").write_text("".join(f"{test}\n" for test in tests))
        return results

    def _take_hosts_back(self) -> None:
        """Start nova-compute anew where a scenario forced its host down and evacuated it.

        Nova refuses to have such a host up before that.
        """
        cloud = stack_cloud.Cloud(self._settings)
        processes = {host: name for name, host, _cell in self._settings.compute_cells()}
        answer = cloud.compute.get("/os-services", params={"binary": "nova-compute"}).json()
        for service in answer["services"]:
            if service["forced_down"]:
                self._stack.restart(processes[service["host"]])
                cloud.compute.put(f"/os-services/{service['id']}", json={"forced_down": False})

    def difference(self, first: str, second: str) -> list[tuple[str, str, str]]:
        """(test, result under the first tag, under the second) where they differ."""
        before, after = self._by_test(first), self._by_test(second)
        return [
            (test, before.get(test, "absent"), after.get(test, "absent"))
            for test in sorted(before.keys() | after.keys())
            if before.get(test) != after.get(test)
        ]

    def _by_test(self, tag: str) -> dict[str, str]:
        found = {}
        for name in ("pass", "fail", "skip"):
            for test in (self._results / tag / f"{name}.txt").read_text().split():
                found[test] = name
        return found

    def _stestr(
        self, *arguments: str, stdout: int | IO[str] | None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [
                "env",
                f"TEMPEST_CONFIG_DIR={self._workspace / 'etc'}",
                "TEMPEST_CONFIG=tempest.conf",
                self._settings.program("stestr"),
                *arguments,
            ],
            cwd=self._workspace,
            stdout=stdout,
            stderr=subprocess.STDOUT if arguments[0] == "run" else None,
            text=True,
            check=False,
        )

    def _sections(self) -> Mapping[str, Mapping[str, object]]:
        settings = self._settings
        cloud = stack_cloud.Cloud(settings)
        image, other_image = (cloud.image_id(name) for name in stack_cloud.IMAGES)
        keystone = settings.url("keystone") + "/v3"
        region = {"region": stack_settings.REGION}
        features = dict.fromkeys(_ON, "true") | dict.fromkeys(_OFF, "false")
        nova = configuration.control_plane(settings, "nova-scheduler-1")
        filters = str(nova["filter_scheduler"]["enabled_filters"])
        services = {"nova": True, "neutron": True, "glance": True, "cinder": False}
        return {
            "DEFAULT": {"log_file": self._workspace / "tempest.log"},
            "oslo_concurrency": {"lock_path": self._workspace / "lock"},
            "auth": {
                "use_dynamic_credentials": "true",
                "tempest_roles": "member",
                "create_isolated_networks": "false",
                "admin_username": "admin",
                "admin_password": stack_settings.PASSWORD,
                "admin_project_name": "admin",
                "admin_domain_name": "Default",
            },
            "identity": {
                "auth_version": "v3",
                "uri_v3": keystone,
                "v3_endpoint_type": "publicURL",
                **region,
            },
            "identity-feature-enabled": {"api_v2": "false", "api_v3": "true"},
            "service_available": {**services, "swift": False, "horizon": False},
            "validation": {"run_validation": "false"},
            "network": {"shared_physical_network": "true", **region},
            "network-feature-enabled": {
                "floating_ips": "false",
                "port_security": "true",
                "api_extensions": ("port-security,security-group,binding,allowed-address-pairs"),
            },
            "compute": {
                "image_ref": image,
                "image_ref_alt": other_image,
                "flavor_ref": "42",
                "flavor_ref_alt": "84",
                "fixed_network_name": stack_cloud.NETWORK,
                "min_compute_nodes": 2,
                "build_timeout": 90,
                "build_interval": 1,
                "min_microversion": "2.1",
                "max_microversion": "latest",
                **region,
            },
            "compute-feature-enabled": {**features, "scheduler_enabled_filters": filters},
            "image": region,
            "image-feature-enabled": {"import_image": "false"},
            # The scenarios of nova_nodb_scheduler.tempest_plugin.
            "nodb": {
                "exact_capacity": str(settings.uses_plugin("nova-scheduler-1")).lower(),
                "evacuate": "true",
            },
            "enforce_scope": {"nova": "true", "neutron": "true"},
        }


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the return value is the exit status."""
    options = _parser().parse_args(arguments)
    tempest = Tempest(stack_module.Stack.existing(options.state))
    return int(options.act(tempest, options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tools/tempest.sh", description=__doc__)
    state = stack_settings.default_state_directory()
    parser.add_argument("--state", type=pathlib.Path, default=state, help="default: %(default)s")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="names of the tests")
    listing.add_argument("regex", nargs="?", default=SELECTION)
    listing.set_defaults(act=_list)
    run = commands.add_parser("run", help="run tests, file the results under a tag")
    run.add_argument("tag")
    run.add_argument("--regex", default=SELECTION)
    run.add_argument("--load-list", type=pathlib.Path)
    run.add_argument("--concurrency", type=int, default=3)
    run.add_argument("--none-may-fail", action="store_true", help="status 1 if any test failed")
    run.set_defaults(act=_run)
    compare = commands.add_parser("compare", help="tests whose result differs")
    compare.add_argument("first")
    compare.add_argument("second")
    compare.set_defaults(act=_compare)
    return parser


def _list(tempest: Tempest, options: argparse.Namespace) -> int:
    tempest.configure()
    print("\n".join(tempest.tests(options.regex)))
    return 0


def _run(tempest: Tempest, options: argparse.Namespace) -> int:
    tempest.configure()
    results = tempest.run(options.tag, options.regex, options.load_list, options.concurrency)
    print(", ".join(f"{name} {len(tests)}" for name, tests in results.items()))
    print("".join(f"failed: {test}\n" for test in results["fail"]), end="")
    failed = options.none_may_fail and results["fail"]
    return 0 if results["pass"] and not failed else 1


def _compare(tempest: Tempest, options: argparse.Namespace) -> int:
    differences = tempest.difference(options.first, options.second)
    for test, before, after in differences:
        print(f"{before} -> {after}: {test}")
    return 1 if differences else 0


def _lists(stream: pathlib.Path) -> dict[str, list[str]]:
    with stream.open("rb") as file:
        results = _Results()
        subunit.ByteStreamToStreamResult(file).run(results)
    return {
        name: sorted(_with_status(results.of_test.items(), name))
        for name in ("pass", "fail", "skip")
    }


def _with_status(items: Iterable[tuple[str, str]], name: str) -> list[str]:
    return [test for test, status in items if _STATUS_NAMES.get(status) == name]


class _Results(testtools.StreamResult):  # type: ignore[misc]
    """Last final status of each test."""

    def __init__(self) -> None:
        super().__init__()
        self.of_test: dict[str, str] = collections.OrderedDict()

    def status(
        self, test_id: str | None = None, test_status: str | None = None, **_more: object
    ) -> None:
        if test_id and test_status in _STATUS_NAMES:
            self.of_test[test_id] = test_status


if __name__ == "__main__":
    sys.exit(main())
