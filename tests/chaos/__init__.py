# SPDX-License-Identifier: Apache-2.0
"""Random faults on a real control plane whose room is short, and what stands in its databases.

    tools/chaos.sh [--seed N] [--rounds N] [--seconds N] [--backend NAME] [--faults KIND,...]
                   [--stock] [--replay] [--short] [--json FILE] [--file]

Clients create, delete, resize and migrate servers, alone, several at once and in groups, while
what a plan says is done to services, to the back end and to the network. All of a round's plan is
drawn from its seed beforehand. What is found is read from Placement's and Nova's tables alone.

| module | duty |
|---|---|
| ``plan`` | draws a round's faults from its seed |
| ``injection`` | carries a plan out; starts again what ended by itself |
| ``links`` | connections of schedulers that can be cut |
| ``backends`` | the synchronizer's back ends, as servers that can be hurt |
| ``clients`` | what is asked for, by many at once |
| ``snapshot`` | what all the databases say at one moment |
| ``audit`` | what is wrong in a snapshot |
| ``ledger`` | samples, and keeps what was wrong in any |
| ``logs`` | why requests left memory, and what Nova itself left, by the services' logs |
| ``rounds`` | one round from an empty cloud to an empty cloud |
| ``deployment`` | the stack as a series of rounds wants it |
| ``regressions`` | seeds that found something |
| ``report`` | tables for people, JSON and reStructuredText for files |
"""
