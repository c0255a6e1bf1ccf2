# SPDX-License-Identifier: Apache-2.0
"""A Prometheus that scrapes the stack, with the shipped alert rules."""

import json
import pathlib
import shutil
import subprocess

from tools.stack import settings as stack_settings

_RULES = pathlib.Path(__file__).resolve().parents[2] / (
    "etc/nova-nodb-scheduler/prometheus-rules.yaml"
)
_SERVICES = ("metrics", "conductor-metrics", "api-metrics")


def write(settings: stack_settings.Settings) -> pathlib.Path:
    """Write Prometheus' configuration and return its path."""
    settings.etc.mkdir(parents=True, exist_ok=True)
    targets = [f"127.0.0.1:{settings.port(name)}" for name in _SERVICES]
    path = settings.etc / "prometheus.yaml"
    # JSON is YAML.
    path.write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "5s", "evaluation_interval": "5s"},
                "rule_files": [str(_RULES)],
                "scrape_configs": [
                    {"job_name": "nova-nodb", "static_configs": [{"targets": targets}]}
                ],
            },
            indent=1,
        )
        + "\n"
    )
    return path


def run(settings: stack_settings.Settings) -> int:
    """Run Prometheus until it is ended; returns its exit status.

    :raises LookupError: it is not installed
    """
    if shutil.which("prometheus") is None:
        raise LookupError("prometheus is not installed: bindep stack names the packages")
    url = settings.url("prometheus")
    print(f"{url}/alerts; draw the board: python -m tools.board --prometheus {url}", flush=True)
    command = [
        "prometheus",
        f"--config.file={write(settings)}",
        f"--storage.tsdb.path={settings.state / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{settings.port('prometheus')}",
        "--log.level=warn",
    ]
    try:
        return subprocess.run(command, check=False).returncode
    except KeyboardInterrupt:
        return 0
