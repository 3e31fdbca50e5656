"""What a run found, as data: the one file that reports, comparisons and other tools read. Nothing here knows pytest."""
