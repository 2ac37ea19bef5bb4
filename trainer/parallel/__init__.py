"""What strategies are built from: pipeline stages, tensor-parallel layers, sharded replicas, RPC stages."""
