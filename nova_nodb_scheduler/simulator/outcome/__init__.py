# SPDX-License-Identifier: Apache-2.0
"""What runs came to: figures as a document, tables and charts, and how small a fleet could be.
Called by the campaign and by nova-nodb-simulate; imports simulator.run and what it stands on.
"""
