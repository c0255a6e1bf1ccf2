# SPDX-License-Identifier: Apache-2.0
"""What a deployment looks like, put together from the back end's records and schedulers' answers.
The status command, the upgrade check and the doctor judge it. Imports cmd.framework.
"""
