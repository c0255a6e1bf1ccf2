# SPDX-License-Identifier: Apache-2.0
"""What the services' own logs tell of a round, which no database does."""
