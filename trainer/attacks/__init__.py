"""Attacks: what Byzantine nodes do, one file each."""
