"""Augmentations, one file each: random changes of training images."""
