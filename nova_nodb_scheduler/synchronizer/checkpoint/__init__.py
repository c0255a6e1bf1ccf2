# SPDX-License-Identifier: Apache-2.0
"""A scheduler's host states in a local file, and the place in the feed from which they go on.
Called by the replicator, which begins with one, and by a worker that writes them. Knows of a back
end its driver's name and its epoch; what is read is believed by its epoch and its checksums.
"""
