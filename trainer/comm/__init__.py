"""Communication between ranks: one file per transport, traffic counts, straggler attribution."""
