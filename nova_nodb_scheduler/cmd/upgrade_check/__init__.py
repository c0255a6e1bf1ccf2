# SPDX-License-Identifier: Apache-2.0
"""The upgrade check of nova-nodb-status: what it reads, and how it judges services and cells.
Called by cmd.status and by the doctor; imports cmd.overview and cmd.framework.
"""
