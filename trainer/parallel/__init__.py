"""The engines that strategies stand on: pipeline stages, tensor-parallel layers, sharding, RPC stages."""
