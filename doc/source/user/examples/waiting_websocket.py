# SPDX-License-Identifier: Apache-2.0
"""Say what becomes of one's requests that wait, as soon as Zaqar's WebSocket server tells it.

python waiting_websocket.py ws://HOST:9000 PROJECT_ID [QUEUE]

Needs autobahn, and a token of the project in OS_TOKEN (``openstack token issue``). The
server closes the connection when the token ends.
"""

import asyncio
import json
import os
import sys
import urllib.parse
import uuid

from autobahn.asyncio import websocket

URL, PROJECT = sys.argv[1:3]
QUEUE = sys.argv[3] if len(sys.argv) > 3 else "nodb-waiting"
TOKEN = os.environ.get("OS_TOKEN", "")
HEADERS = {"Client-ID": str(uuid.uuid4()), "X-Project-ID": PROJECT}


class Listener(websocket.WebSocketClientProtocol):
    """Subscribes to the queue, and says what comes."""

    def ask(self, action: str, headers: dict[str, str], body: dict[str, object]) -> None:
        asked = {"action": action, "headers": headers, "body": body}
        self.sendMessage(json.dumps(asked).encode())

    def onOpen(self) -> None:  # noqa: N802, as autobahn names it
        if TOKEN:
            self.ask("authenticate", HEADERS | {"X-Auth-Token": TOKEN}, {})
        else:
            self.subscribe()

    def subscribe(self) -> None:
        # Without a subscriber's URL it is this connection that is told.
        self.ask("subscription_create", HEADERS, {"queue_name": QUEUE, "ttl": 3600})

    def onMessage(self, payload: bytes, is_binary: bool) -> None:  # noqa: N802
        message = json.loads(payload)
        if "headers" not in message:
            event = message["body"]
            print(event["at"], event["event"], *event["servers"], event["reason"], flush=True)
        elif message["headers"]["status"] >= 400:
            sys.exit(f"refused: {message['body']}")
        elif message["request"]["action"] == "authenticate":
            self.subscribe()
        else:
            print("subscribed", flush=True)

    def onClose(self, was_clean: bool, code: int, reason: str) -> None:  # noqa: N802
        sys.exit(f"closed: {reason}")


async def main() -> None:
    place = urllib.parse.urlsplit(URL)
    factory = websocket.WebSocketClientFactory(URL)
    factory.protocol = Listener
    loop = asyncio.get_running_loop()
    await loop.create_connection(factory, place.hostname, place.port)
    await loop.create_future()


if __name__ == "__main__":
    asyncio.run(main())
