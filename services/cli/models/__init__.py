"""Where models come from, and how they get onto this machine."""
