# SPDX-License-Identifier: Apache-2.0
"""Say what becomes of one's requests that wait, by asking Zaqar every few seconds.

python waiting_poll.py [QUEUE]

Needs openstacksdk, and the cloud in OS_CLOUD or in the variables of an openrc file.
"""

import sys
import time
import uuid

import openstack

QUEUE = sys.argv[1] if len(sys.argv) > 1 else "nodb-waiting"
SECONDS = 5


def main() -> None:
    zaqar = openstack.connect().message
    # Any uuid, the same for all that one program asks.
    headers = {"Client-ID": str(uuid.uuid4())}
    known: set[str] = set()
    while True:
        # What is claimed is nobody else's for a minute: several programs share the work.
        claimed = zaqar.post(
            f"/queues/{QUEUE}/claims", json={"ttl": 60, "grace": 60}, headers=headers
        )
        claimed.raise_for_status()
        # 204: there is nothing.
        messages = claimed.json()["messages"] if claimed.status_code == 201 else []
        for message in messages:
            event = message["body"]
            # An event may come twice.
            if event["id"] not in known:
                known.add(event["id"])
                print(event["at"], event["event"], *event["servers"], event["reason"], flush=True)
            # Only now: what is not deleted comes again when the claim ends.
            zaqar.delete(message["href"].removeprefix("/v2"), headers=headers)
        if not messages:
            time.sleep(SECONDS)


if __name__ == "__main__":
    main()
