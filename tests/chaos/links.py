# SPDX-License-Identifier: Apache-2.0
"""Connections of each scheduler to what it stands on, through proxies that can be cut."""

import contextlib
from collections.abc import Mapping, Sequence

from nova_nodb_scheduler.testing import proxy as tcp_proxy
from tests.chaos import backends, plan
from tools.stack import configuration
from tools.stack import settings as stack_settings

Options = dict[str, dict[str, str]]


class Links(contextlib.ExitStack):
    """A proxy for each scheduler and peer, while its with block runs.

    :param peers: of :data:`.plan.PEERS`, those that schedulers are to be cut off from
    :param backend: the synchronizer's, None without the plugin
    """

    def __init__(
        self,
        settings: stack_settings.Settings,
        peers: Sequence[str],
        backend: backends.BackEnd | None,
    ) -> None:
        super().__init__()
        self._settings = settings
        self._backend = backend
        self._proxies: dict[tuple[str, str], tcp_proxy.Proxy] = {}
        for peer in peers:
            for scheduler in settings.scheduler_names:
                proxy = tcp_proxy.Proxy(self._port(peer))
                self._proxies[scheduler, peer] = self.enter_context(proxy)

    def _port(self, peer: str) -> int:
        if peer != plan.BACKEND:
            return self._settings.port(peer)
        assert self._backend is not None and self._backend.port is not None
        return self._backend.port

    def cut(self, scheduler: str, peer: str, *, holds_back: bool) -> None:
        """Let no byte pass from now on, or break every connection and refuse new ones."""
        proxy = self._proxies[scheduler, peer]
        if holds_back:
            proxy.freeze()
        else:
            proxy.refuse()

    def mend(self, scheduler: str, peer: str) -> None:
        """Let everything pass, what was held back first."""
        proxy = self._proxies[scheduler, peer]
        proxy.accept()
        proxy.thaw()

    def options(self) -> Mapping[str, Options]:
        """Return what each scheduler's nova.conf says to go through the proxies."""
        return {name: self._of(name) for name in self._settings.scheduler_names}

    def _of(self, scheduler: str) -> Options:
        found: Options = {}
        for (name, peer), proxy in self._proxies.items():
            if name != scheduler:
                continue
            if peer == plan.BACKEND:
                assert self._backend is not None
                more = self._backend.options(scheduler, proxy.port)
            else:
                more = self._to(scheduler, peer, proxy.port)
            for section, values in more.items():
                found.setdefault(section, {}).update(values)
        return found

    def _to(self, scheduler: str, peer: str, port: int) -> Options:
        def behind(url: str) -> str:
            return url.replace(f"127.0.0.1:{self._settings.port(peer)}", f"127.0.0.1:{port}")

        if peer == "placement":
            return {"placement": {"endpoint_override": behind(self._settings.url(peer))}}
        if peer == "keystone":
            url = behind(self._settings.url(peer)) + "/v3"
            return {name: {"auth_url": url} for name in ("placement", "service_user")}
        if peer == "rabbitmq":
            url = configuration.transport_url(self._settings, scheduler, "")
            return {"DEFAULT": {"transport_url": behind(url)}}
        return {
            section: {
                "connection": behind(
                    configuration.database_url(self._settings, scheduler, database)
                )
            }
            for section, database in (("database", "nova_cell0"), ("api_database", "nova_api"))
        }
