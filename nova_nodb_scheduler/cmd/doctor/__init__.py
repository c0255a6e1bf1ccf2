# SPDX-License-Identifier: Apache-2.0
"""nova-nodb-manage doctor: what an operator should mend, found without the message bus."""
