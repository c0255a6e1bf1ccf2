# SPDX-License-Identifier: Apache-2.0
"""The way of a cell's compute nodes from Nova's table into records, and back, step by step.
Called by commands while services are stopped; imports the records' modules beside it, and
Alembic for what is done to the table.
"""
