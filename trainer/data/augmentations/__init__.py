"""Augmentations: random changes of training images, one file each."""
