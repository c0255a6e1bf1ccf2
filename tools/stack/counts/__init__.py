# SPDX-License-Identifier: Apache-2.0
"""What a stack's processes did: counted by MariaDB, RabbitMQ and Placement, or told by the plugin.
Called by the demonstration, the faults and the command line; imports the stack and what it is of.
"""
