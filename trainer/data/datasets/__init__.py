"""Datasets, one file each (fashion_mnist shares mnist's file format and class file)."""
