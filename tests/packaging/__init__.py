"""Tests of what is installed and deployed: distributions, the image, manifests and units."""
