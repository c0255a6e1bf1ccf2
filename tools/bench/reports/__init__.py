# SPDX-License-Identifier: Apache-2.0
"""Results on disk, and what is shown of them: tables, charts, the documents' generated part.

Called by the command line; imports the benchmark's options.
"""
