# SPDX-License-Identifier: Apache-2.0
"""From one back end to another while both are in use: the fence, and who carries the records.
Called by the synchronizer commands; the fence by whoever opens a driver.
Imports the contract and what drivers share, nothing of claims or replication.
"""
