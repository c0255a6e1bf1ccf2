# SPDX-License-Identifier: Apache-2.0
"""What lists of hosts cost who answers: pages over RPC, and nova-api's hypervisors.
Each module is run by itself; imports the package, and one of them Nova.
"""
