"""Data: datasets, partitioners, augmentations, and the certificate of what each rank trained on."""
