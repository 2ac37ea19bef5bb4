"""Gradient compressions: the mean gradient from fewer bytes than an all-reduce sends, one file each."""
