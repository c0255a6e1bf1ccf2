# SPDX-License-Identifier: Apache-2.0
"""Whether anybody hears what Nova's scheduler notifies of.

Nova makes two payloads for every request, of the whole request, and hands them to
the drivers of ``[oslo_messaging_notifications]``. A driver that sends nothing is
given them too: they are a quarter of what a request costs the scheduler.
"""

from __future__ import annotations

from typing import Any

from nova import rpc
from oslo_messaging.notify import _impl_noop, notifier

from nova_nodb_scheduler.nova_adapter import activation

#: Drivers that do nothing with what they get.
_SILENT = (_impl_noop.NoOpDriver, activation.ActivationDriver)


def are_heard(own: Any) -> bool:
    """Tell whether a notification of the scheduler, of either format, may reach anybody.

    True wherever that is not known to be otherwise.

    :param own: the scheduler manager's notifier, of the unversioned format
    """
    return not (_is_silent(getattr(own, "notifier", None)) and _is_silent(rpc.NOTIFIER))


def _is_silent(found: Any) -> bool:
    # A class of another's may do with a notification what it likes.
    if type(found).__module__ != notifier.__name__ or not isinstance(found, notifier.Notifier):
        return False
    return all(type(each.obj) in _SILENT for each in found._driver_mgr.extensions)
