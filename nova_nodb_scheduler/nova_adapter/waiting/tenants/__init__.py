# SPDX-License-Identifier: Apache-2.0
"""Projects are told of their requests that wait, through Zaqar.

Conductors and schedulers hand events in; it imports what an event is, and nothing else of
the adapter.
"""
