# SPDX-License-Identifier: Apache-2.0
"""The back end of a run: which driver, with which options, and its making in each process."""

from __future__ import annotations

import pathlib
import urllib.parse
from collections.abc import Mapping, Sequence

import attrs
from oslo_config import cfg

from nova_nodb_scheduler import errors
from nova_nodb_scheduler.synchronizer import contract, loader

DEFAULT_DRIVER = "sqlalchemy"


@attrs.frozen(kw_only=True)
class BackendChoice:
    """Sent to every process of a run, each of which makes its own driver.

    :param options: of the driver's own group, by name
    :param config_files: read before the options
    """

    driver: str = DEFAULT_DRIVER
    options: Mapping[str, str] = attrs.field(factory=dict)
    config_files: tuple[str, ...] = ()

    def make(self) -> contract.Synchronizer:
        """Return the driver, not opened.

        :raises ConfigurationError: the driver, or an option of it, is unknown
            or cannot work
        """
        conf = cfg.ConfigOpts()
        driver_class = loader.load_class(self.driver)
        try:
            conf(args=[], default_config_files=list(self.config_files), default_config_dirs=[])
        except (cfg.ConfigFilesNotFoundError, cfg.ConfigFileParseError) as error:
            raise errors.ConfigurationError(
                "--config-file", ", ".join(self.config_files), str(error)
            ) from error
        driver_class.register_opts(conf)
        known = {
            option.name: (group, option)
            for group, found in driver_class.list_opts()
            for option in found
        }
        for name, value in self.options.items():
            if name not in known:
                raise errors.ConfigurationError(
                    "--option",
                    name,
                    f"{self.driver} has {', '.join(sorted(known)) or 'no options'}.",
                )
            group, option = known[name]
            try:
                typed = option.type(value)
            except ValueError as error:
                shown = f"{name}={value}" if not option.secret else f"{name}=(hidden)"
                raise errors.ConfigurationError("--option", shown, f"{error}.") from error
            conf.set_override(name, [typed] if option.multi else typed, group)
        made = loader.load(self.driver, conf)
        if not made.capabilities.shared:
            raise errors.ConfigurationError(
                "--synchronizer",
                self.driver,
                "its records are seen by one process only, and a run has several; choose another.",
            )
        return made


def secrets_among(driver: str, options: Mapping[str, str]) -> list[str]:
    """Return which options of a driver hold a secret, of those that are given.

    The SQL driver's URL is secret only where there is a password in it.

    :raises ConfigurationError: the driver is unknown
    """
    secret = {
        option.name
        for _group, found in loader.load_class(driver).list_opts()
        for option in found
        if option.secret
    }
    return sorted(
        name
        for name, value in options.items()
        if name in secret and ("://" not in value or _has_password(value))
    )


def _has_password(url: str) -> bool:
    try:
        return urllib.parse.urlsplit(url).password is not None
    except ValueError:
        return True


def in_directory(directory: pathlib.Path) -> BackendChoice:
    """Return the back end that needs no server: an SQLite file."""
    return BackendChoice(
        options={
            "connection": f"sqlite:///{directory / 'simulation.sqlite'}",
            # The shortest: what a run shows is to be the protocol's, not the poll's.
            "poll_interval_seconds": "0.02",
        }
    )


def parse_options(texts: Sequence[str]) -> dict[str, str]:
    """Read ``name=value`` texts.

    :raises ConfigurationError: one has no name or no ``=``
    """
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise errors.ConfigurationError("--option", text, "write it as name=value.")
        found[name.strip()] = value
    return found
