# SPDX-License-Identifier: Apache-2.0
"""What Nova writes into its databases becomes records, and is proved to have become records.
Runs in conductors, nova-api and nova-manage; schedulers use the proof alone.
Imports the synchronizer and Nova; none of the adapter's other packages.
"""
