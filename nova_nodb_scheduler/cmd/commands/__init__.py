# SPDX-License-Identifier: Apache-2.0
"""The commands of nova-nodb-manage, but for the doctor: one module for what one works on.
Listed by cmd.application; imports cmd.overview and cmd.framework, and of Nova what each needs.
"""
