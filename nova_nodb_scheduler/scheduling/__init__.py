# SPDX-License-Identifier: Apache-2.0
"""What a scheduler knows of a cloud and how it decides, with no Nova installed and no I/O.
Layers: filters | weighers > facts | pipeline | waiting > reservations > namespaces > frame.
Called by the adapter, the simulator and the synchronizer; imports the store and the model.
"""
