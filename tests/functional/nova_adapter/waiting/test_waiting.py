# SPDX-License-Identifier: Apache-2.0
"""Runs Nova's services with requests that wait, each module in a process of its own."""

from tests.own_process import cases


class DyingConductorsTest(cases.OwnProcessCase):
    module = f"{__package__}.deaths.dying_conductors"
    parts = 2


class MoreDyingConductorsTest(DyingConductorsTest):
    part = 1


class GivenUpServersTest(cases.OwnProcessCase):
    module = f"{__package__}.deaths.given_up_servers"


class ParkedServersTest(cases.OwnProcessCase):
    module = f"{__package__}.parked_servers"


class AskingUsersTest(cases.OwnProcessCase):
    module = f"{__package__}.asking_users"


class MovingServersTest(cases.OwnProcessCase):
    module = f"{__package__}.moving_servers"


class QueuedServersTest(cases.OwnProcessCase):
    """With the queue's scheduler, and its conductor."""

    module = f"{__package__}.queued_servers"
