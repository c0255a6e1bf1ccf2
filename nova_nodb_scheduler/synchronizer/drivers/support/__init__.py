# SPDX-License-Identifier: Apache-2.0
"""What drivers share: options, names of records, opening, epochs, polling, the wire.
Drivers of this project and of others call it; it may import the contract and the model.
"""
