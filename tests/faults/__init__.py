# SPDX-License-Identifier: Apache-2.0
"""Faults on a real control plane: servers are placed all the same, and nothing stays wrong.

    tools/faults.sh [--only N,...] [--short] [--state DIR] [--venv DIR] [--json] [--file]

The stack (tools/stack.sh) is taken as it runs; without one, one is brought up with two conductors
a cell and taken down at the end.

| module | duty |
|---|---|
| ``trial`` | what a scenario does with the stack: boots, waits, compares, notes |
| ``watch`` | asks every scheduler, all the time, what it can prove and where it left memory |
| ``leftovers`` | what a fault must not leave behind |
| ``scenarios`` | the list of the scenarios |
| ``processes``, ``backends``, ``plugin_lines``, ``hosts``, ``moves`` | the scenarios |
| ``traffic`` | servers that are booted and deleted all the time |
| ``report`` | tables for people, JSON and reStructuredText for files |
"""
