# SPDX-License-Identifier: Apache-2.0
"""What Nova's scheduler reads for a request, answered from memory instead of the databases.
Called by the scheduler manager and by decisions; imports conversion and reporting.
"""
