"""Transports: one Communicator each, over which strategies exchange tensors."""
