# SPDX-License-Identifier: Apache-2.0
"""As much of glance's API as Nova's own client needs to read an image, over HTTP."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
from collections.abc import Mapping
from typing import Any

_SCHEMA = {"name": "image", "properties": {}, "additionalProperties": {"type": "string"}}
_MOMENT = "2026-01-02T03:04:05Z"


class Glance:
    """Serves some images until it is closed.

    It accepts by itself: what the standard library's servers poll with stops
    all threads where eventlet has patched them.

    :param images: properties by uuid
    """

    def __init__(self, images: Mapping[str, Mapping[str, str]]) -> None:
        self.asked: list[str] = []
        self._answers: dict[str, Any] = {"/v2/schemas/image": _SCHEMA}
        for key, properties in images.items():
            self._answers[f"/v2/images/{key}"] = {
                "id": key,
                "name": "an image",
                "status": "active",
                "visibility": "public",
                "protected": False,
                "container_format": "bare",
                "disk_format": "qcow2",
                "min_disk": 0,
                "min_ram": 0,
                "size": 1,
                "tags": [],
                "created_at": _MOMENT,
                "updated_at": _MOMENT,
                **properties,
            }
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, name="glance", daemon=True).start()

    def close(self) -> None:
        """Accept no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                answer = outer._answers.get(self.path)
                body = json.dumps(answer).encode()
                self.send_response(404 if answer is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args: Any) -> None:
                pass

        while True:
            try:
                accepted, address = self._listener.accept()
            except OSError:
                return
            with accepted, contextlib.suppress(OSError):
                Handler(accepted, address, None)  # type: ignore[arg-type]
