# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus on loopback, and the project's alert rules at a test's pace."""

from __future__ import annotations

import json
import pathlib
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from nova_nodb_scheduler.testing import server_processes

ETC = pathlib.Path(__file__).parents[3] / "etc/nova-nodb-scheduler"
RULES = ETC / "prometheus-rules.yaml"
BOARD = ETC / "grafana-dashboard.json"

#: Between two scrapes; the shortest at which a busy machine still answers in time.
SCRAPE_SECONDS = 1
#: What stands for the rules' windows of minutes: some scrapes.
WINDOW_SECONDS = 8


def rules() -> dict[str, Any]:
    """Return the rules as they are shipped, by the alerts' names."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def hurried_rules() -> str:
    """Return the rules with windows and patience of seconds, and nothing else changed.

    An age in seconds that stands in an expression is one of patience, too.
    """
    shipped = yaml.safe_load(RULES.read_text())
    for group in shipped["groups"]:
        for rule in group["rules"]:
            rule["expr"] = hurried(rule["expr"]).replace("_seconds > 30", "_seconds > 3")
            if "for" in rule:
                rule["for"] = "2s"
    return yaml.safe_dump(shipped)


def hurried(expression: str) -> str:
    """Return an expression whose windows are of seconds, of the longer ones of a minute."""
    longer = re.sub(r"\[(10|15|30)m\]", "[1m]", expression)
    return longer.replace("[5m]", f"[{WINDOW_SECONDS}s]")


class PrometheusServer(server_processes.ServerProcess):
    """Scrapes some ports of 127.0.0.1.

    :param ports: of the job ``nova-nodb``
    :param rules_text: a file of rules
    """

    def __init__(self, ports: Sequence[int], rules_text: str) -> None:
        super().__init__()
        self._ports = ports
        self._rules_text = rules_text

    def initialize(self) -> None:
        (self.directory / "rules.yaml").write_text(self._rules_text)
        every = f"{SCRAPE_SECONDS}s"
        job = {
            "job_name": "nova-nodb",
            "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in self._ports]}],
        }
        config = {
            "global": {
                "scrape_interval": every,
                "scrape_timeout": every,
                "evaluation_interval": every,
            },
            "rule_files": ["rules.yaml"],
            "scrape_configs": [job],
        }
        (self.directory / "prometheus.yaml").write_text(yaml.safe_dump(config))

    def command(self) -> Sequence[str]:
        return (
            server_processes.find_program("prometheus"),
            f"--config.file={self.directory / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address={self.address}",
            "--log.level=warn",
        )

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=5) as got:
                return got.status == 200
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an instant query: series with their values.

        :raises AssertionError: Prometheus refuses it
        """
        return self._get("query", query=expression)["result"]

    def query_range(
        self, expression: str, start: float, end: float, step_seconds: float
    ) -> list[dict[str, Any]]:
        """Return the result of a query over a span of time."""
        return self._get("query_range", query=expression, start=start, end=end, step=step_seconds)[
            "result"
        ]

    def firing(self) -> Mapping[str, list[dict[str, Any]]]:
        """Return the alerts that fire, by their names."""
        found: dict[str, list[dict[str, Any]]] = {}
        for each in self._get("alerts")["alerts"]:
            if each["state"] == "firing":
                found.setdefault(each["labels"]["alertname"], []).append(each)
        return found

    def unhealthy_rules(self) -> list[str]:
        """Return the errors of rules at their last evaluation."""
        return [
            f"{rule['name']}: {rule['lastError']}"
            for group in self._get("rules")["groups"]
            for rule in group["rules"]
            if rule.get("lastError")
        ]

    def _get(self, what: str, **arguments: Any) -> Any:
        asked = urllib.parse.urlencode(arguments)
        try:
            with urllib.request.urlopen(
                f"http://{self.address}/api/v1/{what}?{asked}", timeout=20
            ) as got:
                return json.load(got)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{arguments}: {error.read().decode()}") from error
