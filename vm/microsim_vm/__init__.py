"""The microVM layer: templates, images, engines, snapshots, forks. Knows nothing of pytest."""
